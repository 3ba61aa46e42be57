"""What the stream side keeps of a session, and how it lies in the changelog.

Two kinds of changelog records, told apart by their key's first byte:

- ``e`` + session: the recovery and the policy, once for each batch that touched the session
- ``w`` + number + session: a finished turn that waits for the policy, written once
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from pipeline.errors import InputError, InternalError
from pipeline.streams import Recovery
from pipeline.streams.cascade.speech import Speech

_SESSION, _WAITING = b"e", b"w"

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


class EventStates:
    """The sessions of one partition; ``speech`` is what holds for a planner's text where a session says nothing."""

    def __init__(self, speech: Speech | None = None) -> None:
        self._speech = speech or Speech()
        self._saved: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, dict[int, bytes]] = {}
        self._entries: dict[bytes, EventState] = {}
        self._closed: dict[bytes, set[bytes]] = {}

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first; a session is decoded when it is next heard of."""
        if key[:1] == _SESSION:
            if value is None:
                self._saved.pop(key[1:], None)
            else:
                self._saved[key[1:]] = value
        elif key[:1] == _WAITING:
            turns = self._waiting.setdefault(key[5:], {})
            if value is None:
                turns.pop(int.from_bytes(key[1:5], "big"), None)
            else:
                turns[int.from_bytes(key[1:5], "big")] = value

    def find(self, key: bytes) -> EventState | None:
        """The session of a key, if it was heard of before."""
        entry = self._entries.get(key)
        if entry is None and key in self._saved:
            entry = self._entries[key] = self._load(key)
        return entry

    def begin_session(self, key: bytes, recovery: Recovery) -> EventState:
        """Begin a session."""
        entry = self._entries[key] = EventState(recovery=recovery)
        self.speak(entry)
        return entry

    def speak(self, entry: EventState) -> None:
        """Tell the recovery what a planner's text is to become in this session."""
        speech = self._speech
        model = speech.model if entry.model is None else entry.model
        tools = speech.tools if entry.tools is None else entry.tools
        entry.recovery.speak(structs.replace(speech, model=model, tools=tools))

    def forget_session(self, key: bytes) -> None:
        """Forget a session; its changelog records are deleted with the batch."""
        entry, saved = self._entries.pop(key, None), self._saved.pop(key, None)
        waiting = self._waiting.pop(key, {}).keys() | (set() if entry is None else entry.written)
        gone = self._closed.setdefault(key, set())
        if entry is not None or saved is not None:
            gone.add(_SESSION + key)
        gone.update(_waiting_key(number, key) for number in waiting)

    def _load(self, key: bytes) -> EventState:
        try:
            saved = msgspec.msgpack.decode(self._saved[key], type=_Saved)
            recovery = Recovery.restore(saved.recovery)
        except (msgspec.DecodeError, InputError) as error:
            raise InternalError("state_unreadable", f"a session's state cannot be read: {error}") from error
        del self._saved[key]  # not before: what cannot be read must not pass for a session that is new
        waiting = self._waiting.pop(key, {})
        entry = EventState(
            recovery=recovery,
            records=saved.records,
            model=saved.model,
            tools=saved.tools,
            waiting=waiting,
            numbered=saved.numbered,
            written=set(waiting),
        )
        self.speak(entry)
        return entry

    def changes(self, keys: list[bytes]) -> dict[bytes, bytes | None]:
        """The changelog records of the sessions that a batch touched, deletions first."""
        changes: dict[bytes, bytes | None] = {}
        for gone in self._closed.values():
            changes |= dict.fromkeys(sorted(gone), None)
        self._closed.clear()
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                continue  # closed
            saved = _Saved(entry.recovery.snapshot(), entry.records, entry.numbered, entry.model, entry.tools)
            changes[_SESSION + key] = msgspec.msgpack.encode(saved)
            for number in sorted(entry.written ^ entry.waiting.keys()):
                changes[_waiting_key(number, key)] = entry.waiting.get(number)
            entry.written = set(entry.waiting)
        return changes


def session_of(key: bytes) -> bytes:
    """The session that a changelog key is of; empty for one that is of none, or names only its digest."""
    return key[1:] if key[:1] == _SESSION else key[5:] if key[:1] == _WAITING else b""


def _waiting_key(number: int, session: bytes) -> bytes:
    return _WAITING + number.to_bytes(4, "big") + session
