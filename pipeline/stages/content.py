"""The content of a request's body, so that two programs that write it can compare it by a digest.

Cache breakpoints in messages are not part of it: they move from request to request, and a session's log does not have
them. A client that moves one may write a text as a block while it is marked, and as a text later, so both count as
equal. White space and the order of members do not count either.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

ROOTS: Final = ("messages", "contents", "input")
"""Where the shapes of bodies have their messages; the first that a body has counts."""
MARKS: Final = frozenset({"cache_control", "cachePoint"})
"""Cache breakpoints."""
_MARK_NAMES: Final = tuple(name.encode() for name in sorted(MARKS))


# Memory of an entry besides its JSON before and after.
_ENTRY: Final = 250
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_items: Final = msgspec.json.Decoder(list[Raw]).decode
_any: Final = msgspec.json.Decoder().decode
_sorted: Final = msgspec.json.Encoder(order="deterministic").encode


class Compared(Struct, frozen=True):
    """The JSON by which a value is compared, and its SHA-256."""

    data: bytes
    sha256: bytes


class ComparedValues:
    """The values that were compared last, so that those which bodies repeat are read once.

    Args:
        most_bytes: of memory, by an estimate; values that were used least recently are forgotten first.
    """

    def __init__(self, most_bytes: int = 0) -> None:
        self._most_bytes, self._size = most_bytes, 0
        self._found: OrderedDict[bytes, Compared] = OrderedDict()

    def message(self, value: Raw) -> Compared:
        """Return a message without cache breakpoints, with each text as a block.

        Raises:
            MsgspecError, UnicodeError, RecursionError: it cannot be decoded.
        """
        return self._find(value, is_message=True)

    def content_sha256(self, body: bytes) -> str:
        """Return the SHA-256 of a body's content; that of its bytes where it is no JSON object."""
        try:
            members = {name: Raw(self._member(name, value)) for name, value in _members(body).items()}
            content = _sorted(members)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            content = body
        return hashlib.sha256(content).hexdigest()

    def _member(self, name: str, value: Raw) -> bytes:
        if name not in ROOTS:
            return self._find(value, is_message=False).data
        if not bytes(value).startswith(b"["):
            return self.message(value).data
        found = ((self.message(each).data, each) for each in _items(value))
        return b"[%b]" % b",".join(data for data, each in found if data != b"{}" or not _any(each))

    def _find(self, value: Raw, *, is_message: bool) -> Compared:
        if not self._most_bytes:
            return _compared(value, is_message=is_message)
        key = b"".join((b"m" if is_message else b"v", value))
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
            return found
        self._found[key] = made = _compared(value, is_message=is_message)
        self._size += len(key) + len(made.data) + _ENTRY
        while self._size > self._most_bytes:
            forgotten, compared = self._found.popitem(last=False)
            self._size -= len(forgotten) + len(compared.data) + _ENTRY
        return made


def _compared(value: Raw, *, is_message: bool) -> Compared:
    decoded = _any(value)
    data = _sorted(unmarked(decoded, compared=True) if is_message else decoded)
    return Compared(data, hashlib.sha256(data).digest())


_NOTHING_KEPT: Final = ComparedValues()


def content_sha256(body: bytes) -> str:
    """Return the SHA-256 of a body's content; that of its bytes where it is no JSON object."""
    return _NOTHING_KEPT.content_sha256(body)


def may_have_marks(message: bytes) -> bool:
    """Return False if the JSON of a message has no cache breakpoint; it may also name one in a text."""
    return any(map(message.__contains__, _MARK_NAMES))


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
