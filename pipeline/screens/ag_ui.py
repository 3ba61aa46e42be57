"""A session as the events of AG-UI 1.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from reknit.pipeline.screens import ag_ui_messages as forms
from reknit.pipeline.screens.answers import Answers
from reknit.pipeline.screens.content import CALLS, STREAMED, Event, arguments, tool_name
from reknit.pipeline.screens.state import Block, Change, ScreenState
from reknit.topics.items import (
    Item,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    SessionInit,
    SessionSummary,
    TurnDelta,
    TurnDiagnosis,
    TurnResult,
    TurnStop,
    Usage,
)

# Code points of one event, so that a frame stays small.
_LONGEST_DELTA: Final = 64 * 1024
# Metadata of an item that no longer has any: a client replaces it, and would keep what is not replaced.
_NO_FACTS: Final[Event] = {"metadata": {"reknit": {}}}


class AgUi:
    """Writes the events of one session.

    Args:
        session: its id.
        with_details: also send the records that are about the program and not about the conversation. They name paths
            and tools of its machine.
    """

    def __init__(self, session: str, *, with_details: bool = False) -> None:
        self._session = session
        self._with_details = with_details
        self.state = ScreenState()
        self._answers = Answers()
        self._open: dict[str, None] = {}
        # Items whose metadata the clients have.
        self._marked: set[str] = set()
        self._usage: Usage | None = None
        # A user's message that the clients do not have.
        self._has_turn = False
        self._last_end: Event = {"type": "RUN_FINISHED", "outcome": {"type": "success"}}

    @property
    def is_running(self) -> bool:
        """True while an answer is open."""
        return self._answers.open is not None

    # The whole state.

    def resume(self, posted: Iterable[tuple[str, str]] = ()) -> list[Event]:
        """Return the events that bring a client to the current state, whatever it has.

        Args:
            posted: id and role of each message that the client has.
        """
        shown = forms.messages(self.state)
        run = self._answers.open or self._answers.name("resumed")
        cleared = forms.clear() if forms.disorders(shown, posted) else []
        opened = [event for key in self._open if (block := self.state.find(key)) for event in self._opening(block)]
        end = [] if self.is_running else [self._named(self._last_end, run)]
        return [self._started(run), *cleared, *forms.snapshot(shown), *opened, *end]

    # One record.

    def apply(self, item: Item, run: str = "") -> list[Event]:
        """Apply one record of a run, and return the events by which it changes a client."""
        events = self._enter(item, run)
        change = self.state.apply(item)
        if change is None:
            return events
        events += self._changed(change, run)
        if self._answers.is_over() and not self._open:
            events += self._finish({"type": "RUN_FINISHED", "outcome": {"type": "success"}})
        return events

    def apply_turn(self, item: ItemStarted) -> None:
        """Apply a user's message that is not from a stream. Clients get it when the next answer begins."""
        self._has_turn = self.state.apply_turn(item) or self._has_turn

    def _enter(self, item: Item, run: str) -> list[Event]:
        if not self._answers.is_superseded_by(run, item):
            return []
        ended: list[Event] = []
        if self.is_running:
            ended = self._finish({"type": "RUN_FINISHED", "outcome": {"type": "cancelled"}})
        self._answers.enter(run)
        return ended

    def _changed(self, change: Change, run: str) -> list[Event]:
        block, item = change.block, change.item
        if block is None:
            return self._without_item(item, run)
        match item:
            case ItemStarted():
                return [*self._begin(), *self._start(block)]
            case ItemDelta() if block.kind in STREAMED:
                opening = [] if block.id in self._open else [*self._begin(passing=True), *self._opening(block)]
                self._open[block.id] = None
                return [*opening, *self._content(block, change.added)]
            case ItemCompleted() if block.kind in STREAMED or change.is_replaced:
                return [*self._begin(passing=True), *self._complete(block, change)]
            case ItemRetracted():
                return [*self._begin(passing=True), *self._retract(block)]
            case ItemResult():
                again = self._snapshot() if change.again else self._result(block)
                return [*self._begin(passing=True), *again]
        return []

    def _begin(self, *, passing: bool = False) -> list[Event]:
        run = self._answers.begin(is_passing=passing)
        if run is None:
            return []
        self._usage = None
        if not self._has_turn:
            return [self._started(run)]
        # The client that wrote the message shows it already: a snapshot does not repeat it.
        self._has_turn = False
        return [self._started(run), *self._snapshot()]

    def _started(self, run: str) -> Event:
        return {"type": "RUN_STARTED", "threadId": self._session, "runId": run, "protocolVersion": "1.0"}

    def _named(self, end: Event, run: str | None) -> Event:
        if end["type"] == "RUN_ERROR":
            return end
        return {"type": end["type"], "threadId": self._session, "runId": run, **end}

    def _finish(self, end: Event) -> list[Event]:
        closed = [
            event for key in self._open if (block := self.state.find(key)) is not None for event in self._closing(block)
        ]
        self._open.clear()
        if self._usage is not None and "usage" not in end:
            end = {**end, "usage": _usage(self._usage)}
        if not self._answers.is_passing:
            self._last_end = end
        named = self._named(end, self._answers.open)
        self._answers.end()
        return [*closed, named]

    # Records with an item.

    def _start(self, block: Block) -> Iterator[Event]:
        if block.kind == "user_message":
            content = forms.user_content(block)
            if isinstance(content, str):
                yield from (*self._opening(block), *self._content(block, content), *self._closing(block))
            else:
                yield from self._snapshot()
        elif block.kind in STREAMED:
            self._open[block.id] = None
            text = arguments(block.entry) if block.kind in CALLS else block.entry.text
            yield from (*self._opening(block), *self._content(block, text))
            if block.kind in CALLS and block.entry.result is not None:
                yield from self._result(block)
        elif block.call:
            yield {"type": "TOOL_CALL_RESULT", "messageId": block.id, "role": "tool", **forms.provider_result(block)}
        else:
            yield {"type": "ACTIVITY_SNAPSHOT", "messageId": block.id, **forms.activity(block)}

    def _complete(self, block: Block, change: Change) -> Iterator[Event]:
        was_open = self._close(block)
        if block.kind not in STREAMED:
            yield from self._snapshot()
            return
        before = change.text
        now = arguments(block.entry) if block.kind in CALLS else block.entry.text
        if now.startswith(before):
            opening = () if was_open else self._opening(block)
            yield from (*opening, *self._content(block, now[len(before) :]), *self._closing(block))
            return
        if was_open:
            yield from self._closing(block)
        yield from self._snapshot()

    def _retract(self, block: Block) -> Iterator[Event]:
        if self._close(block):
            yield from self._closing(block)
        yield from self._snapshot([block.id] if block.kind == "thinking" else [])

    def _close(self, block: Block) -> bool:
        """Note that an item is not open any more; return True if it was."""
        was_open = block.id in self._open
        self._open.pop(block.id, None)
        return was_open

    @staticmethod
    def _result(block: Block) -> list[Event]:
        head = {"type": "TOOL_CALL_RESULT", "messageId": f"{block.id}:result", "role": "tool"}
        return [{**head, **forms.result_fields(block)}]

    def _snapshot(self, gone_reasoning: Iterable[str] = ()) -> list[Event]:
        self._marked = {key for key, block in self.state.blocks.items() if forms.facts_of(block)}
        return forms.snapshot(forms.messages(self.state), gone_reasoning)

    # The events of one item.

    def _facts(self, block: Block) -> Event:
        facts = forms.facts_of(block)
        if facts:
            self._marked.add(block.id)
            return forms.metadata(facts)
        if block.id not in self._marked:
            return {}
        self._marked.discard(block.id)
        return _NO_FACTS

    def _opening(self, block: Block) -> list[Event]:
        """Return the events that open an item, without content; the client may have the item already."""
        own, key = forms.tag(block), block.id
        if block.kind == "thinking":
            message = {"type": "REASONING_MESSAGE_START", "messageId": key, "role": "reasoning", **own}
            return [{"type": "REASONING_START", "messageId": key, **own}, {**message, **self._facts(block)}]
        if block.kind in CALLS:
            name = tool_name(block.entry.started)
            return [{"type": "TOOL_CALL_START", "toolCallId": key, "toolCallName": name, **own, **self._facts(block)}]
        role = "user" if block.kind == "user_message" else "assistant"
        return [{"type": "TEXT_MESSAGE_START", "messageId": key, "role": role, **own, **self._facts(block)}]

    def _content(self, block: Block, text: str) -> Iterator[Event]:
        kinds = {"thinking": "REASONING_MESSAGE_CONTENT", **dict.fromkeys(CALLS, "TOOL_CALL_ARGS")}
        name = "toolCallId" if block.kind in CALLS else "messageId"
        head = {"type": kinds.get(block.kind, "TEXT_MESSAGE_CONTENT"), name: block.id}
        for at in range(0, len(text), _LONGEST_DELTA):
            yield {**head, "delta": text[at : at + _LONGEST_DELTA], **forms.tag(block), **self._facts(block)}

    def _closing(self, block: Block) -> list[Event]:
        own, key = forms.tag(block), block.id
        if block.kind == "thinking":
            message = {"type": "REASONING_MESSAGE_END", "messageId": key, **own, **self._facts(block)}
            return [message, {"type": "REASONING_END", "messageId": key, **own}]
        if block.kind in CALLS:
            return [{"type": "TOOL_CALL_END", "toolCallId": key, **own, **self._facts(block)}]
        return [{"type": "TEXT_MESSAGE_END", "messageId": key, **own, **self._facts(block)}]

    # Records without an item.

    def _without_item(self, item: Item, run: str) -> list[Event]:
        key = f"notice-{getattr(item, 'seq', -1)}"
        if key in self.state.notices:
            shown = {"type": "ACTIVITY_SNAPSHOT", "messageId": key, **forms.notice(self.state.notices[key])}
            return [*self._begin(passing=not _may_begin(item)), shown]
        match item:
            case TurnResult():
                return self._end_with_result(item, run)
            case TurnDiagnosis() if self.is_running and run == self._answers.run:
                return self._finish({"type": "RUN_ERROR", "message": item.reason, "code": item.cause})
            case TurnStop() if self.is_running and run == self._answers.run:
                return self._stop(item)
            case SessionInit():
                self._answers.note_program()
                return [*self._begin(), _custom(item)] if self._with_details else []
            case TurnDelta() | SessionSummary() if self.is_running:
                return [_custom(item)]
        return [_custom(item)] if self._with_details and self.is_running else []

    def _stop(self, item: TurnStop) -> list[Event]:
        if item.parent_tool_use_id:
            return []
        self._answers.has_stopped = not item.incomplete
        if isinstance(item.usage, Usage):
            self._usage = item.usage
        value = {"stop_reason": item.stop_reason, "incomplete": item.incomplete}
        return [{"type": "CUSTOM", "name": "reknit.turn_stop", "value": value}]

    def _end_with_result(self, item: TurnResult, run: str) -> list[Event]:
        events = self._begin(passing=run != self._answers.run)
        key = f"result-{item.seq}"
        if key in self.state.results:
            head = {"type": "TEXT_MESSAGE_START", "messageId": key, "role": "assistant"}
            events.append({**head, **forms.metadata({"origin": "result"})})
            events.append({"type": "TEXT_MESSAGE_CONTENT", "messageId": key, "delta": item.result})
            events.append({"type": "TEXT_MESSAGE_END", "messageId": key})
        if run != self._answers.run:
            return events  # the result of an earlier run does not end the answer of this one
        usage = {"usage": _usage(item.usage)} if isinstance(item.usage, Usage) else {}
        if item.is_error:
            message = item.result or item.subtype or "error"
            return [*events, *self._finish({"type": "RUN_ERROR", "message": message, "code": item.subtype, **usage})]
        return [*events, *self._finish({"type": "RUN_FINISHED", "outcome": {"type": "success"}, **usage})]


def _may_begin(item: Item) -> bool:
    """Return True for a notice that may come before the first item of an answer."""
    return item.__struct_config__.tag == "agent/error"


def _custom(item: Item) -> Event:
    name = str(item.__struct_config__.tag).replace("/", "_")
    return {"type": "CUSTOM", "name": f"reknit.{name}", "value": Raw(msgspec.json.encode(item))}


def _usage(usage: Usage) -> list[dict[str, Any]]:
    found = {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}
    optional = {
        "cachedInputTokens": usage.cache_read_input_tokens,
        "cacheWriteInputTokens": usage.cache_creation_input_tokens,
    }
    return [found | {name: value for name, value in optional.items() if value}]
