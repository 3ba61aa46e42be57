"""Gemini's streams to common events, whether they come as SSE, as a JSON array, or element by element.

A chunk has the next parts. Words of one kind go on from chunk to chunk; a call comes whole, or in pieces
(``gemini_arguments``). A signature is a thinking block without words in front of the part that it seals, as in
``history.readers.gemini``. A stream may go on after it has said that it stopped (code that ran, then the answer): what
follows is another message of the same turn. Another attempt is told by its ``responseId`` alone.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.history.ids import made_id
from pipeline.streams import sse
from pipeline.streams.decoder import PayloadDecoder
from pipeline.streams.events import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Notice,
    UsageKnown,
    unrecognized,
)
from pipeline.streams.fields import Fields, bound
from pipeline.streams.framing import Ends, Scan, values
from pipeline.streams.gemini_arguments import Arguments
from pipeline.streams.gemini_wire import Candidate, Chunk, FunctionCall, Part, Tokens, read_chunk, usage
from pipeline.streams.own import other_answer, own_block
from pipeline.streams.salvage import check_strings

# Every other reason means that the output ended before its end.
_WHOLE = frozenset({"STOP", "FINISH_REASON_UNSPECIFIED"})
_MOST_PAST = 8


class Growing(Struct):
    """A candidate as it grows: its number, the kind and the block of words that go on, or the call that does."""

    number: int = 0
    kind: str = ""
    block: int = -1
    call: Arguments | None = None
    finished: bool = False


class GeminiState(Struct):
    """The message that streams, and the ids of those before; ``id`` is None before the first.

    ``tokens`` are the counts that were not told yet.
    """

    id: str | None = None
    over: bool = False
    blocks: int = 0
    tokens: Tokens | None = None
    candidates: dict[int, Growing] = {}
    past: list[str] = []


class Gemini(PayloadDecoder[GeminiState]):
    """The source ``gemini``."""

    prefix: ClassVar[str] = "gemini"
    issuer: ClassVar[str] = "gemini"

    def __init__(self) -> None:
        super().__init__(GeminiState)

    @staticmethod
    def framing(data: bytes, scan: Scan, /) -> Ends:
        """JSON values, wherever they end, or SSE."""
        return values(data, scan)

    def split(self, data: bytes) -> list[bytes]:
        """The payloads: of SSE, of lines, or the elements of an array however it is laid out."""
        return sse.values(data)

    def payload(self, payload: bytes) -> list[Event]:
        """One chunk."""
        chunk = read_chunk(payload)
        state = self.state
        candidates = chunk.candidates or []
        if len(candidates) == 1 and chunk.response_id == state.id and chunk.prompt_feedback is None:
            # Nearly every chunk is a few more words of what grows already.
            growing, part = state.candidates.get(0), _plain_part(candidates[0])
            if part is not None and growing is not None and growing.kind == ("thinking" if part.thought else "text"):
                state.tokens = chunk.usage_metadata or state.tokens
                return [BlockDelta(growing.block, f"{growing.kind}_delta", part.text or "")]
        check_strings(payload)
        if chunk.response_id and chunk.response_id in state.past:
            fields = msgspec.json.decode(payload, type=dict[str, Raw])
            return [unrecognized("a chunk of a message that is over", event=fields)]
        events = self._begin(chunk, candidates)
        for candidate in candidates:
            events += self._grow(candidate)
        self.state.tokens = chunk.usage_metadata or self.state.tokens
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason:
            words = feedback.block_reason_message or f"the prompt was blocked: {feedback.block_reason}"
            events.append(Failed(words, feedback.block_reason))
        events += self._finish(candidates)
        return events

    def finish(self) -> list[Event]:
        """The tokens of a message that was cut."""
        return self._count()

    def save(self) -> bytes:
        """The state as bytes."""
        if self.state.tokens is not None:
            bound(self.state.tokens)
        return super().save()

    def _count(self) -> list[Event]:
        """The tokens so far, which every chunk tells and only the last one counts."""
        tokens, self.state.tokens = self.state.tokens, None
        return [] if tokens is None else [UsageKnown(usage(tokens))]

    def _begin(self, chunk: Chunk[Part], candidates: list[Candidate[Part]]) -> list[Event]:
        """Another attempt or message, if the chunk begins one."""
        state = self.state
        named = chunk.response_id or ""
        if state.id is not None:
            goes_on = named == state.id or not (named and state.id)
            if goes_on and not (state.over and _says_more(candidates)):
                state.id = state.id or named
                return []
        past = state.past if not state.id or state.id == named else [*state.past, state.id][-_MOST_PAST:]
        before = self._count()
        self.state = GeminiState(id=named, past=past)
        return [*before, MessageStarted(named or None, chunk.model_version or None)]

    def _grow(self, candidate: Candidate[Part]) -> list[Event]:
        number = candidate.index or 0
        growing = self.state.candidates.get(number)
        if growing is None:
            growing = self.state.candidates[number] = Growing(number)
        events: list[Event] = []
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._take(growing, part, events)
        if candidate.finish_reason:
            self._leave(growing, events)
            growing.finished = True
        return events

    def _finish(self, candidates: list[Candidate[Part]]) -> list[Event]:
        """The end of the message, when every candidate has its reason."""
        state = self.state
        if state.over:
            return self._count()
        reasons = [candidate for candidate in candidates if candidate.finish_reason]
        if not reasons or not all(growing.finished for growing in state.candidates.values()):
            return []
        state.over = True
        reason, words = reasons[0].finish_reason, reasons[0].finish_message
        cut = reason not in _WHOLE
        notices: list[Event] = [Notice(message=words, code=reason or "")] if cut and words else []
        return [*self._count(), MessageDelta(reason, cut=cut), *notices, MessageStopped()]

    # -- parts --------------------------------------------------------------------------------------------------

    def _take(self, growing: Growing, part: Part, events: list[Event]) -> None:
        call, words, kind = part.function_call, part.text, "thinking" if part.thought else "text"
        if call is not None and growing.call is not None and not call.name:
            self._continue(growing, call, events)
            return
        if part.thought_signature:
            self._leave(growing, events)
            block = self._start(growing, BlockStarted(index=self.state.blocks, kind="thinking"), events)
            events += [BlockDelta(block, "signature_delta", part.thought_signature), BlockStopped(block)]
        if part.own is not UNSET:
            self._own(growing, part.own, events)
        elif call is not None:
            self._call(growing, call, events)
        elif words:
            if growing.kind != kind:
                self._leave(growing, events)
                growing.kind = kind
                growing.block = self._start(growing, BlockStarted(index=self.state.blocks, kind=kind), events)
            events.append(BlockDelta(growing.block, f"{kind}_delta", words))

    def _start(self, growing: Growing, event: BlockStarted, events: list[Event]) -> int:
        """Start a block; only the first candidate's are the message's own."""
        events.append(other_answer(growing.number, event) if growing.number else event)
        self.state.blocks += 1
        return event.index

    def _leave(self, growing: Growing, events: list[Event]) -> None:
        """End what goes on; a call that should have gone on stays without its end."""
        if growing.kind:
            events.append(BlockStopped(growing.block))
        growing.kind, growing.call = "", None

    def _own(self, growing: Growing, members: Fields, events: list[Event]) -> None:
        """A part that only Gemini understands, such as code that it ran; its type is the name of its member."""
        self._leave(growing, events)
        kind, block = own_block(next((name for name in members if name not in _BESIDE), ""), members)
        events.append(
            BlockStopped(self._start(growing, BlockStarted(index=self.state.blocks, kind=kind, raw=block), events))
        )

    def _call(self, growing: Growing, call: FunctionCall, events: list[Event]) -> None:
        self._leave(growing, events)
        name = call.name or ""
        call_id = call.id or made_id(name)
        started = BlockStarted(index=self.state.blocks, kind="tool_use", tool_id=call_id, name=name)
        growing.block = self._start(growing, started, events)
        if call.will_continue or call.partial_args:
            growing.call = Arguments()
            self._continue(growing, call, events)
            return
        if isinstance(call.args, Raw) and bytes(call.args) != b"null":
            events.append(BlockDelta(growing.block, "input_json_delta", bytes(call.args).decode()))
        events.append(BlockStopped(growing.block))

    def _continue(self, growing: Growing, call: FunctionCall, events: list[Event]) -> None:
        """More of a call's arguments. One that writes where was written before is passed on, and the call not whole."""
        arguments = growing.call
        if arguments is None:
            return
        for piece in call.partial_args or ():
            text = arguments.write(piece)
            if text is None:
                raw = Raw(msgspec.json.encode(piece))
                events.append(BlockDelta(growing.block, "partial_args", "", raw=raw))
                growing.call = None
                return
            events.append(BlockDelta(growing.block, "input_json_delta", text))
        if not call.will_continue:
            events.append(BlockDelta(growing.block, "input_json_delta", arguments.close()))
            events.append(BlockStopped(growing.block))
            growing.call = None


_BESIDE = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"})


def _plain_part(candidate: Candidate[Part]) -> Part | None:
    """The part of a candidate that has nothing but words in one part."""
    parts = candidate.content.parts if candidate.content is not None else None
    if parts is None or len(parts) != 1 or candidate.finish_reason is not None or candidate.index:
        return None
    part = parts[0]
    plain = part.text and part.function_call is None and part.thought_signature is None and part.own is UNSET
    return part if plain else None


def _says_more(candidates: list[Candidate[Part]]) -> bool:
    return any(candidate.content and candidate.content.parts for candidate in candidates)
