"""Agent turns to requests: ``agent.turns.v1`` in; requests, fixes and dead letters out.

A request is looked at after each record, never each batch, so that what is sent does not depend on batching.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec import UNSET

from pipeline.errors import InputError, InternalError, ReknitError
from pipeline.registry import target_named
from pipeline.session import Session
from pipeline.stages.base import Output, Record, Result, dead_letter, place_of
from pipeline.stages.defaults import Defaults
from pipeline.stages.records import decoded
from pipeline.stages.requests import Publisher
from pipeline.stages.turn_state import TurnState, TurnStates, forget_behind, forget_id, kept_by, seen_before
from topics import AGENT_TURNS, PROVIDER_EVENTS, TURNS_STATE
from topics import headers as names
from topics.records import (
    RECORDED,
    REKNIT,
    HistoryRestored,
    HistoryRewound,
    RequestWanted,
    SessionClosed,
    SessionForgotten,
    SessionOpened,
    SessionReleased,
    StreamPolicy,
    TurnAppended,
    TurnRecord,
)

# Marks what the worker writes to an input by its own decision.
_OURS = (names.ORIGIN, REKNIT.encode())


class QuarantinedError(ReknitError):
    """An earlier record of the session could not be processed, and by policy its later ones follow it."""

    fault = "caller"


class TurnsStage:
    """The history side of the sessions of one partition."""

    topic = AGENT_TURNS
    state_topic = TURNS_STATE

    def __init__(self, defaults: Defaults | None = None) -> None:
        self._defaults = defaults or Defaults()
        self._states = TurnStates(self._defaults.session)

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record; a session is decoded when it is next heard of."""
        self._states.restore(key, value)

    def process(self, records: Sequence[Record]) -> Result:
        """Work through records in order. What cannot be used becomes a dead letter, and the session goes on."""
        result = Result()
        tally: Counter[tuple[str, ...]] = Counter()
        touched: set[bytes] = set()
        for record in records:
            try:
                touched.add(self._take_record(record, result, tally))
            except ReknitError as error:
                result.outputs.append(dead_letter(record, self.topic, error))
                tally["reknit_dead_letters_total", self.topic, error.code] += 1
                if record.key and self._defaults.quarantine:
                    # A session whose state cannot be read gives dead letters as it is.
                    with suppress(InternalError):
                        self._states.get(record.key, record.offset).quarantined = True
                        touched.add(record.key)
        result.changes = self._states.changes(touched)
        result.tally = dict(tally)
        return result

    def _take_record(self, record: Record, result: Result, tally: Counter[tuple[str, ...]]) -> bytes:
        key, event = decoded(record)
        kind = str(type(event).__struct_config__.tag)
        if isinstance(event, (SessionClosed, SessionForgotten)):
            # Not looked at before: one whose state cannot be read can be closed too.
            self._states.forget_session(key)
            header = names.CLOSED if isinstance(event, SessionClosed) else names.FORGOTTEN
            result.outputs.append(_farewell(key, record, header))
            tally["reknit_turns_total", kind, "taken"] += 1
            return key
        entry = self._states.get(key, record.offset)
        if entry.quarantined and not isinstance(event, HistoryRestored):
            raise QuarantinedError("quarantined", "an earlier record of this session is in the dead letters")
        if seen_before(entry, event):
            tally["reknit_turns_total", kind, "repeated"] += 1
            return key
        self._apply(entry, event, Publisher(key, entry, record, result, tally))
        if isinstance(event, SessionOpened):
            result.outputs.append(_announcement(key, entry.session))
        tally["reknit_turns_total", kind, "taken"] += 1
        return key

    def _apply(self, entry: TurnState, event: TurnRecord, publisher: Publisher) -> None:
        """Change the session as the record says, and send what is then due."""
        try:
            self._change(entry, event, publisher)
        except ReknitError:
            if (name := getattr(event, "id", UNSET)) is not UNSET:
                forget_id(entry, name)  # sent again with content that can be used, it is welcome
            raise
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
                    publisher.answered()
            case SessionOpened():
                session.configure(**self._defaults.changes(event, session.policy))
                entry.count_turn()
            case HistoryRestored():
                fixes = session.replace(bytes(event.messages))
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


def _farewell(key: bytes, record: Record, header: str) -> Output:
    """What frees the stream side of a session that is closed or forgotten, as the header says."""
    return Output(PROVIDER_EVENTS, key, None, ((header, place_of(record, AGENT_TURNS).encode()), _OURS))
