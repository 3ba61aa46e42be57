"""Pure processing of records: the stages by their source topic, and what they write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pipeline.stages.base import Stage
from pipeline.stages.defaults import Defaults
from pipeline.stages.events import EventsStage
from pipeline.stages.turns import TurnsStage
from topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
)

# Every topic that a stage writes to.
WRITTEN = (PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS, AGENT_TURNS, PROVIDER_EVENTS)


def stages(defaults: Defaults) -> dict[str, Callable[[int], Stage]]:
    """What makes a stage for a partition, by source topic."""
    return {AGENT_TURNS: partial(_turns, defaults), PROVIDER_EVENTS: partial(_events, defaults)}


def _turns(defaults: Defaults, _partition: int) -> Stage:
    return TurnsStage(defaults)


def _events(defaults: Defaults, _partition: int) -> Stage:
    return EventsStage(defaults)
