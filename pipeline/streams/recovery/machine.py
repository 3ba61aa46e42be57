"""The recovery machine: common events in, items out. What may happen when is in ``recovery``; here is how.

One machine serves one session. It holds the current message, counters from which ids are made, and the text of the
message before, against which a result is compared. All of it is a value that can be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from pipeline.errors import StreamError
from pipeline.streams.events import (
    Aside,
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    RunEnded,
    RunResult,
    UsageKnown,
    WholeBlock,
    WholeMessage,
)
from pipeline.streams.recovery.attempts import CALLS, Block, Message, confirm, likeness
from pipeline.streams.recovery.beside import Beside
from pipeline.streams.recovery.classify import classify, is_late
from pipeline.streams.recovery.diagnosis import Trace
from pipeline.streams.recovery.finished import finished_turns
from pipeline.streams.recovery.render import (
    confirmed,
    confirmed_by_stop,
    left_incomplete,
    promoted_block,
    retracted,
    streamed_start,
    turn_delta,
    turn_stop,
    whole_items,
)
from pipeline.streams.recovery.table import Action, State, transition
from pipeline.streams.recovery.unseen import is_unspoken, uncover, uncover_growing, uncover_told
from pipeline.streams.recovery.visibility import Shown, is_unseen
from topics.items import Item, ItemDelta, TurnDelta

_OPEN = State.OPEN
# The block that a delta is for, where the block's start was lost.
_KIND_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "tool_use"}
_KIND_OF_DELTA["signature_delta"] = "thinking"


class Machine(Beside):
    """Recovery for one session.

    Args:
        memory: what it knows so far.
        confirmed_by: what proves a block, a complete message or its own stop (see ``decoder``).
        records: whether finished turns are made for the log.
        issuer: the provider's name, for reasoning in the log; ``""`` where complete messages tell all there is.
        excerpt: how much of each end of a run's text a diagnosis keeps, in code points.
    """

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
        state, action = transition(memory.state, classify(event, memory.message, repeats=self._repeats))
        if action not in _ENDS:
            memory.trace.count(event)
        items = _ACTIONS[action](self, event)
        memory.state = state
        return items

    def _grow(self, event: BlockDelta) -> ItemDelta | None:
        """More words of the newest block, as nearly every event is; None where it is anything else.

        What the table has for (OPEN, BLOCK_DELTA), and nothing more than that: no look-up, and no kind of event that
        the run has not had yet.
        """
        message, counts = self.memory.message, self.memory.trace.counts
        kind, content = event.kind, event.content
        if message is None or not message.blocks or kind not in counts or event.raw is not UNSET:
            return None
        block = message.blocks[-1]
        if block.index != event.index or block.confirmed or not content or kind == "signature_delta" or block.unseen:
            return None
        if event.message_id != message.id and is_late(event, message, by_id=self._repeats):
            return None
        counts[kind] += event.count
        at = block.length
        block.parts.append(content)
        block.length = at + len(content)
        return ItemDelta(item_id=block.item_id, delta_type=kind, content=content, at=at)

    # -- an attempt ---------------------------------------------------------------------------------------------

    def _begin(self, event: MessageStarted) -> None:
        self.memory.message = Message(id=event.message_id, model=event.model, attempt=True, placed=event.placed)

    def _start_next(self, event: MessageStarted) -> list[Item]:
        items = self._leave("next message")
        self._begin(event)
        return items

    def _start_again(self, event: MessageStarted) -> list[Item]:
        # Of an API, another attempt means that the client threw this one away as a whole.
        items = [*self._withdraw(everything=not self._repeats), *self._leave("next attempt")]
        self._begin(event)
        return items

    def _start_unseen(self, event: BlockStarted | BlockDelta) -> list[Item]:
        items = self._start_next(MessageStarted(event.message_id))
        return items + (self._open_block(event) if isinstance(event, BlockStarted) else self._extend_block(event))

    def _open_block(self, event: BlockStarted) -> list[Item]:
        message = self._message()
        items = uncover_growing(message)
        before = message.block(event.index)
        if before is not None and not before.withdrawn and before.repeats(event, whole=self._repeats):
            if self._repeats:
                return items
            items += self._take_back(before)
        is_call = event.kind in CALLS and event.tool_id is not None
        item_id = self._ids.for_call(event.tool_id) if is_call and event.tool_id else self._ids.for_streamed()
        block = Block(item_id=item_id, kind=event.kind, index=event.index, tool_id=event.tool_id, name=event.name)
        block.raw = bytes(event.raw) if event.raw is not UNSET else None
        block.unseen = event.kind == "thinking" and not event.text and not self._repeats
        message.add(block)
        if block.unseen:
            return items
        items.append(streamed_start(item_id, event))
        if event.text:
            items.append(ItemDelta(item_id=item_id, delta_type=f"{event.kind}_delta", content=event.text))
            block.append(event.text)
        return items

    def _extend_block(self, event: BlockDelta) -> list[Item]:
        message = self._message()
        block = message.blocks[-1] if message.blocks else None
        if block is None or block.index != event.index:
            block = message.block(event.index)
        if block is None or (block.confirmed and not self._repeats):
            return self._open_for(event)
        if block.confirmed:
            return []
        if event.kind == "signature_delta":
            block.signature += event.content
            return []
        if not event.content and event.raw is UNSET:
            return []
        if block.unseen and block.stopped and not message.placed:
            return self._open_for(event)  # what comes now stands behind what has been shown since
        items = uncover(block)
        at = block.length
        block.append(event.content)
        raw = event.raw
        items.append(ItemDelta(item_id=block.item_id, delta_type=event.kind, content=event.content, at=at, raw=raw))
        return items

    def _open_for(self, event: BlockDelta) -> list[Item]:
        """Start a block whose start was lost, if the delta tells what it is."""
        kind = _KIND_OF_DELTA.get(event.kind)
        if kind is None or (event.kind == "signature_delta" and self._repeats):
            return self._ignore(event)
        return [*self._open_block(BlockStarted(index=event.index, kind=kind)), *self._extend_block(event)]

    def _note_block(self, event: BlockNoted) -> list[Item]:
        block = self._message().block(event.index)
        if block is None or block.withdrawn:
            return self._ignore(event)
        block.note(event)
        return []

    def _take_stray(self, event: BlockStarted | BlockDelta | BlockNoted | BlockStopped) -> list[Item]:
        """What comes for a message that takes no more is in its complete message; where none comes, it is kept."""
        if self._repeats:
            return self._ignore(event)
        if isinstance(event, BlockStarted):
            return self._open_block(event)
        if isinstance(event, BlockDelta):
            return self._extend_block(event)
        return self._note_block(event) if isinstance(event, BlockNoted) else self._stop_block(event)

    def _stop_block(self, event: BlockStopped) -> list[Item]:
        block = self._message().block(event.index)
        if block is not None:
            block.stopped = not event.cut
            if event.text is not None and not block.confirmed:
                block.tell(event.text)
        return []

    def _finish(self, event: MessageDelta) -> list[Item]:
        message = self._message()
        message.reason, message.cut = event.stop_reason, event.cut
        message.details = {} if event.details is UNSET else {k: bytes(v) for k, v in event.details.items()}
        return self._confirm_stopped()

    def _finish_stopped(self, event: MessageDelta) -> list[Item]:
        self._message().stopped = False
        return [*self._finish(event), *self._turn_stop()]

    def _count(self, event: UsageKnown) -> list[Item]:
        message = self._message()
        message.model = event.model or message.model
        if event.usage is None or event.usage == message.usage:
            return []
        message.usage = event.usage
        return [TurnDelta(usage=event.usage)] if message.stopped else []

    def _stop(self, _event: MessageStopped) -> list[Item]:
        items = self._confirm_stopped()
        return [*items, *self._turn_stop()]

    def _confirm_stopped(self) -> list[Item]:
        """Where no complete message comes, a block's stop and the message's stop reason prove it."""
        message = self._message()
        if self._repeats or message.reason is None:
            return []
        items: list[Item] = []
        for block in message.surviving():
            if not block.stopped or block.confirmed:
                continue
            if block.reads_as_whole(cut=message.cut):
                block.confirmed = True
                items += uncover_told(block)
                told = block.settle()
                if not block.unseen:
                    items.append(confirmed_by_stop(block, told))
        return items

    def _turn_stop(self, *, proven: bool = False) -> list[Item]:
        """The end of the turn, once; ``proven`` says that it is whole, whatever stops were lost."""
        message = self._message()
        if message.stopped:
            return []
        message.stopped = True
        incomplete = message.is_open() and not proven
        return [turn_stop(message, incomplete=incomplete, told_by_stop=not self._repeats)]

    def _abandon(self, event: MessageStopped) -> list[Item]:
        message = self._message()
        message.reason = None
        for block in message.blocks:
            block.abandoned = block.abandoned or block.index >= (event.abandoned_from or 0)
        return self._turn_stop()

    # -- complete messages --------------------------------------------------------------------------------------

    def _confirm(self, event: WholeMessage) -> list[Item]:
        message = self._message()
        message.model = message.model or event.model
        message.id = message.id or event.message_id
        items: list[Item] = []
        completed: list[Item] = []
        for whole in event.blocks:
            block = message.streamed(whole)
            message.confirmed += 1
            if block is not None and block.confirmed:
                continue  # it was told before, and its place tells so
            if block is None:
                items += self._promote(message, whole)
                block = message.blocks[-1]
            else:
                if not is_unspoken(whole):
                    items += uncover(block)
                rest = confirm(block, whole)
                if not block.unseen:
                    completed.append(confirmed(block, whole, rest))
                block.raw = self._kept(whole)
            if message.attempt and self._repeats:
                block.likeness = likeness(whole)  # it may be said again, by another message in this one's place
        told = turn_delta(event)
        return [*items, *([told] if self._repeats or told != TurnDelta() else []), *completed]

    def _promote(self, message: Message, whole: WholeBlock) -> list[Item]:
        items = uncover_growing(message)
        before = message.said_before(likeness(whole)) if message.former is not None else None
        items += [] if before is None else self._take_back(before)
        item_id = self._ids.for_promoted() if whole.tool_id is None else self._ids.for_call(whole.tool_id)
        block = promoted_block(item_id, whole, self._kept(whole))
        block.unseen = not self._repeats and is_unspoken(whole)
        message.add(block)
        return items if block.unseen else [*items, *whole_items(item_id, whole, origin="promoted")]

    def _kept(self, whole: WholeBlock) -> bytes | None:
        """The block's JSON for the log. A plain text is kept as it is shown, once and not twice."""
        is_plain = whole.kind == "text" and whole.extras is UNSET
        return bytes(whole.raw) if self._records and not is_plain else None

    def _take_next(self, event: WholeMessage) -> list[Item]:
        items = self._leave("next message")
        self.memory.message = Message(id=event.message_id, model=event.model, attempt=False)
        return [*items, *self._confirm(event)]

    def _replace_rest(self, event: WholeMessage) -> list[Item]:
        return [*self._withdraw(everything=False), *self._take_next(event)]

    def _replace_said(self, event: WholeMessage) -> list[Item]:
        """Withdraw what is unconfirmed; what is confirmed waits for whether this message says it again."""
        former = self._message()
        items = [*self._withdraw(everything=False), *self._leave("next message", replaced=True)]
        self.memory.message = Message(id=event.message_id, model=event.model, attempt=False, former=former)
        return [*items, *self._confirm(event)]

    def _withdraw(self, *, everything: bool) -> list[Item]:
        """Take blocks off the screen: all of them, or those that nothing has confirmed or that were abandoned."""
        items: list[Item] = []
        for block in self._message().surviving():
            if everything or block.abandoned or not block.confirmed:
                items += self._take_back(block)
        return items

    def _take_back(self, block: Block) -> list[Item]:
        block.withdrawn = True
        return [] if block.unseen else [retracted(block)]

    # -- the end of a message, an answer, a run -----------------------------------------------------------------

    def _leave(self, reason: str, *, replaced: bool = False) -> list[Item]:
        """Close the current message and remember what it shows; another one takes its place."""
        message = self.memory.message
        if message is None:
            return []
        items = self._settle(message, reason) if replaced else self._close(message, reason)
        self.memory.trace.read(message, self._excerpt)
        self.memory.before = Shown.of(message) or self.memory.before
        self.memory.message = None
        return items

    def _close(self, message: Message, reason: str, *, succeeded: bool = False) -> list[Item]:
        items = self._settle(message, reason, succeeded=succeeded)
        former, message.former = message.former, None
        for over in (former, message):
            if over is not None and self._records:
                self._finish_turns(finished_turns(over, self._ids.turns, self._ids.prefix, self._issuer))
        return items

    def _settle(self, message: Message, reason: str, *, succeeded: bool = False) -> list[Item]:
        """Say how everything ends that is still open. ``succeeded``: the run's result is a success."""
        items: list[Item] = []
        for block in message.surviving():
            if block.confirmed or block.left:
                continue
            if self._repeats and block.is_blank():
                items += self._take_back(block)  # no complete message will ever hold it, and nobody misses it
                continue
            block.left = True
            items += uncover_told(block)
            if not block.unseen:
                items.append(left_incomplete(block, block.settle(), message.failed or reason))
        if not message.over and (message.blocks or message.reason is not None):
            proven = self._repeats and message.is_confirmed()
            if proven and succeeded and message.reason is None:
                message.stopped = False  # if it was stopped, it was called incomplete
            items += self._turn_stop(proven=proven and (succeeded or message.is_answered_with(set())))
        message.over = True
        return items

    def _sum_up(self, event: RunResult) -> list[Item]:
        message = self.memory.message
        items = [] if message is None else self._close(message, "result", succeeded=not event.item.is_error)
        return [*items, *self._report(event)]

    def _report(self, event: RunResult) -> list[Item]:
        message = self.memory.message
        shown = [seen for seen in (Shown.of(message) if message else None, self.memory.before) if seen is not None]
        unseen = is_unseen(event.item.result, shown, event.begun)
        expanded = unseen or event.item.is_error
        return [msgspec.structs.replace(event.item, unseen=unseen, expanded=expanded, seq=self._ids.number())]

    def _end(self, event: RunEnded) -> list[Item]:
        memory = self.memory
        message, failed = memory.message, memory.message.failed if memory.message else ""
        items = self._leave(event.reason)
        # An agent program's run has a result, an API's message its stop reason.
        ended = memory.state is State.CLOSED if self._repeats else message is not None and not message.is_open()
        if memory.trace.is_unfinished(event.reason, message, ended=ended):
            items.append(msgspec.structs.replace(memory.trace.told(event.reason, failed), seq=self._ids.number()))
        memory.before, memory.trace = None, Trace()
        return items

    def _start_run(self, event: Aside) -> list[Item]:
        """Another run begins in the same pipe, and the one before was ended without a word."""
        items = self._end(RunEnded("next run"))
        self.memory.trace.count(event)
        return [*items, *self._show(event)]

    def _message(self) -> Message:
        """The current message; actions that need one stand in the table only where there is one."""
        message = self.memory.message
        if message is None:
            raise StreamError("no_message", "there is no message that the event can be about")
        return message


# A run's end counts in no run, and what begins one counts in the new one.
_ENDS = frozenset({Action.END, Action.START_RUN})
# An action takes the events of the inputs that lead to it, and no others.
_ACTIONS: dict[Action, Callable[[Machine, Any], list[Item]]] = {
    action: getattr(Machine, f"_{action.name.lower()}") for action in Action
}
