"""Agent turns to requests: ``agent.turns.v1`` in; requests, fixes and dead letters out.

A request is looked at after each record, never each batch, so that what is sent does not depend on batching.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec import UNSET, Struct, field, structs

from reknit.pipeline.errors import InputError, InternalError, ReknitError
from reknit.pipeline.registry import target_named
from reknit.pipeline.session import Session
from reknit.pipeline.session.scaled import scale_from
from reknit.pipeline.stages.base import Output, Record, Result, count_dropped, dead_letter, place_of, stopped
from reknit.pipeline.stages.defaults import ENDPOINTS, Defaults, resets_healing
from reknit.pipeline.stages.envelope import OWN_ORIGIN, TURN_HEADERS, is_session
from reknit.pipeline.stages.healing import take_answer
from reknit.pipeline.stages.kept import EndedError, KeepsSessions, SessionLifetimes
from reknit.pipeline.stages.releases import SLICED_RELEASES, Release
from reknit.pipeline.stages.requests import Publisher, Reason, judge_answer, memory_of
from reknit.pipeline.stages.session_status import STEPS, Kind, Status, Step, kind_of
from reknit.pipeline.stages.tenants import LimitError, Usage
from reknit.pipeline.stages.turn_records import decoded
from reknit.pipeline.stages.turn_state import (
    Parked,
    ParkedFullError,
    SentRequests,
    TurnState,
    TurnStates,
    forget_after,
    forget_id,
    kept_by,
    seen_before,
)
from reknit.pipeline.stages.waiting import packed, unpacked
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, TURNS_STATE
from reknit.topics import headers as names
from reknit.topics.records import (
    RECORDED,
    HistoryRestored,
    HistoryRewound,
    ProviderAnswered,
    RequestSent,
    RequestWanted,
    SessionClosed,
    SessionForgotten,
    SessionOpened,
    SessionReleased,
    StreamPolicy,
    TurnAppended,
    TurnRecord,
)


class QuarantinedError(ReknitError):
    """An earlier record of the session could not be processed, and by policy its later ones follow it."""

    fault = "caller"


class _Batch(Struct):
    """The results of a batch so far, and the sessions whose state it changed."""

    result: Result = field(default_factory=Result)
    tally: Counter[tuple[str, ...]] = field(default_factory=Counter)
    touched: set[bytes] = field(default_factory=set)

    def count_turn(self, event: TurnRecord, outcome: str) -> None:
        self.tally["reknit_turns_total", str(type(event).__struct_config__.tag), outcome] += 1


class TurnsStage(KeepsSessions):
    """The history side of the sessions of one partition.

    One that does not ``publish`` keeps the histories alone: it makes no request of what it reads.
    """

    topic = AGENT_TURNS
    state_topic = TURNS_STATE
    _states: TurnStates

    def __init__(self, defaults: Defaults | None = None, *, publish: bool = True) -> None:
        self._publish = publish
        self._defaults = defaults or Defaults()
        self._endings = SessionLifetimes(self._defaults.marker_ms)
        self._usage = Usage(self._defaults.limits)
        self._states = TurnStates(self._new_session, self._endings, self._usage)
        # Whether the caller passes on what is due; if not, a release is done in one step.
        self._slices = False
        self._time = 0  # the partition's at the record that is being taken

    def use_format(self, state_format: int) -> None:
        super().use_format(state_format)
        self._slices = state_format >= SLICED_RELEASES
        self._defaults = structs.replace(self._defaults, endpoints=state_format >= ENDPOINTS)

    def _new_session(self, state_format: int) -> Session:
        return self._defaults.session(state_format)

    def levels(self) -> dict[str, int]:
        levels = {"reknit_sessions_parked": self._states.parked, "reknit_turns_waiting": self._states.waiting}
        releasing = len(self._states.releases)
        return levels | {"reknit_sessions_releasing": releasing} if releasing else levels

    def due_record(self) -> Record | None:
        return self._states.due_record()

    def scales(self, key: bytes) -> bool:
        if self._defaults.policy.media == "shrink":
            return True
        with suppress(InternalError):  # a session whose state cannot be read takes no record
            entry = self._states.find(key)
            return entry is not None and entry.session.policy.media == "shrink"
        return False

    def drop_due(self, record: Record) -> dict[bytes, bytes | None]:
        return self._states.drop_due(record.key or b"", record.unique_offset)

    def released_at(self) -> int | None:
        releases = self._states.releases
        return None if self.due_record() is None or releases.first is None else releases[releases.first].offset

    def has_room(self) -> bool:
        releases, most = self._states.releases, self._defaults
        return not releases or (releases.count < most.parked_records and releases.size < most.parked_bytes)

    def find(self, key: bytes) -> TurnState | None:
        """Return the state of a session, or None."""
        return self._states.find(key)

    def process(self, records: Sequence[Record]) -> Result:
        """Process records in order.

        A record that cannot be used becomes a dead letter; the policy decides what follows.
        """
        batch = _Batch()
        for record in records:
            if self._states.is_due(record):
                self._take_due(record, batch)
                continue
            for key in self._endings.pass_time(record.timestamp):
                self._free_session(key, names.EXPIRED, record, batch)
            self._time = self._endings.now
            self._arrive(record, batch)
            while not self._slices and (due := self.due_record()) is not None:
                self._take_due(due, batch)
        return self._finished(batch)

    def refuse(self, record: Record, error: ReknitError) -> Result:
        """Write a record to the dead letters; its session continues as the policy says."""
        batch = _Batch()
        if self._states.is_due(record):
            self._take_due(record, batch, error)
        elif record.key and record.key in self._states.releases:
            self._time = max(self._endings.now, record.timestamp)
            self._keep_due(record.key, record, batch)  # it is refused once its turn has come
        else:
            self._put_aside(record, error, batch)
        return self._finished(batch)

    def _finished(self, batch: _Batch) -> Result:
        states = self._states.changes(sorted(batch.touched))
        owners = (self._states.releases, self._endings, self._usage)
        for changes in (states, *(each.changes() for each in owners)):
            batch.result.changes |= changes
        batch.result.tally = dict(batch.tally)
        return batch.result

    def _put_aside(self, record: Record, error: ReknitError, batch: _Batch) -> None:
        policy = self._defaults.on_dead_letter
        if policy == "stop" and not isinstance(error, (EndedError, LimitError, QuarantinedError)):
            raise stopped(record, self.topic, error) from error
        letter = dead_letter(record, self.topic, error)
        if isinstance(error, LimitError):
            letter = structs.replace(letter, headers=(*letter.headers, (names.ERROR_LIMIT, error.limit.encode())))
        batch.result.outputs.append(letter)
        batch.tally["reknit_dead_letters_total", self.topic, error.code] += 1
        if not record.key or not is_session(record.key):
            return
        if isinstance(error, EndedError) or self._states.is_parked(record.key):
            return
        # A release is no part of the history, so nothing is missing without it.
        if policy == "go-on" or error.code == "not_parked":
            self._states.forget_unborn(record.key, record.unique_offset)
            return
        # A session whose state cannot be read gives dead letters as it is.
        with suppress(InternalError):
            if isinstance(error, LimitError) and self._states.find(record.key) is None:
                return  # a session that may not begin leaves nothing
            entry = self._states.get(record.key, record)
            batch.touched.add(record.key)
            self._usage.note_begun(record.key)
            if policy == "park" and not entry.quarantined and not isinstance(error, LimitError):
                entry.parked = Parked(packed(record, None))
                self._endings.stop_clock(record.key)
            else:
                entry.quarantined = True

    def _arrive(self, record: Record, batch: _Batch) -> None:
        """Take a record from the log, or let it wait if its session is parked or is being released."""
        try:
            self._take(record, batch)
        except ReknitError as error:
            self._put_aside(record, error, batch)

    def _take(self, record: Record, batch: _Batch, *, is_due: bool = False) -> None:
        """Execute the step for a record.

        Args:
            record: from the log, or from a release.
            batch: receives the results.
            is_due: the record is next in a release, so it does not wait.

        Raises:
            EndedError: the session has ended, and the record does not begin it again.
            InputError: the record cannot be decoded or used.
            QuarantinedError: the session is quarantined.
        """
        key, event, failure = record.key or b"", None, None
        try:
            key, event = decoded(record)
        except InputError as error:
            failure = error
        kind = kind_of(event)
        status = self._status(key, kind, record, batch, is_due=is_due)
        step = STEPS[status, kind]
        if step is Step.QUEUE:
            self._keep_due(key, record, batch)
            return
        if step is Step.WAIT:
            batch.touched.add(key)
            self._keep_waiting(key, self._states.get(key, record), record)
            return
        if step is Step.REFUSE_ENDED:
            raise EndedError("expired" if status is Status.EXPIRED else "forgotten") from failure
        if event is None:
            assert failure is not None  # noqa: S101  decoding gave one or the other
            raise failure
        count_dropped(record.headers, TURN_HEADERS, self.topic, 1, batch.tally)
        if step is Step.REFUSE_QUARANTINED:
            raise QuarantinedError("quarantined", "an earlier record of this session is in the dead letters")
        match event:
            case SessionClosed() | SessionForgotten():
                self._end_session(key, event, record, batch)
            case ProviderAnswered():
                self._take_answer(key, event, record, batch)
            case SessionReleased() if step is Step.RELEASE:
                self._take_release(key, event, record, batch)
            case _:
                self._take_record(key, event, record, batch)

    def _status(self, key: bytes, kind: Kind, record: Record, batch: _Batch, *, is_due: bool) -> Status:
        """Decide a session's status at a record. A session whose gap has passed is freed first."""
        if not key:
            return Status.LIVE  # the record cannot be decoded
        if not is_due:
            if key in self._states.releases:
                return Status.RELEASING
            if self._states.is_parked(key):
                return Status.PARKED
        self._end_if_expired(key, self._time, record, batch)
        why = self._endings.why_over(key)
        if why is not None:
            return Status.EXPIRED if why == "expired" else Status.FORGOTTEN
        is_quarantined = kind is not Kind.UNREADABLE and self._states.is_quarantined(key)
        return Status.QUARANTINED if is_quarantined else Status.LIVE

    def _take_record(self, key: bytes, event: TurnRecord, record: Record, batch: _Batch) -> None:
        """Apply a record to its session, which begins with the record if it is new."""
        size = len(record.value or b"")
        if self._states.find(key) is None:
            self._usage.admit(key, event, size, begins=True)
        entry = self._states.get(key, record)
        batch.touched.add(key)
        entry.renew_first(record)
        if seen_before(entry, event):
            self._endings.prolong(key, entry.session.policy.expires_after, self._time)
            batch.count_turn(event, "repeated")
            return
        entry.session.scale = scale_from(record.scaled) if self._defaults.can_scale else None
        try:
            self._usage.admit(key, event, size, begins=False)
            self._apply(entry, event, Publisher(key, entry, record, batch.result, batch.tally))
        except ReknitError:
            if (name := getattr(event, "id", UNSET)) is not UNSET:
                forget_id(entry, name)  # sent again with content that can be used, it is welcome
            raise
        self._usage.note_taken(key, event, size)
        self._endings.prolong(key, entry.session.policy.expires_after, self._time)
        begun_again = self._endings.begin_again(key)
        if isinstance(event, SessionOpened) or begun_again:
            batch.result.outputs.append(_announcement(key, entry.session))
        batch.count_turn(event, "taken")

    def _take_answer(self, key: bytes, event: ProviderAnswered, record: Record, batch: _Batch) -> None:
        """Heal the request that a provider refused, or judge the refusal. It begins no session."""
        entry = self._states.find(key)
        if entry is None:
            judged = judge_answer(SentRequests(), event, record, batch.result, batch.tally)
        else:
            judged = take_answer(key, entry, event, record, result=batch.result, tally=batch.tally)
        if entry is not None:
            batch.touched.add(key)
            self._endings.prolong(key, entry.session.policy.expires_after, self._time)
        batch.count_turn(event, "taken" if judged else "repeated")

    def _end_session(self, key: bytes, event: SessionClosed | SessionForgotten, record: Record, batch: _Batch) -> None:
        if isinstance(event, SessionForgotten):
            self._endings.end(key, "forgotten", self._time)
            self._states.releases.end(key)
            self._free_session(key, names.FORGOTTEN, record, batch)
        else:
            self._endings.stop_clock(key)
            self._free_session(key, names.CLOSED, record, batch)
        batch.touched.add(key)
        batch.count_turn(event, "taken")

    def _end_if_expired(self, key: bytes, now: int, record: Record, batch: _Batch) -> None:
        if self._endings.has_expired(key, now):
            self._endings.end(key, "expired", now)
            self._free_session(key, names.EXPIRED, record, batch)

    def _free_session(self, key: bytes, how: str, record: Record, batch: _Batch) -> None:
        """Free both sides of a session that has ended; ``how`` is the header that notifies the stream side.

        The ``record`` at which a session expires usually belongs to another session.
        """
        self._states.forget_session(key)
        self._usage.note_freed(key)
        place = place_of(record, AGENT_TURNS).encode()
        batch.result.outputs.append(Output(PROVIDER_EVENTS, key, None, ((how, place), OWN_ORIGIN)))
        batch.tally["reknit_sessions_ended_total", how] += 1

    # A parked session: its records wait, whatever they hold, until it is released or forgotten; it does not expire.

    def _take_release(self, key: bytes, event: SessionReleased, record: Record, batch: _Batch) -> None:
        entry = self._states.get(key, record)
        batch.touched.add(key)
        if seen_before(entry, event):
            batch.count_turn(event, "repeated")
        else:
            self._release(key, entry, event, record, batch)
            batch.count_turn(event, "taken")

    def _keep_waiting(self, key: bytes, entry: TurnState, record: Record) -> None:
        parked, kept = entry.parked, packed(record, record.value)
        assert parked is not None  # noqa: S101  only asked of a parked session
        waiting, most = self._states.waiting_in(key), self._defaults
        # Once one had no room none has, or what waits would have a hole.
        if parked.overflowed or len(waiting) >= most.parked_records or parked.size + len(kept) > most.parked_bytes:
            parked.overflowed = True
            raise ParkedFullError("parked_full", "the session is parked, and no more of its records may wait")
        waiting.add(record.unique_offset, kept)
        parked.size += len(kept)

    def _release(self, key: bytes, entry: TurnState, event: SessionReleased, record: Record, batch: _Batch) -> None:
        """Take the repaired record in the place of the one that failed. The waiting records are due from now on."""
        parked = entry.parked
        assert parked is not None  # noqa: S101  only asked of a parked session
        release = Release(record.unique_offset, self._time, parked.overflowed)
        entry.parked = None
        self._states.releases.begin(key, release)
        if event.record is not UNSET:
            failed = unpacked(key, parked.failed)
            # Its headers may be what it failed for.
            repaired = structs.replace(failed, value=bytes(event.record), headers=names.well_formed(failed.headers))
            try:
                self._take(repaired, batch, is_due=True)
            except ReknitError:
                # Nothing was taken: it may be released again, with another record.
                self._states.releases.end(key)
                entry.parked = parked
                if event.id is not UNSET:
                    forget_id(entry, event.id)
                raise
        self._go_on(key, release, record, batch)

    # A session that is being released: the waiting records are taken one by one, each at its own place in the log, and
    # records that come meanwhile wait too. So outputs are the same however far a release is when the next record comes.

    def _keep_due(self, key: bytes, record: Record, batch: _Batch) -> None:
        """Let a record wait for its turn; it will be taken as if it were the time at which it came.

        No bound makes it a dead letter, since its place in the queue depends on how fast the release is. The partition
        takes no more records before there is room again (``has_room``).
        """
        kept = packed(structs.replace(record, timestamp=self._time), record.value)
        self._states.add_due(key, record.unique_offset, kept)
        batch.touched.add(key)

    def _take_due(self, record: Record, batch: _Batch, error: ReknitError | None = None) -> None:
        """Take the record whose turn it is, or refuse it because of an error."""
        key = record.key or b""
        release = self._states.releases[key]
        waited = record.unique_offset < release.offset
        self._time = release.time if waited else record.timestamp
        self._states.take_due(key, record.unique_offset)
        batch.touched.add(key)
        if error is not None:
            self._put_aside(record, error, batch)
        else:
            try:
                self._take(record, batch, is_due=True)
            except ReknitError as caught:
                self._put_aside(record, caught, batch)
        self._go_on(key, release, record, batch, was_done=not waited)

    def _go_on(self, key: bytes, release: Release, record: Record, batch: _Batch, *, was_done: bool = False) -> None:
        """After a record of a release was taken: see what holds for the session now.

        ``was_done`` is whether all that had waited was taken before.
        """
        if key not in self._states.releases:
            return  # it was forgotten
        following = self._states.waiting_in(key).first
        if not was_done and (following is None or following > release.offset or self._states.is_parked(key)):
            if release.overflowed:
                self._follow_letters(key)
            self._resume_clock(key)
        if self._states.is_parked(key):
            self._wait_again(key, release, batch)
        elif following is None:
            self._states.releases.end(key)
            self._end_if_expired(key, self._endings.now, record, batch)

    def _wait_again(self, key: bytes, release: Release, batch: _Batch) -> None:
        """A record of a release could not be processed: those after it wait again, and so do those that came since."""
        entry = self._states.find(key)
        assert entry is not None  # noqa: S101  it is parked
        assert entry.parked is not None  # noqa: S101  as above
        self._states.releases.end(key)
        waiting, came_since = self._states.waiting_in(key), list[Record]()
        for offset, kept in waiting:
            if offset < release.offset:
                entry.parked.size += len(kept)
            else:
                came_since.append(unpacked(key, waiting.remove(offset)))
        for record in came_since:  # one of them may release the session
            self._time = record.timestamp
            self._arrive(record, batch)

    def _resume_clock(self, key: bytes) -> None:
        """Restart the clock of a released session, also if none of its records could be taken."""
        with suppress(InternalError):  # a session whose state cannot be read stays as it is
            entry = self._states.find(key)
            if entry is not None and entry.parked is None:
                self._endings.prolong(key, entry.session.policy.expires_after, self._time)

    def _follow_letters(self, key: bytes) -> None:
        """Dead-letter later records: some that came after those that waited are in the dead letters."""
        with suppress(InternalError):  # as above
            entry = self._states.find(key)
            if entry is None:
                return  # it was closed
            if entry.parked is not None:
                entry.parked.overflowed = True
            else:
                entry.quarantined = True

    def _apply(self, entry: TurnState, event: TurnRecord, publisher: Publisher) -> None:
        """Change the session as the record says, and send what is then due."""
        if isinstance(event, RequestSent):
            self._take_sent(entry.session, event, publisher)
            return
        self._change(entry, event, publisher)
        reason = _due(entry.session, event)
        if reason and self._publish:
            publisher.requests(reason)
        elif reason:
            entry.session.note_requests()

    def _take_sent(self, session: Session, event: RequestSent, publisher: Publisher) -> None:
        """Let a session know what a gateway has sent.

        Raises:
            InputError: ``bad_memory``.
            UnknownTargetError: the target is not one of the session's.
        """
        memory = memory_of(event)
        if event.target not in session.targets:
            session.request(event.target)  # raises
        session.take_memory(event.target, memory)
        # A gateway that wrote no content did not repair the request.
        answered = {each.messages: each.continued for each in event.answered}
        certain = [] if event.content_sha256 is UNSET else session.take_answered(answered)
        if self._publish:
            publisher.certain(certain)
            publisher.sent(event)
        if event.end is not UNSET:
            session.note_end(event.end)

    def _change(self, entry: TurnState, event: TurnRecord, publisher: Publisher) -> None:
        session = entry.session
        match event:
            case TurnAppended():
                fixes = session.append(bytes(event.message), "auto" if event.shape is UNSET else event.shape)
                entry.count_turn()
                publisher.certain(fixes)
                if session.last_role == "assistant":
                    # A recorded turn is the answer of a sent request. Any other turn came from elsewhere.
                    if self._publish and self._defaults.withdraw and event.origin != RECORDED:
                        publisher.withdraw()
                    entry.sent.note_answered()
                    publisher.count_healed("accepted")
            case SessionOpened():
                session.configure(**self._defaults.changes(event, session.policy))
                if resets_healing(event):
                    session.forget_refusals()
                entry.count_turn()
            case HistoryRestored():
                given, log = bytes(event.messages), event.log
                fixes = session.replace(given) if log is UNSET else session.replace_by_log(bytes(log))
                entry.count_turn()
                entry.quarantined = False
                entry.reported.clear()
                forget_after(entry, 0)
                publisher.certain(fixes)
            case HistoryRewound():
                session.rewind(event.to if isinstance(event.to, int) else kept_by(entry, event.to))
                entry.count_turn()
                forget_after(entry, session.count)
            case RequestWanted():
                entry.wanted += 1
            case SessionReleased():
                raise InputError("not_parked", "the session is not parked")


def _due(session: Session, event: TurnRecord) -> Reason | None:
    """Return why a request is due after a record, if one is."""
    if isinstance(event, RequestWanted):
        return "wanted"
    if (
        isinstance(event, TurnAppended)
        and event.request
        # A message that its framework does not send to a model makes no request due.
        and session.has_grown
        and session.waiting
        and not _drives_itself(event)
    ):
        return "interrupted" if session.interrupted else "turn"
    return None


def _drives_itself(event: TurnAppended) -> bool:
    """Return True if the turn was recorded from an agent that continues by itself and needs no request."""
    return event.origin == RECORDED and event.self_driving


def _announcement(key: bytes, session: Session) -> Output:
    """Return the record with the settings that the stream side needs, for its own log."""
    speaks = any(target_named(name).has_filters for name in session.targets)
    policy = StreamPolicy(
        record_assistant=session.policy.record_assistant,
        incomplete_call=session.policy.incomplete_call,
        model=session.model if speaks else None,
        tools=session.tool_names or None if speaks else None,
        wrapped_tools=tuple(sorted(session.wrapped_tools)),
    )
    return Output(PROVIDER_EVENTS, key, None, ((names.POLICY, msgspec.json.encode(policy)), OWN_ORIGIN))
