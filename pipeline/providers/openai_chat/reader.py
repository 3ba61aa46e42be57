"""OpenAI's chat shape and similar ones: calls next to the content, results in separate rows, typed content parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.call_ids import NO_ID, derived_id, made_id
from reknit.pipeline.history.pieces import CHAT, as_json
from reknit.pipeline.history.readers.canonical import (
    CHAT_CONTENT,
    CHAT_ISSUER,
    OF_BLOCKS,
    ChatPart,
    blocks_of,
    has_chats_parts,
    has_parts,
    inner_of,
)
from reknit.pipeline.history.readers.fields import (
    EMPTY_OBJECT,
    Fields,
    Notes,
    arguments_of,
    as_list,
    as_string,
    inputs_of,
    is_incomplete,
)
from reknit.pipeline.history.readers.rawjson import starts_with, wrong_type
from reknit.pipeline.history.readers.strict import ROLES, StrictReader, is_harmless, own_of, unless
from reknit.pipeline.history.readers.tolerant import ContentReader, Placed, Taker, reader_of
from reknit.pipeline.model import Own, Text, Thinking, ToolResult, ToolUse, Turn, Unknown

_ASSISTANT: Final = Raw(b'"assistant"')
_RESULTS: Final = (Raw(b'"tool"'), Raw(b'"function"'))
_NO_IDS: Final = ("",)
_DEVELOPER: Final = Raw(b'"developer"')


class _Function(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _Custom(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
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
    """A message. ``name`` says for a tool's row what its call says already.

    Attributes:
        function_call: the one call of the time before there were several.
        tool_call_ids: the one call that a row answers, as SWE-agent lists it, in place of ``tool_call_id``.
        tool_name: as Ollama has the name for a tool's row.
    """

    role: Literal["user", "assistant", "system", "developer", "tool", "function"]
    id: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    function_call: _Call | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    content: str | tuple[ChatPart, ...] | None = None
    refusal: str | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_ids: tuple[str, ...] | None = None
    tool_call_id: str | None = None
    is_error: bool | UnsetType = UNSET
    annotations: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    prefix: Raw | UnsetType = UNSET
    partial: Raw | UnsetType = UNSET


MESSAGE_KEYS: Final = frozenset(_Row.__struct_encode_fields__) - {"role", "id", "content", "is_error", "audio"}
"""Keys by which a message is known for this shape."""


def _turn_of(row: _Row, index: int) -> Turn | None:
    if row.role in ("tool", "function"):
        return _result_turn(row, index)
    place = f"messages.{index}"
    # Equal to one with these members alone: the quickest way to see that there are no others.
    if type(row.content) is str and row == _Row(role=row.role, id=row.id, content=row.content):
        own = UNSET if row.role != "developer" else Own(CHAT, {"role": _DEVELOPER})
        blocks, paths = (Text(text=row.content),), (f"{place}.content",)
        return Turn(role=ROLES[row.role], blocks=blocks, index=index, id=row.id, paths=paths, own=own)
    is_spoken = row.role == "assistant" or not (row.tool_calls or row.annotations is not UNSET)
    # The client library of OpenAI writes every member of an answer, those without a value too.
    has_audio = row.audio is not UNSET and not (row.role == "assistant" and bytes(row.audio) == b"null")
    is_usual = row.prefix is row.partial is row.is_error is UNSET and row.function_call is None and not has_audio
    is_answer = row.tool_call_id is not None or row.tool_call_ids is not None or row.tool_name is not None
    return _whole_turn(row, place, index) if is_spoken and is_usual and not is_answer else None


def _whole_turn(row: _Row, place: str, index: int) -> Turn | None:
    """Return a message that is not a result as a turn; lists in it are repaired blocks with their places."""
    content: Any = row.content
    calls: Any = row.tool_calls if row.function_call is None else [*(row.tool_calls or ()), row.function_call]
    empty = content if calls and not content else None
    own: Own | UnsetType = UNSET
    audio_ref = None if row.audio is UNSET else unless(b"[]", row.audio)
    is_audio = audio_ref is not None and not (content or calls or row.refusal or row.reasoning_content or row.reasoning)
    marks = row.prefix is row.partial is UNSET
    is_bare = marks and row.name is empty is None and row.annotations is row.audio is UNSET
    if not is_bare or row.role == "developer":
        own = own_of(
            CHAT,
            annotations=unless(b"[]", row.annotations),
            audio=None if is_audio else audio_ref,
            prefix=unless(b"[]", row.prefix),
            partial=unless(b"[]", row.partial),
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
            return Turn(role=ROLES[row.role], blocks=tuple(said), index=index, id=row.id, own=own)
        placed += [(block, f"{place}.content.{at}") for at, block in enumerate(said)]
    elif type(content) is list:
        placed += content
    elif content or (content is not None and not calls):
        placed.append((Text(text=str(content)), f"{place}.content"))
    if is_audio:
        # Speech is all that the message says.
        raw = as_json({"audio": audio_ref})
        placed.append((Unknown(kind="audio", raw=raw, issuer=CHAT_ISSUER), f"{place}.audio"))
    if row.refusal:
        placed.append((Text(text=row.refusal, refusal=True), f"{place}.refusal"))
    if calls:
        uses = _uses(calls, place) if type(calls) is tuple else calls
        if uses is None:
            return None
        placed += uses
    blocks, paths = zip(*placed, strict=True) if placed else ((), None)
    return Turn(role=ROLES[row.role], blocks=blocks, index=index, id=row.id, paths=paths, own=own)


def _uses(calls: tuple[_Call, ...], place: str) -> list[Placed] | None:
    """The blocks of valid calls, or None."""
    inputs = inputs_of([call.function.arguments for call in calls if call.function is not None])
    if inputs is None:
        return None
    given = iter(inputs)
    uses: list[Placed] = []
    for at, call in enumerate(calls):
        if call.function is not None and call.custom is None and call.index is call.cache_control is UNSET:
            use = ToolUse(id=call.id, name=call.function.name, input=next(given))
        elif (call.function is None) == (call.custom is None) or not all(
            raw is UNSET or is_harmless(raw) for raw in (call.cache_control, call.index)
        ):
            return None
        else:
            use = _use(call, EMPTY_OBJECT if call.custom else next(given))
        uses.append((use, f"{place}.tool_calls.{at}"))
    return uses


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
    call_id = _call_answered(row)
    is_alone = row.tool_calls is None and row.function_call is None and not _says_more(row)
    if not call_id or not is_alone or not _names_each_once(row) or content is None:
        return None
    return _answer(row, call_id, content, f"messages.{index}", index)


def _call_answered(row: _Row) -> str:
    """The id of the call that a result's row names, ``""`` where it names none."""
    return row.tool_call_id or (row.tool_call_ids or _NO_IDS)[0]


def _names_each_once(row: _Row) -> bool:
    """Return True if a result's row names one call, once, and its tool at most once."""
    ids = row.tool_call_ids
    return (ids is None or (len(ids) == 1 and not row.tool_call_id)) and not (row.name and row.tool_name is not None)


def _answer(row: _Row, call_id: str, content: Any, place: str, index: int) -> Turn:  # noqa: ANN401  a result's
    result = ToolResult(tool_use_id=call_id, content=content, is_error=row.is_error is True)
    own = UNSET if row.name is None or row.role == "function" else own_of(CHAT, name=row.name)
    return Turn(role="user", blocks=(result,), index=index, id=row.id, paths=(f"{place}.content",), own=own)


def _says_more(row: _Row) -> bool:
    is_plain = row.annotations is row.audio is row.prefix is row.partial is UNSET
    return not (is_plain and row.reasoning_content is row.reasoning is row.refusal is None)


def _is_telling(row: _Row) -> bool:
    """Return True if a message has anything that the canonical shape has not."""
    if row.role in ("tool", "function", "developer") or row.tool_calls is not None:
        return True
    if row.name is not None or _says_more(row):
        return True
    return has_parts(row.content)


def _decides(row: _Row) -> bool:
    """True if a message has anything that Responses has not either: it has developers and some of the parts, too."""
    is_row = row.role in ("tool", "function") or row.tool_calls is not None
    return is_row or row.name is not None or _says_more(row) or has_chats_parts(row.content)


def _placed_use(call: _Call, path: str) -> list[Placed] | None:
    uses = _uses((call,), "")
    return None if uses is None else [(uses[0][0], path)]


STRICT: Final = StrictReader(
    "openai-chat",
    _Row,
    _turn_of,
    _is_telling,
    decides=_decides,
    meant=("type", "object", "message_id", "closed", "cache_control", "args", "input", "arguments", *OF_BLOCKS),
    # An older call has its name and arguments without a function around them, and so is never valid.
    kept_whole=("function_call",),
)


def repaired_turn(fields: Fields, index: int) -> Turn:
    fields.ignore("type", "object")
    role = fields.peek("role")
    if role != _ASSISTANT and (role in _RESULTS or "tool_call_id" in fields):
        turn = _repaired_result(fields, index)
    else:
        whole = _whole_turn(_read_row(fields), fields.path, index)
        assert whole is not None  # noqa: S101  nothing in it needs repair
        turn = whole
    fields.ignore("role")
    return turn


def _repaired_result(fields: Fields, index: int) -> Turn:
    row = _read_result(fields)
    named = _call_answered(row)
    call_id, called = named, row.name or row.tool_name
    if row.tool_call_id is None and not named and called:
        call_id = made_id(called)
        fields.notes.add_fix("call_id_derived", fields.path, call_id)
    content = UNSET if row.content is None else row.content
    turn = _answer(row, call_id or NO_ID, content, fields.path, index)
    return structs.replace(turn, ids_made=not named and row.role in ("tool", "function"))


def _reasoning(texts: Mapping[str, str | None], path: str) -> list[Placed]:
    """Reasoning text, which some write under one name, some under another, some under both."""
    placed: list[Placed] = []
    for key, text in texts.items():
        if text and (not placed or placed[0][0] != Thinking(thinking=text, issuer=CHAT_ISSUER)):
            placed.append((Thinking(thinking=text, issuer=CHAT_ISSUER), f"{path}.{key}"))
    return placed


def _repaired_call(fields: Fields) -> list[Placed]:
    path, is_named = fields.path, "id" in fields
    call = _read_call(fields)
    if call.function is call.custom is None:
        # Some write its name and arguments directly into the call, as picoclaw and LangChain do.
        call = structs.replace(call, function=_read_function(fields))
    use = _use(call, EMPTY_OBJECT if call.custom else call.function.arguments)
    if is_incomplete(use.input):
        use = structs.replace(use, incomplete=True)
    if not is_named:
        use = structs.replace(use, id=derived_id(use.name))
        fields.notes.add_fix("call_id_derived", path, use.id)
    fields.drop_rest()
    return [(use, path)]


def _no_call(value: Raw, path: str, _: Notes) -> Placed:
    raise wrong_type(path, "a call", value)


def _function_call(fields: Fields, name: str) -> Placed | None:
    call = fields.take_object(name)
    return None if call is None else _repaired_call(call)[0]


def _is_said(fields: Fields, key: str) -> bool:
    value = fields.peek(key)
    return value is not None and bytes(value) != b'""'


def _answered_ids(fields: Fields, name: str) -> list[str] | None:
    ids = None if _is_said(fields, "tool_call_id") else fields.take(name)
    if ids is None:
        return None
    items = as_list(ids, fields.at(name))
    fields.notes.drop_members({str(at): item for at, item in enumerate(items) if at > 0}, fields.at(name))
    return [as_string(item, fields.at(name)) for item in items]


def _arguments(fields: Fields, name: str) -> Raw:
    return arguments_of(fields, next((key for key in (name, "args", "input") if key in fields), name))


def _content(fields: Fields, name: str) -> str | list[Placed] | None:
    value = fields.peek(name)
    if value is None or starts_with(value, b'"'):
        return fields.take_string(name)
    return CHAT_CONTENT.read(fields, name)


def _string(fields: Fields, name: str) -> str | None:
    value = fields.peek(name)
    return fields.take_string(name) if value is not None and starts_with(value, b'"') else None


def _of_assistants(fields: Fields, name: str) -> Raw | None:
    return fields.take(name) if fields.peek("role") == _ASSISTANT else None


_ARGUMENTS: Final[dict[str, Taker]] = {"arguments": _arguments}
_read_function: Final = reader_of(_Function, _ARGUMENTS)
_read_call: Final[Callable[[Fields], Any]] = reader_of(_Call, _ARGUMENTS)
_CALLS: Final = ContentReader[_Call](_Call, _placed_use, _repaired_call, _no_call)
_ROW: Final[dict[str, Taker]] = {
    # It stays, for the others to look at.
    "role": lambda fields, name: as_string(fields.peek(name) or b'""', fields.at(name)),
    "name": _string,
    "tool_calls": _CALLS.read,
    "function_call": _function_call,
    "tool_name": lambda fields, name: None if _is_said(fields, "name") else fields.take_string(name),
    "tool_call_ids": _answered_ids,
    "reasoning_content": _string,
    "reasoning": _string,
    "content": _content,
    **dict.fromkeys(("annotations", "audio", "prefix", "partial"), _of_assistants),
}
_read_row: Final[Callable[[Fields], Any]] = reader_of(_Row, _ROW, ("id", "tool_name", "tool_call_ids", "is_error"))
_read_result: Final[Callable[[Fields], Any]] = reader_of(
    _Row,
    _ROW | {"content": CHAT_CONTENT.read_result},
    (
        "id", "tool_calls", "function_call", "reasoning_content", "reasoning", "refusal", "annotations", "audio",
        "prefix",
        "partial",
    ),
)  # fmt: skip
