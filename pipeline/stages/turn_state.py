"""What the history side keeps of a session, and how it lies in the changelog.

Three kinds of changelog records, told apart by their key's first byte:

- ``h`` + session: the head, once for each batch that touched the session; small, whatever the history's length
- ``s`` + number + session: a settled segment, written once
- ``i`` + turn id + session: what was appended under an id, written once
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from pipeline.session import Session

_HEAD, _SEGMENT, _ID = b"h", b"s", b"i"
Key = TypeVar("Key", int, str)


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """The last request that was published for a target: its id, its body's digest, and whether a turn answered it."""

    request_id: str
    sha256: str
    answered: bool = False


class SeenId(msgspec.Struct, frozen=True, array_like=True):
    """What was appended under an id: the content's digest, and how many messages the history had then."""

    digest: bytes
    messages: int


class Entry(msgspec.Struct, kw_only=True):
    """One session in memory. ``turn`` counts the records of the log that changed the session."""

    session: Session
    turn: int = 0
    sent: dict[str, Sent] = {}
    published: list[str] = []
    quarantined: bool = False
    announced: bool = False
    ids: dict[str, SeenId] = {}
    segments: set[int] = set()
    new_ids: set[str] = set()
    gone_ids: set[str] = set()


class _Head(msgspec.Struct, array_like=True):
    session: bytes
    turn: int
    sent: dict[str, Sent]
    published: list[str]
    quarantined: bool
    announced: bool


class _Saved(msgspec.Struct):
    """A session's changelog records, undecoded until it is next heard of."""

    head: bytes = b""
    segments: dict[int, bytes] = {}
    ids: dict[str, bytes] = {}


class TurnStates:
    """The sessions of one partition."""

    def __init__(self, fresh: Callable[[], Session]) -> None:
        self._fresh = fresh
        self._saved: dict[bytes, _Saved] = {}
        self._entries: dict[bytes, Entry] = {}
        self._closed: dict[bytes, Entry] = {}

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first."""
        kind, rest = key[:1], key[1:]
        if kind == _HEAD:
            self._restore_head(rest, value)
        elif kind == _SEGMENT:
            _put(self._saved.setdefault(rest[4:], _Saved()).segments, int.from_bytes(rest[:4]), value)
        elif kind == _ID:
            length = int.from_bytes(rest[:4])
            session, name = rest[4 + length :], rest[4 : 4 + length].decode()
            _put(self._saved.setdefault(session, _Saved()).ids, name, value)

    def _restore_head(self, session: bytes, value: bytes | None) -> None:
        if value is not None:
            self._saved.setdefault(session, _Saved()).head = value
        elif session in self._saved:
            self._saved[session].head = b""

    def get(self, key: bytes) -> Entry:
        """The session of a key; one that nobody has heard of yet is made from the defaults."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._load(key)
        return entry

    def _load(self, key: bytes) -> Entry:
        saved = self._saved.pop(key, None)
        if saved is None or not saved.head:
            return Entry(session=self._fresh())
        head = msgspec.msgpack.decode(saved.head, type=_Head)
        segments = [saved.segments[number] for number in sorted(saved.segments)]
        return Entry(
            session=Session.load(head.session, segments),
            turn=head.turn,
            sent=head.sent,
            published=head.published,
            quarantined=head.quarantined,
            announced=head.announced,
            ids={name: msgspec.msgpack.decode(value, type=SeenId) for name, value in saved.ids.items()},
            segments=set(saved.segments),
        )

    def close(self, key: bytes) -> None:
        """Forget a session; its changelog records are deleted with the batch."""
        self._closed[key] = self.get(key)
        del self._entries[key]

    def changes(self, touched: set[bytes]) -> dict[bytes, bytes | None]:
        """The changelog records of the sessions that a batch touched, deletions first."""
        changes: dict[bytes, bytes | None] = {}
        for key, entry in self._closed.items():
            changes[_HEAD + key] = None
            changes |= dict.fromkeys((_segment_key(number, key) for number in entry.segments), None)
            changes |= dict.fromkeys((_id_key(name, key) for name in entry.ids.keys() | entry.gone_ids), None)
        self._closed.clear()
        for key in sorted(touched & self._entries.keys()):
            changes |= _entry_changes(key, self._entries[key])
        return changes


def _entry_changes(key: bytes, entry: Entry) -> dict[bytes, bytes | None]:
    changes: dict[bytes, bytes | None] = {}
    for number, segment in entry.session.take_segments():
        changes[_segment_key(number, key)] = segment
        entry.segments.add(number)
    # A rewind or a restore leaves fewer segments than there were.
    gone = {number for number in entry.segments if number >= entry.session.segments}
    entry.segments -= gone
    changes |= dict.fromkeys((_segment_key(number, key) for number in gone), None)
    changes |= dict.fromkeys((_id_key(name, key) for name in entry.gone_ids - entry.ids.keys()), None)
    for name in entry.new_ids & entry.ids.keys():
        changes[_id_key(name, key)] = msgspec.msgpack.encode(entry.ids[name])
    entry.new_ids, entry.gone_ids = set(), set()
    head = _Head(
        entry.session.head(), entry.turn, entry.sent, entry.published, entry.quarantined, entry.announced
    )
    changes[_HEAD + key] = msgspec.msgpack.encode(head)
    return changes


def _segment_key(number: int, session: bytes) -> bytes:
    return _SEGMENT + number.to_bytes(4) + session


def _id_key(name: str, session: bytes) -> bytes:
    encoded = name.encode()
    return _ID + len(encoded).to_bytes(4) + encoded + session


def _put(records: dict[Key, bytes], key: Key, value: bytes | None) -> None:
    if value is None:
        records.pop(key, None)
    else:
        records[key] = value
