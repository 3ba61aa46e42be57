"""The recovery machine: common events in, items out. ``table`` has what may happen when."""

from __future__ import annotations

from typing import Final

from pipeline.streams.events import BlockDelta, Event
from pipeline.streams.recovery.closing import end_run, start_run
from pipeline.streams.recovery.diagnosis import EXCERPT
from pipeline.streams.recovery.inputs import input_of, is_another
from pipeline.streams.recovery.memory import Context, Memory, State
from pipeline.streams.recovery.table import transition
from pipeline.streams.sources import Proof
from topics.items import Item, ItemDelta

_OPEN: Final = State.OPEN
# A run's end counts in no run, and what begins one counts in the new one.
_COUNT_FOR_THEMSELVES: Final = frozenset({end_run, start_run})


class Machine:
    """Recovery for one session.

    Args:
        memory: what it knows so far.
        confirmed_by: what proves a block, a complete message or its own stop (see ``sources``).
        records: whether finished turns are made for the log.
        issuer: the provider's name, for reasoning in the log; ``""`` where complete messages tell all there is.
        excerpt: how much of each end of a run's text a diagnosis keeps, in code points.
    """

    def __init__(
        self, memory: Memory, confirmed_by: Proof, *, records: bool, issuer: str = "", excerpt: int = EXCERPT
    ) -> None:
        self.memory = memory
        self._complete_messages = confirmed_by == "message"
        self._context = Context(
            memory=memory,
            complete_messages=self._complete_messages,
            records=records,
            issuer=issuer,
            excerpt=excerpt,
        )

    def step(self, event: Event) -> list[Item]:
        """Take one event.

        Raises:
            StreamError: the event cannot come now.
        """
        memory = self.memory
        if type(event) is BlockDelta and memory.state is _OPEN:
            grown = self._grow(event)
            if grown is not None:
                return [grown]
        given = input_of(event, memory.message, complete_messages=self._complete_messages)
        state, action = transition(memory.state, given)
        if action not in _COUNT_FOR_THEMSELVES:
            memory.trace.count_event(event)
        items = action(self._context, event)
        memory.state = state
        return items

    def _grow(self, event: BlockDelta) -> ItemDelta | None:
        """More words of the newest block, as nearly every event is; None where it is anything else.

        What the table has for (OPEN, BLOCK_DELTA), and nothing more than that: no look-up, and no kind of event that
        the run has not had yet.
        """
        memory, kind, content = self.memory, event.kind, event.content
        message, counts = memory.message, memory.trace.counts
        if message is None or not message.blocks or kind not in counts:
            return None
        block = message.blocks[-1]
        # What is of a kind of its own (``raw``) has no content.
        if block.index != event.index or block.confirmed or block.unseen or not content or kind == "signature_delta":
            return None
        if self._complete_messages and is_another(event.message_id, message):
            return None
        counts[kind] += event.count
        at = block.length
        block.parts.append(content)
        block.length = at + len(content)
        return ItemDelta(item_id=block.item_id, delta_type=kind, content=content, at=at)
