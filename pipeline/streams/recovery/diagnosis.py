"""The diagnosis of a run that ended without finishing: a bounded head and tail of its text, counts, and the reason.

The core has no clock, so the party that ends a run reports that it stalled, looped or took too long (the reason in the
ending record). A loop is also recognised in the text, if its end repeats one passage.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from reknit.pipeline.streams.recovery.memory import Trace
from reknit.pipeline.streams.recovery.message import Message
from reknit.topics.items import Cause, TurnDiagnosis

# The reason of a caller that ran out of lines: the run may continue elsewhere.
END_OF_INPUT: Final = "end of input"
# The end of a text is a loop if it repeats one passage this often, and has this many code points in all.
_LEAST_TIMES: Final = 4
_LEAST_LOOP: Final = 80

# Causes by the words of ending reasons; the first match applies.
_CAUSES: Final[tuple[tuple[re.Pattern[str], Cause], ...]] = (
    (re.compile(r"stall|no progress|idle", re.IGNORECASE), "stall"),
    (re.compile(r"loop|repeat", re.IGNORECASE), "loop"),
    (re.compile(r"max.?wait|time.?limit|time.?out|timed out|deadline|too long", re.IGNORECASE), "time_limit"),
    (re.compile(r"connect|reset|broken pipe|eof", re.IGNORECASE), "disconnect"),
    (re.compile(r"interrupt|cancel|kill|sig[a-z]+|abort", re.IGNORECASE), "stopped"),
)
# Causes for which a run is broken off, however far its last message got.
BROKEN_OFF: Final = frozenset({"stall", "loop", "time_limit"})


def diagnosis_of(
    trace: Trace, reason: str, message: Message | None, *, ended: bool, excerpt: int
) -> TurnDiagnosis | None:
    """Return the diagnosis of a run that ends for this reason; None if it has finished, as nearly every run has.

    ``message`` is its last one, whose text is only read if needed; ``ended`` says that the source reported the end of
    its output.
    """
    if reason == END_OF_INPUT:
        return None
    if message is not None:
        unfinished = not ended or bool(message.failed)
    else:
        unfinished = "error" in trace.counts and "result" not in trace.counts
    unfinished = unfinished or (bool(trace.counts) and cause_of(reason) in BROKEN_OFF)
    if not unfinished and not (message is not None and message.cut):
        return None
    if message is not None:
        trace.add_text_of(message, excerpt)
    if not unfinished and not is_loop(trace.tail):
        return None
    failed = message.failed if message is not None else ""
    cause = cause_of(reason, failed)
    loops = is_loop(trace.tail)
    return TurnDiagnosis(
        reason=reason,
        cause="loop" if loops and cause not in BROKEN_OFF else cause,
        error=failed,
        head=trace.head,
        tail=trace.tail,
        length=trace.length,
        repeats=loops,
        counts=trace.counts,
    )


@lru_cache(maxsize=256)
def cause_of(reason: str, failed: str = "") -> Cause:
    """One of a few words for why a run ended, which a metric can bear."""
    found = next((cause for pattern, cause in _CAUSES if pattern.search(reason)), None)
    if failed and found not in BROKEN_OFF:
        return "error"
    return found or "other"


def is_loop(text: str) -> bool:
    """Return True if a text ends in one passage, at least four times and 80 code points long in all."""
    for size in range(1, len(text) // _LEAST_TIMES + 1):
        times = max(_LEAST_TIMES, -(-_LEAST_LOOP // size))
        if len(text) >= times * size and text.endswith(text[-size:] * times) and not text[-size:].isspace():
            return True
    return False
