"""A planner that outputs text only: extracts calls from the text, redacts paths, rewrites names.

The text passes the filters of ``reknit.pipeline.text`` in a row, calls first, so that nothing which a filter inserted
is ever read as a call. The filters' buffers are state, so neither the chunks nor a restart make a difference. Reasoning
has filters of its own, and a call in it stays reasoning.

- A call has no id: its item's id is used, which counts the session's blocks. Arguments are redacted string by string
  and never rewritten otherwise; a call's name stays, because it must name a tool.
- A call that breaks off is incomplete; one whose name did not arrive is text.
- Blanks alone, between calls and before reasoning or the end, are the protocol's line breaks and not shown.
- Changes and removals are reported by ``Rewritten``, of the block that they belong to.

Events arrive one in a line or in SSE. WindsurfAPI forwards polled events without a type, ``{"text", "thinking",
"isError"}``; the others have one:

- ``{"type": "message_start", "id"?, "model"?}``: an attempt begins. Without one it begins with its first words.
- ``{"type": "text_delta", "text"}``, ``{"type": "thinking_delta", "thinking"}`` (or ``text``): more of either.
- ``{"type": "done", "reason"?, "usage"?}``: the answer has ended. A reason that means that the planner was abandoned,
  such as ``max_wait``, aborts the run.
- ``{"type": "max_wait", "message"?}``: the planner was abandoned after the maximum time.
- ``{"type": "error", "message", "code"?}``: the attempt failed.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, structs

from reknit.pipeline.providers.cascade.stream.speech import Filters, OutputFilters, removed
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.decoder import PayloadDecoder
from reknit.pipeline.streams.events import (
    Aside,
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Rewritten,
    RunEnded,
    UsageKnown,
    unrecognized,
)
from reknit.pipeline.streams.fields import Counted, Fields
from reknit.pipeline.text.jsontext import ToolCall
from reknit.pipeline.text.tool_calls import Removed
from reknit.topics.items import AgentUnrecognized, Usage


class Chunk(Struct, gc=False):
    """A piece as the source has it. ``is_error``: the text is why the attempt failed, not the model's."""

    text: str | None = ""
    thinking: str | None = ""
    is_error: bool = msgspec.field(default=False, name="isError")


class Started(Struct, tag="message_start", gc=False):
    id: str | None = None
    model: str | None = None


class TextDelta(Struct, tag="text_delta", gc=False):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta", gc=False):
    thinking: str = ""
    text: str = ""


class Tokens(Counted, gc=False):
    """Token counts by the source's names, or by those of items."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    input: int | None = msgspec.field(default=None, name="inputTokens")
    output: int | None = msgspec.field(default=None, name="outputTokens")
    cache_read: int | None = msgspec.field(default=None, name="cacheReadTokens")
    cache_write: int | None = msgspec.field(default=None, name="cacheWriteTokens")


class Done(Struct, tag="done", gc=False):
    reason: str | None = None
    usage: Tokens | None = None


class MaxWait(Struct, tag="max_wait", gc=False):
    """The planner took too long and was given up."""

    message: str = ""


_Typed: TypeAlias = TextDelta | ThinkingDelta | Started | Done | MaxWait
PlannerEvent: TypeAlias = _Typed | Chunk

_typed: msgspec.json.Decoder[_Typed] = msgspec.json.Decoder(_Typed)


class _Untyped(Chunk, forbid_unknown_fields=True, gc=False):
    """A piece that has no members but its own: anything else may be another kind of event."""


_untyped = msgspec.json.Decoder(_Untyped)


def read_event(payload: bytes) -> PlannerEvent:
    """Decode one event.

    Raises:
        msgspec.DecodeError: it is none of these.
    """
    try:
        return _typed.decode(payload)
    except msgspec.ValidationError:
        return _untyped.decode(payload)


def usage(tokens: Tokens) -> Usage:
    return Usage(
        input_tokens=tokens.input_tokens or tokens.input or 0,
        output_tokens=tokens.output_tokens or tokens.output or 0,
        cache_creation_input_tokens=tokens.cache_creation_input_tokens or tokens.cache_write or 0,
        cache_read_input_tokens=tokens.cache_read_input_tokens or tokens.cache_read or 0,
    )


# Reasons for which the planner was given up: the answer is not over, the run is.
_GIVEN_UP: Final = re.compile(r"max_?wait|stall|abort|time_?out|timed_out|deadline|loop|disconnect", re.IGNORECASE)
# Reasons for which the output ended before its end.
_CUT: Final = frozenset({"length", "max_tokens", "content_filter"})
_OF_A_CHUNK: Final = frozenset({"text", "thinking", "isError"})
# Blanks before a block's first word are held, but no more than these.
_MOST_BLANKS: Final = 64


class CascadeDecoderState(Struct, array_like=True):
    """The state of the message.

    ``model`` is the name to use; ``blocks`` counts those that have begun; ``text`` and ``thinking`` are the open ones,
    or -1. ``blanks`` and ``removed`` precede a possible next text.
    """

    started: bool = False
    model: str | None = None
    blocks: int = 0
    text: int = -1
    thinking: int = -1
    blanks: str = ""
    removed: list[Rewritten] = []


class _Saved(Struct, array_like=True):
    state: CascadeDecoderState
    filters: bytes


class Cascade(PayloadDecoder[CascadeDecoderState]):
    """The source ``cascade``. ``speech`` is what its text is to become, from the next message on."""

    def __init__(self) -> None:
        super().__init__(CascadeDecoderState)
        self.speech = OutputFilters()
        self._made: Filters | None = None
        self._made_for: tuple[OutputFilters, str | None] | None = None
        self._loaded = b""

    # State.

    def save(self) -> bytes:
        """The state, that of the filters included; between messages they have none."""
        made = b"" if self._made is None or not self.state.started else self._made.save()
        return msgspec.msgpack.encode(_Saved(self.state, self._loaded or made))

    def load(self, saved: bytes) -> None:
        """Restore the state that ``save`` returned.

        The filters are created when they are needed, after ``speech`` is set.
        """
        found = msgspec.msgpack.decode(saved, type=_Saved)
        self.state, self._loaded, self._made = found.state, found.filters, None

    @property
    def _filters(self) -> Filters:
        return self._make_filters() if self._made is None else self._made

    def _make_filters(self) -> Filters:
        """Return the filters for this message; the former ones if nothing has changed."""
        wanted = (self.speech, self.state.model)
        if self._made is None or self._made_for != wanted:
            self._made, self._made_for = Filters(*wanted), wanted
        if self._loaded:
            self._made.load(self._loaded)
            self._loaded = b""
        return self._made

    # Events.

    def payload(self, payload: bytes) -> list[Event]:
        match read_event(payload):
            case TextDelta(text=text):
                return self._add_words(text)
            case ThinkingDelta(thinking=thinking, text=text):
                return self._add_thinking(thinking or text)
            case Chunk() as chunk:
                return self._read_chunk(chunk)
            case Started(id=message_id, model=model):
                return [*self.release_held(), *self._begin_message(message_id, model)]
            case MaxWait(message=message):
                return self._give_up(f"max_wait: {message}" if message else "max_wait")
            case Done() as done:
                return self._finish_message(done)

    def done(self) -> list[Event]:
        """``[DONE]`` ends a message, where nothing else has."""
        return self._finish_message(Done()) if self.state.started else []

    def odd(self, fields: Fields) -> list[Event]:
        if "type" not in fields and fields.keys() & {"text", "thinking"}:
            text, thinking = read.text(fields, "text"), read.text(fields, "thinking")
            others = {name: value for name, value in fields.items() if name not in _OF_A_CHUNK}
            notices = [unrecognized("unknown members of a chunk", event=others)] if others else []
            return [*self._read_chunk(Chunk(text, thinking, read.flag(fields, "isError"))), *notices]
        found = super().odd(fields)
        failed = found[0]
        return self._fail_attempt(failed.message, failed.code) if isinstance(failed, Failed) else found

    def read(self, payload: bytes) -> list[Event]:
        """Return the events of a payload. An unknown one is passed on without the paths."""
        events: list[Event] = []
        for event in super().read(payload):
            if isinstance(event, Aside) and isinstance(event.item, AgentUnrecognized):
                events += [Aside(self._filters.opaque(event.item)), *self._filters.changes_next_to(-1)]
            else:
                events.append(event)
        return events

    # Messages.

    def _begin_message(self, message_id: str | None = None, model: str | None = None) -> list[Event]:
        self.state = CascadeDecoderState(started=True, model=self.speech.model or model)
        self._make_filters()
        return [MessageStarted(message_id, model)]

    def _read_chunk(self, chunk: Chunk) -> list[Event]:
        if chunk.is_error:
            return [*self._add_thinking(chunk.thinking or ""), *self._fail_attempt(chunk.text or "error", "")]
        return [*self._add_thinking(chunk.thinking or ""), *self._add_words(chunk.text or "")]

    def _finish_message(self, done: Done) -> list[Event]:
        reason = done.reason or "stop"
        if _GIVEN_UP.search(reason):
            return self._give_up(reason)
        events = [*([] if self.state.started else self._begin_message()), *self.release_held()]
        if done.usage is not None:
            events.append(UsageKnown(usage(done.usage)))
        self.state = CascadeDecoderState()
        return [*events, MessageDelta(reason, cut=reason in _CUT), MessageStopped()]

    def _give_up(self, reason: str) -> list[Event]:
        """The planner took too long or stalled: the run ends here, with its diagnosis."""
        events = self.release_held()
        self.state = CascadeDecoderState()
        filtered = self._filters.error(reason)
        return [*events, *self._filters.changes_next_to(-1), RunEnded(filtered)]

    def _fail_attempt(self, message: str, code: str) -> list[Event]:
        events = self.release_held()
        self.state = CascadeDecoderState()
        filtered = self._filters.error(message)
        return [*events, *self._filters.changes_next_to(-1), Failed(filtered, code)]

    def release_held(self) -> list[Event]:
        """Return the text that the filters hold, at the end of a text; a call that had begun stays open."""
        if not self.state.started:
            return []
        events = self._end_thinking()
        begun = self._filters.take_begun_call()
        for output in self._filters.text.each_left():
            events += self._put_output(output)
        events += self._stop_text()
        if begun is not None:
            name, arguments = begun
            index = self._next_index()
            events += [
                BlockStarted(index=index, kind="tool_use", name=name),
                BlockDelta(index, "input_json_delta", arguments),
                *self._filters.changes(index),
            ]
        return events

    # Reasoning.

    def _add_thinking(self, piece: str) -> list[Event]:
        if not piece:
            return []
        events: list[Event] = [] if self.state.started else self._begin_message()
        state = self.state
        released = self._filters.text.release()
        if released:
            events += self._put_output(released)
        events += self._stop_text()
        if state.thinking < 0:
            state.thinking = self._next_index()
            events.append(BlockStarted(index=state.thinking, kind="thinking"))
        return [*events, *self._shown_thinking(self._filters.think(piece))]

    def _shown_thinking(self, shown: str) -> list[Event]:
        index = self.state.thinking
        delta = [BlockDelta(index, "thinking_delta", shown)] if shown else []
        return [*delta, *self._filters.changes_next_to(index)]

    def _end_thinking(self) -> list[Event]:
        index = self.state.thinking
        if index < 0:
            return []
        events = [*self._shown_thinking(self._filters.end_thinking()), BlockStopped(index)]
        self.state.thinking = -1
        return events

    # Text and calls.

    def _add_words(self, piece: str) -> list[Event]:
        if not piece:
            return []
        events: list[Event] = [] if self.state.started else self._begin_message()
        events += self._end_thinking()
        for output in self._filters.text.each(piece):
            events += self._put_output(output)
        return events

    def _put_output(self, output: str | ToolCall | Removed) -> list[Event]:
        """Convert a filter's output to events of the block that it belongs to."""
        if isinstance(output, ToolCall):
            return self._put_call(output)
        if isinstance(output, Removed):
            self.state.removed.append(removed(output))
            return [] if self.state.text < 0 else self._tell_removed(self.state.text)
        return self._extend_text(output)

    def _extend_text(self, text: str) -> list[Event]:
        state = self.state
        events: list[Event] = []
        if state.text < 0:
            text = state.blanks + text
            if text.isspace() and len(text) <= _MOST_BLANKS:
                state.blanks = text
                return []
            state.text, state.blanks = self._next_index(), ""
            events.append(BlockStarted(index=state.text, kind="text"))
            events += self._tell_removed(state.text)
        return [*events, BlockDelta(state.text, "text_delta", text), *self._filters.changes(state.text)]

    def _put_call(self, call: ToolCall) -> list[Event]:
        stopped = self._stop_text()
        index = self._next_index()
        return [
            *stopped,
            BlockStarted(index=index, kind="tool_use", name=call.name),
            BlockDelta(index, "input_json_delta", call.arguments),
            *self._filters.changes(index),
            BlockStopped(index),
        ]

    def _stop_text(self) -> list[Event]:
        """Stop the text block, if one has begun; a removal without a text around it belongs to no block."""
        index, self.state.text = self.state.text, -1
        self.state.blanks = ""
        return [*self._tell_removed(-1), *([] if index < 0 else [BlockStopped(index)])]

    def _tell_removed(self, index: int) -> list[Event]:
        filtered, self.state.removed = self.state.removed, []
        return [structs.replace(event, index=index) for event in filtered]

    def _next_index(self) -> int:
        self.state.blocks += 1
        return self.state.blocks - 1
