"""The headers that a gateway forwards, in both directions.

RFC 9110, 7.6.1: hop-by-hop headers belong to one connection. All other headers pass unchanged, repeated ones in their
order, except for those below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from multidict import CIMultiDict, MultiMapping

from reknit.topics.trace import CARRIED

# The gateway's own key. It is never forwarded.
KEY: Final = "x-reknit-key"
VIA: Final = "1.1 reknit"

_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
# Credentials of a client, in the headers of all providers. A gateway with a key of its own replaces them.
CREDENTIALS: Final = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key", "x-amz-security-token"})
# Digests of a body; they are wrong once it was repaired.
_OF_BODY: Final = frozenset({"content-encoding", "content-md5", "digest", "content-digest", "repr-digest"})
# The client of the upstream writes these itself.
_WRITTEN: Final = frozenset({"host", "content-length", "via", "expect"})
_NOT_FORWARDED: Final = _HOP_BY_HOP | _WRITTEN | {KEY}
# An answer must not lead clients around the gateway, and cookies and keys of one client must not reach another.
_NOT_RETURNED: Final = _HOP_BY_HOP | {"alt-svc", "set-cookie", "set-cookie2"} | CREDENTIALS


def to_upstream(
    given: MultiMapping[str], *, is_changed: bool, identity: bool, key: tuple[str, str] | None
) -> CIMultiDict[str]:
    """Return the headers of a forwarded request.

    Args:
        given: the client's headers.
        is_changed: the body was repaired, and is not compressed.
        identity: ask for an uncompressed answer, so that the gateway can read it and append an error event.
        key: name and value of a header with the gateway's own key, which replaces all credentials of the client.
    """
    dropped = _NOT_FORWARDED | _named(given.getall("connection", ()))
    if is_changed:
        dropped |= _OF_BODY
    if identity:
        dropped |= {"accept-encoding"}
    if key is not None:
        dropped |= CREDENTIALS
    headers = CIMultiDict((name, value) for name, value in given.items() if name.lower() not in dropped)
    if identity:
        headers["accept-encoding"] = "identity"
    if key is not None:
        headers[key[0]] = key[1]
    headers["via"] = ", ".join([*given.getall("via", ()), VIA])
    return headers


def with_changed_body(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """Return the headers of a forwarded request for another body, which is not compressed."""
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_BODY)


def in_trace(given: MultiMapping[str], trace: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers of a client with the trace of the call that the gateway makes for it."""
    headers = CIMultiDict((name, value) for name, value in given.items() if name.lower() not in CARRIED)
    headers.update(trace)
    return headers


def to_client(given: MultiMapping[str], *, may_grow: bool) -> CIMultiDict[str]:
    """Return the headers of an answer for the client; ``content-encoding`` stays.

    Args:
        given: the upstream's headers.
        may_grow: an error event may follow the upstream's bytes. Such an answer has no ``content-length``: after this
            number of bytes a client takes the answer for whole, and reads nothing more.
    """
    dropped = _NOT_RETURNED | _named(given.getall("connection", ()))
    if may_grow:
        dropped |= {"content-length"}
    return CIMultiDict((name, value) for name, value in given.items() if name.lower() not in dropped)


def passed_already(given: MultiMapping[str]) -> bool:
    """Return True if a gateway of this kind has forwarded the request: a configuration that forms a loop."""
    return any("reknit" in value.lower() for value in given.getall("via", ()))


def _named(values: Iterable[str]) -> frozenset[str]:
    """Return the names of headers that ``Connection`` declares as hop-by-hop."""
    return frozenset(name.strip().lower() for value in values for name in value.split(","))
