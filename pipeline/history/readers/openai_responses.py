"""OpenAI's Responses shape: a flat list of items, of which several make one turn.

A message is an item, and so is each call, each result and each piece of reasoning. Ids of items name what the provider
keeps and are the turns' ids here; calls and results belong together by their ``call_id``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.history.native import NATIVE_TYPES, RESPONSES, NativeType, as_json, native_type
from pipeline.history.readers.anthropic import is_flat, kind_named, read_content, result_content
from pipeline.history.readers.fields import Fields, as_list, as_string
from pipeline.history.readers.inputs import derived_id, read_input
from pipeline.history.readers.openai_chat import inputs_of
from pipeline.history.readers.parts import (
    RESPONSES_PARTS,
    InputFile,
    ResponsesPart,
    blocks_of,
    has_parts,
    inner_of,
    own_of,
    read_part_of_item,
    screenshot,
)
from pipeline.history.readers.rawjson import starts_with
from pipeline.history.readers.typed import Placed, StrictReader, decoded
from pipeline.model import (
    Block,
    Issuer,
    Own,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

ISSUER: Final = Issuer(provider=RESPONSES)

_KNOWN: Final = frozenset(each.kind for each in NATIVE_TYPES if each.provider == RESPONSES) | {
    "function_call",
    "function_call_output",
}
# What an item of the canonical form has beside that form; anything else there is left out, with a fix.
_BESIDE: Final = ("status", "namespace", "caller", "phase")


def is_item(kind: str) -> bool:
    """Whether a type is one of an item's, and of no other shape's message."""
    return kind in _KNOWN


class _Beside(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", gc=False):
    """What any item may have beside the canonical form."""

    id: str | None = None
    status: Raw | UnsetType = UNSET
    namespace: Raw | UnsetType = UNSET
    caller: Raw | UnsetType = UNSET
    phase: Raw | UnsetType = UNSET


_Content: TypeAlias = str | tuple[ResponsesPart, ...]


class _Message(_Beside, frozen=True, tag="message", gc=False):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class _PlainMessage(_Message, frozen=True, tag=False, gc=False):
    """A message, which need not say that it is one."""

    type: Literal["message"] | None = None


class _Call(_Beside, frozen=True, tag="function_call", gc=False):
    call_id: str
    name: str
    arguments: str


class _CustomCall(_Beside, frozen=True, tag="custom_tool_call", gc=False):
    call_id: str
    name: str
    input: str


class _Output(_Beside, frozen=True, tag="function_call_output", gc=False):
    call_id: str
    output: _Content
    name: str | None = None


class _CustomOutput(_Output, frozen=True, tag="custom_tool_call_output", gc=False):
    pass


class _Said(Struct, frozen=True, gc=False):
    text: str = ""


class _Reasoning(_Beside, frozen=True, tag="reasoning", gc=False):
    summary: Raw | UnsetType = UNSET
    encrypted_content: str | None = None


_Item: TypeAlias = _Message | _Call | _CustomCall | _Output | _CustomOutput | _Reasoning
_SUMMARY: Final = msgspec.json.Decoder(list[_Said])


def _turn_of(item: _Item, index: int) -> Turn | None:
    path = f"input.{index}"
    if isinstance(item, _Message):
        return _message_turn(item, index)
    block = _block(item)
    if block is None:
        return None
    role: Role = "user" if isinstance(block, ToolResult) else "assistant"
    return Turn(role=role, blocks=(block,), index=index, id=item.id, paths=(path,), root="input")


def _message_turn(item: _Message, index: int) -> Turn | None:
    role: Role = "system" if item.role == "developer" else item.role
    own = _own_of(item, role="developer" if item.role == "developer" else None)
    content, path = item.content, f"input.{index}.content"
    if isinstance(content, str):
        blocks: list[Any] | None = [Text(text=content)]
        paths: tuple[str, ...] = (path,)
    else:
        blocks = blocks_of(content)
        paths = tuple(f"{path}.{at}" for at in range(len(content)))
    if blocks is None:
        return None
    return Turn(role=role, blocks=tuple(blocks), index=index, id=item.id, paths=paths, root="input", own=own)


def _block(item: _Item) -> Block | None:
    """The block of a healthy item that is no message, or None."""
    match item:
        case _Call():
            given = inputs_of((item.arguments,))
            own = _own_of(item)
            return None if given is None else ToolUse(id=item.call_id, name=item.name, input=given[0], own=own)
        case _CustomCall():
            own = _own_of(item, "custom_tool_call")
            return ToolUse(id=item.call_id, name=item.name, input=as_json({"input": item.input}), own=own)
        case _Output():
            kind = "custom_tool_call_output" if isinstance(item, _CustomOutput) else ""
            content = inner_of(item.output)
            own = _own_of(item, kind, name=item.name)
            return None if content is None else ToolResult(tool_use_id=item.call_id, content=content, own=own)
        case _Reasoning():
            said = [] if item.summary is UNSET else decoded(_SUMMARY, item.summary)
            own = _own_of(item, "reasoning", summary=item.summary, encrypted_content=item.encrypted_content)
            return None if said is None else _thought([each.text for each in said], item.encrypted_content, own)
        case _:
            return None


def _thought(texts: list[str], signature: str | None, own: Own | UnsetType) -> Thinking | RedactedThinking:
    """Reasoning, of which the encrypted content is the signature."""
    texts = [text for text in texts if text]
    if signature and not texts:
        return RedactedThinking(data=signature, issuer=ISSUER, own=own)
    return Thinking(thinking="\n\n".join(texts), signature=signature or UNSET, issuer=ISSUER, own=own)


def _own_of(item: _Beside, kind: str = "", **members: Raw | str | UnsetType | None) -> Own | UnsetType:
    return own_of(
        RESPONSES,
        kind,
        id=item.id,
        **members,
        status=item.status,
        namespace=item.namespace,
        caller=item.caller,
        phase=item.phase,
    )


def _is_telling(item: _Item) -> bool:
    """Whether an item can be of no other shape."""
    if not isinstance(item, _Message):
        return True
    if not isinstance(item, _PlainMessage) or item.type is not None:
        return item.status is not UNSET or has_parts(item.content)
    others = [part for part in item.content if not isinstance(part, InputFile)]
    return len(others) < len(item.content) and not has_parts(tuple(others))


STRICT: Final[StrictReader[Any]] = StrictReader(
    "openai-responses", _Item, _turn_of, _is_telling, is_flat, meant=("message_id", "content")
)
MESSAGE: Final[StrictReader[Any]] = StrictReader(
    "openai-responses", _PlainMessage, _message_turn, _is_telling, is_flat, meant=("message_id",)
)


def read_item(fields: Fields, item_id: Raw | None) -> tuple[Role, list[Placed]] | None:
    """An item that is no message: whose it is, and its block. None for a message.

    Args:
        fields: the item without its id.
        item_id: its id as it was written.
    """
    kind = kind_named(fields)
    if kind in ("", "message"):
        return None
    fields.ignore("type")
    if item_id is not None:
        fields.put("id", item_id)
    if kind in _ITEMS:
        role, block = _ITEMS[kind](fields)
        return role, [(block, fields.path)]
    known = native_type(RESPONSES, kind)
    block = (
        _call_of(known, fields) or _result_of(known, fields) or Unknown(kind=kind, raw=Raw(fields.whole), issuer=ISSUER)
    )
    # An output without a call is the provider's as well, and so the model's.
    role = "user" if isinstance(block, ToolResult) or (known.turn == "user" and not known.answers) else "assistant"
    fields.clear()
    return role, [(block, fields.path)]


def read_message(fields: Fields) -> list[Placed]:
    """The blocks of a message."""
    fields.ignore("type")
    return read_content(fields, "content", read_part_of_item, RESPONSES_PARTS)


def own_of_message(fields: Fields, role: Raw | None, item_id: Raw | None) -> Own | UnsetType:
    """What a message has beside its content; ``role`` is its role as it was written."""
    if item_id is not None:
        fields.put("id", item_id)
    if role is not None and bytes(role) == b'"developer"':
        fields.put("role", role)
    return _own(fields, "id", "role")


def _own(fields: Fields, *names: str, kind: str = "") -> Own | UnsetType:
    """What is left of these members, and of those that any item may have."""
    members = {name: value for name in (*names, *_BESIDE) if (value := fields.take(name)) is not None}
    return Own(RESPONSES, members, kind) if members or kind else UNSET


def _read_call(fields: Fields) -> tuple[Role, Block]:
    name = fields.take_text("name")
    arguments = fields.take("arguments")
    call_input, incomplete = read_input(arguments, fields.at("arguments"), fields.notes, encoded=True)
    call_id = _call_id(fields, name)
    return "assistant", ToolUse(id=call_id, name=name, input=call_input, incomplete=incomplete, own=_own(fields, "id"))


def _custom_call(fields: Fields) -> tuple[Role, Block]:
    """A custom tool takes free text, which is an object of one member here."""
    name = fields.take_text("name")
    text = fields.take_text("input")
    call_id = _call_id(fields, name)
    own = _own(fields, "id", kind="custom_tool_call")
    return "assistant", ToolUse(id=call_id, name=name, input=as_json({"input": text}), own=own)


def _call_id(fields: Fields, name: str) -> str:
    call_id = fields.take_string("call_id")
    if call_id is None:
        call_id = derived_id(name)
        fields.notes.add_fix("call_id_derived", fields.path, call_id)
    return call_id


def _output(fields: Fields, kind: str = "") -> tuple[Role, Block]:
    call_id = fields.take_text("call_id")
    content = result_content(fields, "output", read_part_of_item)
    return "user", ToolResult(tool_use_id=call_id, content=content, own=_own(fields, "id", "name", kind=kind))


def _custom_output(fields: Fields) -> tuple[Role, Block]:
    return _output(fields, "custom_tool_call_output")


def _is_servers(fields: Fields) -> bool:
    """Whether the provider itself searches for tools."""
    execution = fields.peek("execution")
    return execution is not None and bytes(execution) == b'"server"'


def _call_of(known: NativeType, fields: Fields) -> ToolUse | None:
    """A call that the client runs: its members are the input. None where the provider ran it, or it is none."""
    call_id = None if not known.opens or _is_servers(fields) else fields.take_string(known.opens)
    if call_id is None:
        return None
    members = fields.take_rest()
    call_input = as_json({name: value for name, value in members.items() if name not in {"id", "status"}})
    own = Own(RESPONSES, members, known.kind)
    return ToolUse(id=call_id, name=known.kind.removesuffix("_call"), input=call_input, own=own)


def _result_of(known: NativeType, fields: Fields) -> ToolResult | None:
    """What answers such a call: a text, a screenshot, or the JSON of it."""
    call_id = None if not known.answers or _is_servers(fields) else fields.take_string(known.answers)
    if call_id is None:
        return None
    members = fields.take_rest()
    found = members.get("output") or as_json({name: value for name, value in members.items() if name != "id"})
    own = Own(RESPONSES, members, known.kind)
    shown = screenshot(found) if known.kind == "computer_call_output" else None
    if shown is not None:
        return ToolResult(tool_use_id=call_id, content=[shown], own=own)
    text = as_string(found, fields.path) if starts_with(found, b'"') else bytes(found).decode()
    return ToolResult(tool_use_id=call_id, content=text, own=own)


def _reasoning(fields: Fields) -> tuple[Role, Block]:
    """Reasoning: its summary, or where it is not encrypted its text, and the encrypted content as the signature."""
    sealed = fields.peek("encrypted_content")
    signature = None if sealed is None else as_string(sealed, fields.at("encrypted_content"))
    texts = _texts(fields, "summary")
    if not (signature or texts):
        texts = _texts(fields, "content")
    own = _own(fields, "id", "summary", "content", "encrypted_content", kind="reasoning")
    return "assistant", _thought(texts, signature, own)


def _texts(fields: Fields, key: str) -> list[str]:
    value = fields.peek(key)
    if value is None or not starts_with(value, b"["):
        return []
    parts = [Fields(item, fields.at(key), fields.notes) for item in as_list(value, fields.at(key))]
    return [text for part in parts if (text := part.take_text("text"))]


_ITEMS: Final[dict[str, Callable[[Fields], tuple[Role, Block]]]] = {
    "function_call": _read_call,
    "custom_tool_call": _custom_call,
    "function_call_output": _output,
    "custom_tool_call_output": _custom_output,
    "reasoning": _reasoning,
}
