"""Output items of the Responses API as blocks: how they begin to stream, and what they are when they are whole.

An item is one block, except a message, which is one for each of its parts. In the history reasoning is thinking whose
signature is the encrypted content, and a custom tool's text is an object of one member, as in
``history.readers.openai_responses``. What the provider's own tools do stays as it came.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.history.readers.calls import EMPTY_OBJECT, arguments_object, derived_id
from pipeline.history.readers.openai_responses import ISSUER
from pipeline.streams import fields as read
from pipeline.streams.events import BlockDelta, BlockStarted, Event, WholeBlock
from pipeline.streams.openai_responses_wire import MOST_PARTS, place
from pipeline.streams.own import own_block

# Parts of a message that are text.
TEXT_PARTS: Final = frozenset({"output_text", "refusal", "text"})
# What stands around a custom tool's text in its call's input.
BEFORE_TEXT: Final = '{"input":"'


class _Part(Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: Raw = Raw(b"[]")


class Item(Struct, gc=False):
    """What is read of an item; an item of the provider's own tools may have more."""

    type: str
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: Any = None
    # Who called, where not the model itself; a function's group; whether a message is a remark or the answer.
    caller: Any = None
    namespace: Any = None
    phase: Any = None
    encrypted_content: str | None = None
    summary: list[Raw] | None = None
    content: list[Raw] | None = None


_item = msgspec.json.Decoder(Item)
_part = msgspec.json.Decoder(_Part)


def read_item(raw: Raw) -> Item:
    """An item. One with a member that is not what it should be stays as it came, as one that nobody knows does."""
    try:
        return _item.decode(raw)
    except msgspec.DecodeError:
        kind = read.text(read.members({"item": raw}, "item") or {}, "type")
        return Item("unknown" if kind in _READ else kind)


def started(item: Item, raw: Raw, output_index: int) -> list[Event]:
    """The events of an item that begins. A message begins with its parts."""
    at = place(output_index)
    if item.type == "message":
        return []
    if item.type == "reasoning":
        return [BlockStarted(index=at, kind="thinking")]
    if item.type in _CALLS:
        name = item.name or ""
        call = BlockStarted(index=at, kind="tool_use", tool_id=item.call_id or derived_id(name), name=name)
        # Arguments may stand in the beginning already, and come again in deltas: they are read from those.
        opening = [BlockDelta(at, "input_json_delta", BEFORE_TEXT)] if item.type == "custom_tool_call" else []
        return [call, *opening]
    return [BlockStarted(index=at, kind=item.type or "unknown", raw=raw.copy())]


def escaped(text: str) -> str:
    """Text as it stands in a string of JSON."""
    return msgspec.json.encode(text)[1:-1].decode()


def whole(item: Item, raw: Raw, output_index: int, model: str | None, streamed: list[int]) -> list[WholeBlock]:
    """The blocks of a whole item; none for a call that ended before its end, which nothing makes whole.

    ``streamed`` are the numbers that a message's parts had when they streamed.
    """
    at = place(output_index)
    if item.type == "message":
        parts = item.content or []
        numbers = _numbers(len(parts), streamed)
        about = _extras({"phase": item.phase})
        return [
            _whole_part(part, place(output_index, number), about) for part, number in zip(parts, numbers, strict=True)
        ]
    if item.type == "reasoning":
        return [_reasoning(item, at, model)]
    if item.type in _CALLS:
        given = _input(item)
        return [] if given is None else [_call(item, given, at)]
    return [WholeBlock(kind=item.type or "unknown", raw=raw.copy(), index=at, opaque=True)]


def _numbers(count: int, streamed: list[int]) -> list[int]:
    """The numbers of a message's parts.

    Bedrock's count parts over all items while they stream, and not in the whole item: there only the order is left.
    """
    if all(number < count for number in streamed):
        return list(range(count))
    unused = (number for number in range(MOST_PARTS) if number not in streamed)
    return [*streamed, *(next(unused) for _ in range(count - len(streamed)))][:count]


def partial_call(item: Item) -> str:
    """What there is of the input of a call that ended before its end, as raw JSON behind what began it."""
    if item.type == "custom_tool_call":
        return escaped(item.input) if isinstance(item.input, str) else ""
    return item.arguments or ""


def _extras(members: dict[str, Any]) -> dict[str, Raw]:
    """Members that have no place in the canonical form, for whoever looks at the items."""
    return {name: Raw(msgspec.json.encode(value)) for name, value in members.items() if value is not None}


def _whole_part(raw: Raw, at: int, about: dict[str, Raw]) -> WholeBlock:
    part = _read_part(raw)
    words = part.refusal if part.type == "refusal" else part.text
    if words is None or part.type not in TEXT_PARTS:
        members = read.members({"part": raw}, "part")
        kind, own = own_block(part.type, {"part": raw} if members is None else members)
        return WholeBlock(kind=kind, raw=own, index=at, opaque=True)
    if bytes(part.annotations) not in (b"[]", b"null"):
        about = about | {"annotations": part.annotations.copy()}
    block = Raw(msgspec.json.encode({"type": "text", "text": words}))
    return WholeBlock(kind="text", raw=block, index=at, text=words, extras=about or UNSET)


def _read_part(raw: Raw) -> _Part:
    try:
        return _part.decode(raw)
    except msgspec.DecodeError:
        return _Part()


def _reasoning(item: Item, at: int, model: str | None) -> WholeBlock:
    parts = map(_read_part, [*(item.summary or ()), *(item.content or ())])
    text = "\n\n".join(part.text for part in parts if part.text)
    issuer: dict[str, Any] = {"issuer": {"provider": ISSUER.provider} | ({"model": model} if model else {})}
    sealed = item.encrypted_content
    if sealed and not text:
        block: dict[str, Any] = {"type": "redacted_thinking", "data": sealed}
    else:
        block = {"type": "thinking", "thinking": text} | ({"signature": sealed} if sealed else {})
    extras = {"id": Raw(msgspec.json.encode(item.id))} if item.id else UNSET
    return WholeBlock(kind="thinking", raw=Raw(msgspec.json.encode(block | issuer)), index=at, text=text, extras=extras)


def _call(item: Item, given: Raw, at: int) -> WholeBlock:
    name = item.name or ""
    call_id = item.call_id or derived_id(name)
    block = {"type": "tool_use", "id": call_id, "name": name, "input": given}
    raw = Raw(msgspec.json.encode(block))
    extras = _extras({"id": item.id, "caller": item.caller, "namespace": item.namespace}) or UNSET
    return WholeBlock(kind="tool_use", raw=raw, index=at, tool_id=call_id, name=name, input=given, extras=extras)


def _input(item: Item) -> Raw | None:
    """A call's whole input; None where it is not whole."""
    if item.status == "incomplete":
        return None
    if item.type == "custom_tool_call":
        return Raw(msgspec.json.encode({"input": item.input})) if isinstance(item.input, str) else None
    arguments = item.arguments or ""
    return arguments_object(arguments) if arguments.strip() else EMPTY_OBJECT


_READ: Final = frozenset({"message", "reasoning", "function_call", "custom_tool_call"})
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
