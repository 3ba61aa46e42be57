"""What is left of a run that ended without finishing: a bounded head and tail of its text, counts, and the reason.

The core has no clock, so whoever ends a run says that it stalled, looped or took too long (the reason that the ending
record gives). A loop is also seen in the text itself, when its end is the same passage over and over.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

from pipeline.streams.events import BLOCK_OF_DELTA, BlockDelta, Event
from pipeline.streams.recovery.message import Message
from topics.items import Cause, TurnDiagnosis

# The reason of who only ran out of lines: it says nothing of the run, which may go on elsewhere.
END_OF_INPUT: Final = "end of input"
# Code points of text that are kept at each end.
EXCERPT: Final = 400
# The end of a text is a loop if it is one passage so many times, and so many code points in all.
_LEAST_TIMES: Final = 4
_LEAST_LOOP: Final = 80

# Causes by the words with which those who end runs tell them; the first that fits.
_CAUSES: Final[tuple[tuple[re.Pattern[str], Cause], ...]] = (
    (re.compile(r"stall|no progress|idle", re.IGNORECASE), "stall"),
    (re.compile(r"loop|repeat", re.IGNORECASE), "loop"),
    (re.compile(r"max.?wait|time.?limit|time.?out|timed out|deadline|too long", re.IGNORECASE), "time_limit"),
    (re.compile(r"connect|reset|broken pipe|eof", re.IGNORECASE), "disconnect"),
    (re.compile(r"interrupt|cancel|kill|sig[a-z]+|abort", re.IGNORECASE), "stopped"),
)
# Causes for which a run is broken off, however far its last message got.
BROKEN_OFF: Final = frozenset({"stall", "loop", "time_limit"})


class Trace(Struct, array_like=True):
    """What a run has been so far: events by type, and its text, except for that of the current message."""

    counts: dict[str, int] = {}
    head: str = ""
    tail: str = ""
    length: int = 0

    def count_event(self, event: Event) -> None:
        """Count an event by its type; the end of the run is none of its own."""
        kind, number = event.counted_as, 1
        if isinstance(event, BlockDelta):
            kind, number = event.kind if event.kind in BLOCK_OF_DELTA else kind, event.count
        self.counts[kind] = self.counts.get(kind, 0) + number

    def add_text_of(self, message: Message, excerpt: int) -> None:
        for block in message.blocks:
            text = block.text()
            if text:
                self._add_text(text if not self.length else "\n" + text, excerpt)
                self.length += block.length or len(text)

    def _add_text(self, text: str, excerpt: int) -> None:
        room = excerpt - len(self.head)
        if room > 0:
            self.head += text[:room]
            text = text[room:]
        if text:
            self.tail = (self.tail + text[-excerpt:])[-excerpt:] if excerpt else ""

    def loops(self) -> bool:
        return is_loop(self.tail)

    def diagnosis(self, reason: str, message: Message | None, *, ended: bool, excerpt: int) -> TurnDiagnosis | None:
        """The diagnosis of a run that ends for this reason; None where it has finished, as nearly every run has.

        ``message`` is its last one, whose text is looked at only if it matters; ``ended`` says that the source told the
        end of what it had to say.
        """
        if reason == END_OF_INPUT:
            return None
        unfinished = not ended or bool(message.failed) if message is not None else self._failed_without_result()
        unfinished = unfinished or (bool(self.counts) and cause_of(reason) in BROKEN_OFF)
        if not unfinished and not (message is not None and message.cut):
            return None
        if message is not None:
            self.add_text_of(message, excerpt)
        if not unfinished and not self.loops():
            return None
        failed = message.failed if message is not None else ""
        cause = cause_of(reason, failed)
        loops = self.loops()
        return TurnDiagnosis(
            reason=reason,
            cause="loop" if loops and cause not in BROKEN_OFF else cause,
            error=failed,
            head=self.head,
            tail=self.tail,
            length=self.length,
            repeats=loops,
            counts=self.counts,
        )

    def _failed_without_result(self) -> bool:
        return "error" in self.counts and "result" not in self.counts


@lru_cache(maxsize=256)
def cause_of(reason: str, failed: str = "") -> Cause:
    """One of a few words for why a run ended, which a metric can bear."""
    found = next((cause for pattern, cause in _CAUSES if pattern.search(reason)), None)
    if failed and found not in BROKEN_OFF:
        return "error"
    return found or "other"


def is_loop(text: str) -> bool:
    """Whether a text ends in one passage, at least four times and 80 code points long in all."""
    for size in range(1, len(text) // _LEAST_TIMES + 1):
        times = max(_LEAST_TIMES, -(-_LEAST_LOOP // size))
        if len(text) >= times * size and text.endswith(text[-size:] * times) and not text[-size:].isspace():
            return True
    return False
