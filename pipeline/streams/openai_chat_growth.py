"""How a choice of a chat grows: one delta after another to the events of its blocks.

A block lasts as long as the same member grows. Calls are the exception: several grow side by side, each known by its
index, its id, or both. Some servers give all calls of one message index 0, so another id with a name is another call.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from pipeline.history.readers.calls import derived_id
from pipeline.streams import openai_chat_wire as wire
from pipeline.streams.events import BlockDelta, BlockNoted, BlockStarted, BlockStopped, Event
from pipeline.streams.openai_chat_wire import Choice, Delta, Function, ToolCall
from pipeline.streams.own import other_answer, own_block

# Why an output can end before its end.
CUT = frozenset({"length", "content_filter", "error"})


class Call(Struct, array_like=True):
    """A call: its block, and by what it is known. ``free``: its input is text, which stands in an object of JSON."""

    block: int
    index: int
    id: str
    free: bool = False


class Growing(Struct, array_like=True):
    """A choice as it grows; ``number`` is its own.

    ``kind`` and ``block`` are what grows now, ``thinking`` is the last block of reasoning. ``others`` are the blocks of
    members that nobody knows, by name. ``plain`` says that a chunk without a role has come; ``reason`` is why it
    stopped, ``""`` while it grows.
    """

    number: int = 0
    kind: str = ""
    block: int = -1
    thinking: int = -1
    calls: list[Call] = []
    others: dict[str, int] = {}
    plain: bool = False
    reason: str = ""


class Blocks(Struct, array_like=True):
    """The blocks of one message, over all its choices; ``count`` is the next one's index."""

    count: int = 0

    def next(self) -> int:
        """The index of a new block."""
        self.count += 1
        return self.count - 1


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
        _say(growing, "refusal", delta.refusal or "", blocks, events)
        for call in delta.tool_calls or ():
            _call(growing, call, blocks, events)
        if delta.function_call is not None:
            _call(growing, ToolCall(index=0, function=delta.function_call), blocks, events)
    for name, value in choice.others.items():
        _note(growing, name, value, blocks, events)
    return events


def stop(growing: Growing, reason: str) -> list[Event]:
    """The events that end every block of a choice.

    Where the output was cut, the text that a custom tool is called with did not end either.
    """
    growing.reason = reason
    events: list[Event] = []
    _leave(growing, events)
    for call in growing.calls:
        if not (call.free and reason in CUT):
            end: list[Event] = [BlockDelta(call.block, "input_json_delta", '"}')] if call.free else []
            events += [*end, BlockStopped(call.block)]
    events += [BlockStopped(block) for block in growing.others.values()]
    growing.calls, growing.others = [], {}
    return events


def _leave(growing: Growing, events: list[Event]) -> None:
    if growing.kind:
        events.append(BlockStopped(growing.block))
        growing.kind = ""


def _say(growing: Growing, kind: str, words: str, blocks: Blocks, events: list[Event]) -> None:
    """More words of this kind. A refusal is text of its own."""
    if not words:
        return
    shown = "thinking" if kind == "thinking" else "text"
    if growing.kind != kind:
        _leave(growing, events)
        growing.kind = kind
        growing.block = _start(growing, BlockStarted(index=blocks.next(), kind=shown), events)
        if kind == "thinking":
            growing.thinking = growing.block
    events.append(BlockDelta(growing.block, f"{shown}_delta", words))


def _details(growing: Growing, delta: Delta, blocks: Blocks, events: list[Event]) -> None:
    """Signatures, which belong to the last reasoning, and reasoning that only its issuer can read."""
    for detail in delta.reasoning_details or ():
        if detail.signature:
            if growing.thinking < 0:
                growing.thinking = _start(growing, BlockStarted(index=blocks.next(), kind="thinking"), events)
                events.append(BlockStopped(growing.thinking))
            events.append(BlockDelta(growing.thinking, "signature_delta", detail.signature))
        if detail.data:
            _leave(growing, events)
            block = _start(growing, BlockStarted(index=blocks.next(), kind="redacted_thinking"), events)
            events += [BlockNoted(block, "data", Raw(msgspec.json.encode(detail.data))), BlockStopped(block)]


def _start(growing: Growing, started: BlockStarted, events: list[Event]) -> int:
    """Start a block; only the first choice's are the message's own."""
    events.append(other_answer(growing.number, started) if growing.number else started)
    return started.index


def _parts(growing: Growing, content: list[Raw], blocks: Blocks, events: list[Event]) -> None:
    for raw in content:
        part = wire.part(raw)
        if part is None:
            _note(growing, "content", raw, blocks, events)
        else:
            _say(growing, *part, blocks, events)


def _note(growing: Growing, name: str, value: Raw, blocks: Blocks, events: list[Event]) -> None:
    """What nobody knows: one block for each member, with all that came under its name."""
    block = growing.others.get(name)
    if block is None:
        kind, raw = own_block(name, {})
        block = _start(growing, BlockStarted(index=blocks.next(), kind=kind, raw=raw), events)
        growing.others[name] = block
    events.append(BlockNoted(block, name, value.copy(), appends=True))


def _call(growing: Growing, came: ToolCall, blocks: Blocks, events: list[Event]) -> None:
    function = came.function
    if function is None and came.custom is not None:
        function = Function(came.custom.name, came.custom.input)
    if function is None:
        function = Function()
    call = _known(growing, came, function.name)
    if call is None:
        _leave(growing, events)
        index = len(growing.calls) if came.index is None else came.index
        name = function.name or ""
        started = BlockStarted(index=blocks.next(), kind="tool_use", tool_id=came.id or derived_id(name), name=name)
        call = Call(_start(growing, started, events), index, came.id or "", came.custom is not None)
        growing.calls.append(call)
        if call.free:
            events.append(BlockDelta(call.block, "input_json_delta", '{"input":"'))
    words = function.arguments
    if words:
        text = words if isinstance(words, str) else msgspec.json.encode(words).decode()
        inside = msgspec.json.encode(text)[1:-1].decode() if call.free else text
        events.append(BlockDelta(call.block, "input_json_delta", inside))


def _known(growing: Growing, came: ToolCall, name: str | None) -> Call | None:
    """The call that goes on, or None where another one begins."""
    if came.id and (same := [call for call in growing.calls if call.id == came.id]):
        return next((call for call in same if call.index == came.index), same[-1])
    if came.index is None:
        return growing.calls[-1] if growing.calls and not came.id else None
    same = [call for call in growing.calls if call.index == came.index]
    return None if not same or (came.id and name and same[-1].id) else same[-1]
