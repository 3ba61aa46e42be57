"""URLs in messages: without credentials, or only their host.

A URL may hold credentials: a user and a password before its host (RFC 3986, 3.2.1), a key or a signature in its query,
a token in its fragment. Code that prints a configured URL masks these parts.
Of the target of a redirect messages name the host only, since its path and query may hold a token.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Raw, json

HIDDEN: Final = "(hidden)"
# Names of this machine's own addresses.
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s\"'<>`]+)")
# The first of these ends the authority: user, host and port.
_AUTHORITY_ENDS: Final = re.compile(r"[/?#]")
_QUERY_VALUE: Final = re.compile(r"(?P<name>[^&=]*)(?P<equals>=?)[^&]*")
# `user:password@host:port` without a scheme, as in a list of brokers.
_BARE: Final = re.compile(r"[^\s,/@:\"']+:[^\s,/@\"']+@(?=\[?[\w.:-]+\]?:\d+)")
# JSON members whose value is a credential, such as those of an MCP server in `tools`. Compared in lower case without
# hyphens and underscores.
_SECRET_MEMBERS: Final = frozenset(
    {"authorization", "authorizationtoken", "apikey", "accesstoken", "token", "secret", "clientsecret", "password"}
    | {"headers"}
)
# An absolute URL, or one that only leaves out the scheme; and a scheme alone.
_ABSOLUTE: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//(?P<authority>[^/?#]*)")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_UNREADABLE: Final = "an unreadable address"
# A host name or an IP address, with or without a port.
_HOST: Final = re.compile(r"(?:[\w.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


def mask_urls(text: str) -> str:
    """Replace credentials in each URL of a text: the user part, each query value, the fragment."""
    if "@" not in text and "://" not in text:
        return text
    return _BARE.sub(f"{HIDDEN}@", _URL.sub(lambda found: found["scheme"] + _masked_rest(found["rest"]), text))


def _masked_rest(rest: str) -> str:
    found = _AUTHORITY_ENDS.search(rest)
    end = found.start() if found else len(rest)
    authority, remainder = rest[:end], rest[end:]
    _, at, host = authority.rpartition("@")
    if at:
        return f"{HIDDEN}@{host}{_masked_path(remainder)}"
    _, colon, port = authority.rpartition(":")
    if colon and not port.isdecimal() and not authority.endswith("]") and "@" in remainder:
        # The password has an unescaped `/`, `?` or `#`; the host follows the last `@`.
        return f"{HIDDEN}@{_masked_path(remainder.rpartition('@')[2])}"
    return authority + _masked_path(remainder)


def _masked_path(remainder: str) -> str:
    """Mask the part after the host. A comma-separated list may continue there with another URL."""
    before, sign, fragment = remainder.partition("#")
    path, mark, query = before.partition("?")
    masked = mask_urls(path) + mark + _QUERY_VALUE.sub(_masked_value, query)
    return masked + (f"#{HIDDEN}" if fragment else sign)


def _masked_value(found: re.Match[str]) -> str:
    if not found[0]:
        return ""
    return f"{found['name']}={HIDDEN}" if found["equals"] else HIDDEN


def masked(value: Any) -> Any:  # noqa: ANN401  anything that a configuration holds
    """Return a configuration value with its credentials masked: in URLs, and in members named for credentials."""
    match value:
        case str():
            return mask_urls(value)
        case Raw():
            return masked(json.decode(value))
        case dict():
            return {name: HIDDEN if _is_secret(name, member) else masked(member) for name, member in value.items()}
        case list() | tuple():
            return [masked(member) for member in value]
        case _:
            return value


def _is_secret(name: object, member: object) -> bool:
    if not isinstance(name, str) or not isinstance(member, str | dict | Raw):
        return False
    plain = json.decode(member) if isinstance(member, Raw) else member
    return isinstance(plain, str | dict) and name.lower().replace("-", "").replace("_", "") in _SECRET_MEMBERS


def host_of(location: str, base: str = "") -> str:
    """Return the host of a URL, with its port if it names one. A relative URL has the host of ``base``."""
    found = _ABSOLUTE.match(location.strip())
    if found is None:
        return host_of(base) if base and not _SCHEME.match(location.strip()) else _UNREADABLE
    host = found["authority"].rpartition("@")[2]
    return host if _HOST.fullmatch(host) else _UNREADABLE
