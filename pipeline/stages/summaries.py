"""A session's state in a few words, from its changelog records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.stages.defaults import Defaults
from pipeline.stages.event_state import EventStates
from pipeline.stages.turn_state import TurnStates

Rows = Iterable[tuple[bytes, bytes | None]]


def summarise(session: bytes, turns: Rows, events: Rows) -> dict[str, Any]:
    """What both sides keep of a session, as plain values; ``{}`` where they keep nothing.

    ``turns`` and ``events`` are changelog records of the session's partition, oldest first.
    """
    history, stream = TurnStates(Defaults().session), EventStates()
    for states, rows in ((history, turns), (stream, events)):
        for key, value in rows:
            if key.endswith(session):
                states.restore(key, value)
    return _history(history, session) | _stream(stream, session)


def _history(states: TurnStates, session: bytes) -> dict[str, Any]:
    entry = states.find(session)
    if entry is None:
        return {}
    return {
        "history": {
            "turn": entry.turn,
            "messages": entry.session.count,
            "targets": entry.session.targets,
            "model": entry.session.model,
            "policy": entry.session.policy,
            "waiting": entry.session.waiting,
            "quarantined": entry.quarantined,
            "segments": len(entry.segments),
            "requests": {target: sent.request_id for target, sent in entry.sent.items()},
        }
    }


def _stream(states: EventStates, session: bytes) -> dict[str, Any]:
    entry = states.find(session)
    if entry is None:
        return {}
    return {
        "stream": {
            "source": entry.recovery.source,
            "records_assistant": entry.records,
            "waiting_turns": len(entry.waiting),
        }
    }
