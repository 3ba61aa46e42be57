"""What the items of a stream add to the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topics.items import (
    AgentUnrecognized,
    Item,
    ItemCompleted,
    ItemDelta,
    ItemRetracted,
    ItemStarted,
    TurnDiagnosis,
    TurnResult,
)


def count_items(items: Sequence[Item], source: str, tally: Counter[tuple[str, ...]]) -> None:
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
