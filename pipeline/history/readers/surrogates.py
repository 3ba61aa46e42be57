r"""Surrogates without their other half: found in JSON text, carried through parsing, then joined or replaced.

JSON may escape one half of a surrogate pair (``"\ud83d"``), which no Unicode string can hold: frameworks cut
texts by UTF-16 units, and the two halves end up in neighbouring parts. No parser lets them through, so each
half is masked as one private-use character that does not occur in the input. After parsing, a high half at
the end of a text part and a low half at the start of the next are the character that they were; any other
half becomes U+FFFD.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from pipeline.errors import InputError
from pipeline.history.readers.fields import Notes
from pipeline.model import Block, Text, ToolResult, Turn

# A whole pair or one half, after an even number of backslashes, which escape each other.
_ESCAPE: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*+)\\u"
    rb"(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|([dD][89a-fA-F][0-9a-fA-F]{2}))"
)
_FIRST: Final = 0xD800
_FIRST_LOW: Final = 0xDC00
_LAST: Final = 0xDFFF
# Private-use planes 15 and 16, in windows that hold one character for each surrogate.
_WINDOWS: Final = range(0xF0000, 0x110000, 0x800)
_REPLACEMENT: Final = "\ufffd".encode()
_BLOCK: Final[msgspec.json.Decoder[Block]] = msgspec.json.Decoder(Block)

_Part = TypeVar("_Part")


class Mask:
    """A window of private-use characters that stand for the surrogates, one for one."""

    __slots__ = ("_escape", "_mark", "_offset")

    def __init__(self, start: int) -> None:
        self._offset = start - _FIRST
        # Windows are aligned: in UTF-8 they share two bytes, and the third takes 32 values.
        lead, third = chr(start).encode()[:2], chr(start).encode()[2]
        self._mark = re.compile(lead + rb"[\x%02x-\x%02x]." % (third, third + 31), re.DOTALL)
        high = _FIRST + ((start - 0x10000) >> 10)
        self._escape = re.compile(rb"\\u(?:%04x|%04x)" % (high, high + 1), re.IGNORECASE)

    def is_free_in(self, data: bytes) -> bool:
        """Whether no character of the window is in this JSON text, raw or escaped."""
        return self._mark.search(data) is None and self._escape.search(data) is None

    def is_in(self, data: bytes) -> bool:
        return self._mark.search(data) is not None

    def hide(self, data: bytes) -> bytes:
        """Write each lone half in JSON text as its masking character."""

        def one(match: re.Match[bytes]) -> bytes:
            backslashes, half = match[1], match[2]
            return match[0] if half is None else backslashes + chr(self._offset + int(half, 16)).encode()

        return _ESCAPE.sub(one, data)

    def show(self, data: bytes) -> bytes:
        """Write each masked half in JSON text as its escape again: the undoing of `hide`."""
        return self._mark.sub(lambda match: b"\\u%04x" % (ord(match[0].decode()) - self._offset), data)

    def reveal(self, data: bytes) -> bytes:
        return self._mark.sub(_REPLACEMENT, data)

    def joined(self, first: str, second: str) -> str:
        """The character whose halves end ``first`` and start ``second``, or ``""``."""
        if not first or not second:
            return ""
        high, low = ord(first[-1]) - self._offset, ord(second[0]) - self._offset
        if _FIRST <= high < _FIRST_LOW <= low <= _LAST:
            return chr(0x10000 + ((high - _FIRST) << 10) + low - _FIRST_LOW)
        return ""


def without_halves(data: bytes) -> bytes:
    """JSON text with U+FFFD for each lone half."""
    return _ESCAPE.sub(lambda match: match[0] if match[2] is None else match[1] + _REPLACEMENT, data)


def find_mask(data: bytes) -> Mask | None:
    """A mask for the lone halves in JSON text; None where there are none.

    Raises:
        InputError: the text uses characters of every window, which no real text does.
    """
    if not any(match[2] for match in _ESCAPE.finditer(data)):
        return None
    for start in _WINDOWS:
        mask = Mask(start)
        if mask.is_free_in(data):
            return mask
    raise InputError("not_json", "lone surrogates among characters of every private-use window")


def unmask_turn(turn: Turn, mask: Mask, notes: Notes) -> Turn:
    """The turn with its masked halves joined where they belong together, replaced where they do not."""
    paths = turn.paths or tuple(f"messages.{turn.index}.content.{i}" for i in range(len(turn.blocks)))
    blocks = _join(turn.blocks, paths, mask, notes)
    blocks = [_unmask_block(block, path, mask, notes) for block, path in zip(blocks, paths, strict=True)]
    turn_id = turn.id and unmask_text(turn.id, f"{turn.place}.id", mask, notes)
    return replace(turn, blocks=tuple(blocks), id=turn_id)


def unmask_text(text: str, path: str, mask: Mask, notes: Notes) -> str:
    """A string with U+FFFD for its masked halves."""
    return unmask_json(text.encode(), path, mask, notes).decode()


def unmask_json(data: bytes, path: str, mask: Mask, notes: Notes) -> bytes:
    if not mask.is_in(data):
        return data
    after = mask.reveal(data)
    notes.add_fix("surrogate_replaced", path, after=after)
    return after


def _unmask_block(block: Block, path: str, mask: Mask, notes: Notes) -> Block:
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        content = _join(block.content, [path] * len(block.content), mask, notes)
        block = replace(block, content=content)
    data = msgspec.json.encode(block)
    after = unmask_json(data, path, mask, notes)
    return block if after is data else _BLOCK.decode(after)


def _join(
    parts: list[_Part] | tuple[_Part, ...], paths: list[str] | tuple[str, ...], mask: Mask, notes: Notes
) -> list[_Part]:
    """Give a character that was split over two text parts to the first of them."""
    whole = list(parts)
    for i in range(1, len(whole)):
        first, second = whole[i - 1], whole[i]
        if not (isinstance(first, Text) and isinstance(second, Text)):
            continue
        character = mask.joined(first.text, second.text)
        if character:
            whole[i - 1] = replace(first, text=first.text[:-1] + character)
            whole[i] = replace(second, text=second.text[1:])
            notes.add_fix("surrogate_joined", paths[i])
    return whole
