"""OpenAI's chat shape and its kin: calls beside the content, results in rows of their own, typed content parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.history.ids import NAMELESS, made_id
from pipeline.history.native import CHAT, as_json
from pipeline.history.readers.anthropic import (
    read_content,
    result_content,
)
from pipeline.history.readers.fields import Fields, Notes, as_list, as_string
from pipeline.history.readers.inputs import argument_objects, derived_id, read_input
from pipeline.history.readers.parts import (
    CHAT_PARTS,
    ISSUER,
    ChatPart,
    blocks_of,
    has_parts,
    inner_of,
    own_of,
    read_part,
    unless,
)
from pipeline.history.readers.rawjson import MAX_NESTING, may_nest_too_deeply, starts_with
from pipeline.history.readers.typed import Placed, StrictParts, StrictReader, is_harmless
from pipeline.model import Block, Own, Role, Text, Thinking, ToolResult, ToolUse, Turn

_ASSISTANT: Final = Raw(b'"assistant"')
_DEVELOPER: Final = Raw(b'"developer"')
_FUNCTION: Final = Raw(b'"function"')
_TOOL: Final = Raw(b'"tool"')

MESSAGE_KEYS: Final = frozenset(
    {
        "tool_calls",
        "tool_call_id",
        "tool_call_ids",
        "function_call",
        "refusal",
        "reasoning",
        "reasoning_content",
        "tool_name",
        "name",
        "annotations",
        "prefix",
    }
)
"""Keys by which a message is known for this shape."""


class _Function(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _Call(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: Raw | UnsetType = UNSET


class _Row(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A healthy message. ``name`` says for a tool's row what its call says already."""

    role: Literal["user", "assistant", "system", "developer", "tool"]
    content: str | tuple[ChatPart, ...] | None = None
    id: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Raw | UnsetType = UNSET


def _turn_of(row: _Row, index: int) -> Turn | None:
    if row.role == "tool":
        return _result_turn(row, index)
    role: Role = "system" if row.role == "developer" else row.role
    content, calls, place = row.content, row.tool_calls, f"messages.{index}"
    is_plain = row.name is row.tool_call_id is row.reasoning_content is row.reasoning is row.refusal is None
    is_plain = is_plain and row.annotations is UNSET and row.role != "developer"
    if is_plain and calls is None and type(content) is str:
        return Turn(role=role, blocks=(Text(text=content),), index=index, id=row.id, paths=(f"{place}.content",))
    if row.tool_call_id is not None or ((calls or row.annotations is not UNSET) and role != "assistant"):
        return None
    empty = content if calls and not content else None
    own: Own | UnsetType = UNSET
    if not is_plain or empty is not None:
        own = own_of(
            CHAT,
            annotations=unless(b"[]", row.annotations),
            name=row.name,
            role="developer" if row.role == "developer" else None,
            content=None if empty is None else Raw(b'""' if empty == "" else b"[]"),
        )
    blocks: list[Block] = []
    paths: list[str] = []
    if not is_plain and (row.reasoning_content or row.reasoning):
        for block, path in _reasoning({"reasoning_content": row.reasoning_content, "reasoning": row.reasoning}, place):
            blocks.append(block)
            paths.append(path)
    if type(content) is tuple:
        said = blocks_of(content)
        if said is None:
            return None
        if not (calls or blocks or row.refusal):
            return Turn(role=role, blocks=tuple(said), index=index, id=row.id, own=own)
        blocks += said
        paths += [f"{place}.content.{at}" for at in range(len(said))]
    elif content or (content is not None and not calls):
        blocks.append(Text(text=str(content)))
        paths.append(f"{place}.content")
    if row.refusal:
        blocks.append(Text(text=row.refusal, refusal=True))
        paths.append(f"{place}.refusal")
    if calls:
        uses = _uses(calls)
        if uses is None:
            return None
        blocks += uses
        paths += [f"{place}.tool_calls.{at}" for at in range(len(uses))]
    return Turn(role=role, blocks=tuple(blocks), index=index, id=row.id, paths=tuple(paths) or None, own=own)


def _uses(calls: tuple[_Call, ...]) -> list[ToolUse] | None:
    """The blocks of healthy calls, or None."""
    inputs = inputs_of([call.function.arguments for call in calls])
    if inputs is None:
        return None
    uses: list[ToolUse] = []
    for at, call in enumerate(calls):
        if call.index is UNSET:
            uses.append(ToolUse(id=call.id, name=call.function.name, input=inputs[at]))
        elif is_harmless(call.index):
            own = own_of(CHAT, index=call.index)
            uses.append(ToolUse(id=call.id, name=call.function.name, input=inputs[at], own=own))
        else:
            return None
    return uses


def _result_turn(row: _Row, index: int) -> Turn | None:
    if not row.tool_call_id or row.tool_calls is not None or _says_more(row):
        return None
    content = row.content if type(row.content) is str else UNSET if row.content is None else inner_of(row.content)
    if content is None:
        return None
    result = ToolResult(tool_use_id=row.tool_call_id, content=content)
    paths = (f"messages.{index}.content",)
    own = UNSET if row.name is None else own_of(CHAT, name=row.name)
    return Turn(role="user", blocks=(result,), index=index, id=row.id, paths=paths, own=own)


def inputs_of(arguments: Sequence[str]) -> list[Raw] | None:
    """The inputs in the arguments of healthy calls, or None."""
    for each in arguments:
        if len(each) > MAX_NESTING and may_nest_too_deeply(each.encode("utf-8", "replace")):
            return None
    return argument_objects(arguments)


def _says_more(row: _Row) -> bool:
    return not (row.reasoning_content is row.reasoning is row.refusal is None and row.annotations is UNSET)


def _is_telling(row: _Row) -> bool:
    """Whether a message has anything that the canonical shape has not."""
    if row.role in ("tool", "developer") or row.tool_calls is not None:
        return True
    if row.name is not None or _says_more(row):
        return True
    return has_parts(row.content)


def _use(call: _Call, path: str) -> list[Placed] | None:
    uses = _uses((call,))
    return None if uses is None else [(uses[0], path)]


_CALLS: Final = StrictParts[_Call](_Call, _use)
STRICT: Final = StrictReader(
    "openai-chat",
    _Row,
    _turn_of,
    _is_telling,
    meant=(
        "type", "object", "message_id", "function_call", "tool_call_ids", "tool_name", "audio", "prefix", "is_error",
        "closed", "cache_control", "custom", "args", "input", "arguments",
    ),
)  # fmt: skip


def read(fields: Fields, role: Role, notes: Notes, *, is_tool: bool) -> list[Placed]:
    """The blocks of one message; ``is_tool`` says that its role was ``tool`` or ``function``."""
    fields.ignore("type", "object")
    call_id = _answered_call(fields, is_tool=is_tool)
    if call_id is not None and role != "assistant":
        return [_result(fields, call_id)]
    calls = _calls(fields, notes)
    texts = {key: as_string(value, fields.at(key)) for key in _REASONING if (value := _string(fields, key)) is not None}
    placed = _reasoning(texts, fields.path)
    content = fields.peek("content")
    if calls and content is not None and bytes(content) == b'""':
        fields.ignore("content")
    else:
        placed += read_content(fields, "content", read_part, CHAT_PARTS)
    refusal = fields.take_string("refusal")
    if refusal:
        placed.append((Text(text=refusal, refusal=True), fields.at("refusal")))
    return placed + calls


def own_of_message(fields: Fields, role: Raw | None) -> Own | UnsetType:
    """What a message has beside what is read of it; ``role`` is its role as it was written.

    An empty content is among it where it makes no block: some say so that there is no text beside the calls.
    """
    beside = ("annotations", "audio", "prefix") if role == _ASSISTANT else ()
    members = {key: unless(b"[]", fields.take(key)) for key in beside}
    if (name := fields.peek("name")) is not None and starts_with(name, b'"') and role != _FUNCTION:
        members["name"] = name
        if role != _TOOL:
            fields.ignore("name")
    content = fields.peek("content")
    is_empty = "tool_calls" in fields and content is not None and bytes(content) in (b'""', b"[]")
    return own_of(CHAT, **members, role=role if role == _DEVELOPER else None, content=content if is_empty else None)


def _answered_call(fields: Fields, *, is_tool: bool) -> str | None:
    """The id of the call that a row answers, or None where the row is no result."""
    call_id = fields.take_string("tool_call_id")
    if not is_tool:
        return call_id
    name = fields.take_string("name") or fields.take_string("tool_name")
    if call_id is None and (ids := fields.take("tool_call_ids")) is not None:
        # SWE-agent lists the one call that a row answers.
        call_id = next((as_string(item, fields.at("tool_call_ids")) for item in as_list(ids, fields.path)), None)
    if call_id is None and name is not None:
        call_id = made_id(name)
        fields.notes.add_fix("call_id_derived", fields.path, call_id)
    return call_id or NAMELESS


def _result(fields: Fields, call_id: str) -> Placed:
    path = fields.at("content")
    content = result_content(fields, "content", read_part)
    is_error = fields.take_flag("is_error")
    return ToolResult(tool_use_id=call_id, content=content, is_error=is_error), path


def _string(fields: Fields, key: str) -> Raw | None:
    value = fields.peek(key)
    return fields.take(key) if value is not None and starts_with(value, b'"') else None


def _reasoning(texts: Mapping[str, str | None], path: str) -> list[Placed]:
    """Reasoning text, which some write under one name, some under another, some under both."""
    placed: list[Placed] = []
    for key, text in texts.items():
        if text and (not placed or placed[0][0] != Thinking(thinking=text, issuer=ISSUER)):
            placed.append((Thinking(thinking=text, issuer=ISSUER), f"{path}.{key}"))
    return placed


def _calls(fields: Fields, notes: Notes) -> list[Placed]:
    path = fields.at("tool_calls")
    value = fields.peek("tool_calls")
    items = [] if value is None else as_list(value, path)
    objects = fields.objects("tool_calls")
    healthy = _CALLS.read(items, objects, path)
    placed: list[Placed] = []
    for i, item in enumerate(items):
        placed += healthy.get(i) or [_call(Fields(item, f"{path}.{i}", notes, members=objects[i]))]
    fields.ignore("tool_calls")
    legacy = fields.take_object("function_call")
    if legacy is not None:
        placed.append(_call(legacy))
    return placed


def _call(fields: Fields) -> Placed:
    """A call in OpenAI's form, or with name and arguments directly in it, as picoclaw and LangChain write them."""
    path = fields.path
    fields.ignore("type")
    call_id = fields.take_string("id")
    cache_control, index = fields.take("cache_control"), fields.take("index")
    function, custom = fields.take_object("function"), fields.take_object("custom")
    inner = function or custom or fields
    name = inner.take_text("name")
    if custom is not None:
        # A custom tool takes free text.
        call_input, incomplete = as_json({"input": custom.take_text("input")}), False
    else:
        key = next((key for key in ("arguments", "args", "input") if key in inner), "arguments")
        call_input, incomplete = read_input(inner.take(key), inner.at(key), fields.notes, encoded=True)
    if call_id is None:
        call_id = derived_id(name)
        fields.notes.add_fix("call_id_derived", path, call_id)
    inner.drop_rest()
    fields.drop_rest()
    return ToolUse(
        id=call_id,
        name=name,
        input=call_input,
        incomplete=incomplete,
        cache_control=cache_control or UNSET,
        own=own_of(CHAT, "" if custom is None else "custom", index=index),
    ), path


_REASONING: Final = ("reasoning_content", "reasoning")
