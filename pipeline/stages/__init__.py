"""Pure processing of records: the stages by their source topic, and what they write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
)

if TYPE_CHECKING:
    from reknit.pipeline.stages.base import Stage
    from reknit.pipeline.stages.defaults import Defaults

# Every topic that a stage writes to.
WRITTEN = (PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS, AGENT_TURNS, PROVIDER_EVENTS)


def stages(defaults: Defaults) -> dict[str, Callable[[int], Stage]]:
    """Creates the stage of a partition, by source topic."""
    from reknit.pipeline.stages.events import EventsStage  # noqa: PLC0415  who only reads what stages wrote needs none of it
    from reknit.pipeline.stages.turns import TurnsStage  # noqa: PLC0415  as above

    return {AGENT_TURNS: lambda _number: TurnsStage(defaults), PROVIDER_EVENTS: lambda _number: EventsStage(defaults)}
