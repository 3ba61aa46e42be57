"""What the stream side keeps of a session, and how it lies in the changelog.

Three kinds of changelog records, told apart by their key's first byte:

- ``e`` + session: the recovery and the policy (the head), once for each batch that touched the session
- ``c`` + number + session: what has changed of a large head (``heads``)
- ``w`` + number + session: a finished turn that waits for the policy, written once
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec import field, structs

from pipeline.errors import InputError, InternalError
from pipeline.stages.endings import Endings
from pipeline.stages.heads import CHANGE, WrittenHead
from pipeline.stages.kept import Kept
from pipeline.streams import Recovery
from pipeline.streams.cascade.speech import Speech

_SESSION, _WAITING = b"e", b"w"

# What changed of a stream's state is found in 20 µs: little more than it takes to write so much.
_SMALL_BYTES = 4 * 1024

# Finished turns that wait until the session's policy is known: events can be ahead of the policy, which reaches this
# side through the log. Where they become more bytes than this, the oldest are let go.
MOST_WAITING_BYTES = 256 * 1024


class EventState(msgspec.Struct, kw_only=True):
    """One session in memory. ``records`` is None until its policy is known; ``waiting`` goes by number.

    ``model`` and ``tools`` are what the session said of them for a planner's text, if it did.
    """

    recovery: Recovery
    records: bool | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    waiting: dict[int, bytes] = {}
    numbered: int = 0
    written: set[int] = set()
    head: WrittenHead = field(default_factory=partial(WrittenHead, _SMALL_BYTES))
    memory_bytes: int = 0

    def keep_waiting(self, turn: bytes) -> None:
        """Keep a finished turn until the policy is known."""
        self.waiting[self.numbered] = turn
        self.numbered += 1
        size = sum(map(len, self.waiting.values()))
        while size > MOST_WAITING_BYTES:
            size -= len(self.waiting.pop(min(self.waiting)))

    def take_waiting(self) -> list[bytes]:
        """The turns that waited, oldest first."""
        waiting, self.waiting = self.waiting, {}
        return [waiting[number] for number in sorted(waiting)]


class _Saved(msgspec.Struct, array_like=True):
    recovery: bytes
    records: bool | None
    numbered: int
    model: str | None = None
    tools: tuple[str, ...] | None = None


def session_of(key: bytes) -> bytes:
    """The session that a changelog key is of; empty for one that is of none, or names only its digest."""
    return key[1:] if key[:1] == _SESSION else key[5:] if key[:1] in {_WAITING, CHANGE} else b""


class EventStates(Kept[EventState]):
    """The sessions of one partition; ``speech`` is what holds for a planner's text where a session says nothing."""

    head_kind = _SESSION
    session_of = staticmethod(session_of)

    def __init__(self, speech: Speech | None = None, endings: Endings | None = None) -> None:
        super().__init__(endings)
        self._speech = speech or Speech()

    def begin_session(self, key: bytes, recovery: Recovery) -> EventState:
        entry = self._begin(key, EventState(recovery=recovery))
        self.speak(entry)
        return entry

    def speak(self, entry: EventState) -> None:
        """Tell the recovery what a planner's text is to become in this session."""
        speech = self._speech
        model = speech.model if entry.model is None else entry.model
        tools = speech.tools if entry.tools is None else entry.tools
        entry.recovery.speak(structs.replace(speech, model=model, tools=tools))

    def _read(self, session: bytes, records: Mapping[bytes, bytes]) -> EventState:
        numbered: dict[bytes, dict[int, bytes]] = {CHANGE: {}, _WAITING: {}}
        for key, value in records.items():
            if key[:1] in numbered:
                numbered[key[:1]][int.from_bytes(key[1:5], "big")] = value
        try:
            head, whole = WrittenHead.read(records[_SESSION + session], numbered[CHANGE], _SMALL_BYTES)
            saved = msgspec.msgpack.decode(whole, type=_Saved)
            recovery = Recovery.restore(saved.recovery)
        except (msgspec.DecodeError, InputError) as error:
            raise InternalError("state_unreadable", f"a session's state cannot be read: {error}") from error
        entry = EventState(
            recovery=recovery,
            records=saved.records,
            model=saved.model,
            tools=saved.tools,
            waiting=numbered[_WAITING],
            numbered=saved.numbered,
            written=set(numbered[_WAITING]),
            head=head,
        )
        _weigh(entry, whole)
        self.speak(entry)
        return entry

    def _written(self, session: bytes, entry: EventState) -> dict[bytes, bytes | None]:
        saved = _Saved(entry.recovery.snapshot(), entry.records, entry.numbered, entry.model, entry.tools)
        head = msgspec.msgpack.encode(saved)
        changes = entry.head.write(_SESSION + session, session, head, self.format)
        for number in sorted(entry.written ^ entry.waiting.keys()):
            changes[_waiting_key(number, session)] = entry.waiting.get(number)
        entry.written = set(entry.waiting)
        _weigh(entry, head)
        return changes


def _weigh(entry: EventState, head: bytes) -> None:
    """Note its memory: measured in the middle of messages of 20 and of 500 deltas."""
    entry.memory_bytes = 4 * 1024 + 8 * len(head) + sum(map(len, entry.waiting.values()))


def _waiting_key(number: int, session: bytes) -> bytes:
    return _WAITING + number.to_bytes(4, "big") + session
