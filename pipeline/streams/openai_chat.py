"""OpenAI's chat completions, and the servers that speak the same (vLLM and its kin), to common events.

A chunk has the next piece of one or several choices; nothing in it says where a block begins or ends
(``openai_chat_growth``). The first choice is the message; others are shown beside it.

Where another attempt begins is told by little. Of some 390 recorded streams none says ``role`` again once it has left
it out, so one that does begins anew. A new id says so, too, but not alone: Groq's compound models give every chunk an
id of its own, Perplexity's last chunk has another, and gateways make up the first one. It counts with a role, or with
content where the ids were steady until then. A chunk that finishes a choice never begins one.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw, Struct

from pipeline.streams.decoder import PayloadDecoder
from pipeline.streams.events import (
    BlockDelta,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    UsageKnown,
    unrecognized,
)
from pipeline.streams.fields import Fields
from pipeline.streams.openai_chat_growth import CUT, Blocks, Growing, grow, stop
from pipeline.streams.openai_chat_wire import Choice, Chunk, Delta, read_chunk, usage
from pipeline.streams.salvage import check_strings
from pipeline.streams.sse import DONE

# So many ids of messages that are over are remembered, to know a chunk that comes too late.
_MOST_PAST = 8
_NO_DELTA = Delta()


class ChatState(Struct):
    """The message that streams, and the ids of those before.

    ``steady`` says that its id stood in two chunks; ``finished`` that each choice has its reason, ``failed`` that an
    error came instead, ``over`` that ``[DONE]`` did.
    """

    id: str | None = None
    steady: bool = False
    finished: bool = False
    failed: bool = False
    over: bool = False
    blocks: Blocks = msgspec.field(default_factory=Blocks)
    choices: dict[int, Growing] = {}
    past: list[str] = []


class OpenAiChat(PayloadDecoder[ChatState]):
    """The source ``openai-chat``."""

    prefix: ClassVar[str] = "chat"
    issuer: ClassVar[str] = "openai-chat"

    def __init__(self) -> None:
        super().__init__(ChatState)

    def payload(self, payload: bytes) -> list[Event]:
        """One chunk."""
        try:
            chunk = read_chunk(payload)
        except msgspec.DecodeError:
            if payload.strip() == DONE:
                return self.done()  # with blanks behind it, as some proxies write it
            raise
        state = self.state
        choices = chunk.choices
        if choices and chunk.id == state.id and chunk.usage is None and chunk.error is None and len(choices) == 1:
            # Nearly every chunk is a few more words of the text that grows already.
            words = _plain_words(choices[0])
            growing = state.choices.get(0)
            if words and growing is not None and growing.kind == "text" and growing.plain and not state.failed:
                state.steady = True
                return [BlockDelta(growing.block, "text_delta", words)]
        check_strings(payload)
        if not choices:
            return self._beside(chunk)
        if chunk.id in state.past:
            return [unrecognized("a chunk of a message that is over", event=msgspec.json.decode(payload, type=Fields))]
        return [*self._begin(chunk, choices), *self._take(choices), *self._beside(chunk)]

    def done(self) -> list[Event]:
        """``[DONE]`` ends a message, also where no chunk has said why it stopped (Snowflake)."""
        state = self.state
        if state.id is None or state.over:
            return []
        events: list[Event] = []
        if not (state.failed or state.finished):
            for growing in state.choices.values():
                events += [] if growing.reason else stop(growing, "stop")
            events += self._finish()
        state.over = True
        return [*events, MessageStopped()]

    def odd(self, fields: Fields) -> list[Event]:
        """An error, or what nobody understands."""
        self.state.failed |= "error" in fields
        if fields.get("object") == Raw(b'"error"'):
            fields = {"error": Raw(msgspec.json.encode(fields))}
        return super().odd(fields)

    def _begin(self, chunk: Chunk, choices: list[Choice]) -> list[Event]:
        """Another attempt or message, if the chunk begins one."""
        state = self.state
        if state.id is None or self._is_another(chunk, choices):
            past = state.past if not state.id or state.id == chunk.id else [*state.past, state.id][-_MOST_PAST:]
            self.state = ChatState(id=chunk.id or "", past=past)
            return [MessageStarted(chunk.id or None, chunk.model or None)]
        state.steady = state.steady or chunk.id == state.id
        return []

    def _is_another(self, chunk: Chunk, choices: list[Choice]) -> bool:
        state = self.state
        says = any(_says_something(choice) for choice in choices)
        roles = [choice for choice in choices if choice.delta is not None and choice.delta.role]
        is_new = bool(chunk.id and state.id and chunk.id != state.id)
        if state.over:
            return True
        if state.finished or state.failed:
            return says or (is_new and bool(roles))
        if any(choice.finish_reason for choice in choices):
            return False
        if is_new:
            return bool(roles) or (says and state.steady)
        return any((growing := state.choices.get(choice.index or 0)) and growing.plain for choice in roles)

    def _take(self, choices: list[Choice]) -> list[Event]:
        state = self.state
        events: list[Event] = []
        for choice in choices:
            number = choice.index or 0
            growing = state.choices.setdefault(number, Growing(number))
            growing.plain = growing.plain or not (choice.delta and choice.delta.role)
            if growing.reason:
                # Some servers repeat the end, with nothing in it.
                if choice.others or _says_something(choice):
                    events.append(unrecognized("after the end of its choice", event=_members(choice)))
                continue
            events += grow(growing, choice, state.blocks)
            if choice.finish_reason:
                events += stop(growing, choice.finish_reason)
        if not state.finished and all(growing.reason for growing in state.choices.values()):
            events += self._finish()
        return events

    def _finish(self) -> list[Event]:
        """The message stops for the reason of its first choice."""
        state = self.state
        state.finished = True
        reason = state.choices[min(state.choices)].reason
        return [MessageDelta(reason, cut=reason in CUT)]

    def _beside(self, chunk: Chunk) -> list[Event]:
        """What a chunk says beside its choices."""
        tokens = chunk.usage if self.state.id is not None else None
        events: list[Event] = [] if tokens is None else [UsageKnown(usage(tokens))]
        if chunk.error:
            events += self.odd({"error": Raw(msgspec.json.encode(chunk.error))})
        return events


class Vllm(OpenAiChat):
    """The source ``vllm``."""

    prefix: ClassVar[str] = "vllm"
    issuer: ClassVar[str] = "vllm"


def _plain_words(choice: Choice) -> str:
    """The words of a choice that has nothing but words of the first answer, or ``""``."""
    delta = choice.delta
    if delta is None or choice.finish_reason is not None or choice.index or choice.others:
        return ""
    words = delta.content
    if not isinstance(words, str) or delta.role or delta.tool_calls or delta.refusal or delta.reasoning_details:
        return ""
    return "" if delta.reasoning_content or delta.reasoning or delta.reasoning_text or delta.function_call else words


def _members(choice: Choice) -> Fields:
    """What a choice's piece has, as JSON."""
    known: Fields = msgspec.json.decode(msgspec.json.encode(choice.delta or _NO_DELTA), type=Fields)
    return {name: value for name, value in known.items() if bytes(value) != b"null"} | choice.others


def _says_something(choice: Choice) -> bool:
    """Whether a choice's piece has any words or calls."""
    delta = choice.delta or _NO_DELTA
    return bool(
        delta.content
        or delta.refusal
        or delta.tool_calls
        or delta.function_call
        or delta.reasoning_content
        or delta.reasoning
        or delta.reasoning_text
        or delta.reasoning_details
    )
