"""Agent turns to requests: ``agent.turns.v1`` in; requests, fixes and dead letters out.

A request is looked at after each record, never each batch, so that what is sent does not depend on batching.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from pipeline.errors import InputError, ReknitError
from pipeline.model import Policy
from pipeline.session import Session
from pipeline.stages.base import Output, Record, Result
from pipeline.stages.dead_letters import dead_letter
from pipeline.stages.defaults import Defaults
from pipeline.stages.repeats import seen_before
from pipeline.stages.requests import Publisher
from pipeline.stages.turn_state import Entry, TurnStates
from topics import AGENT_TURNS, PROVIDER_EVENTS, TURNS_STATE
from topics import headers as names
from topics.records import (
    RECORDED,
    TURN_RECORDS,
    HistoryRestored,
    HistoryRewound,
    RequestWanted,
    SessionClosed,
    SessionOpened,
    StreamPolicy,
    TurnAppended,
    TurnRecord,
)


class QuarantinedError(ReknitError):
    """An earlier record of the session could not be processed, and policy lets its later ones follow it."""

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
                self._take(record, result, tally)
            except ReknitError as error:
                self._refuse(record, error, result, tally)
            if record.key:
                touched.add(record.key)
        result.changes = self._states.changes(touched)
        result.tally = dict(tally)
        return result

    def _refuse(self, record: Record, error: ReknitError, result: Result, tally: Counter[tuple[str, ...]]) -> None:
        result.outputs.append(dead_letter(record, self.topic, error))
        tally["reknit_dead_letters_total", self.topic, error.code] += 1
        if record.key and self._defaults.quarantine:
            self._states.get(record.key).quarantined = True

    def _take(self, record: Record, result: Result, tally: Counter[tuple[str, ...]]) -> None:
        key, event = _decode(record)
        entry = self._states.get(key)
        if entry.quarantined and not isinstance(event, HistoryRestored | SessionClosed):
            raise QuarantinedError("quarantined", "an earlier record of this session is in the dead letters")
        if isinstance(event, SessionClosed):
            self._states.close(key)
            return
        if seen_before(entry, event):
            tally["reknit_turns_total", _type_of(event), "repeated"] += 1
            return
        publisher = Publisher(key, entry, record, result, tally)
        self._apply(entry, event, publisher)
        tally["reknit_turns_total", _type_of(event), "taken"] += 1
        if isinstance(event, SessionOpened):
            self._announce(key, entry, result)

    def _apply(self, entry: Entry, event: TurnRecord, publisher: Publisher) -> None:
        """Change the session as the record says, and send what is then due."""
        session = entry.session
        if isinstance(event, RequestWanted):
            publisher.requests(force=True)
            return
        match event:
            case SessionOpened():
                fixes = self._configure(session, event)
            case HistoryRestored():
                fixes = session.replace(event.messages)
                entry.quarantined = False
            case HistoryRewound():
                fixes = session.rewind(event.to)
            case TurnAppended():
                fixes = session.append(event.message)
        entry.turn += 1
        publisher.fixes(fixes)
        if isinstance(event, TurnAppended):
            publisher.answered()
            if session.waiting and not (event.self_driving and event.origin == RECORDED):
                publisher.requests()
