"""OpenAI's Responses shape: a flat list of items. Several items make one turn.

A message is an item, and so is each call, each result and each piece of reasoning. Ids of items name objects that the
provider stores, and are the turns' ids here; ``call_id`` pairs calls and results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.call_ids import derived_id
from reknit.pipeline.history.pieces import NATIVE_TYPES, REFERENCE, RESPONSES, NativeType, as_json, native_type
from reknit.pipeline.history.readers.canonical import (
    OF_BLOCKS,
    RESPONSES_CONTENT,
    InputFile,
    ResponsesPart,
    blocks_of,
    has_parts,
    inner_of,
    is_flat,
    screenshot,
)
from reknit.pipeline.history.readers.fields import Fields, arguments_of, as_string, inputs_of, is_incomplete
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import StrictReader, decoded, own_of
from reknit.pipeline.history.readers.tolerant import Taker, kind_named, placed_turn, reader_of, tag_of
from reknit.pipeline.model import (
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

_OF_REFERENCES: Final = frozenset({"id", "agent", "type"})
ITEM_TYPES: Final = frozenset(each.kind for each in NATIVE_TYPES if each.provider == RESPONSES) | {
    "function_call",
    "function_call_output",
}
"""The types of items, which no other shape's message has."""


class _Siblings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", gc=False):
    """Members that any item may have in addition to the canonical form."""

    id: str | None = None
    status: Raw | UnsetType = UNSET
    namespace: Raw | UnsetType = UNSET
    caller: Raw | UnsetType = UNSET
    phase: Raw | UnsetType = UNSET
    agent: Raw | UnsetType = UNSET
    is_async: Raw | UnsetType = field(default=UNSET, name="async")


_Content: TypeAlias = str | tuple[ResponsesPart, ...]


class _Message(_Siblings, frozen=True, tag="message", gc=False):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class _PlainMessage(_Message, frozen=True, tag=False, gc=False):
    """A message, which need not say that it is one."""

    type: Literal["message"] | None = None


class _Call(_Siblings, frozen=True, tag="function_call", gc=False):
    call_id: str
    name: str
    arguments: str


class _CustomCall(_Siblings, frozen=True, tag="custom_tool_call", gc=False):
    call_id: str
    name: str
    input: str


class _Output(_Siblings, frozen=True, tag="function_call_output", gc=False):
    call_id: str
    output: _Content
    name: str | None = None


class _CustomOutput(_Output, frozen=True, tag="custom_tool_call_output", gc=False):
    pass


class _Said(Struct, frozen=True, gc=False):
    text: str | None = None


class _Reasoning(_Siblings, frozen=True, tag="reasoning", gc=False):
    summary: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
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
    content: Any = item.content
    path = f"input.{index}.content"
    if isinstance(content, str):
        content = [(Text(text=content), path)]
    elif isinstance(content, tuple):
        blocks = blocks_of(content)
        if blocks is None:
            return None
        content = [(block, f"{path}.{at}") for at, block in enumerate(blocks)]
    # Otherwise a list of repaired blocks with their places.
    return placed_turn(role, content, index, "input", turn_id=item.id, own=own)


def _block(item: _Item) -> Block | None:
    """The block of a valid item that is no message, or None."""
    match item:
        case _Call():
            given: Any = item.arguments
            inputs = inputs_of((given,)) if isinstance(given, str) else [given]
            if inputs is None:
                return None
            cut, own = is_incomplete(inputs[0]), _own_of(item)
            return ToolUse(id=item.call_id, name=item.name, input=inputs[0], incomplete=cut, own=own)
        case _CustomCall():
            own = _own_of(item, "custom_tool_call")
            return ToolUse(id=item.call_id, name=item.name, input=as_json({"input": item.input}), own=own)
        case _Output():
            kind = "custom_tool_call_output" if isinstance(item, _CustomOutput) else ""
            content = inner_of(item.output) if isinstance(item.output, tuple) else item.output
            own = _own_of(item, kind, name=item.name)
            return None if content is None else ToolResult(tool_use_id=item.call_id, content=content, own=own)
        case _Reasoning():
            sealed = item.encrypted_content
            said = _texts(item.summary)
            # Reasoning that is not encrypted may be present as text.
            said = _texts(item.content) if said == [] and not sealed else said
            members = {"summary": item.summary, "content": item.content, "encrypted_content": sealed}
            return None if said is None else _thought(said, sealed, _own_of(item, "reasoning", **members))
        case _:
            return None


def _thought(texts: list[str], signature: str | None, own: Own | UnsetType) -> Thinking | RedactedThinking:
    """Return reasoning, whose signature is the encrypted content."""
    if signature and not texts:
        return RedactedThinking(data=signature, issuer=ISSUER, own=own)
    return Thinking(thinking="\n\n".join(texts), signature=signature or UNSET, issuer=ISSUER, own=own)


def _texts(parts: Raw | UnsetType) -> list[str] | None:
    """The texts of reasoning's parts; None where some of them are none, or are not as they should be."""
    if parts is UNSET or bytes(parts) == b"[]" or not starts_with(parts, b"["):
        return []
    said = decoded(_SUMMARY, parts)
    return None if said is None else [each.text for each in said if each.text]


def _own_of(item: _Siblings, kind: str = "", **members: Raw | str | UnsetType | None) -> Own | UnsetType:
    if item.namespace is item.caller is item.phase is item.agent is item.is_async is UNSET:
        return own_of(RESPONSES, kind, id=item.id, **members, status=item.status)  # most items have none of the others
    return own_of(
        RESPONSES,
        kind,
        id=item.id,
        **members,
        status=item.status,
        namespace=item.namespace,
        caller=item.caller,
        phase=item.phase,
        agent=item.agent,
        **{"async": item.is_async},
    )


def _is_telling(item: _Item) -> bool:
    """Return True if an item can be of no other shape."""
    if not isinstance(item, _Message):
        return True
    if not isinstance(item, _PlainMessage) or item.type is not None:
        return item.status is not UNSET or has_parts(item.content)
    others = [part for part in item.content if not isinstance(part, InputFile)]
    return len(others) < len(item.content) and not has_parts(tuple(others))


STRICT: Final[StrictReader[Any]] = StrictReader(
    "openai-responses", _Item, _turn_of, _is_telling, is_flat, meant=("message_id", "content", *OF_BLOCKS)
)
MESSAGE: Final[StrictReader[Any]] = StrictReader(
    "openai-responses", _PlainMessage, _message_turn, _is_telling, is_flat, meant=("message_id", *OF_BLOCKS)
)


def repaired_turn(fields: Fields, index: int) -> Turn:
    kind = kind_named(fields) or (REFERENCE if is_reference(fields) else "message")
    fields.ignore("type")
    if kind not in _READERS:
        return _native_turn(native_type(RESPONSES, kind), fields, index)
    named = "call_id" in fields
    item = _READERS[kind](fields)
    if isinstance(item, (_Call, _CustomCall)) and not named:
        item = structs.replace(item, call_id=derived_id(item.name))
        fields.notes.add_fix("call_id_derived", fields.path, item.call_id)
    turn = _turn_of(item, index)
    if turn is None:
        # Nothing else needs repair.
        name = "summary" if _texts(item.summary) is None else "content"
        raise InputError("wrong_type", "expected parts with texts", path=fields.at(name))
    return turn


def is_reference(fields: Fields) -> bool:
    """Return True if an item names another one and need not say that it does: it has no role, and nothing but an id."""
    return "id" in fields and not fields.keys() - _OF_REFERENCES


# Items that the provider stores have no declaration: they are sent back whole.
def _native_turn(known: NativeType, fields: Fields, index: int) -> Turn:
    block: Block = (
        _call_of(known, fields)
        or _result_of(known, fields)
        or Unknown(kind=known.kind, raw=Raw(fields.whole), issuer=ISSUER)
    )
    # An output without a call is the provider's as well, and so the model's.
    is_users = isinstance(block, ToolResult) or (known.turn == "user" and not known.answers)
    fields.clear()
    return Turn(
        role="user" if is_users else "assistant", blocks=(block,), index=index, paths=(fields.path,), root="input"
    )


def _is_servers(fields: Fields) -> bool:
    """Return True if the provider itself searches for tools."""
    execution = fields.peek("execution")
    return execution is not None and bytes(execution) == b'"server"'


def _call_of(known: NativeType, fields: Fields) -> ToolUse | None:
    """Return a call that the client runs: its members are the input.

    None if the provider ran it, or for other items.
    """
    call_id = None if not known.opens or _is_servers(fields) else fields.take_string(known.opens)
    if call_id is None:
        return None
    members = fields.take_rest()
    call_input = as_json({name: value for name, value in members.items() if name not in {"id", "status"}})
    own = Own(RESPONSES, members, known.kind)
    return ToolUse(id=call_id, name=known.kind.removesuffix("_call"), input=call_input, own=own)


def _result_of(known: NativeType, fields: Fields) -> ToolResult | None:
    """Return the answer to such a call: a text, a screenshot, or its JSON."""
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


_SPECIAL: Final[dict[str, Taker]] = {
    "id": Fields.take,
    "role": Fields.take_string,
    "arguments": arguments_of,
    "output": RESPONSES_CONTENT.read_result,
}
_READERS: Final[dict[str, Callable[[Fields], Any]]] = {
    tag_of(kind): reader_of(kind, _SPECIAL | special)
    for kind, special in (
        (_Message, {"content": RESPONSES_CONTENT.read}),
        (_Call, {}),
        (_CustomCall, {}),
        (_Output, {"name": Fields.take}),
        (_CustomOutput, {"name": Fields.take}),
        (_Reasoning, {}),
    )
}
