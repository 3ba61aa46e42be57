"""OpenAI's chat shape and its kin: calls beside the content, results in rows of their own, typed content parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.history.ids import NAMELESS, made_id
from pipeline.history.native import CHAT, as_json
from pipeline.history.readers.anthropic import read_content, result_content
from pipeline.history.readers.fields import Fields, Taker, as_list, as_string, inside, reader_of
from pipeline.history.readers.inputs import EMPTY_OBJECT, arguments_of, derived_id, inputs_of, is_incomplete
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
from pipeline.history.readers.rawjson import starts_with
from pipeline.history.readers.typed import Placed, StrictParts, StrictReader, is_harmless
from pipeline.model import Own, Role, Text, Thinking, ToolResult, ToolUse, Turn

_ASSISTANT: Final = Raw(b'"assistant"')
_NAMELESS: Final = Raw(b'""')
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


class _Custom(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A call of a tool that takes free text."""

    name: str
    input: str


class _Call(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    id: str
    cache_control: Raw | UnsetType = UNSET
    index: Raw | UnsetType = UNSET
    function: _Function | None = None
    custom: _Custom | None = None
    type: Literal["function", "custom"] = "function"


class _Row(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message. ``name`` says for a tool's row what its call says already."""

    role: Literal["user", "assistant", "system", "developer", "tool"]
    id: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    content: str | tuple[ChatPart, ...] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    is_error: bool | UnsetType = UNSET
    annotations: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    prefix: Raw | UnsetType = UNSET


def _turn_of(row: _Row, index: int) -> Turn | None:
    if row.role == "tool":
        return _result_turn(row, index)
    place = f"messages.{index}"
    role: Role = "system" if row.role == "developer" else row.role
    is_plain = row.name is row.tool_call_id is None and row.tool_calls is None and row.role != "developer"
    is_plain = is_plain and row.reasoning_content is row.reasoning is row.refusal is None
    is_usual = row.audio is row.prefix is row.is_error is UNSET
    if is_plain and is_usual and row.annotations is UNSET and type(row.content) is str:
        return Turn(role=role, blocks=(Text(text=row.content),), index=index, id=row.id, paths=(f"{place}.content",))
    is_spoken = role == "assistant" or not (row.tool_calls or row.annotations is not UNSET)
    if not (is_usual and is_spoken) or row.tool_call_id is not None:
        return None
    return _whole_turn(row, role, place, index)


def _whole_turn(row: _Row, role: Role, place: str, index: int) -> Turn | None:
    """A message that is no result as a turn; lists in it are of blocks with their places, made by mending."""
    content: Any = row.content
    calls: Any = row.tool_calls
    empty = content if calls and not content else None
    own: Own | UnsetType = UNSET
    is_bare = row.name is empty is None and row.annotations is row.audio is row.prefix is UNSET
    if not is_bare or row.role == "developer":
        own = own_of(
            CHAT,
            annotations=unless(b"[]", row.annotations),
            audio=unless(b"[]", row.audio),
            prefix=unless(b"[]", row.prefix),
            name=row.name,
            role="developer" if row.role == "developer" else None,
            content=None if empty is None else Raw(b'""' if empty == "" else b"[]"),
        )
    placed: list[Placed] = []
    if row.reasoning_content or row.reasoning:
        placed = _reasoning({"reasoning_content": row.reasoning_content, "reasoning": row.reasoning}, place)
    if type(content) is tuple:
        said = blocks_of(content)
        if said is None:
            return None
        if not (calls or placed or row.refusal):
            return Turn(role=role, blocks=tuple(said), index=index, id=row.id, own=own)
        placed += [(block, f"{place}.content.{at}") for at, block in enumerate(said)]
    elif type(content) is list:
        placed += content
    elif content or (content is not None and not calls):
        placed.append((Text(text=str(content)), f"{place}.content"))
    if row.refusal:
        placed.append((Text(text=row.refusal, refusal=True), f"{place}.refusal"))
    if calls:
        uses = _uses(calls, place) if type(calls) is tuple else calls
        if uses is None:
            return None
        placed += uses
    blocks, paths = zip(*placed, strict=True) if placed else ((), None)
    return Turn(role=role, blocks=blocks, index=index, id=row.id, paths=paths, own=own)


def _uses(calls: tuple[_Call, ...], place: str) -> list[Placed] | None:
    """The blocks of healthy calls, or None."""
    inputs = inputs_of([call.function.arguments for call in calls if call.function is not None])
    if inputs is None:
        return None
    given = iter(inputs)
    uses: list[Placed] = []
    for at, call in enumerate(calls):
        if call.function is not None and call.custom is None and call.index is call.cache_control is UNSET:
            use = ToolUse(id=call.id, name=call.function.name, input=next(given))
        elif (call.function is None) == (call.custom is None) or not _is_flat_beside(call):
            return None
        else:
            use = _use(call, EMPTY_OBJECT if call.custom else next(given))
        uses.append((use, f"{place}.tool_calls.{at}"))
    return uses


def _is_flat_beside(call: _Call) -> bool:
    return all(raw is UNSET or is_harmless(raw) for raw in (call.cache_control, call.index))


def _use(call: _Call, call_input: Raw) -> ToolUse:
    """A call's block, with the input of its function; a custom tool's is the free text that it takes."""
    custom, name = call.custom, call.function.name if call.function else ""
    if custom is not None:
        name, call_input = custom.name, as_json({"input": custom.input})
    mark = unless(b"", call.cache_control) or UNSET
    own = own_of(CHAT, "custom" if custom else "", index=call.index)
    return ToolUse(id=call.id, name=name, input=call_input, cache_control=mark, own=own)


def _result_turn(row: _Row, index: int) -> Turn | None:
    content = row.content if type(row.content) is str else UNSET if row.content is None else inner_of(row.content)
    if not row.tool_call_id or row.tool_calls is not None or _says_more(row) or content is None:
        return None
    return _answer(row, row.tool_call_id, content, index)


def _answer(row: _Row, call_id: str, content: Any, index: int) -> Turn:  # noqa: ANN401  a result's
    result = ToolResult(tool_use_id=call_id, content=content, is_error=row.is_error is True)
    own = UNSET if row.name is None else own_of(CHAT, name=row.name)
    paths = (f"messages.{index}.content",)
    return Turn(role="user", blocks=(result,), index=index, id=row.id, paths=paths, own=own)


def _says_more(row: _Row) -> bool:
    is_told = row.annotations is row.audio is row.prefix is UNSET
    return not (is_told and row.reasoning_content is row.reasoning is row.refusal is None)


def _is_telling(row: _Row) -> bool:
    """Whether a message has anything that the canonical shape has not."""
    if row.role in ("tool", "developer") or row.tool_calls is not None:
        return True
    if row.name is not None or _says_more(row):
        return True
    return has_parts(row.content)


def _placed_use(call: _Call, path: str) -> list[Placed] | None:
    uses = _uses((call,), "")
    return None if uses is None else [(uses[0][0], path)]


_CALLS: Final = StrictParts[_Call](_Call, _placed_use)
STRICT: Final = StrictReader(
    "openai-chat",
    _Row,
    _turn_of,
    _is_telling,
    meant=(
        "type", "object", "message_id", "function_call", "tool_call_ids", "tool_name", "closed", "cache_control",
        "args", "input", "arguments",
    ),
)  # fmt: skip


def mend(fields: Fields, role: Role, index: int) -> Turn:
    """The turn of a message in which something is to be mended, of which ``role`` is the canonical role."""
    fields.ignore("type", "object")
    named = fields.peek("role")
    is_tool = named in (_TOOL, _FUNCTION)
    answered = fields.peek("tool_call_id") or fields.peek("tool_call_ids") or _NAMELESS
    call_id = _answered_call(fields, is_tool=is_tool)
    turn: Turn | None
    if call_id is None or named == _ASSISTANT:
        turn = _whole_turn(_read_row(fields), role, fields.path, index)
        assert turn is not None  # noqa: S101  nothing in it is left to mend
    else:
        row = _read_result(fields)
        turn = _answer(row, call_id, row.content, index)
        ids_made = is_tool and answered == _NAMELESS
        turn = structs.replace(turn, role=role, paths=(fields.at("content"),), ids_made=ids_made)
    fields.ignore("role")
    return turn


def _answered_call(fields: Fields, *, is_tool: bool) -> str | None:
    """The id of the call that a row answers, or None where the row is no result."""
    call_id = fields.take_string("tool_call_id")
    if not is_tool:
        return call_id
    called = fields.peek("name")
    name = "" if called is None else as_string(called, fields.at("name"))
    name = name or fields.take_text("tool_name")
    if call_id is None and (ids := fields.take("tool_call_ids")) is not None:
        # SWE-agent lists the one call that a row answers.
        call_id = next((as_string(item, fields.at("tool_call_ids")) for item in as_list(ids, fields.path)), None)
    if call_id is None and name:
        call_id = made_id(name)
        fields.notes.add_fix("call_id_derived", fields.path, call_id)
    return call_id or NAMELESS


def _reasoning(texts: Mapping[str, str | None], path: str) -> list[Placed]:
    """Reasoning text, which some write under one name, some under another, some under both."""
    placed: list[Placed] = []
    for key, text in texts.items():
        if text and (not placed or placed[0][0] != Thinking(thinking=text, issuer=ISSUER)):
            placed.append((Thinking(thinking=text, issuer=ISSUER), f"{path}.{key}"))
    return placed


def _calls(fields: Fields, name: str) -> list[Placed]:
    path, value = fields.at(name), fields.peek(name)
    items = [] if value is None else as_list(value, path)
    objects = fields.objects(name)
    healthy = _CALLS.read(items, objects, path)
    placed: list[Placed] = []
    for i, item in enumerate(items):
        placed += healthy.get(i) or [_mended_call(Fields(item, f"{path}.{i}", fields.notes, members=objects[i]))]
    fields.ignore(name)
    legacy = fields.take_object("function_call")
    if legacy is not None:
        placed.append(_mended_call(legacy))
    return placed


def _mended_call(fields: Fields) -> Placed:
    path, named = fields.path, "id" in fields
    call = _read_call(fields)
    use = _use(call, EMPTY_OBJECT if call.custom else call.function.arguments)
    if is_incomplete(use.input):
        use = structs.replace(use, incomplete=True)
    if not named:
        use = structs.replace(use, id=derived_id(use.name))
        fields.notes.add_fix("call_id_derived", path, use.id)
    fields.drop_rest()
    return use, path


def _function(fields: Fields, name: str) -> object:
    """A call's function; some write its name and arguments directly into the call, as picoclaw and LangChain do."""
    return None if "custom" in fields else inside(_read_function)(fields, name) or _read_function(fields)


def _arguments(fields: Fields, name: str) -> Raw:
    return arguments_of(fields, next((key for key in (name, "args", "input") if key in fields), name))


def _content(fields: Fields, name: str) -> str | list[Placed] | None:
    value = fields.peek(name)
    if value is None or starts_with(value, b'"'):
        return fields.take_string(name)
    return read_content(fields, name, read_part, CHAT_PARTS)


def _speaker(fields: Fields, name: str) -> str | None:
    spoken = _string(fields, name)
    return None if fields.peek("role") == _FUNCTION else spoken


def _string(fields: Fields, name: str) -> str | None:
    value = fields.peek(name)
    return fields.take_string(name) if value is not None and starts_with(value, b'"') else None


def _of_assistants(fields: Fields, name: str) -> Raw | None:
    return fields.take(name) if fields.peek("role") == _ASSISTANT else None


_read_function: Final = reader_of(_Function, {"arguments": _arguments})
_read_call: Final[Callable[[Fields], Any]] = reader_of(
    _Call, {"function": _function, "custom": inside(reader_of(_Custom))}
)
_ROW: Final[dict[str, Taker]] = {
    # It stays, for the others to look at.
    "role": lambda fields, name: as_string(fields.peek(name) or _NAMELESS, fields.at(name)),
    "name": _speaker,
    "tool_calls": _calls,
    "reasoning_content": _string,
    "reasoning": _string,
    "content": _content,
    **dict.fromkeys(("annotations", "audio", "prefix"), _of_assistants),
}
_read_row: Final[Callable[[Fields], Any]] = reader_of(_Row, _ROW, ("id", "is_error"))
_read_result: Final[Callable[[Fields], Any]] = reader_of(
    _Row,
    _ROW | {"content": lambda fields, name: result_content(fields, name, read_part)},
    ("id", "tool_calls", "reasoning_content", "reasoning", "refusal", "annotations", "audio", "prefix"),
)
