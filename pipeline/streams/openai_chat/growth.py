"""How a choice of a chat grows: one delta after another to the events of its blocks.

A block lasts as long as the same member grows. Calls are the exception (``openai_chat_calls``). What stands beside the
text, such as annotations, goes with the last text, or with the first one if none has come; without any it is a block of
its own.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from pipeline.streams.events import BlockDelta, BlockNoted, BlockStarted, BlockStopped, Event
from pipeline.streams.openai_chat import wire
from pipeline.streams.openai_chat.calls import begin_all, take_calls
from pipeline.streams.openai_chat.state import Blocks, Growing, leave, start
from pipeline.streams.openai_chat.wire import Choice, Delta, ToolCall
from pipeline.streams.own import own_block

# Why an output can end before its end.
CUT = frozenset({"length", "content_filter"})
# Not why the model stopped, but that its server did: the answer has no end.
FAILED = "error"
# The mark of a text that is a refusal.
REFUSAL: Final = "refusal"
_TRUE: Final = Raw(b"true")


def grow(growing: Growing, choice: Choice, blocks: Blocks) -> list[Event]:
    """The events of a choice's next piece, in the order in which a model writes: it thinks, it speaks, it calls."""
    events: list[Event] = []
    delta = choice.delta
    if delta is not None:
        _say(growing, "thinking", wire.reasoning(delta), blocks, events)
        _details(growing, delta, blocks, events)
        if isinstance(delta.content, str):
            _say(growing, "text", delta.content, blocks, events)
        elif delta.content:
            _parts(growing, delta.content, blocks, events)
        _say(growing, REFUSAL, delta.refusal or "", blocks, events)
        if delta.audio:
            _audio(growing, delta.audio, blocks, events)
        for annotation in delta.annotations or ():
            note_text(growing, "annotations", annotation, events, appends=True)
        if delta.tool_calls:
            take_calls(growing, delta.tool_calls, blocks, events)
        elif delta.function_call is not None:
            old = ToolCall(index=0, function=delta.function_call)
            take_calls(growing, [old], blocks, events, old=True)
    for name, value in choice.others.items():
        _note(growing, name, value, blocks, events)
    return events


def note_text(growing: Growing, name: str, value: Raw, events: list[Event], *, appends: bool = False) -> None:
    """What stands beside the text: a member of the last one, or of the first that comes."""
    if growing.text < 0:
        growing.waiting.append((name, bytes(value), appends))
    else:
        events.append(BlockNoted(growing.text, name, value.copy(), appends=appends))


def flush(growing: Growing, blocks: Blocks) -> list[Event]:
    """The events of what waits: calls that have not begun, and what stands beside a text that never came."""
    events: list[Event] = []
    begin_all(growing, blocks, events)
    waiting, growing.waiting = growing.waiting, []
    for name, value, _ in waiting:
        _note(growing, name, Raw(value), blocks, events)
    return events


def stop(growing: Growing, reason: str) -> list[Event]:
    """The events that end every block of a choice, of which nothing waits any more.

    Where the output was cut, the text that a custom tool is called with did not end either; and nothing did where the
    server failed.
    """
    growing.reason = reason
    events: list[Event] = []
    if reason != FAILED:
        leave(growing, events)
        for call in growing.calls:
            if not (call.free and reason in CUT):
                end: list[Event] = [BlockDelta(call.block, "input_json_delta", '"}')] if call.free else []
                events += [*end, BlockStopped(call.block)]
        events += [BlockStopped(block) for block in growing.others.values()]
    growing.kind, growing.calls, growing.others = "", [], {}
    growing.started, growing.by_index, growing.by_id = 0, {}, {}
    return events


def _say(growing: Growing, kind: str, words: str, blocks: Blocks, events: list[Event]) -> None:
    """More words of this kind. A refusal is text of its own, and so is what a voice says."""
    if not words:
        return
    shown = "thinking" if kind == "thinking" else "text"
    if growing.kind != kind:
        leave(growing, events)
        if growing.calls:
            begin_all(growing, blocks, events)
        growing.kind = kind
        growing.block = start(growing, BlockStarted(index=blocks.next(), kind=shown), events)
        if kind == "thinking":
            growing.thinking = growing.block
        else:
            _begin_text(growing, events)
    events.append(BlockDelta(growing.block, f"{shown}_delta", words))


def _begin_text(growing: Growing, events: list[Event]) -> None:
    growing.text = growing.block
    if growing.kind == REFUSAL:
        events.append(BlockNoted(growing.block, REFUSAL, _TRUE))
    if growing.waiting:
        waiting, growing.waiting = growing.waiting, []
        events += [BlockNoted(growing.block, name, Raw(value), appends=appends) for name, value, appends in waiting]


def _details(growing: Growing, delta: Delta, blocks: Blocks, events: list[Event]) -> None:
    """Signatures, which belong to the last reasoning, and reasoning that only its issuer can read."""
    for detail in delta.reasoning_details or ():
        if detail.signature:
            _sign(growing, detail.signature, blocks, events)
        if detail.data:
            leave(growing, events)
            begin_all(growing, blocks, events)
            block = start(growing, BlockStarted(index=blocks.next(), kind="redacted_thinking"), events)
            events += [BlockNoted(block, "data", Raw(msgspec.json.encode(detail.data))), BlockStopped(block)]


def _sign(growing: Growing, signature: str, blocks: Blocks, events: list[Event]) -> None:
    if growing.thinking < 0:
        begin_all(growing, blocks, events)
        growing.thinking = start(growing, BlockStarted(index=blocks.next(), kind="thinking"), events)
        events.append(BlockStopped(growing.thinking))
    events.append(BlockDelta(growing.thinking, "signature_delta", signature))


def _parts(growing: Growing, content: list[Raw], blocks: Blocks, events: list[Event]) -> None:
    for raw in content:
        part = wire.part(raw)
        if part is None:
            _note(growing, "content", raw, blocks, events)
            continue
        _say(growing, part.kind, part.words, blocks, events)
        if part.signature:
            _sign(growing, part.signature, blocks, events)
        for name, value in part.beside.items():
            note_text(growing, name, value, events)


def _audio(growing: Growing, audio: dict[str, Raw], blocks: Blocks, events: list[Event]) -> None:
    """What a voice says is text; the sound stands in a block of its own."""
    words, others = wire.transcript(audio)
    _say(growing, "transcript", words, blocks, events)
    if others:
        _note(growing, "audio", Raw(msgspec.json.encode(others)), blocks, events)


def _note(growing: Growing, name: str, value: Raw, blocks: Blocks, events: list[Event]) -> None:
    """What nobody knows: one block for each member, with all that came under its name."""
    block = growing.others.get(name)
    if block is None:
        kind, raw = own_block(name, {})
        block = start(growing, BlockStarted(index=blocks.next(), kind=kind, raw=raw), events)
        growing.others[name] = block
    events.append(BlockNoted(block, name, value.copy(), appends=True))
