"""OpenAI's chat shape and its kin: calls beside the content, results in rows of their own, typed content parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import UNSET, Raw, UnsetType

from pipeline.history.clean import url_source
from pipeline.history.ids import NAMELESS, made_id
from pipeline.history.native import CHAT, RESPONSES, as_json
from pipeline.history.readers.anthropic import (
    Placed,
    kind_named,
    mend_fields,
    read_content,
    read_known,
    result_content,
)
from pipeline.history.readers.fields import Fields, Notes, as_list, as_string, derived_id, read_input
from pipeline.history.readers.rawjson import starts_with
from pipeline.model import Block, Document, Image, Issuer, Own, Role, Text, Thinking, ToolResult, ToolUse

ISSUER: Final = Issuer(provider=CHAT)

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
    }
)
"""Keys by which a message is known for this shape."""


def read(fields: Fields, role: Role, notes: Notes, *, is_tool: bool) -> list[Placed]:
    """The blocks of one message; ``is_tool`` says that its role was ``tool`` or ``function``.

    Raises:
        InputError: a field of the wrong type.
    """
    fields.ignore("type", "object")
    call_id = _answered_call(fields, is_tool=is_tool)
    if call_id is not None and role != "assistant":
        return [_result(fields, call_id, notes)]
    calls = _calls(fields, notes)
    placed = _reasoning(fields)
    content = fields.take("content")
    if not (calls and content is not None and bytes(content) == b'""'):
        placed += read_content(content, fields.at("content"), notes, read_part)
    refusal = fields.take_string("refusal")
    if refusal:
        placed.append((Text(text=refusal, refusal=True), fields.at("refusal")))
    return placed + calls


def own_of_message(fields: Fields, role: Raw | None) -> Own | UnsetType:
    """What a message has beside what is read of it; ``role`` is its role as it was written.

    An empty content is among it where it makes no block: some say so that there is no text beside the calls.
    """
    names = ("annotations", "audio") if role == _ASSISTANT else ()
    members = {name: value for name in names if (value := fields.take(name)) is not None and bytes(value) != b"[]"}
    if (name := fields.peek("name")) is not None and starts_with(name, b'"') and role != _FUNCTION:
        members["name"] = name
        if role != _TOOL:
            fields.ignore("name")
    if role == _DEVELOPER:
        members["role"] = role
    content = fields.peek("content")
    if "tool_calls" in fields and content is not None and bytes(content) in (b'""', b"[]"):
        members["content"] = content
    return Own(CHAT, members) if members else UNSET


def read_part(value: Raw, path: str, notes: Notes) -> list[Placed]:
    """One content part. A type that OpenAI shares with the canonical shape is read there."""
    return read_fields(Fields(value, path, notes), value)


def read_fields(fields: Fields, value: Raw) -> list[Placed]:
    """The same of a part that has been taken apart; ``value`` is the whole of it."""
    reader = _PARTS.get(kind_named(fields))
    return read_known(reader, fields, value) if reader else mend_fields(fields, value)


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


def _result(fields: Fields, call_id: str, notes: Notes) -> Placed:
    path = fields.at("content")
    content = result_content(fields.take("content"), path, notes, read_part)
    is_error = fields.take_flag("is_error")
    return ToolResult(tool_use_id=call_id, content=content, is_error=is_error), path


def _reasoning(fields: Fields) -> list[Placed]:
    """Reasoning text, which some write under one name, some under another, some under both."""
    placed: list[Placed] = []
    for key in ("reasoning_content", "reasoning"):
        value = fields.peek(key)
        if value is None or not starts_with(value, b'"'):
            continue
        text = as_string(value, fields.at(key))
        if text and (not placed or placed[0][0] != Thinking(thinking=text, issuer=ISSUER)):
            placed.append((Thinking(thinking=text, issuer=ISSUER), fields.at(key)))
        fields.ignore(key)
    return placed


def _calls(fields: Fields, notes: Notes) -> list[Placed]:
    path = fields.at("tool_calls")
    value = fields.take("tool_calls")
    items = [] if value is None else as_list(value, path)
    placed: list[Placed] = [_call(Fields(item, f"{path}.{i}", notes)) for i, item in enumerate(items)]
    legacy = fields.take_object("function_call")
    if legacy is not None:
        placed.append(_call(legacy))
    return placed


def _call(fields: Fields) -> Placed:
    """A call in OpenAI's form, or with name and arguments directly in it, as picoclaw and LangChain write them."""
    path = fields.path
    fields.ignore("type", "index")
    call_id = fields.take_string("id")
    cache_control = fields.take("cache_control")
    function, custom = fields.take_object("function"), fields.take_object("custom")
    inner = function or custom or fields
    name = inner.take_text("name")
    own: Own | UnsetType = UNSET
    if custom is not None:
        # A custom tool takes free text.
        call_input, incomplete = as_json({"input": custom.take_text("input")}), False
        own = Own(CHAT, kind="custom")
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
        cache_control=UNSET if cache_control is None else cache_control,
        own=own,
    ), path


def _text(fields: Fields) -> Text:
    names = ("annotations", "logprobs", "prompt_cache_breakpoint")
    members = {name: value for name in names if (value := fields.take(name)) is not None and bytes(value) != b"[]"}
    return Text(text=fields.take_text("text"), own=Own(RESPONSES, members) if members else UNSET)


def _refusal(fields: Fields) -> Text:
    return Text(text=fields.take_text("refusal"), refusal=True)


def _thinking(fields: Fields) -> Thinking:
    """Mistral's thinking is a list of text parts; the canonical kind is a string, and may be signed."""
    value = fields.take("thinking")
    fields.ignore("closed")
    if value is None or not starts_with(value, b"["):
        text = "" if value is None else as_string(value, fields.at("thinking"))
        signature = fields.take_string("signature")
        return Thinking(thinking=text, signature=UNSET if signature is None else signature)
    parts = [Fields(item, fields.at("thinking"), fields.notes) for item in as_list(value, fields.at("thinking"))]
    return Thinking(thinking="".join(part.take_text("text") for part in parts), issuer=ISSUER)


def _image(fields: Fields, provider: str = CHAT) -> Image | None:
    """``image_url`` is an object with a url, or in newer APIs the url itself; a file's id is a source too."""
    cache_control = fields.take("cache_control")
    value = fields.peek("image_url")
    source: dict[str, str] | None = None
    detail = fields.take("detail")
    if value is not None and starts_with(value, b'"'):
        source = url_source(as_string(value, fields.at("image_url")))
        fields.ignore("image_url")
    elif value is not None and starts_with(value, b"{"):
        inner = Fields(value, fields.at("image_url"), fields.notes)
        source = url_source(inner.take_string("url") or "")
        fields.ignore("image_url")
        detail = inner.take("detail") or detail
        inner.drop_rest()
    elif (file_id := fields.take_string("file_id")) is not None:
        source = {"type": "file", "file_id": file_id}
    if source is None:
        return None
    return Image(
        source=as_json(source),
        cache_control=UNSET if cache_control is None else cache_control,
        own=UNSET if detail is None or bytes(detail) == b'"auto"' else Own(provider, {"detail": detail}),
    )


def _input_image(fields: Fields) -> Image | None:
    return _image(fields, RESPONSES)


def screenshot(value: Raw) -> Image | None:
    """A computer tool's output as an image."""
    return _input_image(Fields(value, "", Notes())) if starts_with(value, b"{") else None


def _file(fields: Fields) -> Document | None:
    value = fields.peek("file")
    if value is None or not starts_with(value, b"{"):
        return None
    inner = Fields(value, fields.at("file"), fields.notes)
    file_id, file_data = inner.take_string("file_id"), inner.take_string("file_data")
    source = url_source(file_data or "") or (None if file_id is None else {"type": "file", "file_id": file_id})
    if source is None:
        return None
    title = inner.take_string("filename")
    fields.ignore("file")
    inner.drop_rest()
    return Document(source=as_json(source), title=UNSET if title is None else title)


_PARTS: Final[dict[str, Callable[[Fields], Block | None]]] = {
    "input_text": _text,
    "output_text": _text,
    "refusal": _refusal,
    "image_url": _image,
    "input_image": _input_image,
    "file": _file,
    "thinking": _thinking,
}
PART_KINDS: Final = frozenset(_PARTS) - {"thinking"} | {"input_audio"}
"""Types of content parts by which a message is known for this shape."""
