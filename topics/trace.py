"""W3C Trace Context in headers: which values are passed on (https://www.w3.org/TR/trace-context/).

``traceparent`` names the trace that a record belongs to and the span that wrote it; ``tracestate`` holds what tracing
systems add to that. A value that breaks the grammar is ignored, as the recommendation requires, and ``tracestate`` has
no meaning without a valid ``traceparent``. Outputs copy the values of the record that caused them, so that a replay
writes the same headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from reknit.topics.headers import TRACEPARENT, TRACESTATE, Headers, text_of

# Section 3.2: version, trace id, parent id, flags. Ids of zeros only are invalid, and so is version ff. A later version
# may add fields after a hyphen; version 00 has none.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})-[0-9a-f]{2}"
    r"(?P<more>-[\x21-\x7e]*)?"
)
# Section 3.3.1: a key and a value; a member may be empty.
_MEMBER: Final = re.compile(
    r"(?P<key>[a-z0-9][a-z0-9_\-*/@]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MOST_MEMBERS: Final = 32


def is_traceparent(text: str) -> bool:
    """Return True if this is a valid ``traceparent``."""
    found = _TRACEPARENT.fullmatch(text)
    return found is not None and not (found["version"] == "00" and found["more"] is not None)


def is_tracestate(text: str) -> bool:
    """Return True if this is a valid ``tracestate``: at most 32 members, each key once."""
    members = [member.strip(" \t") for member in text.split(",")]
    found = [_MEMBER.fullmatch(member) for member in members if member]
    keys = {member["key"] for member in found if member is not None}
    return len(found) <= _MOST_MEMBERS and len(keys) == len(found)


_GRAMMARS: Final = {TRACEPARENT: is_traceparent, TRACESTATE: is_tracestate}
CARRIED: Final = tuple(_GRAMMARS)
"""The names of the two headers."""


def breaks_grammar(name: str, value: bytes | None) -> bool:
    """Return True if a header is one of the two, and its value is not valid."""
    text = text_of(value)
    return name in _GRAMMARS and (text is None or not _GRAMMARS[name](text))


def trace_of(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return the trace headers of a record that its outputs copy; none without a valid ``traceparent``."""
    last = {name: value for name, value in headers if name in _GRAMMARS}
    found = tuple((name, value) for name, value in last.items() if not breaks_grammar(name, value))
    return found if any(name == TRACEPARENT for name, _ in found) else ()


def carried(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return the trace headers of a record as text, as HTTP and OpenTelemetry's propagators carry them."""
    return {name: (value or b"").decode() for name, value in trace_of(headers)}


def trace_headers(carrier: Mapping[str, str] | None) -> Headers:
    """Return the trace headers of a carrier as those of a record; what is not valid is left out."""
    given = {} if carrier is None else {name.lower(): value for name, value in carrier.items()}
    return trace_of((name, text.encode("utf-8", "replace")) for name, text in given.items())


def trace_id(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return the id of the trace that a record belongs to; "" without a valid one."""
    found = _TRACEPARENT.fullmatch(carried(headers).get(TRACEPARENT, ""))
    return "" if found is None else found["trace"]
