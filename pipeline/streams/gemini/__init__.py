"""Gemini's streams to common events, whether they come as SSE, as a JSON array, or element by element.

A chunk has the next parts of its candidates (``candidates``). A stream may go on after it has said that it stopped
(code that ran, then the answer): what follows is another message of the same turn. Another attempt is told by its
``responseId`` alone.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct

from pipeline.streams import framing
from pipeline.streams.decoder import PayloadDecoder
from pipeline.streams.events import (
    Aside,
    BlockDelta,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Notice,
    UsageKnown,
    unrecognized,
)
from pipeline.streams.fields import bound, read_object
from pipeline.streams.framing import payloads
from pipeline.streams.framing.mending import check_strings
from pipeline.streams.gemini.candidates import CandidateWriter, Growing
from pipeline.streams.gemini.wire import (
    Candidate,
    Chunk,
    Part,
    Tokens,
    block_reason,
    is_annotated,
    read_chunk,
    usage,
)
from topics.items import SessionSystem

# Every other reason means that the output ended before its end.
_WHOLE = frozenset({"STOP", "FINISH_REASON_UNSPECIFIED"})
_MOST_PAST = 8


class GeminiDecoderState(Struct):
    """The message that streams, and the ids of those before; ``id`` is None before the first.

    ``tokens`` are the counts that were not told yet.
    """

    id: str | None = None
    over: bool = False
    blocks: int = 0
    tokens: Tokens | None = None
    candidates: dict[int, Growing] = {}
    past: list[str] = []

    def next_block(self) -> int:
        self.blocks += 1
        return self.blocks - 1


class Gemini(PayloadDecoder[GeminiDecoderState]):
    # JSON values, wherever they end and however their array is laid out, or SSE.
    framing = staticmethod(framing.values)
    split = staticmethod(payloads.of_values)

    def __init__(self) -> None:
        super().__init__(GeminiDecoderState)

    def payload(self, payload: bytes) -> list[Event]:
        chunk = read_chunk(payload)
        state = self.state
        candidates = chunk.candidates or []
        if len(candidates) == 1 and chunk.response_id == state.id and chunk.prompt_feedback is None:
            more = _more_words(candidates[0], state.candidates.get(0))
            if more is not None:
                state.tokens = chunk.usage_metadata or state.tokens
                return [more]
        is_past = bool(state.past) and chunk.response_id in state.past
        if is_past or any(map(_holds_json, candidates)):
            check_strings(payload)
        if is_past:
            return [unrecognized("a chunk of a message that is over", event=read_object(payload))]
        events = self._begin_message(chunk, candidates)
        is_last = self.state.over
        for place, candidate in enumerate(candidates):
            number = place if candidate.index is None else candidate.index
            events += self._take_candidate(number, candidate, of_vertex=chunk.create_time is not UNSET)
            is_last = is_last or bool(candidate.finish_reason)
        self.state.tokens = chunk.usage_metadata or self.state.tokens
        feedback = chunk.prompt_feedback
        blocked = "" if feedback is None else block_reason(feedback.block_reason)
        if feedback is not None and blocked:
            events.append(Failed(feedback.block_reason_message or f"the prompt was blocked: {blocked}", blocked))
        return [*events, *self._finish_message()] if is_last else events

    def release_held(self) -> list[Event]:
        """What is left of a message that was cut: what stood beside no text, and its tokens."""
        return [*self._take_unsaid(), *self._take_counts()]

    def save(self) -> bytes:
        if self.state.tokens is not None:
            bound(self.state.tokens)
        return super().save()

    def _take_counts(self) -> list[Event]:
        tokens, self.state.tokens = self.state.tokens, None
        return [] if tokens is None else [UsageKnown(usage(tokens))]

    def _begin_message(self, chunk: Chunk[Part], candidates: list[Candidate[Part]]) -> list[Event]:
        """Another attempt or message, if the chunk begins one."""
        state = self.state
        named = chunk.response_id or ""
        if state.id is not None:
            goes_on = named == state.id or not (named and state.id)
            if goes_on and not (state.over and _says_more(candidates)):
                state.id = state.id or named
                return []
        past = state.past if not state.id or state.id == named else [*state.past, state.id][-_MOST_PAST:]
        before = self.release_held()
        self.state = GeminiDecoderState(id=named, past=past)
        return [*before, MessageStarted(named or None, chunk.model_version or None)]

    def _take_candidate(self, number: int, candidate: Candidate[Part], *, of_vertex: bool) -> list[Event]:
        state = self.state
        growing = state.candidates.get(number)
        if growing is None:
            growing = state.candidates[number] = Growing(number)
        writer = CandidateWriter(growing, state.next_block)
        writer.take_candidate(candidate, of_vertex=of_vertex, over=state.over)
        return writer.events

    def _finish_message(self) -> list[Event]:
        """The end of the message, when every candidate has its reason; the first one's is the message's."""
        state = self.state
        if state.over:
            return self.release_held()
        if not state.candidates or not all(growing.finished for growing in state.candidates.values()):
            return []
        left = self.release_held()
        state.over = True
        for growing in state.candidates.values():
            growing.noted = {}  # what comes now is told apart from it
        first = state.candidates[min(state.candidates)]
        cut = first.reason not in _WHOLE
        notices: list[Event] = [Notice(message=first.words, code=first.reason)] if cut and first.words else []
        return [*left, MessageDelta(first.reason, cut=cut), *notices, MessageStopped()]

    def _take_unsaid(self) -> list[Event]:
        """What was said beside no text at all, or behind the end of the message."""
        events: list[Event] = []
        for growing in self.state.candidates.values():
            if growing.noted and (growing.text < 0 or self.state.over):
                told = growing.noted.items()
                events += [Aside(SessionSystem(subtype=name, event=Raw(value))) for name, value in told]
                growing.noted = {}
        return events


def _more_words(candidate: Candidate[Part], growing: Growing | None) -> BlockDelta | None:
    """More words of what grows already, where a chunk has nothing else, as nearly every one."""
    content = candidate.content
    if growing is None or content is None or content.parts is None or len(content.parts) != 1 or candidate.index:
        return None
    (part,) = content.parts
    words, thought = part.text, part.thought
    if not words or growing.kind != ("thinking" if thought else "text") or part != Part(words, thought):
        return None
    if candidate != Candidate(content, candidate.index) and (candidate.finish_reason or is_annotated(candidate)):
        return None
    return BlockDelta(growing.block, "thinking_delta" if thought else "text_delta", words)


def _holds_json(candidate: Candidate[Part]) -> bool:
    """Whether anything is taken from a candidate as the JSON that it is, which nobody has looked into yet."""
    for part in (candidate.content and candidate.content.parts) or ():
        if part.function_call is not None or part.own is not UNSET or part.about is not UNSET:
            return True
    return is_annotated(candidate)


def _says_more(candidates: list[Candidate[Part]]) -> bool:
    """Whether anything comes that could stand in a message; the empty text of a last chunk cannot."""
    parts = [part for found in candidates if found.content is not None for part in found.content.parts or ()]
    return any(part.text or part.function_call or part.thought_signature or part.own is not UNSET for part in parts)
