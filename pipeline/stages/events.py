"""Provider events to items: reads ``provider.events.v1``; writes items, finished turns, and fixes of the output.

A session's state has three kinds of changelog records, distinguished by their key's first byte:

- ``e`` + session: the recovery and the policy (the head), once for each batch that touched the session
- ``c`` + number + session: the changes of a large head (``WrittenHead``)
- ``w`` + number + session: a finished turn that waits for the policy, written once
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec import field, structs

from reknit.pipeline.errors import InputError, InternalError, ReknitError
from reknit.pipeline.providers.cascade.stream.speech import OutputFilters
from reknit.pipeline.registry import SOURCES, source_of_transcript
from reknit.pipeline.stages.base import Output, Record, Result, count_dropped, dead_letter, stopped
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.envelope import EVENT_HEADERS, OWN_ORIGIN, header_text, is_session, key_of, without_value
from reknit.pipeline.stages.event_records import EventDetails, event_details, runs
from reknit.pipeline.stages.joined_items import joined
from reknit.pipeline.stages.kept import EndedError, KeepsSessions, Kept, SessionLifetimes, Why
from reknit.pipeline.stages.requests import crossing, publish_stream_fixes
from reknit.pipeline.stages.written_head import CHANGE, WrittenHead
from reknit.pipeline.streams.recovery.render import FinishedTurn
from reknit.pipeline.streams.session import Recovery
from reknit.topics import AGENT_TURNS, EVENTS_STATE, PROVIDER_EVENTS, SESSION_ITEMS
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.items import (
    AgentUnrecognized,
    Item,
    ItemCompleted,
    ItemDelta,
    ItemRetracted,
    ItemStarted,
    TurnDiagnosis,
    TurnResult,
)
from reknit.topics.records import RECORDED, HistoryRewound, StreamPolicy, TurnAppended
from reknit.topics.trace import trace_of

_SESSION, _WAITING = b"e", b"w"

# Finding the changes of a stream's state takes 20 µs, little more than writing this many bytes.
_SMALL_BYTES = 4 * 1024

# The maximum size of finished turns that wait until the session's policy is known: events can be ahead of the policy,
# which reaches this side through the log. Beyond it the oldest are released without a record.
MOST_WAITING_BYTES = 256 * 1024

# Headers by which the history side says that a session is over.
_ENDS = frozenset({names.CLOSED, names.EXPIRED, names.FORGOTTEN})

# The items of each session in a batch, in order, grouped by the headers of their records.
_Shown: TypeAlias = dict[bytes, list[tuple[Headers, list[Item]]]]


class EventState(msgspec.Struct, kw_only=True):
    """One session in memory. ``records`` is None until its policy is known; ``waiting`` is by number.

    ``model`` and ``tools`` are the session's settings for a planner's text, if it has any. ``wrapped`` are its tools
    that accept no object. ``last_run`` is the last run whose records have numbers, and ``last_seq`` the number of its
    last one.
    """

    recovery: Recovery
    records: bool | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    wrapped: tuple[str, ...] | None = None
    last_run: str = ""
    last_seq: int = -1
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

    def is_repeated(self, run: str | None, seq: int | None) -> bool:
        """Note the number of a record in its run; return True if the record was taken before."""
        if run is None or seq is None:
            return False
        if run == self.last_run and seq <= self.last_seq:
            return True
        self.last_run, self.last_seq = run, seq
        return False

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
    wrapped: tuple[str, ...] | None = None
    last_run: str = ""
    last_seq: int = -1


def session_of(key: bytes) -> bytes:
    """The session that a changelog key is of; empty for one that is of none, or names only its digest."""
    return key[1:] if key[:1] == _SESSION else key[5:] if key[:1] in {_WAITING, CHANGE} else b""


class EventStates(Kept[EventState]):
    """The sessions of one partition.

    ``speech`` is what holds for a planner's text, and ``wrapped`` are the tools that accept no object, where a session
    says nothing.
    """

    head_kind = _SESSION
    session_of = staticmethod(session_of)

    def __init__(
        self,
        speech: OutputFilters | None = None,
        endings: SessionLifetimes | None = None,
        wrapped: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(endings)
        self._wrapped = wrapped
        self._speech = speech or OutputFilters()

    def begin_session(self, key: bytes, recovery: Recovery) -> EventState:
        entry = self._begin(key, EventState(recovery=recovery))
        self.pass_settings(entry)
        return entry

    def pass_settings(self, entry: EventState) -> None:
        """Pass the output filters of a planner's text, and the wrapped tools, to the recovery of this session."""
        speech = self._speech
        model = speech.model if entry.model is None else entry.model
        tools = speech.tools if entry.tools is None else entry.tools
        entry.recovery.speak(structs.replace(speech, model=model, tools=tools))
        entry.recovery.unwrap(self._wrapped if entry.wrapped is None else frozenset(entry.wrapped))

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
            wrapped=saved.wrapped,
            last_run=saved.last_run,
            last_seq=saved.last_seq,
            waiting=numbered[_WAITING],
            numbered=saved.numbered,
            written=set(numbered[_WAITING]),
            head=head,
        )
        _weigh(entry, whole)
        self.pass_settings(entry)
        return entry

    def _written(self, session: bytes, entry: EventState) -> dict[bytes, bytes | None]:
        saved = _Saved(
            entry.recovery.snapshot(),
            entry.records,
            entry.numbered,
            entry.model,
            entry.tools,
            entry.wrapped,
            entry.last_run,
            entry.last_seq,
        )
        head = msgspec.msgpack.encode(saved)
        changes = entry.head.write(_SESSION + session, session, head, self.format)
        for number in sorted(entry.written ^ entry.waiting.keys()):
            changes[_WAITING + number.to_bytes(4, "big") + session] = entry.waiting.get(number)
        entry.written = set(entry.waiting)
        _weigh(entry, head)
        return changes


def _weigh(entry: EventState, head: bytes) -> None:
    """Note its memory: measured in the middle of messages of 20 and of 500 deltas."""
    entry.memory_bytes = 4 * 1024 + 8 * len(head) + sum(map(len, entry.waiting.values()))


class EventsStage(KeepsSessions):
    """The stream side of the sessions of one partition."""

    topic = PROVIDER_EVENTS
    state_topic = EVENTS_STATE
    _states: EventStates

    def __init__(self, defaults: Defaults | None = None) -> None:
        self._defaults = defaults or Defaults()
        self._endings = SessionLifetimes(self._defaults.marker_ms)
        self._states = EventStates(self._defaults.speech(), self._endings, self._defaults.wrapped_tools())

    def process(self, records: Sequence[Record]) -> Result:
        """Feed records to their sessions.

        A record that cannot be used becomes a dead letter, and the session continues.
        """
        result = Result()
        tally: Counter[tuple[str, ...]] = Counter()
        items: _Shown = {}
        for run in runs(self._admitted(records, result, tally), self._defaults.source):
            try:
                self._take_run(run, items, result, tally)
            except ReknitError as error:
                for record in run:
                    self._put_aside(record, error, result, tally)
                # The work before the failure is state. State that cannot be read stays unchanged.
                with suppress(InternalError):
                    if run[0].key and self._states.find(run[0].key) is not None:
                        _show_items(items, run[0].key, (), [])
        encode = msgspec.json.Encoder().encode
        for key, groups in items.items():
            for headers, found in groups:
                result.outputs.extend([Output(SESSION_ITEMS, key, encode(item), headers) for item in joined(found)])
        result.changes = self._states.changes(items) | self._endings.changes()
        result.tally = dict(tally)
        return result

    def refuse(self, record: Record, error: ReknitError) -> Result:
        """Write a record to the dead letters. The session continues: its events can be replayed."""
        result, tally = Result(), Counter[tuple[str, ...]]()
        self._put_aside(record, error, result, tally)
        result.tally = dict(tally)
        return result

    def _put_aside(self, record: Record, error: ReknitError, result: Result, tally: Counter[tuple[str, ...]]) -> None:
        if self._defaults.on_dead_letter == "stop" and not isinstance(error, EndedError):
            raise stopped(record, self.topic, error) from error
        result.outputs.append(dead_letter(record, self.topic, error))
        tally["reknit_dead_letters_total", self.topic, error.code] += 1

    def _admitted(self, records: Sequence[Record], result: Result, tally: Counter[tuple[str, ...]]) -> Sequence[Record]:
        """Records without those of sessions that are over by then: looked at in the log's order, as time passes."""
        if not self._endings and all(record.value is not None for record in records):
            return records
        admitted = []
        for record in records:
            self._endings.pass_time(record.timestamp)
            why = _stated_end(record)
            if record.key and why is not None:
                self._endings.end(record.key, why, self._endings.now)
            elif record.key and (over := self._endings.why_over(record.key)) is not None:
                if over == "forgotten" or record.value is not None or names.POLICY not in dict(record.headers):
                    self._put_aside(record, EndedError(over), result, tally)
                    continue
                self._endings.begin_again(record.key)
            admitted.append(record)
        return admitted

    def _take_run(self, run: list[Record], items: _Shown, result: Result, tally: Counter[tuple[str, ...]]) -> None:
        key, value = key_of(run[0]), run[0].value
        if value is None and self._take_control(key, run[0], items, result, tally):
            return
        details = event_details(run[0])
        if value is None and details.exit is None:
            raise without_value(run[0], "the record has no value, and no header `exit`, `policy` or `closed`")
        count_dropped(run[0].headers, EVENT_HEADERS, self.topic, len(run), tally)
        stated = details.source or self._defaults.source
        transcribed = source_of_transcript(stated)
        source = stated if transcribed is None else transcribed.name
        entry = self._entry(key, source)
        if entry.is_repeated(details.run, details.seq):
            tally["reknit_events_repeated_total", source] += len(run)
            return
        former, name = entry.recovery.run, details.run
        if entry.recovery.source != source:
            entry.recovery.switch_source(source)
        ended = entry.recovery.end_former_run(name) if value is not None else []
        if ended:
            _show_items(items, key, _item_headers(former), ended)
        described = _item_headers(name or entry.recovery.run, run[0])
        if transcribed is not None:
            found = _feed_transcript(entry.recovery, run, details)
        elif len(run) > 1:
            found = entry.recovery.feed_each([record.value or b"" for record in run], name)
        else:
            found = _feed(entry.recovery, value, details)
        if details.is_transcript_expected:
            entry.recovery.expect_transcript()
        answers = [crossing(record, details) for record in run]
        result.outputs.extend([answer for answer in answers if answer is not None])
        _count_items([*ended, *found], source, tally)
        _show_items(items, key, described, found)
        fixes = entry.recovery.take_fixes()
        if fixes:
            publish_stream_fixes(
                fixes, run[0], entry.recovery.turns, result, tally, request_id=details.request_id or ""
            )
        finished = entry.recovery.take_finished()
        if finished:
            turns = [_recorded(turn, source) for turn in finished]
            self._record(key, entry, turns, result, trace_of(run[0].headers))
            tally["reknit_turns_finished_total", source] += sum(not turn.resets for turn in finished)

    def _take_control(
        self, key: bytes, record: Record, items: _Shown, result: Result, tally: Counter[tuple[str, ...]]
    ) -> bool:
        """Execute a control record (a record without a value); return False if the history side did not write it."""
        headers = dict(record.headers)
        if names.POLICY in headers:
            # The worker's own names every tool of the session.
            longest = None if OWN_ORIGIN in record.headers else names.LONGEST_VALUE
            self._learn_policy(key, header_text(headers, names.POLICY, longest) or "", result)
            _show_items(items, key, (), [])
        elif headers.keys().isdisjoint(_ENDS):
            return False
        else:
            self._close_session(key, items, tally, silently=names.FORGOTTEN in headers)
        count_dropped(record.headers, EVENT_HEADERS - {names.POLICY}, self.topic, 1, tally)
        return True

    def _entry(self, key: bytes, source: str) -> EventState:
        """Return the session of a key; a new one begins with this source."""
        return self._states.find(key) or self._states.begin_session(key, Recovery(source))

    def _close_session(
        self, key: bytes, items: _Shown, tally: Counter[tuple[str, ...]], *, silently: bool = False
    ) -> None:
        """Forget a session that is over; what was open ends, and is not appended to its log.

        ``silently``, nothing is shown of what was open.
        """
        try:
            entry = self._states.find(key)
        except InternalError:
            entry = None  # unreadable state can be forgotten too
        if entry is None or silently:
            _show_items(items, key, (), [])
        else:
            named = _item_headers(entry.recovery.run)
            found = entry.recovery.end_run("session closed") if entry.recovery.running else []
            _count_items(found, entry.recovery.source, tally)
            _show_items(items, key, named, found)
        self._states.forget_session(key)

    # Finished turns, for the session's log.

    def _learn_policy(self, key: bytes, policy: str, result: Result) -> None:
        try:
            wanted = msgspec.json.decode(policy, type=StreamPolicy)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError("bad_policy", f"header `policy` cannot be read: {error}") from error
        entry = self._entry(key, self._defaults.source)
        entry.records, entry.model, entry.tools = wanted.record_assistant, wanted.model, wanted.tools
        entry.wrapped = wanted.wrapped_tools
        self._states.pass_settings(entry)
        self._record(key, entry, entry.take_waiting(), result)

    def _record(self, key: bytes, entry: EventState, turns: list[bytes], result: Result, trace: Headers = ()) -> None:
        """Append finished turns to the log, or keep them until it is known whether the session records turns.

        The trace of the record that finished them is not kept with those that wait.
        """
        records = entry.records
        if records or (records is None and self._defaults.policy.record_assistant):
            result.outputs.extend([Output(AGENT_TURNS, key, turn, trace) for turn in turns])
        elif records is None:
            for turn in turns:
                entry.keep_waiting(turn)


def _stated_end(record: Record) -> Why | None:
    """Why the session is over, where the record is the history side's word for that; None where it is another."""
    if record.value is not None or not is_session(record.key) or names.has_bad_name(record.headers):
        return None
    found = {name for name, _ in record.headers}
    return "forgotten" if names.FORGOTTEN in found else "expired" if names.EXPIRED in found else None


def _show_items(items: _Shown, key: bytes, headers: Headers, found: list[Item]) -> None:
    """Append items to those of a session; an empty list only marks the session as touched."""
    groups = items.setdefault(key, [])
    if groups and groups[-1][0] == headers:
        groups[-1][1].extend(found)
    elif found:
        groups.append((headers, list(found)))


def _item_headers(run: str | None, record: Record | None = None) -> Headers:
    """Return the headers with which items name their run, the request that they answer, and their trace."""
    found = () if run is None else ((names.RUN, run.encode()),)
    if record is None:
        return found
    answered = dict(record.headers).get(names.REQUEST_ID)
    request_id = () if names.fault_of(answered) else ((names.REQUEST_ID, answered),)
    return (*found, *request_id, *trace_of(record.headers))


def _feed(recovery: Recovery, value: bytes | None, details: EventDetails) -> list[Item]:
    run = details.run
    if value is None:
        if run is not None and recovery.run not in {None, run}:
            return []  # the end of a run that ended when the next one came
        return recovery.end_run(details.exit or "end of run")
    return recovery.feed(value, run, framing=details.framing)


def _feed_transcript(recovery: Recovery, records: Sequence[Record], details: EventDetails) -> list[Item]:
    if records[0].value is None:
        return recovery.end_transcript(details.run)
    lines = b"\n".join([record.value or b"" for record in records])
    return recovery.feed_transcript(lines, details.run, framing=details.framing)


def _recorded(turn: FinishedTurn, source: str) -> bytes:
    """The record of the log for a finished turn, or for the end of the conversation that the turns before it are of."""
    if turn.resets:
        return msgspec.json.encode(HistoryRewound(to=0, id=turn.id))
    record = TurnAppended(
        message=msgspec.Raw(turn.message),
        id=turn.id,
        origin=RECORDED,
        source=source,
        self_driving=SOURCES[source].self_driving,
    )
    return msgspec.json.encode(record)


def _count_items(items: Sequence[Item], source: str, tally: Counter[tuple[str, ...]]) -> None:
    """Count items by where they came from, and what had to be withdrawn, stayed incomplete or was never shown."""
    for item in items:
        if type(item) is ItemDelta:  # by far the most, and nothing to count
            continue
        if type(item) is ItemStarted:
            tally["reknit_items_total", source, item.origin] += 1
        elif type(item) is ItemCompleted and item.incomplete:
            tally["reknit_items_incomplete_total", source] += 1
        elif type(item) is ItemRetracted:
            tally["reknit_retractions_total", source] += 1
        elif type(item) is TurnResult and item.unseen:
            tally["reknit_results_unseen_total", source] += 1
        elif type(item) is TurnDiagnosis:
            tally["reknit_runs_unfinished_total", source, item.cause] += 1
        elif type(item) is AgentUnrecognized:
            tally["reknit_events_unrecognised_total", source] += 1
