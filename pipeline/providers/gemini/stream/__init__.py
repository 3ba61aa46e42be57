"""Gemini's streams to common events, whether they arrive as SSE, as a JSON array, or element by element.

A chunk has the next parts of its candidates. A stream may continue after it has reported a stop (code that ran, then
the answer): the rest is another message of the same turn. Only its ``responseId`` identifies another attempt.

Text of one kind continues from chunk to chunk; a call arrives whole, or in pieces. A signature is a thinking block
without words before the part that it seals, as in ``history.readers.gemini``.

Sources of an answer (grounding, pages that it read, citations) are on the candidate, with the words, after them in a
chunk without words, or before them. Most chunks have none (``{}``). Recorded streams report them once; if several
chunks do, one that extends the former replaces it, and anything else is added. Gemini does not take them back, so they
are noted with ``aside``.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.providers.gemini.stream.wire import (
    EMPTY,
    Arguments,
    Candidate,
    Chunk,
    FunctionCall,
    Part,
    Tokens,
    beside,
    block_reason,
    finish_reason,
    is_annotated,
    read_chunk,
    usage,
)
from reknit.pipeline.streams import framing
from reknit.pipeline.streams.decoder import PayloadDecoder
from reknit.pipeline.streams.events import (
    Answer,
    Aside,
    BlockDelta,
    BlockWriter,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Notice,
    UsageKnown,
    unrecognized,
)
from reknit.pipeline.streams.fields import Fields, bound, read_object
from reknit.pipeline.streams.framing import payloads
from reknit.pipeline.streams.framing.repair import check_strings
from reknit.topics.items import SessionSystem

# Every other reason means that the output ended before its end.
_WHOLE = frozenset({"STOP", "FINISH_REASON_UNSPECIFIED"})
_MOST_PAST = 8
# Members of a part that do not say what it is.
_ABOUT_PARTS: Final = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"})
# Members that a block has in the canonical form: a part's own member of the same name is noted under another.
_TAKEN: Final = frozenset({"type", "text", "thinking", "signature", "id", "name", "input", "incomplete", "issuer"})
_list = msgspec.json.Decoder(list[Raw])


class GeminiDecoderState(Struct):
    """The message that streams, and the ids of earlier ones; ``id`` is None before the first.

    ``tokens`` are the counts that were not reported yet.
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
        """Return the rest of a message that was cut: notes without a text, and its tokens."""
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
            growing.noted = {}  # later notes must be distinguished from it
        first = state.candidates[min(state.candidates)]
        cut = first.reason not in _WHOLE
        notices: list[Event] = [Notice(message=first.words, code=first.reason)] if cut and first.words else []
        return [*left, MessageDelta(first.reason, cut=cut), *notices, MessageStopped()]

    def _take_unsaid(self) -> list[Event]:
        """Return the notes that belong to no text, or follow the end of the message."""
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
    """Return True if a candidate has raw JSON, which was not checked yet."""
    for part in (candidate.content and candidate.content.parts) or ():
        if part.function_call is not None or part.own is not UNSET or part.about is not UNSET:
            return True
    return is_annotated(candidate)


def _says_more(candidates: list[Candidate[Part]]) -> bool:
    """Return True if a chunk has content for a message; the empty text of a last chunk is not content."""
    parts = [part for found in candidates if found.content is not None for part in found.content.parts or ()]
    return any(part.text or part.function_call or part.thought_signature or part.own is not UNSET for part in parts)


# A candidate as it grows: its parts as blocks, with the notes about its words.


class Growing(Answer):
    """A growing candidate: an answer, and the arguments of the current call.

    ``text`` is the block of its last text, ``noted`` the notes about it, or about the next one. ``reason`` and
    ``words`` are its finish reason.
    """

    call: Arguments | None = None
    finished: bool = False
    reason: str = ""
    words: str = ""
    text: int = -1
    noted: dict[str, bytes] = msgspec.field(default_factory=dict)


class CandidateWriter(BlockWriter[Growing]):
    __slots__ = ()

    def take_candidate(self, candidate: Candidate[Part], *, of_vertex: bool, over: bool) -> None:
        """The next piece of the candidate; ``over`` says that the message had ended before this chunk."""
        growing = self.answer
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._take_part(part, over=over)
        if is_annotated(candidate):
            for name, value in beside(candidate).items():
                self._note_text(name, value, over=over)
        if candidate.finish_reason:
            self._end_words_and_call()
            growing.finished = True
            growing.reason = finish_reason(candidate.finish_reason, of_vertex=of_vertex)
            growing.words = candidate.finish_message or ""

    def _take_part(self, part: Part, *, over: bool) -> None:
        growing, call = self.answer, part.function_call
        about = part.about if isinstance(part.about, dict) else {}
        if call is not None and growing.call is not None and not call.name:
            self._continue_call(growing.call, call)
            self._note_part(growing.block, about, has_earlier=True)
            return
        if part.thought_signature:
            self._end_words_and_call()
            block = self.begin_block("thinking")
            self.add_delta(block, "signature_delta", part.thought_signature)
            self.end_block(block)
        if part.own is not UNSET:
            # A part that only Gemini has, such as code that it ran; its type is the name of its member.
            self._end_words_and_call()
            self.end_block(
                self.begin_own_block(next((name for name in part.own if name not in _ABOUT_PARTS), ""), part.own)
            )
        elif call is not None:
            self._begin_call(call)
            self._note_part(growing.block, about)
        elif part.text:
            self._add_words("thinking" if part.thought else "text", part.text)
            self._note_part(growing.block, about, has_earlier=True)
        else:
            for name, value in about.items():
                self._note_text(name, value, over=over)

    def _end_words_and_call(self) -> None:
        """End the current block; a call that should have continued stays without its end."""
        self.end_words()
        self.answer.call = None

    def _add_words(self, kind: str, words: str) -> None:
        growing = self.answer
        if growing.kind != kind:
            growing.call = None
            self.open_words(kind, kind)
            if kind == "text":
                waiting = growing.noted if growing.text < 0 else {}
                growing.text, growing.noted = growing.block, waiting
                for name, value in waiting.items():
                    self.note_member(growing.block, name, Raw(value), aside=True)
        self.add_delta(growing.block, f"{kind}_delta", words)

    # -- calls --------------------------------------------------------------------------------------------------

    def _begin_call(self, call: FunctionCall) -> None:
        self._end_words_and_call()
        name = call.name or ""
        block = self.answer.block = self.begin_block("tool_use", tool_id=call.id or made_id(name), name=name)
        if call.will_continue or call.partial_args:
            self.answer.call = Arguments()
            self._continue_call(self.answer.call, call)
            return
        if isinstance(call.args, Raw) and bytes(call.args) != b"null":
            self.add_delta(block, "input_json_delta", bytes(call.args).decode())
        self.end_block(block)

    def _continue_call(self, arguments: Arguments, call: FunctionCall) -> None:
        """More of a call's arguments. One that writes where was written before is passed on, and the call not whole."""
        block = self.answer.block
        for piece in call.partial_args or ():
            text = arguments.write_piece(piece)
            if text is None:
                self.add_raw_delta(block, "partial_args", Raw(msgspec.json.encode(piece)))
                self.answer.call = None
                return
            self.add_delta(block, "input_json_delta", text)
        if not call.will_continue:
            self.add_delta(block, "input_json_delta", arguments.close_object())
            self.end_block(block)
            self.answer.call = None

    # -- notes about the words ----------------------------------------------------------------------------------

    def _note_part(self, block: int, about: Fields, *, has_earlier: bool = False) -> None:
        """Note a part's members that are not part of its block.

        ``has_earlier``: earlier chunks may have had other notes of this block. The note holds the last one, so each of
        them is a delta, too.
        """
        if has_earlier:
            for name, value in about.items():
                self.add_raw_delta(block, name, Raw(msgspec.json.encode({name: value})))
        for name, value in about.items():
            self.note_member(block, f"part.{name}" if name in _TAKEN else name, value, aside=True)

    def _note_text(self, name: str, value: Raw, *, over: bool) -> None:
        """Note a statement about a text with that text; without one yet, with the next one.

        If the message is ``over``, its items are complete: the decoder passes the note on.
        """
        growing = self.answer
        noted = growing.noted[name] = added(growing.noted.get(name), bytes(value))
        if growing.text >= 0 and not over:
            self.note_member(growing.text, name, Raw(noted), aside=True)


def added(before: bytes | None, told: bytes) -> bytes:
    """Return the former and the new value joined: objects by their members, lists by their elements."""
    if before is None or before == told:
        return told
    try:
        old, new = read_object(before), read_object(told)
    except msgspec.DecodeError:
        return _added_to_list(before, told)
    joined = {name: Raw(added(bytes(old[name]), bytes(new[name]))) for name in old.keys() & new.keys()}
    return msgspec.json.encode(old | new | joined)


def _added_to_list(before: bytes, told: bytes) -> bytes:
    try:
        old, new = list(map(bytes, _list.decode(before))), list(map(bytes, _list.decode(told)))
    except msgspec.DecodeError:
        return before if told in EMPTY else told
    known = set(old)
    more = new[len(old) :] if new[: len(old)] == old else [value for value in new if value not in known]
    return b"[%b]" % b",".join([*old, *more])
