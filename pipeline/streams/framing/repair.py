r"""Repairs damaged lines and cut characters in linear time.

Three kinds of damage are repaired. A line that strict JSON refuses because of bytes that are not UTF-8 gets U+FFFD in
their place. A line into which another writer's event was written is taken apart (rule STR-03: a ``rate_limit_event`` in
the middle of an assistant line): the foreign object is cut out and the halves are joined. The second half may be on the
next line, because the foreign event has its own newline.

A character that was cut between two deltas is joined again. Servers cut texts by UTF-16 units, so one delta ends in
``\ud83d`` and the next begins with ``\ude00``, which no string can hold. A payload with such halves is decoded with
masks for them (``make_sound``). Its events pass through ``Halves``: a first half waits until its block continues, and a
half that stays alone becomes U+FFFD. Only events after such a payload have a cost.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.history.readers.rawjson import Mask, without_halves
from reknit.pipeline.streams.events import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Retried,
    RunEnded,
    RunResult,
    WholeMessage,
)

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
    """Return the same JSON in strict UTF-8, with U+FFFD for invalid bytes, and whether it has masks.

    Masks represent lone surrogates (``halves``). If the text itself has characters that serve as masks, U+FFFD replaces
    the surrogates directly.
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
    """Cut foreign events out of a line that is not JSON; return None if there are none."""
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


# One window for all records, because the two halves of a character come in different ones.
MASK: Final = Mask(0x10D800)
_OFFSET: Final = 0x10D800 - 0xD800
_FIRST_HALVES: Final = frozenset(chr(_OFFSET + unit) for unit in range(0xD800, 0xDC00))
_PAIR: Final = re.compile("[\U0010d800-\U0010dbff][\U0010dc00-\U0010dfff]")
_HALF: Final = re.compile("[\U0010d800-\U0010dfff]")
_LOST: Final = "\ufffd"
# After these no block of a message continues.
_ENDS: Final = (MessageStarted, MessageDelta, MessageStopped, Failed, Retried, RunResult, RunEnded)


class Waiting(Struct, array_like=True):
    """The first half of a character at the end of a block's received text."""

    kind: str
    half: str
    message_id: str | None


class Halves(Struct):
    """First halves that wait, by block. ``masked``: there may be masks in what the decoder makes next."""

    waiting: dict[int, Waiting] = {}
    masked: bool = False

    def are_open(self) -> bool:
        """Return True if the next events have to go through ``follow``."""
        return self.masked or bool(self.waiting)

    def follow(self, events: list[Event]) -> list[Event]:
        """The events without masks: with the characters that are whole now, and U+FFFD for halves that stay alone."""
        found: list[Event] = []
        for event in events:
            if type(event) is BlockDelta and event.raw is UNSET:
                found += self._grown(event)
                continue
            found += self._left_by(event)
            found.append(_shown(self._begun(event) if type(event) is BlockStarted and event.text else event))
        return found

    def end_run(self) -> list[Event]:
        left = [event for index in list(self.waiting) for event in self._release_half(index)]
        self.masked = False
        return left

    def _begun(self, event: BlockStarted) -> BlockStarted:
        text = self._kept(event.text, event.index, f"{event.kind}_delta", event.message_id)
        return structs.replace(event, text=text)

    def _grown(self, event: BlockDelta) -> list[Event]:
        before = self.waiting.get(event.index)
        if before is None:
            return [self._next(event, event.content)]
        if not event.content:
            return [event]
        if (before.kind, before.message_id) != (event.kind, event.message_id):
            return [*self._release_half(event.index), self._next(event, event.content)]
        del self.waiting[event.index]
        return [self._next(event, before.half + event.content)]

    def _next(self, event: BlockDelta, content: str) -> BlockDelta:
        return structs.replace(event, content=self._kept(content, event.index, event.kind, event.message_id))

    def _kept(self, content: str, index: int, kind: str, message_id: str | None) -> str:
        """Text without its last half, which waits for the other one."""
        content = _PAIR.sub(_joined, content)
        if content[-1:] in _FIRST_HALVES:
            self.waiting[index] = Waiting(kind, content[-1], message_id)
            content = content[:-1]
        return _HALF.sub(_LOST, content)

    def _left_by(self, event: Event) -> list[Event]:
        """Return the halves that stay alone after this event."""
        if not self.waiting:
            return []
        if isinstance(event, BlockStarted | BlockStopped):
            return self._release_half(event.index)
        if isinstance(event, WholeMessage):
            # Without places of its blocks, the message is complete, and its blocks are not continued.
            return [
                left for whole in event.blocks if whole.index is not None for left in self._release_half(whole.index)
            ]
        if isinstance(event, _ENDS):
            return [left for index in list(self.waiting) for left in self._release_half(index)]
        return []

    def _release_half(self, index: int) -> list[Event]:
        waiting = self.waiting.pop(index, None)
        return [] if waiting is None else [BlockDelta(index, waiting.kind, _LOST, waiting.message_id, UNSET, 0)]


def _joined(pair: re.Match[str]) -> str:
    return MASK.joined(pair[0][0], pair[0][1])


def _shown(value: Any) -> Any:  # noqa: ANN401  whatever an event holds
    """Return the same value without masks, at any depth."""
    if isinstance(value, str):
        return _HALF.sub(_LOST, _PAIR.sub(_joined, value))
    if isinstance(value, Raw):
        return Raw(_shown(bytes(value).decode("utf-8", "replace")).encode()) if MASK.is_in(bytes(value)) else value
    if isinstance(value, dict):
        return {_shown(name): _shown(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_shown(member) for member in value])
    if isinstance(value, Struct):
        return structs.replace(value, **{name: _shown(getattr(value, name)) for name in value.__struct_fields__})
    return value
