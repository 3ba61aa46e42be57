"""The conditions that hold for every session: no repeats, each value refused once, and nothing else is lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mock_provider.client_shapes import SHAPES
from mock_provider.driver import Run
from mock_provider.parties import PARTIES
from mock_provider.session_agent import SessionAgent

from reknit.pipeline.session.refusals import LIMITS

# The sentence names no medium, and several are candidates: the reference on refusals allows a second refusal.
_WITHOUT_PLACE = frozenset({"undecodable", "undecodable_gemini", "undecodable_chat"})
# A medium may be shown again, and a client without a session does not remember it.
_MEDIA = frozenset({
    "undecodable", "undecodable_gemini", "undecodable_chat", "download", "download_named", "download_gemini",
    "download_timeout", "gemini_file", "openai_file",
})  # fmt: skip


def repeats(run: Run) -> list[int]:
    """Return the requests that were refused before with the same bytes, other than plain retries."""
    return [at for at, each in enumerate(run.provider.ledger) if each.same_as >= 0 and at not in run.retried]


def refused_twice(run: Run, *, with_media: bool) -> list[str]:
    """Return the values that one party refused more than once. A misplaced path does not name the value."""
    if run.provider.misplaced:
        return []
    left_out = _WITHOUT_PLACE if with_media else _MEDIA
    names = [each for each in run.refusals if each.value and each.name not in left_out]
    refused = Counter((each.party, each.value) for each in names)
    return [value for (_, value), times in refused.items() if times > 1]


def lost(run: Run) -> list[str]:
    """Return the texts, calls and results that are not in the last request."""
    last = run.agent.request().decode()
    return [text for text in run.log if text not in last]


def changed_blocks(run: Run) -> int:
    """Return how many blocks the healings changed or left out."""
    shape = SHAPES[PARTIES[run.party].shape]
    changed = 0
    for before, after in run.healings:
        old, new = (Counter(map(_canonical, _blocks(json.loads(body), shape.turns))) for body in (before, after))
        changed += (old - new).total()
    return changed


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _blocks(body: dict[str, Any], turns: str) -> Iterator[Any]:
    for entry in body[turns]:
        parts = entry.get("content") or entry.get("parts")
        if isinstance(parts, list) and turns != "input":
            yield from parts
        else:
            yield entry


def is_at_limit(run: Run) -> bool:
    """Return True if a session was healed three times in one user turn, which takes several faults at once."""
    return isinstance(run.agent, SessionAgent) and (
        run.agent.session.healings(PARTIES[run.party].target) == LIMITS["on"]
    )
