"""A session as the UI message stream v1 of the AI SDK: each answer is one message of the assistant.

No boundary of steps is ever sent, so ``reset-step`` empties the whole message, and the message is sent again: so an
item of any turn of the answer can be withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from reknit.pipeline.screens import ai_sdk_parts as parts
from reknit.pipeline.screens.ai_sdk_parts import FINISH_REASONS
from reknit.pipeline.screens.answers import Answers
from reknit.pipeline.screens.content import CALLS, STREAMED, Event, arguments
from reknit.pipeline.screens.state import Block, Change, ScreenState
from reknit.topics.items import (
    AgentError,
    Item,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    SessionInit,
    SessionSummary,
    TurnDiagnosis,
    TurnResult,
    TurnStop,
    Usage,
)

_NOT_ENDED = "not ended"


class _Message(Struct):
    """One answer.

    Attributes:
        id: of the message.
        order: keys of its parts, in the order in which a client gets them: ids of items, and names of other chunks.
        chunks: the chunks of the parts that are no items.
        ended: the items that were closed without their end.
        finish: the last chunk, once the answer is over.
    """

    id: str
    order: dict[str, None] = {}
    chunks: dict[str, list[Event]] = {}
    ended: set[str] = set()
    finish: Event | None = None


class AiSdk:
    """Writes the chunks of one session.

    Args:
        session: its id.
        confirmed_only: send an item once it has ended, for clients that do not know ``reset-step`` (AI SDK 6). Later
            changes of it are ``data-reknit-changed``.
    """

    def __init__(self, session: str, *, confirmed_only: bool = False) -> None:
        self._session = session
        self._confirmed_only = confirmed_only
        self.state = ScreenState()
        self._answers = Answers()
        self._messages: list[_Message] = []
        self._open: dict[str, None] = {}
        self._stop: str | None = None
        self._usage: Usage | None = None

    @property
    def is_running(self) -> bool:
        """True while an answer is open."""
        return self._answers.open is not None

    # The whole state.

    def resume(self) -> list[Event]:
        """Return the chunks that bring a client to the state of the last answer; none if there is no answer.

        An answer that is over is sent too: a client that lost its last chunks has no other way to them.
        """
        if not self._messages:
            return []
        message = self._messages[-1]
        end = [] if message.finish is None else [message.finish]
        return [{"type": "start", "messageId": message.id}, *self._parts(message), *end]

    def _parts(self, message: _Message) -> Iterator[Event]:
        for key in message.order:
            if key in message.chunks:
                yield from message.chunks[key]
            elif (block := self.state.find(key)) is not None:
                yield from self._part(message, block)

    def _part(self, message: _Message, block: Block) -> Iterator[Event]:
        if block.kind not in STREAMED:
            yield self._other(message, block)
            return
        is_closed = block.id not in self._open and (block.entry.done or block.id in message.ended)
        # The chunk that closes a call has its whole input.
        is_whole = block.kind in CALLS and not block.entry.text and is_closed
        yield from parts.opening(block)
        yield from parts.content(block, "" if is_whole else _text(block))
        if is_closed:
            yield from parts.closing(block, _NOT_ENDED)
        yield from parts.result(block)

    @staticmethod
    def _other(message: _Message, block: Block) -> Event:
        if block.call in message.order:
            return parts.provider_result(block)
        return parts.data_part(block)

    # One record.

    def apply(self, item: Item, run: str = "") -> list[Event]:
        """Apply one record of a run, and return the chunks by which it changes a client."""
        chunks = self._enter(item, run)
        change = self.state.apply(item)
        if change is None:
            return chunks
        chunks += self._changed(change, run)
        if self._answers.is_over() and not self._open:
            reason = None if self._answers.is_passing else FINISH_REASONS.get(self._stop or "stop", "other")
            chunks += self._finish(reason, self._metadata())
        return chunks

    def _enter(self, item: Item, run: str) -> list[Event]:
        if not self._answers.is_superseded_by(run, item):
            return []
        ended = self._finish("other") if self.is_running else []
        self._answers.enter(run)
        return ended

    def _changed(self, change: Change, run: str) -> list[Event]:
        block, item = change.block, change.item
        if block is None:
            return self._without_item(item, run)
        match item:
            case ItemStarted():
                return self._start(block)
            case ItemDelta() if block.kind in STREAMED:
                return self._extend(block, change)
            case ItemCompleted() if block.kind in STREAMED or change.is_replaced:
                return self._complete(block, change)
            case ItemRetracted():
                return self._retract(block)
            case ItemResult():
                return self._answer(block)
        return []

    def _begin(self, *, passing: bool = False) -> list[Event]:
        answer = self._answers.begin(is_passing=passing)
        if answer is None:
            return []
        message = _Message(f"{self._session}:{answer}")
        self._messages.append(message)
        self._stop = self._usage = None
        return [{"type": "start", "messageId": message.id}]

    def _finish(self, reason: str | None, metadata: Event | None = None) -> list[Event]:
        message = self._messages[-1]
        closed: list[Event] = []
        for key in list(self._open):
            del self._open[key]
            message.ended.add(key)
            block = self.state.find(key)
            if block is not None:
                closed += self._whole(message, block) if self._confirmed_only else self._closing(block)
        end: Event = {"type": "finish"}
        if reason is not None:
            end["finishReason"] = reason
        if metadata:
            end["messageMetadata"] = {"reknit": metadata}
        message.finish = end
        self._answers.end()
        return [*closed, end]

    # Records with an item.

    def _start(self, block: Block) -> list[Event]:
        begun = self._begin()
        message = self._messages[-1]
        if block.kind not in STREAMED:
            message.order[block.id] = None
            return [*begun, self._other(message, block)]
        self._open[block.id] = None
        if self._confirmed_only:
            return begun
        message.order[block.id] = None
        text = parts.content(block, block.entry.text)
        return [*begun, *parts.opening(block), *text, *parts.result(block)]

    def _extend(self, block: Block, change: Change) -> list[Event]:
        if block.id in self._open:
            return [] if self._confirmed_only else parts.content(block, change.added)
        begun = self._begin(passing=True)
        if self._confirmed_only or block.id not in self._messages[-1].order:
            return [*begun, *self._tell(parts.changed(block))]
        self._open[block.id] = None
        return [*begun, *self._again()]

    def _complete(self, block: Block, change: Change) -> list[Event]:
        was_open = block.id in self._open
        self._open.pop(block.id, None)
        begun = self._begin(passing=True)
        message = self._messages[-1]
        if was_open and self._confirmed_only:
            return [*begun, *self._whole(message, block)]
        if block.kind not in STREAMED:
            is_here = block.id in message.order
            return [*begun, *([self._other(message, block)] if is_here else self._tell(parts.data_part(block)))]
        if was_open and _text(block).startswith(change.text):
            # A call's input that comes whole is in the closing chunk.
            is_whole = block.kind in CALLS and not block.entry.text
            rest = "" if is_whole else _text(block)[len(change.text) :]
            return [*begun, *parts.content(block, rest), *self._closing(block)]
        if block.id in message.order and not self._confirmed_only:
            return [*begun, *self._again()]
        return [*begun, *self._tell(parts.changed(block))]

    def _retract(self, block: Block) -> list[Event]:
        was_open = block.id in self._open
        self._open.pop(block.id, None)
        if was_open and self._confirmed_only:
            return []  # no client has it
        begun = self._begin(passing=True)
        message = self._messages[-1]
        is_here = block.id in message.order
        for earlier in self._messages:
            earlier.order.pop(block.id, None)
        if is_here and not self._confirmed_only:
            return [*begun, *self._again()]
        return [*begun, *self._tell(parts.changed(block, is_retracted=True))]

    def _answer(self, block: Block) -> list[Event]:
        if block.id in self._open and self._confirmed_only:
            return []  # it follows with its call
        begun = self._begin(passing=True)
        if block.id in self._messages[-1].order:
            return [*begun, *parts.result(block)]
        return [*begun, *self._tell(parts.late_result(block))]

    def _closing(self, block: Block) -> list[Event]:
        """Return the chunks that close an item.

        The chunk that closes a call sets its state, so a result that came before it is sent again.
        """
        message = self._messages[-1]
        answers = [self.state.blocks[key] for key in block.answers if key in message.order]
        results = [parts.provider_result(each) for each in answers]
        return [*parts.closing(block, _NOT_ENDED), *results, *parts.result(block)]

    def _whole(self, message: _Message, block: Block) -> list[Event]:
        message.order[block.id] = None
        return list(self._part(message, block))

    def _again(self) -> list[Event]:
        return [{"type": "reset-step"}, *self._parts(self._messages[-1])]

    def _tell(self, *chunks: Event) -> list[Event]:
        """Add a part that is no item."""
        message = self._messages[-1]
        key = f"{chunks[0]['type']}/{chunks[0]['id']}"
        message.order[key] = None
        message.chunks[key] = list(chunks)
        return list(chunks)

    # Records without an item.

    def _without_item(self, item: Item, run: str) -> list[Event]:
        key = f"notice-{getattr(item, 'seq', -1)}"
        if key in self.state.notices:
            begun = self._begin(passing=not isinstance(item, AgentError))
            return [*begun, *self._tell(parts.notice(key, self.state.notices[key]))]
        is_current = self.is_running and run == self._answers.run
        match item:
            case TurnResult():
                return self._end_with_result(item, run)
            case TurnDiagnosis() if is_current:
                data = {"reason": item.reason, "cause": item.cause}
                told = self._tell({"type": "data-reknit-error", "id": f"diagnosis-{item.seq}", "data": data})
                return [*told, *self._finish("error")]
            case TurnStop() if is_current and not item.parent_tool_use_id:
                self._stop = None if item.incomplete else item.stop_reason or "stop"
                self._usage = item.usage if isinstance(item.usage, Usage) else self._usage
                self._answers.has_stopped = not item.incomplete
            case SessionInit():
                self._answers.note_program()
            case SessionSummary() if self.is_running:
                return [{"type": "message-metadata", "messageMetadata": {"reknit": {"title": item.summary}}}]
        return []

    def _end_with_result(self, item: TurnResult, run: str) -> list[Event]:
        is_current = run == self._answers.run
        chunks = self._begin(passing=not is_current)
        key = f"result-{item.seq}"
        if key in self.state.results:
            chunks += self._tell(*parts.result_text(key, item))
        if not is_current:
            return chunks  # the result of an earlier run does not end the answer of this one
        self._usage = item.usage if isinstance(item.usage, Usage) else None
        metadata = {"subtype": item.subtype, **self._metadata()}
        if not item.is_error:
            reason = FINISH_REASONS.get(item.stop_reason or self._stop or "stop", "stop")
            return [*chunks, *self._finish(reason, metadata)]
        # The chunk `error` would end the client's reading with an exception.
        data = {"message": item.result or item.subtype or "error"}
        chunks += self._tell({"type": "data-reknit-error", "id": key, "data": data})
        return [*chunks, *self._finish("error", metadata)]

    def _metadata(self) -> Event:
        return {} if self._usage is None else {"usage": msgspec.to_builtins(self._usage)}


def _text(block: Block) -> str:
    return arguments(block.entry) if block.kind in CALLS else block.entry.text
