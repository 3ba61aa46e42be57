"""Healing through the topics: the record of a refusal leads to the healed request, in the same transaction.

A request that was overtaken since is not sent again: the session remembers the cause, and its next request is written
without it.
"""

from __future__ import annotations

from collections import Counter

from msgspec import UNSET

from reknit.pipeline.healing.errors import read_error
from reknit.pipeline.stages.base import Record, Result
from reknit.pipeline.stages.requests import REFUSED_FROM, Publisher, judge_answer
from reknit.pipeline.stages.turn_state import TurnState
from reknit.topics.records import ProviderAnswered

# Reports without an id count as one: they may be redeliveries of the same report.
_NO_REPORT = "-"


def take_answer(
    key: bytes,
    entry: TurnState,
    event: ProviderAnswered,
    record: Record,
    *,
    result: Result,
    tally: Counter[tuple[str, ...]],
) -> bool:
    """Heal the request that a provider refused, or judge the refusal; False for one that came before."""
    if entry.session.was_healed(event.request_id):
        return False
    publisher = Publisher(key, entry, record, result, tally)
    if target := _heal(entry, event, publisher):
        tally["reknit_provider_refusals_total", target, "healed", ""] += 1
        return True
    is_new = judge_answer(entry.sent, event, record, result, tally)
    found = entry.sent.find(event.request_id)
    if found is not None and found[1].refused:
        publisher.count_healed("refused", event.request_id)
    return is_new


def _heal(entry: TurnState, event: ProviderAnswered, publisher: Publisher) -> str:
    """Heal a refused request; return its target, or "" if the refusal is not healed."""
    found = entry.sent.find(event.request_id)
    session = entry.session
    if found is None or found[0] not in session.targets or event.status < REFUSED_FROM:
        return ""
    target, sent = found
    if sent.refused or sent.by_gateway or entry.quarantined:
        return ""
    last = entry.sent.last.get(target)
    is_newest = last is not None and last.request_id == event.request_id and not last.answered
    done = session.refused_with(
        target,
        read_error(event.status, event.body),
        sha256=sent.sha256,
        request_id=event.request_id,
        report=_NO_REPORT if event.id is UNSET else event.id,
    )
    if done is None:
        return ""
    publisher.count_healed("refused", event.request_id)
    entry.sent.note_refused(event.request_id)
    if is_newest:
        publisher.healed(done, event.request_id)
    else:
        session.note_healed(target, "")
    return target
