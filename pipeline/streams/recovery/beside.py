"""What recovery knows, and what stands beside the messages: notices, users' lines, sub-agents, what nobody understands.

These touch no attempt; the machine that handles attempts builds on them.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, field

from pipeline.fixes import FIXES, Fix
from pipeline.streams.decoder import Proof
from pipeline.streams.events import (
    Aside,
    BlockDelta,
    BlockNoted,
    BlockStarted,
    Event,
    Failed,
    Notice,
    Retried,
    Rewritten,
    UserMessage,
    WholeMessage,
)
from pipeline.streams.recovery.attempts import Message, UserLine
from pipeline.streams.recovery.diagnosis import EXCERPT, Trace
from pipeline.streams.recovery.finished import FinishedTurn, user_turns
from pipeline.streams.recovery.identity import Ids
from pipeline.streams.recovery.render import subagent_stop, user_message, whole_items
from pipeline.streams.recovery.table import State
from pipeline.streams.recovery.visibility import Shown
from topics.items import AgentError, AgentUnrecognized, Item, ItemResult


class Memory(Struct):
    """Everything that a machine knows, as state."""

    ids: Ids
    state: State = State.IDLE
    message: Message | None = None
    before: Shown | None = None
    finished: list[FinishedTurn] = []
    trace: Trace = field(default_factory=Trace)
    fixes: list[Fix] = []


class Beside:
    """The part of the machine that passes things on."""

    def __init__(
        self, memory: Memory, confirmed_by: Proof, *, records: bool, issuer: str = "", excerpt: int = EXCERPT
    ) -> None:
        self.memory = memory
        self._ids = memory.ids
        self._repeats = confirmed_by == "message"
        self._records = records
        self._issuer = issuer
        self._excerpt = excerpt

    def _ignore(self, event: Event) -> list[Item]:
        """Nothing, except for what no complete message and no item would ever tell."""
        raw = event.value if isinstance(event, BlockNoted) else UNSET
        if isinstance(event, BlockDelta | BlockStarted):
            raw = event.raw
        if raw is UNSET:
            return []
        return [AgentUnrecognized(reason="unknown content outside a message", event=raw, seq=self._ids.number())]

    def _show(self, event: Event) -> list[Item]:
        if isinstance(event, UserMessage):
            return self._user(event)
        if isinstance(event, WholeMessage):
            return self._subagent(event)
        if isinstance(event, Aside):
            return [msgspec.structs.replace(event.item, seq=self._ids.number())]
        if isinstance(event, Retried):
            if self.memory.message is not None:
                self.memory.message.retried = True
            return [AgentError(message=event.message, will_retry=True, seq=self._ids.number())]
        if isinstance(event, Failed):
            return self._fail(event)
        if isinstance(event, Rewritten):
            return self._note_fix(event)
        if isinstance(event, Notice):
            seq = self._ids.number()
            return [AgentError(message=event.message, code=event.code, parent_tool_use_id=event.parent, seq=seq)]
        return []

    def _fail(self, event: Failed) -> list[Item]:
        message = self.memory.message
        if message is not None and not message.stopped:
            message.failed = event.code or "error"
        return [AgentError(message=event.message, code=event.code, seq=self._ids.number())]

    def _note_fix(self, event: Rewritten) -> list[Item]:
        """Remember for the log of fixes what was changed in which item."""
        block = self.memory.message.block(event.index) if self.memory.message else None
        fix = Fix(
            code=event.code,
            path="" if block is None else block.item_id,
            lossless=FIXES[event.code].lossless,
            target=self._issuer,
            detail=event.detail,
            before=event.before,
            after=event.after,
        )
        if self._records:
            self.memory.fixes += [fix] * event.times
        return []

    def _user(self, event: UserMessage) -> list[Item]:
        items: list[Item] = []
        for result in event.results:
            call = self.memory.message.call(result.tool_id) if self.memory.message and not event.parent else None
            if call is not None:
                call.answered = True
            items.append(
                ItemResult(
                    item_id=self._ids.of_call(result.tool_id) if call is None else call.item_id,
                    content=result.content,
                    is_error=result.is_error,
                    tool_result=event.tool_result,
                    parent_tool_use_id=event.parent,
                    extras=event.extras,
                )
            )
        if event.rest:
            items.append(user_message(self._ids.for_user(), event))
        if self._records and event.parent is None and (event.results or event.synthetic):
            self._record_user(UserLine.of(event))
        return items

    def _record_user(self, line: UserLine) -> None:
        message = self.memory.message
        if message is not None and not message.over:
            message.turn_of(line).users.append(line)
        else:
            self._finish_turns(user_turns(line, self._ids.turns, self._ids.prefix))

    def _finish_turns(self, turns: list[FinishedTurn]) -> None:
        self._ids.turns += len(turns)
        self.memory.finished += turns

    def _subagent(self, event: WholeMessage) -> list[Item]:
        items: list[Item] = []
        for whole in event.blocks:
            item_id = self._ids.for_subagent() if whole.tool_id is None else self._ids.for_call(whole.tool_id)
            items += whole_items(item_id, whole, parent=event.parent, sidechain=event.sidechain)
        return [*items, subagent_stop(event)]
