"""Agent turns to requests: ``agent.turns.v1`` in; requests, fixes and dead letters out.

A request is looked at after each record, never each batch, so that what is sent does not depend on batching.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec import UNSET, Struct, field, structs

from pipeline.errors import InputError, InternalError, ReknitError
from pipeline.registry import target_named
from pipeline.session import Session
from pipeline.stages.base import Output, Record, Result, dead_letter, place_of, stopped
from pipeline.stages.defaults import Defaults, LimitError, Usage
from pipeline.stages.kept import EndedError, Endings, KeepsSessions
from pipeline.stages.records import decoded, packed, unpacked
from pipeline.stages.requests import Publisher, judge_answer
from pipeline.stages.turn_state import (
    Parked,
    ParkedFullError,
    SentRequests,
    TurnState,
    TurnStates,
    forget_behind,
    forget_id,
    kept_by,
    seen_before,
)
from topics import AGENT_TURNS, PROVIDER_EVENTS, TURNS_STATE
from topics import headers as names
from topics.records import (
    RECORDED,
    REKNIT,
    HistoryRestored,
    HistoryRewound,
    ProviderAnswered,
    RequestWanted,
    SessionClosed,
    SessionForgotten,
    SessionOpened,
    SessionReleased,
    StreamPolicy,
    TurnAppended,
    TurnRecord,
)

# What begins a session anew that has expired.
_BEGINS = (SessionOpened, HistoryRestored)
# Marks what the worker writes to an input by its own decision.
_OURS = (names.ORIGIN, REKNIT.encode())


class QuarantinedError(ReknitError):
    """An earlier record of the session could not be processed, and by policy its later ones follow it."""

    fault = "caller"


class _Batch(Struct):
    """What a batch has led to so far, and the sessions whose state it changed."""

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
        self._endings = Endings(self._defaults.marker_ms)
        self._usage = Usage(self._defaults.limits)
        self._states = TurnStates(self._defaults.session, self._endings, self._usage)

    def levels(self) -> dict[str, int]:
        return {"reknit_sessions_parked": self._states.parked, "reknit_turns_waiting": self._states.waiting}

    def find(self, key: bytes) -> TurnState | None:
        """What is kept of a session; None where nothing is."""
        return self._states.find(key)

    def process(self, records: Sequence[Record]) -> Result:
        """Work through records in order. What cannot be used becomes a dead letter; the policy says what follows."""
        batch = _Batch()
        for record in records:
            for key in self._endings.pass_time(record.timestamp):
                self._free_session(key, names.EXPIRED, record, batch)
            try:
                self._take_record(record, batch)
            except ReknitError as error:
                self._put_aside(record, error, batch)
        return self._finished(batch)

    def refuse(self, record: Record, error: ReknitError) -> Result:
        """Put a record into the dead letters; its session goes on as the policy says."""
        batch = _Batch()
        self._put_aside(record, error, batch)
        return self._finished(batch)

    def _finished(self, batch: _Batch) -> Result:
        kept = (self._states.changes(sorted(batch.touched)), self._endings.changes(), self._usage.changes())
        batch.result.changes = kept[0] | kept[1] | kept[2]
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
        if not record.key or isinstance(error, EndedError) or self._states.is_parked(record.key):
            return
        if policy == "go-on":
            self._states.forget_unborn(record.key)
            return
        # A session whose state cannot be read gives dead letters as it is.
        with suppress(InternalError):
            if isinstance(error, LimitError) and self._states.find(record.key) is None:
                return  # a session that may not begin leaves nothing
            entry = self._states.get(record.key, record.offset)
            batch.touched.add(record.key)
            self._usage.note_begun(record.key)
            if policy == "park" and not entry.quarantined and not isinstance(error, LimitError):
                entry.parked = Parked(packed(record, None))
                self._endings.stop_clock(record.key)
            else:
                entry.quarantined = True

    def _take_record(self, record: Record, batch: _Batch) -> None:
        if record.key and self._states.is_parked(record.key):
            self._take_parked(record.key, record, batch)
            return
        key, event = self._decoded(record, batch)
        if isinstance(event, (SessionClosed, SessionForgotten)):
            # Not looked at before: one whose state cannot be read can be closed too.
            self._end_session(key, event, record, batch)
            return
        if isinstance(event, ProviderAnswered):
            self._take_answer(key, event, record, batch)
            return
        size = len(record.value or b"")
        if self._states.find(key) is None:
            self._usage.admit(key, event, size, begins=True)
        entry = self._states.get(key, record.offset)
        if entry.quarantined and not isinstance(event, HistoryRestored):
            raise QuarantinedError("quarantined", "an earlier record of this session is in the dead letters")
        batch.touched.add(key)
        if seen_before(entry, event):
            self._endings.prolong(key, entry.session.policy.expires_after)
            batch.count_turn(event, "repeated")
            return
        try:
            self._usage.admit(key, event, size, begins=False)
            self._apply(entry, event, Publisher(key, entry, record, batch.result, batch.tally))
        except ReknitError:
            if (name := getattr(event, "id", UNSET)) is not UNSET:
                forget_id(entry, name)  # sent again with content that can be used, it is welcome
            raise
        self._usage.note_taken(key, event, size)
        self._endings.prolong(key, entry.session.policy.expires_after)
        begun_anew = self._endings.begin_anew(key)
        if isinstance(event, SessionOpened) or begun_anew:
            batch.result.outputs.append(_announcement(key, entry.session))
        batch.count_turn(event, "taken")

    def _decoded(self, record: Record, batch: _Batch) -> tuple[bytes, TurnRecord]:
        """The session's key and what the record says.

        Raises:
            EndedError: the session is over, and this is none of the records that it still takes.
            InputError: as ``decoded``.
        """
        if record.key and self._endings.has_expired(record.key):
            self._endings.end(record.key, "expired")
            self._free_session(record.key, names.EXPIRED, record, batch)
        why = self._endings.why_over(record.key) if record.key else None
        if why is None:
            return decoded(record)
        try:
            key, event = decoded(record)
        except InputError as error:
            raise EndedError(why) from error
        if isinstance(event, SessionForgotten) or (why == "expired" and isinstance(event, _BEGINS)):
            return key, event
        raise EndedError(why)

    def _take_answer(self, key: bytes, event: ProviderAnswered, record: Record, batch: _Batch) -> None:
        """Judge a provider's refusal. It begins no session and changes no history, nor what is sent next."""
        entry = self._states.find(key)
        requests = SentRequests() if entry is None else entry.sent
        judged = judge_answer(requests, event, record, batch.result, batch.tally)
        if entry is not None:
            batch.touched.add(key)
            self._endings.prolong(key, entry.session.policy.expires_after)
        batch.count_turn(event, "taken" if judged else "repeated")

    def _end_session(self, key: bytes, event: SessionClosed | SessionForgotten, record: Record, batch: _Batch) -> None:
        if isinstance(event, SessionForgotten):
            self._endings.end(key, "forgotten")
            self._free_session(key, names.FORGOTTEN, record, batch)
        else:
            self._endings.stop_clock(key)
            self._free_session(key, names.CLOSED, record, batch)
        batch.touched.add(key)
        batch.count_turn(event, "taken")

    def _free_session(self, key: bytes, how: str, record: Record, batch: _Batch) -> None:
        """Free both sides of a session that is over; ``how`` is the header that tells the stream side.

        The record that a session expires with is another session's as a rule.
        """
        self._states.forget_session(key)
        self._usage.note_freed(key)
        place = place_of(record, AGENT_TURNS).encode()
        batch.result.outputs.append(Output(PROVIDER_EVENTS, key, None, ((how, place), _OURS)))
        batch.tally["reknit_sessions_ended_total", how] += 1

    # A parked session: its records wait, whatever they hold, until it is released or forgotten; it does not expire.

    def _take_parked(self, key: bytes, record: Record, batch: _Batch) -> None:
        event = None
        with suppress(InputError):  # it is said once its turn has come
            _, event = decoded(record)
        if isinstance(event, SessionForgotten):
            self._end_session(key, event, record, batch)
            return
        entry = self._states.get(key, record.offset)
        batch.touched.add(key)
        if not isinstance(event, SessionReleased):
            self._keep_waiting(entry, record)
        elif seen_before(entry, event):
            batch.count_turn(event, "repeated")
        else:
            self._release(key, entry, event, batch)
            self._resume_clock(key)
            batch.count_turn(event, "taken")

    def _keep_waiting(self, entry: TurnState, record: Record) -> None:
        parked, kept = entry.parked, packed(record, record.value)
        assert parked is not None  # noqa: S101  only asked of a parked session
        most = self._defaults
        # Once one had no room none has, or what waits would have a hole.
        if (
            parked.overflowed
            or len(entry.waiting) >= most.parked_records
            or parked.size + len(kept) > most.parked_bytes
        ):
            parked.overflowed = True
            raise ParkedFullError("parked_full", "the session is parked, and no more of its records may wait")
        entry.waiting[record.offset] = kept
        entry.new_waiting.add(record.offset)
        parked.size += len(kept)

    def _release(self, key: bytes, entry: TurnState, event: SessionReleased, batch: _Batch) -> None:
        """Take the mended record at the place of the one that failed, and then what waited, each at its own."""
        parked = entry.parked
        assert parked is not None  # noqa: S101  only asked of a parked session
        entry.parked = None
        if event.record is not UNSET:
            failed = unpacked(key, parked.failed)
            try:
                self._take_record(structs.replace(failed, value=bytes(event.record)), batch)
            except ReknitError:
                entry.parked = parked  # nothing was taken: it may be released again, with another record
                if event.id is not UNSET:
                    forget_id(entry, event.id)
                raise
        for _, kept in sorted(entry.stop_waiting().items()):
            record = unpacked(key, kept)
            try:
                self._take_record(record, batch)
            except ReknitError as error:
                self._put_aside(record, error, batch)
        if parked.overflowed:
            self._follow_letters(key)

    def _resume_clock(self, key: bytes) -> None:
        """A released session's gap begins anew, also where none of its records could be taken."""
        entry = self._states.find(key)
        if entry is not None and entry.parked is None:
            self._endings.prolong(key, entry.session.policy.expires_after)

    def _follow_letters(self, key: bytes) -> None:
        """Let no hole be: behind what waited something is in the dead letters, and so goes what comes later."""
        entry = self._states.find(key)
        if entry is None:
            return  # closed meanwhile
        if entry.parked is not None:
            entry.parked.overflowed = True
        else:
            entry.quarantined = True

    def _apply(self, entry: TurnState, event: TurnRecord, publisher: Publisher) -> None:
        """Change the session as the record says, and send what is then due."""
        self._change(entry, event, publisher)
        if not self._publish:
            return
        session = entry.session
        if isinstance(event, RequestWanted):
            publisher.requests("wanted")
        elif isinstance(event, TurnAppended) and session.waiting and not _drives_itself(event):
            publisher.requests("interrupted" if session.interrupted else "turn")

    def _change(self, entry: TurnState, event: TurnRecord, publisher: Publisher) -> None:
        session = entry.session
        match event:
            case TurnAppended():
                fixes = session.append(bytes(event.message))
                entry.count_turn()
                publisher.certain(fixes)
                if session.last_role == "assistant":
                    entry.sent.note_answered()
            case SessionOpened():
                session.configure(**self._defaults.changes(event, session.policy))
                entry.count_turn()
            case HistoryRestored():
                given, log = bytes(event.messages), event.log
                fixes = session.replace(given) if log is UNSET else session.replace_by_log(bytes(log))
                entry.count_turn()
                entry.quarantined = False
                entry.told.clear()
                forget_behind(entry, 0)
                publisher.certain(fixes)
            case HistoryRewound():
                session.rewind(event.to if isinstance(event.to, int) else kept_by(entry, event.to))
                entry.count_turn()
                forget_behind(entry, session.count)
            case RequestWanted():
                entry.wanted += 1
            case SessionReleased():
                raise InputError("not_parked", "the session is not parked")


def _drives_itself(event: TurnAppended) -> bool:
    """Whether the turn was recorded from an agent that goes on by itself, and so waits for no request."""
    return event.origin == RECORDED and event.self_driving


def _announcement(key: bytes, session: Session) -> Output:
    """What the stream side has to know, through its own log."""
    speaks = any(target_named(name).speaks for name in session.targets)
    policy = StreamPolicy(
        record_assistant=session.policy.record_assistant,
        incomplete_call=session.policy.incomplete_call,
        model=session.model if speaks else None,
        tools=session.tool_names or None if speaks else None,
    )
    return Output(PROVIDER_EVENTS, key, None, ((names.POLICY, msgspec.json.encode(policy)), _OURS))
