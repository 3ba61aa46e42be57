"""The canonical shape: its message, its blocks, and which of them can stay as they were written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.errors import InputError
from pipeline.history.readers.fields import Fields, read_input
from pipeline.history.readers.rawjson import starts_with
from pipeline.history.readers.strict import CANONICAL, StrictReader, is_harmless
from pipeline.history.readers.tolerant import ContentReader, Inner, Taker, placed_turn, reader_of, tag_of, typed_reader
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

_USER: Final = Raw(b'"user"')
_ISSUER: Final = msgspec.json.Decoder(Issuer)
_OF_CHAT: Final = ("tool_calls", "tool_call_id", "function_call")

Typed: TypeAlias = Text | Image | Document | Thinking | RedactedThinking | ToolUse | ToolResult
"""The blocks that the model knows; that a block calls itself unknown is not for the wire to say."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message. ``synthetic`` marks a user's that an agent program wrote."""

    role: Role
    content: str | tuple[Typed, ...]
    id: str | None = None
    type: Literal["message"] = "message"
    synthetic: bool = False


# The members of each kind that are raw.
_FREE_FORM: Final[dict[type[Struct], tuple[str, ...]]] = {
    kind: tuple(field.name for field in structs.fields(kind) if field.type in (Raw, Raw | UnsetType))
    for kind in (Text, Image, Document, Thinking, RedactedThinking, ToolUse, ToolResult, Unknown)
}


def _turn_of(message: Message, index: int) -> Turn | None:
    content = message.content
    if message.synthetic and message.role != "user":
        return None
    if type(content) is tuple:
        turn = Turn(role=message.role, blocks=content, index=index, id=message.id)
    else:
        turn = string_turn(message.role, str(content), index, message.id)
    return structs.replace(turn, synthetic=True) if message.synthetic else turn


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


STRICT: Final = StrictReader(
    CANONICAL,
    Message,
    _turn_of,
    lambda _: False,
    is_sound,
    meant=("object", "message_id", *_OF_CHAT),
)


def mended_turn(fields: Fields, index: int) -> Turn:
    for key in _OF_CHAT:
        if key in fields:
            told = f"{key} belongs to the openai-chat shape, not to anthropic"
            raise InputError("wrong_shape", told, path=fields.at(key))
    # What an API response has beside its content: it tells about the response, not about the history.
    fields.ignore("type", "object")
    message: Any = _read_message(fields)
    return structs.replace(placed_turn(message.role, message.content, index), synthetic=message.synthetic)


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
    return CONTENT.read_result(fields, name)


def _issuer(fields: Fields, name: str) -> Issuer | None:
    value = fields.take(name)
    try:
        return None if value is None else _ISSUER.decode(value)
    except msgspec.ValidationError as error:
        raise InputError("wrong_type", f"not an issuer: {error}", path=fields.at(name)) from None


def _of_users(fields: Fields, name: str) -> bool | None:
    return fields.take_flag(name) if fields.peek("role") == _USER else None


_SPECIAL: Final[dict[str, Taker]] = {
    "input": _call_input,
    "content": _content,
    "issuer": _issuer,
}
READERS: Final[dict[str, Callable[[Fields], Any]]] = {
    # What only readers give a block is not read.
    tag_of(kind): reader_of(kind, _SPECIAL, ("own", "structured"))
    for kind in get_args(Typed)
}
CONTENT: Final = ContentReader[Typed](
    Typed, lambda block, path: [(block, path)] if is_sound(block) else None, typed_reader(READERS)
)
_MEMBERS: Final[dict[str, Taker]] = {
    "synthetic": _of_users,
    "role": Fields.take_string,
    "content": CONTENT.read,
}
_read_message: Final = reader_of(Message, _MEMBERS, ("id", "type"))
