"""The state of a session on the history side, and its form in the changelog.

Producers deliver at least once, so the state includes record ids: a repeated record is ignored, unless its content
differs.

A parked session keeps the record that could not be processed, and the later ones. A waiting record keeps its offset, so
after the release its outputs are those that it would have had on arrival. While a session is being released
(``releases``), new records wait as well. They outlive the session: one of them may close it, and the next one begins it
again.

Seven kinds of changelog records, distinguished by their key's first byte:

- ``h`` + session: the head, once for each batch that touched the session; small where turns settle
- ``c`` + number + session: the changes of a large head (``WrittenHead``)
- ``s`` + number + session: a settled segment, written once
- ``i`` + length + record id + session: a record id that was taken, written once
- ``p`` + session: why the session is parked
- ``w`` + offset + session: a waiting record, written once
- ``r`` + session: the session is being released
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Final

import msgspec
from msgspec import UNSET, Struct, field, structs

from reknit.pipeline.errors import InputError, InternalError, ReknitError
from reknit.pipeline.rules.refusals import Doubt
from reknit.pipeline.session import Session
from reknit.pipeline.stages.base import Live, Record
from reknit.pipeline.stages.kept import DEADLINE, Kept, SessionLifetimes
from reknit.pipeline.stages.releases import RELEASE, Releases
from reknit.pipeline.stages.tenants import SIZE, Usage
from reknit.pipeline.stages.waiting import Waiting, unpacked
from reknit.pipeline.stages.written_head import CHANGE, WrittenHead
from reknit.topics.records import TurnAppended, TurnRecord


class ParkedFullError(ReknitError):
    """The session is parked, and no more of its records may wait."""

    fault = "caller"


class Parked(Struct, array_like=True):
    """Why a session is parked.

    ``failed`` is the record that could not be processed, in ``packed`` form and without its value, which is in the dead
    letters. ``size`` is the bytes of the waiting records. ``overflowed``: later records are in the dead letters,
    because no more may wait.
    """

    failed: bytes
    size: int = 0
    overflowed: bool = False


_HEAD, _SEGMENT, _ID, _PARKED, _WAITING = b"h", b"s", b"i", b"p", b"w"
# Heads of sessions whose turns settle are smaller. Finding the changes takes 100 µs, and writing this many bytes 60.
_SMALL_BYTES = 16 * 1024
# Where the session begins in their keys.
_SESSION_AT = {_HEAD: 1, DEADLINE: 1, CHANGE: 5, _SEGMENT: 5, _PARKED: 1, _WAITING: 9, SIZE: 1, RELEASE: 1}


# The number of requests, in addition to the last of each target, for which a session still recognises a refusal. A
# sender cancels superseded requests, so few are in flight simultaneously.
_MOST_OVERTAKEN = 8


class Sent(Struct, frozen=True, array_like=True):
    """The last request that was published for a target.

    ``answered``: an assistant turn followed. ``own_fixes``: how many of the target's settled fixes were published.
    ``doubts`` are the rules that it broke, none of them hard. ``refused``: the provider refused it, and the refusal was
    judged. ``mended``: it had a fix, or an earlier request for the target had one. ``by_gateway``: a gateway sent it.
    """

    request_id: str
    sha256: str
    answered: bool = False
    own_fixes: int = 0
    doubts: tuple[Doubt, ...] = ()
    refused: bool = False
    mended: bool = False
    by_gateway: bool = False


class SentRequests(Struct):
    """The recent requests of a session.

    ``last`` has the last request of each target; ``overtaken`` are those, with their targets, that newer ones
    superseded since the assistant's last turn.
    """

    last: dict[str, Sent] = {}
    overtaken: list[tuple[str, Sent]] = []

    def note_sent(self, target: str, sent: Sent) -> None:
        last = self.last.get(target)
        if last is not None and not last.answered and not last.refused:
            self.overtaken = [*self.overtaken, (target, last)][-_MOST_OVERTAKEN:]
        self.last[target] = sent

    def unanswered(self) -> list[tuple[str, Sent]]:
        """The last request of each target that no assistant turn has answered and its provider has not refused."""
        return [(target, sent) for target, sent in self.last.items() if not (sent.answered or sent.refused)]

    def note_answered(self) -> None:
        """An assistant turn came: the requests before it are not superseded by the next ones."""
        self.last = {target: structs.replace(last, answered=True) for target, last in self.last.items()}
        self.overtaken = []

    def find(self, request_id: str) -> tuple[str, Sent] | None:
        """A request of late, with its target."""
        return next((each for each in self._all() if each[1].request_id == request_id), None)

    def note_refused(self, request_id: str) -> None:
        self.last = {target: _refused(sent, request_id) for target, sent in self.last.items()}
        self.overtaken = [(target, _refused(sent, request_id)) for target, sent in self.overtaken]

    def _all(self) -> Iterator[tuple[str, Sent]]:
        return chain(self.last.items(), self.overtaken)


def _refused(sent: Sent, request_id: str) -> Sent:
    return structs.replace(sent, refused=True) if sent.request_id == request_id else sent


class SeenId(msgspec.Struct, frozen=True, array_like=True):
    """A record id that was taken: the record's digest, and its message's index, -1 if it is not a message."""

    digest: bytes
    messages: int


class TurnState(msgspec.Struct, kw_only=True):
    """One session in memory. ``turn`` counts the records of the log that the session has taken.

    ``first`` is the unique offset with which this life of the session began, None if an earlier version did not note
    it; ``is_carried``: the history began in a former topic of the input, and ``first`` in the present one.
    ``wanted`` counts the requests that were asked for since the last turn. ``reported`` are the identities of fixes
    that were published with a request and are not yet certain. ``segments`` are the sizes of those that are written, by
    number. ``message_ids`` are those of ``ids`` that messages came under, in order; some may be known no more.
    """

    session: Session
    first: int | None = None
    is_carried: bool = False
    turn: int = 0
    wanted: int = 0
    sent: SentRequests = field(default_factory=SentRequests)
    reported: set[str] = set()
    quarantined: bool = False
    ids: dict[str, SeenId] = {}
    segments: dict[int, int] = {}
    new_ids: set[str] = set()
    gone_ids: set[str] = set()
    message_ids: list[str] = []
    parked: Parked | None = None
    head: WrittenHead = field(default_factory=partial(WrittenHead, _SMALL_BYTES))
    memory_bytes: int = 0

    def count_turn(self) -> None:
        """Count one more record that the session has taken."""
        self.turn += 1
        self.wanted = 0

    def renew_first(self, record: Record) -> None:
        """Begin a new life, with all that is kept, if the record is the first of the session in a re-created topic."""
        if record.base and (self.first is None or self.first < record.base):
            self.is_carried = self.is_carried or self.turn > 0
            self.first = record.unique_offset


class _Head(msgspec.Struct, array_like=True):
    session: bytes
    turn: int
    sent: dict[str, Sent]
    reported: list[str]
    quarantined: bool
    first: int | None = None
    wanted: int = 0
    overtaken: list[tuple[str, Sent]] = []
    is_carried: bool = False


def session_of(key: bytes) -> bytes:
    """The session that a changelog record belongs to, by the record's key."""
    kind = key[:1]
    if kind == _ID:
        return key[5 + int.from_bytes(key[1:5], "big") :]
    return key[_SESSION_AT.get(kind, len(key)) :]


# The first format of state that has a place for the media that a target's limits leave out.
MEDIA_LIMITS: Final = 3


class TurnStates(Kept[TurnState]):
    """The sessions of one partition; ``fresh`` creates a new one, for a format of state."""

    head_kind = _HEAD
    session_of = staticmethod(session_of)
    known_keys = frozenset({_PARKED, _WAITING})

    def __init__(
        self, fresh: Callable[[int], Session], endings: SessionLifetimes | None = None, usage: Usage | None = None
    ) -> None:
        super().__init__(endings)
        if usage is not None:
            self._owners[SIZE] = usage
        self.releases = Releases()
        self._owners[RELEASE] = self._endings.held = self.releases
        # Waiting records of sessions that are parked or being released, as far as they are in memory.
        self._waiting: dict[bytes, Waiting] = {}
        self._fresh = fresh
        # The changelog's keys of what is parked and of what waits.
        self._standing: dict[bytes, set[bytes]] = {_PARKED: set(), _WAITING: set()}
        self._waiting_counts: Counter[bytes] = Counter()

    def _note_key(self, key: bytes, *, exists: bool) -> None:
        standing = self._standing[key[:1]]
        if (key in standing) == exists:
            return
        (standing.add if exists else standing.discard)(key)
        if _waits(key):
            session = session_of(key)
            self._waiting_counts[session] += 1 if exists else -1
            if not self._waiting_counts[session]:
                del self._waiting_counts[session]

    @property
    def parked(self) -> int:
        """The number of parked sessions."""
        return len(self._standing[_PARKED])

    @property
    def waiting(self) -> int:
        """The number of waiting records of parked sessions and of those being released."""
        return len(self._standing[_WAITING])

    def waiting_of(self, session: bytes) -> int:
        """Return the number of a session's records that wait in the changelog."""
        return self._waiting_counts[session]

    def is_parked(self, key: bytes) -> bool:
        """Return True if a session is parked; it need not be readable."""
        entry = self._live.get(key)
        return _PARKED + key in self._standing[_PARKED] if entry is None else entry.parked is not None

    def is_quarantined(self, key: bytes) -> bool:
        """Return True if the session is quarantined, False where its state cannot be read."""
        with suppress(InternalError):
            entry = self.find(key)
            return entry is not None and entry.quarantined
        return False

    def get(self, key: bytes, record: Record) -> TurnState:
        """Return the session of a key; one that is not known yet begins with the record."""
        found = self.find(key)
        if found is not None:
            return found
        session = self._fresh(self.format)
        session.keep_limits(on=self.format >= MEDIA_LIMITS)
        return self._begin(key, TurnState(session=session, first=record.unique_offset))

    def waiting_in(self, session: bytes) -> Waiting:
        """The waiting records of a session that is parked or being released."""
        if (waiting := self._waiting.get(session)) is not None and waiting.is_whole:
            return waiting
        return self._complete(session, {} if session in self._gone else self._store.read(session))

    def _complete(self, session: bytes, records: Mapping[bytes, bytes]) -> Waiting:
        waiting = self._waiting.setdefault(session, Waiting())
        if not waiting.is_whole:
            waiting.complete({int.from_bytes(key[1:9], "big"): kept for key, kept in records.items() if _waits(key)})
        return waiting

    # Releases that are under way.

    def add_due(self, session: bytes, offset: int, record: bytes) -> None:
        """Let a record wait that came while its session is being released; the others need not be in memory."""
        self._waiting.setdefault(session, Waiting()).add(offset, record)
        self.releases.note_added(session, len(record))

    def is_due(self, record: Record) -> bool:
        """Return True if it is the one that ``due_record`` gives; one that comes from the log has a higher offset."""
        session = self.releases.first
        return session is not None and record.key == session and self.waiting_in(session).first == record.unique_offset

    def due_record(self) -> Record | None:
        """The record whose turn has come, of the session that was released first."""
        while (session := self.releases.first) is not None:
            waiting = self.waiting_in(session)
            if waiting.first is not None:
                return unpacked(session, waiting[waiting.first])
            # A crash in the midst of a write that is not all or nothing may leave a release of no records.
            self.releases.end(session)
        return None

    def take_due(self, session: bytes, offset: int) -> None:
        """The record at this offset, whose turn has come, waits no longer."""
        size = len(self.waiting_in(session).remove(offset))
        if offset > self.releases[session].offset:
            self.releases.note_taken(session, size)

    def drop_due(self, session: bytes, offset: int) -> dict[bytes, bytes | None]:
        """The same, and nothing else of the session is looked at; returns what that changes."""
        self.take_due(session, offset)
        if self.waiting_in(session).first is None:
            self.releases.end(session)
        changes = self._changes_of_owners(session)
        self._unstored.setdefault(session, set()).update(changes)
        self._note_keys(changes)
        return changes | self.releases.changes()

    def forget_session(self, session: bytes) -> None:
        super().forget_session(session)
        if session not in self.releases:
            self._waiting.pop(session, None)

    def _outlives(self, session: bytes, key: bytes) -> bool:
        return _waits(key) and session in self.releases

    def _changes_of_owners(self, session: bytes) -> dict[bytes, bytes | None]:
        changes = self._waiting[session].take_changes() if session in self._waiting else {}
        return {_WAITING + offset.to_bytes(8, "big") + session: record for offset, record in changes.items()}

    def committed(self, changes: Mapping[bytes, bytes | None], room: int) -> Live:
        live = super().committed(changes, room)
        # Many sessions may be released at once while one is worked on: the records of the others are in the store.
        for session, waiting in list(self._waiting.items()):
            is_used = session in self._live or session == self.releases.first
            if waiting.is_written and not (waiting and is_used):
                del self._waiting[session]
        return live

    def forget_unborn(self, key: bytes | None, offset: int) -> None:
        """After a record that could not be used: a session that it would have begun begins with a later one.

        An earlier record's session stays, whether or not it was committed in between.
        """
        entry = self._live.get(key or b"")
        if not key or entry is None or entry.first != offset:
            return
        if not (entry.turn or entry.wanted or entry.quarantined or entry.parked):
            del self._live[key]

    def _read(self, session: bytes, records: Mapping[bytes, bytes]) -> TurnState:
        segments, changes, ids = {}, {}, {}
        try:
            for key, value in records.items():
                kind, number = key[:1], int.from_bytes(key[1:5], "big")
                if kind == _SEGMENT:
                    segments[number] = value
                elif kind == CHANGE:
                    changes[number] = value
                elif kind == _ID:
                    ids[key[5 : 5 + number].decode()] = msgspec.msgpack.decode(value, type=SeenId)
            written, saved = WrittenHead.read(records[_HEAD + session], changes, _SMALL_BYTES)
            head = msgspec.msgpack.decode(saved, type=_Head)
            parked = records.get(_PARKED + session)
            said = Session.load(head.session, [segments[number] for number in sorted(segments)], self.format)
            said.keep_limits(on=self.format >= MEDIA_LIMITS)
            entry = TurnState(
                session=said,
                first=head.first,
                is_carried=head.is_carried,
                turn=head.turn,
                wanted=head.wanted,
                sent=SentRequests(head.sent, head.overtaken),
                reported=set(head.reported),
                quarantined=head.quarantined,
                ids=ids,
                message_ids=_in_order_of_messages(ids),
                segments={number: len(segments[number]) for number in sorted(segments)},
                parked=None if parked is None else msgspec.msgpack.decode(parked, type=Parked),
                head=written,
            )
        except msgspec.DecodeError as error:
            raise InternalError("state_unreadable", f"a session's state cannot be read: {error}") from error
        if entry.parked is not None:
            self._complete(session, records)
        self._weigh(session, entry, saved)
        return entry

    def _written(self, session: bytes, entry: TurnState) -> dict[bytes, bytes | None]:
        changes: dict[bytes, bytes | None] = {}
        for number, segment in entry.session.take_segments():
            changes[_segment_key(number, session)] = segment
            entry.segments[number] = len(segment)
        # A session that starts again no longer uses the segments of its former history.
        left = len(entry.segments) - entry.session.segment_count
        if left:
            older = (number for number in reversed(entry.segments) if not entry.session.has_segment(number))
            for number in reversed(list(islice(older, left))):
                changes[_segment_key(number, session)] = None
                del entry.segments[number]
        changes |= dict.fromkeys(
            (_id_key(name, session) for name in sorted(entry.gone_ids.difference(entry.ids))), None
        )
        for name in sorted(entry.new_ids & entry.ids.keys()):
            changes[_id_key(name, session)] = msgspec.msgpack.encode(entry.ids[name])
        entry.new_ids, entry.gone_ids = set(), set()
        head = msgspec.msgpack.encode(_saved(entry))
        changes |= entry.head.write(_HEAD + session, session, head, self.format)
        self._weigh(session, entry, head)
        return changes | _parked_changes(session, entry, was_parked=_PARKED + session in self._standing[_PARKED])

    def _weigh(self, session: bytes, entry: TurnState, head: bytes) -> None:
        """Note its memory: measured with 8 to 400 turns of 250 bytes, with and without calls, with 200 open calls."""
        waiting = self._waiting[session].size if session in self._waiting else 0
        entry.memory_bytes = 8 * 1024 + 4 * len(head) + 2 * sum(entry.segments.values()) + waiting


def _in_order_of_messages(ids: dict[str, SeenId]) -> list[str]:
    return sorted(
        (name for name, seen in ids.items() if seen.messages != NO_MESSAGE), key=lambda name: ids[name].messages
    )


def _saved(entry: TurnState) -> _Head:
    head = entry.session.head()
    sent, reported = entry.sent, sorted(entry.reported)
    return _Head(
        head,
        entry.turn,
        sent.last,
        reported,
        entry.quarantined,
        entry.first,
        entry.wanted,
        sent.overtaken,
        entry.is_carried,
    )


def _parked_changes(key: bytes, entry: TurnState, *, was_parked: bool) -> dict[bytes, bytes | None]:
    if entry.parked is not None:
        return {_PARKED + key: msgspec.msgpack.encode(entry.parked)}
    return {_PARKED + key: None} if was_parked else {}


def _segment_key(number: int, session: bytes) -> bytes:
    return _SEGMENT + number.to_bytes(4, "big") + session


def _id_key(name: str, session: bytes) -> bytes:
    encoded = name.encode()
    return _ID + len(encoded).to_bytes(4, "big") + encoded + session


def _waits(key: bytes) -> bool:
    return key[:1] == _WAITING


# The index of a record that is not a message: it stays known when the history changes.
NO_MESSAGE = -1

_encode = msgspec.json.Encoder(order="deterministic").encode


def seen_before(entry: TurnState, event: TurnRecord) -> bool:
    """Return True if the record was taken before; if not, its id is noted.

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
        if place != NO_MESSAGE:
            entry.message_ids.append(name)
        entry.new_ids.add(name)
        return False
    if seen.digest == digest:
        return True
    if not _extends_last(entry, event, seen):
        raise InputError("id_reused", "this id came before with other content")
    entry.ids[name] = SeenId(digest, entry.session.count)
    entry.message_ids.append(name)
    entry.new_ids.add(name)
    return False


def _extends_last(entry: TurnState, event: TurnRecord, seen: SeenId) -> bool:
    """Return True if a record has the last message again, with more content."""
    if not isinstance(event, TurnAppended) or seen.messages != entry.session.count - 1:
        return False
    return entry.session.is_extended_by(bytes(event.message), "auto" if event.shape is UNSET else event.shape)


def kept_by(entry: TurnState, name: str) -> int | str:
    """Return the number of messages kept if the one with this id becomes the last; otherwise the message id."""
    seen = entry.ids.get(name)
    return name if seen is None or seen.messages == NO_MESSAGE else seen.messages + 1


def forget_id(entry: TurnState, name: str) -> None:
    """Take a note back: its record could not be used."""
    if entry.ids.pop(name, None) is not None:
        entry.gone_ids.add(name)


def forget_after(entry: TurnState, count: int) -> None:
    """After the history was cut to ``count`` messages: the ids of removed messages may be used again."""
    names = entry.message_ids
    while names and ((seen := entry.ids.get(names[-1])) is None or seen.messages >= count):
        forget_id(entry, names.pop())


def _digest(event: TurnRecord) -> bytes:
    """A digest of what the record says, however it was written."""
    encoded = _encode(event)
    # A message that only the tolerant reader takes is compared by its bytes.
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        encoded = _encode(msgspec.json.decode(encoded))
    return hashlib.sha256(encoded).digest()[:16]
