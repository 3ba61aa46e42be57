"""Damaged lines: what can still be read of them, in linear time.

Two kinds of damage are mended. A line that strict JSON refuses for a lone surrogate or for bytes that are not UTF-8 is
made sound: U+FFFD stands where the damage was, or the character whose other half comes next (``halves``). And a line
into which another writer's event was written is taken apart (rule STR-03: a ``rate_limit_event`` in the middle of an
assistant line): the foreign object is cut out and the halves are joined. The second half may stand on the next line,
for the foreign event brings its own newline.
"""

from __future__ import annotations

import json
import re

import msgspec
from msgspec import Raw, Struct

from pipeline.history.readers.surrogates import without_halves
from pipeline.streams.bytes.halves import MASK

# Events that are written by others than the one who writes messages; the cut line itself starts at position 0.
_FOREIGN = re.compile(
    r'\{\s*"type"\s*:\s*"(?:rate_limit_event|system|stream_event|assistant|user|result|summary|keep_alive|'
    r'control_request|control_response|control_cancel_request|tool_progress|tool_use_summary|auth_status|progress)"'
)
_ESCAPED_HALF = re.compile(rb"\\u[dD]")
# Each try reads the rest of the line once, so their number is what keeps the whole linear.
_MOST_TRIES = 8

_fields = msgspec.json.Decoder(dict[str, Raw])
_json = json.JSONDecoder()


class Cut(Struct, frozen=True):
    """A line taken apart. ``rest`` is the line without the ``foreign`` events: whole, or only its first half."""

    foreign: tuple[bytes, ...]
    rest: bytes
    whole: bool
    # The foreign event stood after the line and not in it: only the newline between them was lost.
    follows: bool = False


def read_fields(line: bytes) -> dict[str, Raw]:
    """The members of a JSON object, each as raw JSON; what no reader takes is U+FFFD in them.

    Raises:
        ValueError: the line is not JSON at all. (``msgspec.DecodeError`` and ``UnicodeDecodeError`` are ones, too.)
        TypeError: it is JSON, but not an object.
        RecursionError: it is nested too deeply.
    """
    try:
        fields = _fields.decode(line)
        check_strings(line)
    except msgspec.ValidationError as error:
        raise TypeError("not a JSON object") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        sound = without_halves(_in_utf8(line))
        if sound == line:
            raise
        return read_fields(sound)
    return fields


def check_strings(line: bytes) -> None:
    """Look into members that were skipped as raw JSON for what a reader of the output would stumble over.

    Raises:
        UnicodeDecodeError, msgspec.DecodeError: bytes that are not UTF-8, or a lone surrogate.
    """
    if not line.isascii():
        line.decode()
    if _may_have_halves(line) and without_halves(line) != line:
        raise msgspec.DecodeError("half of a surrogate pair")


def make_sound(line: bytes) -> tuple[bytes, bool]:
    """The same JSON in strict UTF-8, with U+FFFD for bytes that are not; and whether there are masks in it.

    They stand for lone surrogates (``halves``). Where the text itself has characters that serve as masks, U+FFFD
    stands for the surrogates at once.
    """
    text = _in_utf8(line)
    if not _may_have_halves(text):
        return text, False
    hidden = MASK.hide(text)
    if hidden == text:
        return text, False
    return (hidden, True) if MASK.is_free_in(text) else (without_halves(text), False)


def _may_have_halves(line: bytes) -> bool:
    # One byte is found many times as fast as a pattern, and most lines do not have it.
    return b"\\" in line and _ESCAPED_HALF.search(line) is not None


def _in_utf8(line: bytes) -> bytes:
    return line if line.isascii() else line.decode("utf-8", "replace").encode()


def take_apart(line: bytes) -> Cut | None:
    """Cut foreign events out of a line that is not JSON; None where there are none."""
    # Latin-1 keeps every byte, so a character that the cut went through is whole again afterwards.
    text = line.decode("latin-1")
    foreign: list[bytes] = []
    start = 1
    for _ in range(_MOST_TRIES):
        found = _FOREIGN.search(text, start)
        if found is None:
            break
        end = _end_of_object(text, found.start())
        if end is None:
            start = found.end()
            continue
        foreign.append(text[found.start() : end].encode("latin-1"))
        follows = _is_object(text[: found.start()])
        text = text[: found.start()] + text[end:]
        start = found.start()
        if _is_object(text):
            return Cut(tuple(foreign), text.encode("latin-1"), whole=True, follows=follows)
    if foreign and text.lstrip().startswith("{") and len(text) == start:
        return Cut(tuple(foreign), text.encode("latin-1"), whole=False)
    return None


def _end_of_object(text: str, start: int) -> int | None:
    try:
        return _json.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(_json.decode(text), dict)
    except (ValueError, RecursionError):
        return False
