"""The canonical shape, read tolerantly: what the typed decode refused, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.errors import InputError
from pipeline.history.readers.fields import Fields, Notes, Taker, as_list, as_object, as_string, reader_of, tag_of
from pipeline.history.readers.inputs import read_input
from pipeline.history.readers.rawjson import starts_with, wrong_type
from pipeline.history.readers.typed import CANONICAL, Placed, StrictParts, StrictReader, is_harmless
from pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

BlockReader: TypeAlias = Callable[[Fields], list[Placed]]
Inner: TypeAlias = Text | Image | Document | Unknown
"""What a tool result may hold."""
INNER: Final = (Text, Image, Document, Unknown)

# The types by which a result that is a single object is known for a block.
_RESULT_BLOCKS: Final = frozenset({"text", "image", "document", "search_result", "tool_reference"})
_ISSUER: Final = msgspec.json.Decoder(Issuer)
# What an API response has beside its content: it tells about the response, not about the history.
_RESPONSE_KEYS: Final = ("type", "object")


Typed: TypeAlias = Text | Image | Document | Thinking | RedactedThinking | ToolUse | ToolResult
"""The blocks that the model knows; that a block calls itself unknown is not for the wire to say."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    role: Role
    content: str | tuple[Typed, ...]
    id: str | None = None
    type: Literal["message"] = "message"


# The members of each kind that are raw.
_FREE_FORM: Final[dict[type[Struct], tuple[str, ...]]] = {
    kind: tuple(field.name for field in structs.fields(kind) if field.type in (Raw, Raw | UnsetType))
    for kind in (Text, Image, Document, Thinking, RedactedThinking, ToolUse, ToolResult, Unknown)
}


def _turn_of(message: Message, index: int) -> Turn:
    content = message.content
    if type(content) is tuple:
        return Turn(role=message.role, blocks=content, index=index, id=message.id)
    return string_turn(message.role, str(content), index, message.id)


def string_turn(role: Role, text: str, index: int, turn_id: str | None) -> Turn:
    paths = (f"messages.{index}.content",)
    return Turn(role=role, blocks=(Text(text=text),), index=index, id=turn_id, paths=paths)


def is_sound(block: Block) -> bool:
    """Whether a block that was decoded as it stands can stay: its free-form JSON is of the right type and flat.

    Members that readers alone give a block, of what only one provider has, must not come from the input.
    """
    if isinstance(block, Unknown) or block.own is not UNSET:
        return False
    if isinstance(block, ToolUse):
        if not (starts_with(block.input, b"{") or block.incomplete):
            return False
    elif isinstance(block, ToolResult):
        if type(block.content) is list and not all(map(is_sound, block.content)):
            return False
        return block.cache_control is UNSET or is_harmless(block.cache_control)
    elif isinstance(block, Text) and block.structured:
        return False
    return _is_flat_inside(block)


def is_flat(block: Block) -> bool:
    """Whether the free-form JSON in a block is UTF-8, and can be no deeper than allowed."""
    own = UNSET if isinstance(block, Unknown) else block.own
    if own is not UNSET and not all(map(is_harmless, own.members.values())):
        return False
    if isinstance(block, ToolResult) and type(block.content) is list and not all(map(is_flat, block.content)):
        return False
    return _is_flat_inside(block)


def _is_flat_inside(block: Block) -> bool:
    for name in _FREE_FORM[type(block)]:
        value = getattr(block, name)
        if value is not UNSET and not is_harmless(value):
            return False
    return True


PARTS: Final[StrictParts[Typed]] = StrictParts(Typed, lambda block, path: [(block, path)] if is_sound(block) else None)
STRICT: Final = StrictReader(
    CANONICAL,
    Message,
    _turn_of,
    lambda _: False,
    is_sound,
    meant=("object", "message_id", "synthetic", "tool_calls", "tool_call_id", "function_call"),
)


def read(fields: Fields) -> list[Placed]:
    """The blocks of one message whose content is a string, blocks, or nothing."""
    for key in ("tool_calls", "tool_call_id", "function_call"):
        if key in fields:
            message = f"{key} belongs to the openai-chat shape, not to anthropic"
            raise InputError("wrong_shape", message, path=fields.at(key))
    fields.ignore(*_RESPONSE_KEYS)
    return read_content(fields, "content", mend_block, PARTS)


def read_content(
    fields: Fields, key: str, mend_one: BlockReader, parts: StrictParts[Any] | None = None
) -> list[Placed]:
    """A content's blocks: a string is one text block, strings in a list are too, null is none.

    A number or a boolean becomes its text, in a list too; a list or null in a list is refused.
    """
    path, notes, value = fields.at(key), fields.notes, fields.peek(key)
    objects = fields.objects(key)
    fields.ignore(key)
    if value is None:
        return []
    if starts_with(value, b"{"):
        notes.add_fix("content_wrapped", path)
        return mend_one(Fields(value, path, notes))
    if not starts_with(value, b"["):
        return [(_plain(value, path, notes), path)]
    placed: list[Placed] = []
    items = as_list(value, path)
    healthy = parts.read(items, objects, path) if parts is not None else {}
    for i, item in enumerate(items):
        place = f"{path}.{i}"
        if i in healthy:
            placed += healthy[i]
        elif objects[i] is not None:
            placed += mend_one(Fields(item, place, notes, members=objects[i]))
        elif starts_with(item, b"[") or starts_with(item, b"n"):
            raise wrong_type(place, "a block or a string", item)
        else:
            placed.append((_plain(item, place, notes), place))
    return placed


def _plain(value: Raw | bytes, path: str, notes: Notes) -> Text:
    """What stands for a text: a string, or any other JSON, as the text that it is written as."""
    if starts_with(value, b'"'):
        return Text(text=as_string(value, path))
    notes.add_fix("content_as_text", path, before=bytes(value))
    return Text(text=bytes(value).decode())


def mend_block(fields: Fields) -> list[Placed]:
    """One block; a type that the model does not know is kept whole, an object without one is a text or its JSON."""
    kind, path, notes = kind_named(fields), fields.path, fields.notes
    if kind or "type" in fields:
        return read_known(_READERS.get(kind, lambda _: None), fields)
    text = fields.peek("text")
    if text is not None and starts_with(text, b'"'):
        notes.add_fix("field_missing", fields.at("type"), "text")
        return read_known(_READERS["text"], fields)
    return [(_plain(fields.whole, path, notes), path)]


def read_known(reader: Callable[[Fields], Block | None], fields: Fields) -> list[Placed]:
    """A block as its type's reader makes it; what the reader cannot use is kept whole, with no other fix."""
    kind, notes = kind_named(fields), fields.notes
    fields.notes = notes.attempt()
    fields.ignore("type")
    block = reader(fields)
    if block is None:
        return [(Unknown(kind=kind, raw=Raw(fields.whole)), fields.path)]
    fields.drop_rest()
    notes.fixes += fields.notes.fixes
    return [(block, fields.path)]


def kind_named(fields: Fields) -> str:
    """The type that a block names, ``""`` where it names none."""
    return as_kind(fields.peek("type"))


def as_kind(value: Raw | None) -> str:
    return "" if value is None or not starts_with(value, b'"') else as_string(value, "")


def _call_input(fields: Fields, name: str) -> Raw:
    """A call's input; that it is incomplete is left for the member that says so."""
    marked, value = fields.take_flag("incomplete"), fields.take(name)
    if marked and value is not None:
        call_input, incomplete = value, True
    else:
        call_input, incomplete = read_input(value, fields.at(name), fields.notes)
    if incomplete:
        fields.put("incomplete", Raw(b"true"))
    return call_input


def _content(fields: Fields, name: str) -> str | list[Inner] | UnsetType:
    return result_content(fields, name, mend_block)


def _issuer(fields: Fields, name: str) -> Issuer | None:
    value = fields.take(name)
    try:
        return None if value is None else _ISSUER.decode(value)
    except msgspec.ValidationError as error:
        raise InputError("wrong_type", f"not an issuer: {error}", path=fields.at(name)) from None


def result_content(fields: Fields, key: str, read_one: BlockReader) -> str | list[Inner] | UnsetType:
    """A tool result's content: a string as it is, blocks as blocks, other JSON as its text.

    A block that a result cannot hold (a call, thinking) is kept whole, as an unknown one.
    """
    value = fields.peek(key)
    if value is None:
        return UNSET
    if starts_with(value, b'"'):
        fields.ignore(key)
        return as_string(value, fields.at(key))
    if not _holds_blocks(value, fields, key):
        fields.ignore(key)
        fields.notes.add_fix("result_as_text", fields.at(key), before=bytes(value))
        return bytes(value).decode()

    def read_inner(inner: Fields) -> list[Placed]:
        kind, notes = kind_named(inner), inner.notes
        inner.notes = attempt = notes.attempt()
        placed = read_one(inner)
        if not all(isinstance(block, INNER) for block, _ in placed):
            return [(Unknown(kind=kind, raw=Raw(inner.whole)), inner.path)]
        notes.fixes += attempt.fixes
        return placed

    return [block for block, _ in read_content(fields, key, read_inner) if isinstance(block, INNER)]


def _holds_blocks(value: Raw, fields: Fields, key: str) -> bool:
    """Whether a result is made of blocks, and not some tool's own JSON."""
    if starts_with(value, b"{"):
        return as_kind(as_object(value, "").get("type")) in _RESULT_BLOCKS
    if not starts_with(value, b"["):
        return False
    objects = fields.objects(key)
    if not all(members is None or as_kind(members.get("type")) for members in objects):
        return False
    return None not in objects or all(starts_with(item, b'"') or starts_with(item, b"{") for item in as_list(value, ""))


_SPECIAL: Final[dict[str, Taker]] = {"input": _call_input, "content": _content, "issuer": _issuer}
# What only readers give a block is not read.
_READERS: Final[dict[str, Callable[[Fields], Any]]] = {
    tag_of(kind): reader_of(kind, _SPECIAL, ("own", "structured")) for kind in _FREE_FORM if kind is not Unknown
}
