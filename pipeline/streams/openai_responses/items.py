"""Output items of the Responses API as blocks: how they begin to stream, and what they are when they are whole.

An item is one block, except a message, which is one for each of its parts. In the history reasoning is thinking whose
signature is the encrypted content, and a custom tool's text is an object of one member, as in
``history.readers.openai_responses``. What the provider's own tools do stays as it came.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.history.calls import derived_id
from pipeline.history.readers.fields import EMPTY_OBJECT, arguments_object
from pipeline.history.readers.openai_responses import ISSUER
from pipeline.streams import fields as read
from pipeline.streams.events import CANONICAL, BlockDelta, BlockStarted, Event, WholeBlock, own_block
from pipeline.streams.openai_responses.wire import MOST_PARTS, place

# Parts of a message that are text.
TEXT_PARTS: Final = frozenset({"output_text", "refusal", "text"})
# What stands around a custom tool's text in its call's input.
BEFORE_TEXT: Final = '{"input":"'


REFUSAL: Final = "refusal"
TRUE: Final = Raw(b"true")


class Part(Struct, gc=False):
    """What is read of a part, of a message or of reasoning."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str | None:
        said = self.refusal if self.type == REFUSAL else self.text
        return said if self.type in TEXT_PARTS else None


class Item(Struct, gc=False):
    """What is read of an item; an item of the provider's own tools may have more."""

    type: str
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: Any = None
    encrypted_content: str | None = None
    summary: list[Raw] | None = None
    content: list[Raw] | None = None


_item = msgspec.json.Decoder(Item)
_part = msgspec.json.Decoder(Part)
# Members that are in the block, or say no more than it; the others stand in the item's extras.
_OF_MESSAGE: Final = frozenset({"type", "id", "status", "role", "content"})
_OF_PART: Final = frozenset({"type", "text", "refusal"})
_OF_REASONING: Final = frozenset({"type", "status", "encrypted_content", "summary", "content"})
_OF_CALL: Final = frozenset({"type", "status", "call_id", "name", "arguments", "input"})


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
    own = _own(item.type, raw, at)
    return [BlockStarted(index=at, kind=own.kind, raw=own.raw)]


def escaped(text: str) -> str:
    return msgspec.json.encode(text)[1:-1].decode()


def whole(item: Item, raw: Raw, output_index: int, model: str | None, streamed: list[int]) -> list[WholeBlock]:
    """The blocks of a whole item; none for a call that ended before its end, which nothing makes whole.

    ``streamed`` are the numbers that a message's parts had when they streamed.
    """
    at = place(output_index)
    if item.type == "message":
        parts = item.content or []
        numbers = _numbers(len(parts), streamed)
        about = _others(raw, _OF_MESSAGE)
        return [
            whole_part(part, place(output_index, number), about) for part, number in zip(parts, numbers, strict=True)
        ]
    if item.type == "reasoning":
        return [_reasoning(item, raw, at, model)]
    if item.type in _CALLS:
        given = _input(item)
        return [] if given is None else [_call(item, raw, given, at)]
    return [_own(item.type, raw, at)]


def is_over(item: Item) -> bool:
    """Whether an item of a response that failed is whole all the same; what the provider's own tools do says so."""
    return item.status in (None, "completed") or item.type not in _READ


def told(item: Item, output_index: int, streamed: list[int]) -> list[tuple[int, str]]:
    """What there is of an item that ended before its end, as the places of its blocks and their texts."""
    if item.type in _CALLS:
        before = BEFORE_TEXT if item.type == "custom_tool_call" else ""
        return [(place(output_index), before + partial_call(item))]
    if item.type == "reasoning":
        return [(place(output_index), _thoughts(item))]
    parts = [read_part(raw).words for raw in item.content or ()]
    numbers = _numbers(len(parts), streamed)
    return [(place(output_index, number), words) for number, words in zip(numbers, parts, strict=True) if words]


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


def _others(raw: Raw, known: frozenset[str]) -> dict[str, Raw]:
    """Members that have no place in the canonical form, for whoever looks at the items."""
    found = read.read_object(raw)
    return {} if known.issuperset(found) else read.telling(found, known)


def whole_part(raw: Raw, at: int, about: dict[str, Raw]) -> WholeBlock:
    """A whole part of a message; ``about`` is what its message says beside its parts."""
    part = read_part(raw)
    words = part.words
    if words is None:
        return _own(part.type, raw, at)
    about = about | beside_part(raw)
    block: dict[str, object] = {"type": "text", "text": words}
    if part.type == REFUSAL:
        block[REFUSAL] = about[REFUSAL] = TRUE
    return WholeBlock(kind="text", raw=Raw(msgspec.json.encode(block)), index=at, text=words, extras=about or UNSET)


def beside_part(raw: Raw) -> dict[str, Raw]:
    """What a part that is text says beside its words, such as annotations."""
    return _others(raw, _OF_PART)


def read_part(raw: Raw) -> Part:
    """A part; nothing of it, where a member is not what it should be."""
    try:
        return _part.decode(raw)
    except msgspec.DecodeError:
        return Part()


def _own(kind: str, raw: Raw, at: int) -> WholeBlock:
    """A block that only its provider understands: what it is as it came, if it can be told from all others."""
    members = read.members({"it": raw}, "it")
    if members is None or not kind or kind in CANONICAL:
        kind, raw = own_block(kind if members is not None else "", {"it": raw} if members is None else members)
    return WholeBlock(kind=kind, raw=raw.copy(), index=at, opaque=True)


def _thoughts(item: Item) -> str:
    parts = map(read_part, [*(item.summary or ()), *(item.content or ())])
    return "\n\n".join(part.text for part in parts if part.text)


def _reasoning(item: Item, raw: Raw, at: int, model: str | None) -> WholeBlock:
    text = _thoughts(item)
    issuer: dict[str, Any] = {"issuer": {"provider": ISSUER.provider} | ({"model": model} if model else {})}
    sealed = item.encrypted_content
    if sealed and not text:
        block: dict[str, Any] = {"type": "redacted_thinking", "data": sealed}
    else:
        block = {"type": "thinking", "thinking": text} | ({"signature": sealed} if sealed else {})
    # Without words there is nothing to show, and so no item that could have extras.
    extras = _others(raw, _OF_REASONING) if text else {}
    own = Raw(msgspec.json.encode(block | issuer))
    return WholeBlock(kind="thinking", raw=own, index=at, text=text, extras=extras or UNSET)


def _call(item: Item, raw: Raw, given: Raw, at: int) -> WholeBlock:
    name = item.name or ""
    call_id = item.call_id or derived_id(name)
    block = Raw(msgspec.json.encode({"type": "tool_use", "id": call_id, "name": name, "input": given}))
    extras = _others(raw, _OF_CALL) or UNSET
    return WholeBlock(kind="tool_use", raw=block, index=at, tool_id=call_id, name=name, input=given, extras=extras)


def _input(item: Item) -> Raw | None:
    if item.status == "incomplete":
        return None
    if item.type == "custom_tool_call":
        return Raw(msgspec.json.encode({"input": item.input})) if isinstance(item.input, str) else None
    arguments = item.arguments or ""
    return arguments_object(arguments) if arguments.strip() else EMPTY_OBJECT


_READ: Final = frozenset({"message", "reasoning", "function_call", "custom_tool_call"})
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
