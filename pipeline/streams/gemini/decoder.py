"""Gemini's streams to common events, whether they come as SSE, as a JSON array, or element by element.

A chunk has the next parts. Words of one kind go on from chunk to chunk; a call comes whole, or in pieces
(``gemini_arguments``). A signature is a thinking block without words in front of the part that it seals, as in
``history.readers.gemini``. What stands beside the words (``gemini_beside``) is noted with the text: the one that grows,
the last one, or the first to come. A stream may go on after it has said that it stopped (code that ran, then the
answer): what follows is another message of the same turn. Another attempt is told by its ``responseId`` alone.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.history.ids import made_id
from pipeline.streams.bytes import sse
from pipeline.streams.bytes.framing import Ends, Scan, values
from pipeline.streams.bytes.salvage import check_strings
from pipeline.streams.decoder import PayloadDecoder
from pipeline.streams.events import (
    Aside,
    BlockDelta,
    BlockNoted,
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
from pipeline.streams.gemini.arguments import Arguments
from pipeline.streams.gemini.beside import added, beside, is_annotated
from pipeline.streams.gemini.wire import (
    Candidate,
    Chunk,
    FunctionCall,
    Part,
    Tokens,
    block_reason,
    finish_reason,
    read_chunk,
    usage,
)
from pipeline.streams.own import other_answer, own_block
from topics.items import SessionSystem

# Every other reason means that the output ended before its end.
_WHOLE = frozenset({"STOP", "FINISH_REASON_UNSPECIFIED"})
_MOST_PAST = 8


class Growing(Struct):
    """A candidate as it grows: its number, the kind and the block of words that go on, or the call that does.

    ``text`` is the block of its last text, ``noted`` what was said beside that, or beside none yet. ``reason`` and
    ``words`` are why it finished.
    """

    number: int = 0
    kind: str = ""
    block: int = -1
    call: Arguments | None = None
    finished: bool = False
    reason: str = ""
    words: str = ""
    text: int = -1
    noted: dict[str, bytes] = {}


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
        for place, candidate in enumerate(candidates):
            number = place if candidate.index is None else candidate.index
            events += self._grow(number, candidate, of_vertex=chunk.create_time is not UNSET)
        self.state.tokens = chunk.usage_metadata or self.state.tokens
        feedback = chunk.prompt_feedback
        blocked = block_reason(feedback.block_reason) if feedback is not None else ""
        if feedback is not None and blocked:
            events.append(Failed(feedback.block_reason_message or f"the prompt was blocked: {blocked}", blocked))
        if self.state.over or any(candidate.finish_reason for candidate in candidates):
            events += self._finish()
        return events

    def finish(self) -> list[Event]:
        """What is left of a message that was cut: what stood beside no text, and its tokens."""
        return [*self._unsaid(), *self._count()]

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
        before = self.finish()
        self.state = GeminiState(id=named, past=past)
        return [*before, MessageStarted(named or None, chunk.model_version or None)]

    def _grow(self, number: int, candidate: Candidate[Part], *, of_vertex: bool) -> list[Event]:
        growing = self.state.candidates.get(number)
        if growing is None:
            growing = self.state.candidates[number] = Growing(number)
        events: list[Event] = []
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._take(growing, part, events)
        for name, value in beside(candidate).items():
            self._note(growing, name, value, events)
        if candidate.finish_reason:
            self._leave(growing, events)
            growing.finished = True
            growing.reason = finish_reason(candidate.finish_reason, of_vertex=of_vertex)
            growing.words = candidate.finish_message or ""
        return events

    def _finish(self) -> list[Event]:
        """The end of the message, when every candidate has its reason; the first one's is the message's."""
        state = self.state
        if state.over:
            return self.finish()
        if not state.candidates or not all(growing.finished for growing in state.candidates.values()):
            return []
        left = self.finish()
        state.over = True
        for growing in state.candidates.values():
            growing.noted = {}  # what comes now is told apart from it
        first = state.candidates[min(state.candidates)]
        cut = first.reason not in _WHOLE
        notices: list[Event] = [Notice(message=first.words, code=first.reason)] if cut and first.words else []
        return [*left, MessageDelta(first.reason, cut=cut), *notices, MessageStopped()]

    # -- beside the words -----------------------------------------------------------------------------------------

    def _note(self, growing: Growing, name: str, value: Raw, events: list[Event]) -> None:
        """Note what was said beside a text with it; where there is none yet, with the first one that comes."""
        noted = growing.noted[name] = added(growing.noted.get(name), bytes(value))
        if self.state.over:
            return  # its item is complete: `finish` tells it
        if growing.text >= 0:
            events.append(BlockNoted(growing.text, name, Raw(noted)))

    def _unsaid(self) -> list[Event]:
        """What was said beside no text at all, or behind the end of the message."""
        events: list[Event] = []
        for growing in self.state.candidates.values():
            if growing.text < 0 or self.state.over:
                events += [
                    Aside(SessionSystem(subtype=name, event=Raw(value))) for name, value in growing.noted.items()
                ]
                growing.noted = {}
        return events

    # -- parts --------------------------------------------------------------------------------------------------

    def _take(self, growing: Growing, part: Part, events: list[Event]) -> None:
        call, words, kind = part.function_call, part.text, "thinking" if part.thought else "text"
        about = part.about if isinstance(part.about, dict) else {}
        if call is not None and growing.call is not None and not call.name:
            self._continue(growing, call, events)
            _say(growing.block, about, events)
            return
        if part.thought_signature:
            self._leave(growing, events)
            block = self._start(growing, BlockStarted(index=self.state.blocks, kind="thinking"), events)
            events += [BlockDelta(block, "signature_delta", part.thought_signature), BlockStopped(block)]
        if part.own is not UNSET:
            self._own(growing, part.own, events)
        elif call is not None:
            self._call(growing, call, events)
            _say(growing.block, about, events)
        elif words:
            if growing.kind != kind:
                self._leave(growing, events)
                self._begin_words(growing, kind, events)
            events.append(BlockDelta(growing.block, f"{kind}_delta", words))
            # Each chunk may say something else, and the note holds the last one.
            pieces = ((name, Raw(msgspec.json.encode({name: value}))) for name, value in about.items())
            events += [BlockDelta(growing.block, name, "", raw=raw) for name, raw in pieces]
            _say(growing.block, about, events)
        else:
            for name, value in about.items():
                self._note(growing, name, value, events)

    def _begin_words(self, growing: Growing, kind: str, events: list[Event]) -> None:
        growing.kind = kind
        growing.block = self._start(growing, BlockStarted(index=self.state.blocks, kind=kind), events)
        if kind == "text":
            waiting = growing.noted if growing.text < 0 else {}
            growing.text, growing.noted = growing.block, waiting
            events += [BlockNoted(growing.block, name, Raw(value)) for name, value in waiting.items()]

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
# Members that a block has in the canonical form: what a part has by the same name is noted under another.
_TAKEN = frozenset({"type", "text", "thinking", "signature", "id", "name", "input", "incomplete", "issuer"})


def _say(block: int, about: Fields, events: list[Event]) -> None:
    """Note what stands in a part beside what is known of it."""
    events += [BlockNoted(block, f"part.{name}" if name in _TAKEN else name, value) for name, value in about.items()]


def _plain_part(candidate: Candidate[Part]) -> Part | None:
    """The part of a candidate that has nothing but words in one part."""
    parts = candidate.content.parts if candidate.content is not None else None
    if parts is None or len(parts) != 1 or candidate.finish_reason or candidate.index:
        return None
    part = parts[0]
    plain = part.text and part.function_call is None and part.thought_signature is None
    if not plain or part.own is not UNSET or part.about is not UNSET:
        return None
    # Nearly always there is nothing beside it at all.
    bare = candidate.grounding_metadata is candidate.citation_metadata is candidate.grounding_attributions is UNSET
    bare = bare and candidate.url_context_metadata is UNSET
    return part if bare or not is_annotated(candidate) else None


def _says_more(candidates: list[Candidate[Part]]) -> bool:
    """Whether anything comes that could stand in a message; the empty text of a last chunk cannot."""
    parts = [part for found in candidates if found.content is not None for part in found.content.parts or ()]
    return any(part.text or part.function_call or part.thought_signature or part.own is not UNSET for part in parts)
