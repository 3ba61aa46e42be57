"""What the history side keeps of a session, and how it lies in the changelog.

Producers deliver at least once, so part of it is what came under which id: a record that comes again is ignored,
unless it says something else.

Three kinds of changelog records, told apart by their key's first byte:

- ``h`` + session: the head, once for each batch that touched the session; small, whatever the history's length
- ``s`` + number + session: a settled segment, written once
- ``i`` + length + record id + session: what came under an id, written once
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
from topics.records import TurnAppended, TurnRecord

_HEAD, _SEGMENT, _ID = b"h", b"s", b"i"
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
    were published with a request and are not yet certain.
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


class TurnStates:
    """The sessions of one partition; ``fresh`` makes one that nobody has heard of yet."""

    def __init__(self, fresh: Callable[[], Session]) -> None:
        self._fresh = fresh
        self._saved: dict[bytes, _Saved] = {}
        self._entries: dict[bytes, TurnState] = {}
        self._closed: dict[bytes, set[bytes]] = {}

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first."""
        kind, rest = key[:1], key[1:]
        if kind == _HEAD:
            self._saved.setdefault(rest, _Saved()).head = value or b""
        elif kind == _SEGMENT:
            _put(self._saved.setdefault(rest[4:], _Saved()).segments, int.from_bytes(rest[:4], "big"), value)
        elif kind == _ID:
            end = 4 + int.from_bytes(rest[:4], "big")
            _put(self._saved.setdefault(rest[end:], _Saved()).ids, rest[4:end].decode(), value)

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

    def _load(self, key: bytes) -> TurnState | None:
        saved = self._saved[key]
        if not saved.head:
            del self._saved[key]
            return None  # closed: what is left are deletions
        try:
            head = msgspec.msgpack.decode(saved.head, type=_Head)
            ids = {name: msgspec.msgpack.decode(value, type=SeenId) for name, value in saved.ids.items()}
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
        if saved is not None:
            gone.add(_HEAD + key)
            gone.update(_segment_key(number, key) for number in saved.segments)
            gone.update(_id_key(name, key) for name in saved.ids)

    def changes(self, touched: set[bytes]) -> dict[bytes, bytes | None]:
        """The changelog records of the sessions that a batch touched, deletions first, always in the same order."""
        changes: dict[bytes, bytes | None] = {}
        for gone in self._closed.values():
            changes |= dict.fromkeys(sorted(gone), None)
        self._closed.clear()
        for key in sorted(touched & self._entries.keys()):
            changes |= _changes_of(key, self._entries[key])
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


def _segment_key(number: int, session: bytes) -> bytes:
    return _SEGMENT + number.to_bytes(4, "big") + session


def _id_key(name: str, session: bytes) -> bytes:
    encoded = name.encode()
    return _ID + len(encoded).to_bytes(4, "big") + encoded + session


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
