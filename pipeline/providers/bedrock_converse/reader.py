"""Messages in the shape of Bedrock's Converse: valid ones by one typed decode, others tolerantly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import UNSET, Raw

from reknit.pipeline.history.readers.canonical import READERS, string_turn
from reknit.pipeline.history.readers.fields import Fields, Notes, as_string, read_input
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import StrictReader, decoded
from reknit.pipeline.history.readers.tolerant import (
    INNER,
    ContentReader,
    Placed,
    Taker,
    block_or_none,
    block_reader,
    placed_turn,
    reader_of,
    typed_reader,
)
from reknit.pipeline.model import Block, Text, Turn, Unknown
from reknit.pipeline.providers.bedrock_converse import wire


def _turn_of(message: wire.Message, index: int) -> Turn | None:
    content = message.content
    if isinstance(content, str):
        return string_turn(message.role, content, index, message.id)
    given: Iterator[wire.Document] | None = None
    made: list[Block] = []
    for member in content:
        document = None
        if member.document is not UNSET:
            if given is None:
                # Together, however many there are.
                raw = [each.document for each in content if type(each.document) is Raw]
                documents = decoded(wire.DOCUMENTS, b"[%b]" % b",".join(raw))
                if documents is None:
                    return None
                given = iter(documents)
            document = next(given)
        block = wire.read(member, document)
        if block is None:
            return None
        made.append(block)
    return Turn(role=message.role, blocks=tuple(made), index=index, id=message.id)


STRICT: Final = StrictReader(
    "bedrock-converse",
    wire.Message,
    _turn_of,
    lambda message: type(message.content) is tuple and bool(message.content),
    meant=("message_id", "type", *wire.BLOCK_KEYS),
)


def repaired_turn(fields: Fields, index: int) -> Turn:
    message: Any = _read_message(fields)
    return placed_turn(message.role, message.content, index)


def _repaired(fields: Fields) -> list[Placed]:
    """One content block. One that has several members, as a union must not, is read as one block for each.

    Each member is read as it is declared; that one which does not fit is kept whole, no declaration says.
    """
    path = fields.path
    members = [key for key in fields.names() if key in wire.BLOCK_KEYS]
    if "type" in fields:
        return _repair_typed(fields)
    if not members:
        # A member that is not known yet is the service's own.
        return [(Unknown(kind="", raw=Raw(fields.whole)), path)]
    placed: list[Placed] = []
    for key in members:
        member = fields.take(key)
        if member is not None:
            placed.append((_repaired_member(key, member, path, fields.notes), path))
    fields.drop_rest()
    return placed


def _repaired_member(key: str, value: Raw, path: str, notes: Notes) -> Block:
    """The block of one member; what the canonical form has no place for is kept whole."""
    if key == "text":
        return Text(text=as_string(value, f"{path}.text"))
    block: Block | None = None
    if key in _READERS and starts_with(value, b"{"):
        fields = Fields(value, f"{path}.{key}", notes)
        # A call or a result with a type is the service's own, not the client's.
        is_servers = key.startswith("tool") and "type" in fields
        block = None if is_servers else block_or_none(fields, _READERS[key])
    return block or wire.read_whole(key, value)


def _bytes(fields: Fields, key: str) -> str | None:
    """Bytes in base64, as JSON has them; Strands keeps them in an object that says so."""
    value = fields.peek(key)
    if value is None or not starts_with(value, b"{"):
        return fields.take_string(key)
    kept = Fields(value, fields.at(key), fields.notes)
    if not kept.take_flag("__bytes_encoded__"):
        return fields.take_string(key)
    fields.ignore(key)
    return kept.take_string("data")


def _placed_part(part: wire.Part, path: str) -> list[Placed] | None:
    result = wire.read_result(wire.ToolResult("", (part,)))
    return None if result is None else [(block, path) for block in result.content or () if isinstance(block, INNER)]


def _repaired_part(fields: Fields) -> list[Placed]:
    structured = fields.take("json")
    if structured is not None:
        fields.drop_rest()
        return [(wire.read_structured(structured), fields.path)]
    whole = Unknown(kind="", raw=Raw(fields.whole))
    return [(block if isinstance(block, INNER) else whole, path) for block, path in _repaired(fields)]


def part_without_type(fields: Fields) -> list[Placed] | None:
    """Return the blocks of a part of Converse, which has a key in place of a type; None for any other part.

    Programs pass such parts on inside of messages of another shape.
    """
    if "json" in fields:
        return _repaired_part(fields)
    return None if fields.keys().isdisjoint(wire.BLOCK_KEYS) else _repaired(fields)


_PARTS: Final = ContentReader[wire.Part](wire.Part, _placed_part, _repaired_part)


_SPECIAL: Final[dict[str, Taker]] = {
    "input": lambda fields, name: read_input(fields.take(name), fields.at(name), fields.notes)[0],
    "bytes": _bytes,
    "redacted_content": _bytes,
}
_RESULT: Final[dict[str, Taker]] = {
    "content": lambda fields, name: [block for block, _ in _PARTS.read(fields, name)],
}
_READERS: Final[dict[str, Callable[[Fields], Block | None]]] = {
    "image": block_reader(wire.Image, wire.read_image, _SPECIAL),
    "document": block_reader(wire.Document, wire.read_document, _SPECIAL),
    "toolUse": block_reader(wire.ToolUse, wire.read_call, _SPECIAL),
    "toolResult": block_reader(wire.ToolResult, wire.read_result, _SPECIAL | _RESULT),
    "reasoningContent": block_reader(wire.Reasoning, wire.read_reasoning, _SPECIAL),
}
_repair_typed: Final = typed_reader(READERS)
_CONTENT: Final = ContentReader[wire.Member](
    wire.Member, lambda member, path: None if (block := wire.read(member)) is None else [(block, path)], _repaired
)
_read_message: Final = reader_of(wire.Message, {"role": Fields.take_string, "content": _CONTENT.read}, ("id",))
