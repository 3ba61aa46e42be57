"""The content of a request's body, so that two programs that write it can compare it by a digest.

Cache breakpoints in messages are not part of it: they move from request to request, and a session's log does not have
them. A client that moves one may write a text as a block while it is marked, and as a text later, so both count as
equal. White space and the order of members do not count either.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

ROOTS: Final = ("messages", "contents", "input")
"""Where the shapes of bodies have their messages; the first that a body has counts."""
MARKS: Final = frozenset({"cache_control", "cachePoint"})
"""Cache breakpoints."""


def content_sha256(body: bytes) -> str:
    """Return the SHA-256 of a body's content; that of its bytes where it is no JSON object."""
    try:
        members = msgspec.json.decode(body, type=dict[str, Any])
        for root in ROOTS:
            if root in members:
                members[root] = unmarked(members[root], compared=True)
        content = msgspec.json.encode(members, order="deterministic")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        content = body
    return hashlib.sha256(content).hexdigest()


def unmarked(value: Any, *, compared: bool = False) -> Any:  # noqa: ANN401  JSON
    """Return a message without cache breakpoints; if ``compared``, its text becomes a block."""
    if isinstance(value, list):
        kept = (each for each in value if not (isinstance(each, dict) and each and each.keys() <= MARKS))
        return [unmarked(each, compared=compared) for each in kept]
    if isinstance(value, dict):
        found = {name: unmarked(each, compared=compared) for name, each in value.items() if name not in MARKS}
        if compared and isinstance(found.get("content"), str):
            found["content"] = [{"type": "text", "text": found["content"]}]
        return found
    return value
