"""How a choice of a chat grows: one delta after another to the events of its blocks; and answers that came whole.

A block lasts as long as the same member grows. Calls are the exception (``calls``). What stands beside the text, such
as annotations, goes with the last text, or with the first one if none has come; without any it is a block of its own.
No provider takes it back, so it is noted aside.

A whole answer's message grows in one piece, as a stream's does, so that both are read by the same rules; what is whole
in the end is promoted. What is not (a call whose arguments break off) stays a stream that ended, and so do the other
choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.streams.events import BlockDelta, BlockNoted, BlockStarted, BlockStopped, Event, WholeBlock
from pipeline.streams.fields import Fields, read_object
from pipeline.streams.openai_chat import wire
from pipeline.streams.openai_chat.calls import CallWriter
from pipeline.streams.openai_chat.wire import Choice, Delta, ToolCall

# Why an output can end before its end.
CUT: Final = frozenset({"length", "content_filter"})
# Not why the model stopped, but that its server did: the answer has no end.
FAILED: Final = "error"
# The mark of a text that is a refusal.
REFUSAL: Final = "refusal"
_TRUE: Final = Raw(b"true")


class ChoiceWriter(CallWriter):
    __slots__ = ()

    def take_choice(self, choice: Choice) -> None:
        """A choice's next piece, in the order in which a model writes: it thinks, it speaks, it calls."""
        delta = choice.delta
        if delta is not None:
            self._add_words("thinking", wire.reasoning(delta))
            self._take_details(delta)
            if isinstance(delta.content, str):
                self._add_words("text", delta.content)
            elif delta.content:
                self._take_parts(delta.content)
            self._add_words(REFUSAL, delta.refusal or "")
            if delta.audio:
                self._take_audio(delta.audio)
            for annotation in delta.annotations or ():
                self.note_text("annotations", annotation, appends=True)
            if delta.tool_calls:
                self.take_calls(delta.tool_calls)
            elif delta.function_call is not None:
                self.take_calls([ToolCall(index=0, function=delta.function_call)], old=True)
        for name, value in choice.others.items():
            self._note_own(name, value)

    def note_text(self, name: str, value: Raw, *, appends: bool = False) -> None:
        """What stands beside the text: a member of the last one, or of the first that comes."""
        growing = self.answer
        if growing.text < 0:
            growing.waiting.append((name, bytes(value), appends))
        else:
            self.note_member(growing.text, name, value.copy(), appends=appends, aside=True)

    def release_waiting(self) -> None:
        """What waits: calls that have not begun, and what stands beside a text that never came."""
        self.begin_all_calls()
        waiting, self.answer.waiting = self.answer.waiting, []
        for name, value, _ in waiting:
            self._note_own(name, Raw(value))

    def end_choice(self, reason: str) -> None:
        """End every block of a choice, of which nothing waits any more.

        Where the output was cut, the text that a custom tool is called with did not end either; and nothing did where
        the server failed.
        """
        growing = self.answer
        growing.reason = reason
        if reason != FAILED:
            self.end_words()
            for call in growing.calls:
                if not (call.free and reason in CUT):
                    if call.free:
                        self.add_delta(call.block, "input_json_delta", '"}')
                    self.end_block(call.block)
            for block in growing.others.values():
                self.end_block(block)
        growing.kind, growing.calls, growing.others = "", [], {}
        growing.started, growing.by_index, growing.by_id = 0, {}, {}

    def _add_words(self, kind: str, words: str) -> None:
        if not words:
            return
        growing, shown_as = self.answer, "thinking" if kind == "thinking" else "text"
        if growing.kind != kind:
            self.end_words()
            self.begin_all_calls()
            block = self.open_words(kind, shown_as)
            if kind == "thinking":
                growing.thinking = block
            else:
                self._begin_text(block)
        self.add_delta(growing.block, f"{shown_as}_delta", words)

    def _begin_text(self, block: int) -> None:
        growing = self.answer
        growing.text = block
        if growing.kind == REFUSAL:
            self.note_member(block, REFUSAL, _TRUE)
        waiting, growing.waiting = growing.waiting, []
        for name, value, appends in waiting:
            self.note_member(block, name, Raw(value), appends=appends, aside=True)

    def _take_details(self, delta: Delta) -> None:
        """Signatures, which belong to the last reasoning, and reasoning that only its issuer can read."""
        for detail in delta.reasoning_details or ():
            if detail.signature:
                self._sign(detail.signature)
            if detail.data:
                self.end_words()
                self.begin_all_calls()
                block = self.begin_block("redacted_thinking")
                self.note_member(block, "data", Raw(msgspec.json.encode(detail.data)))
                self.end_block(block)

    def _sign(self, signature: str) -> None:
        growing = self.answer
        if growing.thinking < 0:
            self.begin_all_calls()
            growing.thinking = self.begin_block("thinking")
            self.end_block(growing.thinking)
        self.add_delta(growing.thinking, "signature_delta", signature)

    def _take_parts(self, content: list[Raw]) -> None:
        for raw in content:
            part = wire.part(raw)
            if part is None:
                self._note_own("content", raw)
                continue
            self._add_words(part.kind, part.words)
            if part.signature:
                self._sign(part.signature)
            for name, value in part.beside.items():
                self.note_text(name, value)

    def _take_audio(self, audio: Fields) -> None:
        """What a voice says is text; the sound stands in a block of its own."""
        words, others = wire.transcript(audio)
        self._add_words("transcript", words)
        if others:
            self._note_own("audio", Raw(msgspec.json.encode(others)))

    def _note_own(self, name: str, value: Raw) -> None:
        """What nobody knows: one block for each member, with all that came under its name."""
        block = self.answer.others.get(name)
        if block is None:
            block = self.answer.others[name] = self.begin_own_block(name, {})
        self.note_member(block, name, value.copy(), appends=True)


class _Grown(Struct):
    """A block out of its events; ``members`` and ``lists`` are what was noted beside it, ``asides`` the names aside."""

    started: BlockStarted
    events: list[Event]
    words: list[str] = []
    signature: str = ""
    members: Fields = {}
    lists: dict[str, list[Raw]] = {}
    asides: set[str] = set()
    stopped: bool = False


def promoted(events: Sequence[Event], issuer: dict[str, str]) -> tuple[list[WholeBlock], list[Event]]:
    """The whole blocks in the events of a message's stream, and the events of all others, both in order.

    ``issuer`` is who goes on with the reasoning.
    """
    grown: dict[int, _Grown] = {}
    for event in events:
        if isinstance(event, BlockStarted):
            grown[event.index] = _Grown(event, [event])
        elif isinstance(event, BlockDelta | BlockNoted | BlockStopped):
            _add_event(grown[event.index], event)
    blocks: list[WholeBlock] = []
    rest: list[Event] = []
    for block in grown.values():
        whole = _whole(block, issuer) if block.stopped else None
        if whole is None:
            rest += block.events
        else:
            blocks.append(whole)
    return blocks, rest


def _add_event(block: _Grown, event: BlockDelta | BlockNoted | BlockStopped) -> None:
    block.events.append(event)
    match event:
        case BlockStopped():
            block.stopped = True
        case BlockDelta(kind="signature_delta", content=signature):
            block.signature += signature
        case BlockDelta(content=content):
            block.words.append(content)
        case BlockNoted(name=name, value=value):
            if event.appends:
                block.lists.setdefault(name, []).append(value)
            else:
                block.members[name] = value
            if event.aside:
                block.asides.add(name)


def _whole(block: _Grown, issuer: dict[str, str]) -> WholeBlock | None:
    started, text = block.started, "".join(block.words)
    noted = block.members | {name: Raw(msgspec.json.encode(values)) for name, values in block.lists.items()}
    extras = noted or UNSET
    members = {name: value for name, value in noted.items() if name not in block.asides}
    index, kind = started.index, started.kind
    if kind == "text":
        raw = Raw(msgspec.json.encode({"type": kind, "text": text} | members))
        return WholeBlock(kind=kind, raw=raw, index=index, text=text, extras=extras)
    if kind == "thinking" and text:
        signed = {"signature": block.signature} if block.signature else {}
        raw = Raw(msgspec.json.encode({"type": kind, "thinking": text} | signed | members | {"issuer": issuer}))
        return WholeBlock(kind=kind, raw=raw, index=index, text=text, extras=extras)
    if kind == "redacted_thinking":
        raw = Raw(msgspec.json.encode({"type": kind} | members | {"issuer": issuer}))
        return WholeBlock(kind=kind, raw=raw, index=index, extras=extras)
    if kind == "tool_use" and _is_json(text):
        given = Raw(text.encode())
        raw = Raw(msgspec.json.encode({"type": kind, "id": started.tool_id, "name": started.name, "input": given}))
        return WholeBlock(kind=kind, raw=raw, index=index, tool_id=started.tool_id, name=started.name, input=given)
    if started.raw is UNSET or kind == "choice":
        return None
    own = read_object(started.raw) | members
    return WholeBlock(kind=kind, raw=Raw(msgspec.json.encode(own)), index=index, extras=extras, opaque=True)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
