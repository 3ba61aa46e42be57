"""What the history side keeps of a session, and how it lies in the changelog.

Producers deliver at least once, so part of it is what came under which id: a record that comes again is ignored,
unless it says something else.

Five kinds of changelog records, told apart by their key's first byte:

- ``h`` + session: the head, once for each batch that touched the session; small, whatever the history's length
- ``s`` + number + session: a settled segment, written once
- ``i`` + length + record id + session: what came under an id, written once
- ``p`` + session: what the session is parked for
- ``w`` + offset + session: a record that waits behind it, written once
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import UNSET

from pipeline.errors import InputError, InternalError
from pipeline.session import Session
from pipeline.stages.endings import DEADLINE
from pipeline.stages.parked import Parked
from topics.records import TurnAppended, TurnRecord

_HEAD, _SEGMENT, _ID, _PARKED, _WAITING = b"h", b"s", b"i", b"p", b"w"
Key = TypeVar("Key", int, str)


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """The last request that was published for a target.

    ``answered``: an assistant turn came since. ``own_fixes``: how many of the target's settled fixes were told.
    """

    request_id: str
    sha256: str
    answered: bool = False
    own_fixes: int = 0


class SeenId(msgspec.Struct, frozen=True, array_like=True):
    """What came under an id: the record's digest, and its message's place in the history, -1 where it is none."""

    digest: bytes
    messages: int


class TurnState(msgspec.Struct, kw_only=True):
    """One session in memory. ``turn`` counts the records of the log that the session has taken.

    ``first`` is the offset with which this life of the session began, None where an earlier version did not note it;
    ``wanted`` counts the requests that were asked for since the last turn. ``told`` are the identities of fixes that
    were published with a request and are not yet certain. ``waiting`` are records behind the one that the session is
    parked for, by their offsets.
    """

    session: Session
    first: int | None = None
    turn: int = 0
    wanted: int = 0
    sent: dict[str, Sent] = {}
    told: set[str] = set()
    quarantined: bool = False
    ids: dict[str, SeenId] = {}
    segments: set[int] = set()
    new_ids: set[str] = set()
    gone_ids: set[str] = set()
    parked: Parked | None = None
    waiting: dict[int, bytes] = {}
    new_waiting: set[int] = set()
    gone_waiting: set[int] = set()

    def stop_waiting(self) -> dict[int, bytes]:
        """Take out what the session is parked for; the records that waited behind it."""
        waiting, self.waiting, self.parked = self.waiting, {}, None
        self.gone_waiting |= waiting.keys()
        return waiting

    def count_turn(self) -> None:
        """Count one more record that the session has taken."""
        self.turn += 1
        self.wanted = 0


class _Head(msgspec.Struct, array_like=True):
    session: bytes
    turn: int
    sent: dict[str, Sent]
    told: list[str]
    quarantined: bool
    first: int | None = None
    wanted: int = 0


class _Saved(msgspec.Struct):
    """A session's changelog records, undecoded until it is next heard of."""

    head: bytes = b""
    segments: dict[int, bytes] = {}
    ids: dict[str, bytes] = {}
    parked: bytes = b""
    waiting: dict[int, bytes] = {}


class TurnStates:
    """The sessions of one partition; ``fresh`` makes one that nobody has heard of yet."""

    def __init__(self, fresh: Callable[[], Session]) -> None:
        self._fresh = fresh
        self._saved: dict[bytes, _Saved] = {}
        self._entries: dict[bytes, TurnState] = {}
        self._closed: dict[bytes, set[bytes]] = {}
        # The changelog's keys of what is parked and of what waits.
        self._standing: dict[bytes, set[bytes]] = {_PARKED: set(), _WAITING: set()}

    @property
    def parked(self) -> int:
        """How many sessions are parked."""
        return len(self._standing[_PARKED])

    @property
    def waiting(self) -> int:
        """How many records wait in them."""
        return len(self._standing[_WAITING])

    def is_parked(self, key: bytes) -> bool:
        """Whether a session is parked; it need not be readable."""
        entry = self._entries.get(key)
        return _PARKED + key in self._standing[_PARKED] if entry is None else entry.parked is not None

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first."""
        self._note_standing(key, value)
        kind, rest = key[:1], key[1:]
        if kind == _HEAD:
            self._saved.setdefault(rest, _Saved()).head = value or b""
        elif kind == _SEGMENT:
            _put(self._saved.setdefault(rest[4:], _Saved()).segments, int.from_bytes(rest[:4], "big"), value)
        elif kind == _ID:
            end = 4 + int.from_bytes(rest[:4], "big")
            _put(self._saved.setdefault(rest[end:], _Saved()).ids, rest[4:end].decode(), value)
        elif kind == _PARKED:
            self._saved.setdefault(rest, _Saved()).parked = value or b""
        elif kind == _WAITING:
            _put(self._saved.setdefault(rest[8:], _Saved()).waiting, int.from_bytes(rest[:8], "big"), value)

    def _note_standing(self, key: bytes, value: bytes | None) -> None:
        standing = self._standing.get(key[:1])
        if standing is not None:
            (standing.discard if value is None else standing.add)(key)

    def find(self, key: bytes) -> TurnState | None:
        """The session of a key, if it was heard of before and not closed since."""
        entry = self._entries.get(key)
        if entry is None and key in self._saved:
            entry = self._load(key)
            if entry is not None:
                self._entries[key] = entry
        return entry

    def get(self, key: bytes, offset: int) -> TurnState:
        """The session of a key; one that nobody has heard of yet begins with the record at ``offset``."""
        entry = self.find(key)
        if entry is None:
            entry = self._entries[key] = TurnState(session=self._fresh(), first=offset)
        return entry

    def forget_unborn(self, key: bytes | None) -> None:
        """After a record that could not be used: a session that it would have begun begins with a later one."""
        entry = self._entries.get(key or b"")
        if key and entry is not None and not entry.turn and not (entry.wanted or entry.quarantined or entry.parked):
            del self._entries[key]

    def _load(self, key: bytes) -> TurnState | None:
        saved = self._saved[key]
        if not saved.head:
            del self._saved[key]
            return None  # closed: what is left are deletions
        try:
            head = msgspec.msgpack.decode(saved.head, type=_Head)
            ids = {name: msgspec.msgpack.decode(value, type=SeenId) for name, value in saved.ids.items()}
            parked = msgspec.msgpack.decode(saved.parked, type=Parked) if saved.parked else None
        except msgspec.DecodeError as error:
            raise InternalError("state_unreadable", f"a session's state cannot be read: {error}") from error
        session = Session.load(head.session, [saved.segments[number] for number in sorted(saved.segments)])
        del self._saved[key]  # not before: what cannot be read must not pass for a session that is new
        return TurnState(
            session=session,
            first=head.first,
            turn=head.turn,
            wanted=head.wanted,
            sent=head.sent,
            told=set(head.told),
            quarantined=head.quarantined,
            ids=ids,
            segments=set(saved.segments),
            parked=parked,
            waiting=saved.waiting,
        )

    def forget_session(self, key: bytes) -> None:
        """Forget a session, one that cannot be read too; its changelog records are deleted with the batch.

        A session that begins anew in the same batch and is closed again leaves none of either behind.
        """
        entry, saved = self._entries.pop(key, None), self._saved.pop(key, None)
        gone = self._closed.setdefault(key, set())
        if entry is not None:
            gone.add(_HEAD + key)
            gone.update(_segment_key(number, key) for number in entry.segments)
            gone.update(_id_key(name, key) for name in entry.ids.keys() | entry.gone_ids)
            gone.update(_waiting_key(offset, key) for offset in entry.waiting.keys() | entry.gone_waiting)
        if saved is not None:
            gone.add(_HEAD + key)
            gone.update(_segment_key(number, key) for number in saved.segments)
            gone.update(_id_key(name, key) for name in saved.ids)
            gone.update(_waiting_key(offset, key) for offset in saved.waiting)
        gone |= {_PARKED + key} & self._standing[_PARKED]
        for each in gone:
            self._note_standing(each, None)

    def changes(self, touched: set[bytes]) -> dict[bytes, bytes | None]:
        """The changelog records of the sessions that a batch touched, deletions first, always in the same order."""
        changes: dict[bytes, bytes | None] = {}
        for gone in self._closed.values():
            changes |= dict.fromkeys(sorted(gone), None)
        self._closed.clear()
        for key in sorted(touched & self._entries.keys()):
            entry = self._entries[key]
            changes |= _changes_of(key, entry)
            changes |= _parked_changes(key, entry, was_parked=_PARKED + key in self._standing[_PARKED])
        for key, value in changes.items():
            self._note_standing(key, value)
        return changes


def _changes_of(key: bytes, entry: TurnState) -> dict[bytes, bytes | None]:
    changes: dict[bytes, bytes | None] = {}
    for number, segment in entry.session.take_segments():
        changes[_segment_key(number, key)] = segment
        entry.segments.add(number)
    # A session that starts anew leaves the segments of its former history behind.
    gone = entry.segments.difference(entry.session.segments)
    entry.segments -= gone
    changes |= dict.fromkeys((_segment_key(number, key) for number in sorted(gone)), None)
    changes |= dict.fromkeys((_id_key(name, key) for name in sorted(entry.gone_ids - entry.ids.keys())), None)
    for name in sorted(entry.new_ids & entry.ids.keys()):
        changes[_id_key(name, key)] = msgspec.msgpack.encode(entry.ids[name])
    entry.new_ids, entry.gone_ids = set(), set()
    head = _Head(
        entry.session.head(), entry.turn, entry.sent, sorted(entry.told), entry.quarantined, entry.first, entry.wanted
    )
    changes[_HEAD + key] = msgspec.msgpack.encode(head)
    return changes


def _parked_changes(key: bytes, entry: TurnState, *, was_parked: bool) -> dict[bytes, bytes | None]:
    gone, new = entry.gone_waiting - entry.waiting.keys(), entry.new_waiting & entry.waiting.keys()
    changes: dict[bytes, bytes | None] = dict.fromkeys((_waiting_key(offset, key) for offset in sorted(gone)), None)
    changes |= {_waiting_key(offset, key): entry.waiting[offset] for offset in sorted(new)}
    entry.new_waiting, entry.gone_waiting = set(), set()
    if entry.parked is not None:
        changes[_PARKED + key] = msgspec.msgpack.encode(entry.parked)
    elif was_parked:
        changes[_PARKED + key] = None
    return changes


def session_of(key: bytes) -> bytes:
    """The session that a changelog record belongs to, by the record's key."""
    begins = {_HEAD: 1, _PARKED: 1, DEADLINE: 1, _SEGMENT: 5, _WAITING: 9, _ID: 5 + int.from_bytes(key[1:5], "big")}
    return key[begins.get(key[:1], len(key)) :]


def _segment_key(number: int, session: bytes) -> bytes:
    return _SEGMENT + number.to_bytes(4, "big") + session


def _id_key(name: str, session: bytes) -> bytes:
    encoded = name.encode()
    return _ID + len(encoded).to_bytes(4, "big") + encoded + session


def _waiting_key(offset: int, session: bytes) -> bytes:
    return _WAITING + offset.to_bytes(8, "big") + session


def _put(records: dict[Key, bytes], key: Key, value: bytes | None) -> None:
    if value is None:
        records.pop(key, None)
    else:
        records[key] = value


# The place of a record that is no message: it stays known whatever becomes of the history.
NO_MESSAGE = -1

_encode = msgspec.json.Encoder(order="deterministic").encode


def seen_before(entry: TurnState, event: TurnRecord) -> bool:
    """Whether the record was taken before; if not, its id is noted.

    Raises:
        InputError: the id was taken by a record that says something else.
    """
    name = getattr(event, "id", UNSET)
    if name is UNSET:
        return False
    digest = _digest(event)
    seen = entry.ids.get(name)
    if seen is None:
        place = entry.session.count if isinstance(event, TurnAppended) else NO_MESSAGE
        entry.ids[name] = SeenId(digest, place)
        entry.new_ids.add(name)
        return False
    if seen.digest != digest:
        raise InputError("id_reused", "this id came before with other content")
    return True


def kept_by(entry: TurnState, name: str) -> int | str:
    """How many messages stay if the one that came under this id becomes the last; else the id, as a message's own."""
    seen = entry.ids.get(name)
    return name if seen is None or seen.messages == NO_MESSAGE else seen.messages + 1


def forget_id(entry: TurnState, name: str) -> None:
    """Take a note back: its record could not be used."""
    if entry.ids.pop(name, None) is not None:
        entry.gone_ids.add(name)


def forget_behind(entry: TurnState, count: int) -> None:
    """After the history was cut to ``count`` messages: ids of those that are gone may come again."""
    for name in [name for name, seen in entry.ids.items() if seen.messages >= count]:
        forget_id(entry, name)


def _digest(event: TurnRecord) -> bytes:
    """A digest of what the record says, however it was written."""
    encoded = _encode(event)
    # Of a message that only the tolerant reader takes, the bytes stand for what it says.
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        encoded = _encode(msgspec.json.decode(encoded))
    return hashlib.sha256(encoded).digest()[:16]
