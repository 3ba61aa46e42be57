"""OpenAI's Responses shape: a flat list of items, of which several make one turn.

A message is an item, and so is each call, each result and each piece of reasoning. Ids of items name what the provider
keeps and are the turns' ids here; calls and results belong together by their ``call_id``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from pipeline.history.readers import openai_chat
from pipeline.history.readers.anthropic import Placed, kind_named, read_content, read_known, result_content
from pipeline.history.readers.calls import derived_id, read_input
from pipeline.history.readers.fields import Fields, Notes, as_list
from pipeline.history.readers.rawjson import starts_with
from pipeline.model import (
    Document,
    Issuer,
    RedactedThinking,
    Role,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
)

ISSUER: Final = Issuer(provider="openai-responses")

# Items of the user's side that the canonical form has no block for; any other such item is the assistant's.
_USERS: Final = frozenset({"additional_tools", "compaction"})
_KNOWN: Final = frozenset(
    {
        "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction", "compaction_trigger",
        "computer_call", "computer_call_output", "custom_tool_call", "custom_tool_call_output", "file_search_call",
        "function_call", "function_call_output", "image_generation_call", "item_reference", "local_shell_call",
        "local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools",
        "reasoning", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call",
        "additional_tools",
    }
)  # fmt: skip


def is_item(kind: str) -> bool:
    """Whether a type is one of an item's, and of no other shape's message."""
    return kind in _KNOWN


def read_item(fields: Fields, value: Raw) -> tuple[Role, list[Placed]] | None:
    """An item that is no message: whose it is, and its block; ``value`` is the whole of it. None for a message.

    Raises:
        InputError: a field of the wrong type.
    """
    kind = kind_named(fields)
    if kind in ("", "message"):
        return None
    reader = _ITEMS.get(kind)
    if reader is None:
        fields.clear()
        role: Role = "user" if kind in _USERS else "assistant"
        return role, [(Unknown(kind=kind, raw=value), fields.path)]
    # The type has been read, and how far an item had come says nothing of what it holds.
    fields.ignore("type", "status")
    return reader(fields)


def read_message(fields: Fields, notes: Notes) -> list[Placed]:
    """The blocks of a message.

    Raises:
        InputError: a field of the wrong type.
    """
    fields.ignore("type", "status")
    return read_content(fields.take("content"), fields.at("content"), notes, read_part)


def read_part(value: Raw, path: str, notes: Notes) -> list[Placed]:
    """One content part; most are those of the chat shape."""
    kind = kind_named(Fields(value, path, notes))
    if kind == "input_file":
        return read_known(_file, kind, value, path, notes)
    return openai_chat.read_part(value, path, notes)


def _call(fields: Fields) -> tuple[Role, list[Placed]]:
    name = fields.take_text("name")
    arguments = fields.take("arguments")
    call_input, incomplete = read_input(arguments, fields.at("arguments"), fields.notes, encoded=True)
    call = ToolUse(id=_call_id(fields, name), name=name, input=call_input, incomplete=incomplete)
    return "assistant", [(call, fields.path)]


def _custom_call(fields: Fields) -> tuple[Role, list[Placed]]:
    """A custom tool takes free text, which is an object of one member here."""
    name = fields.take_text("name")
    given = Raw(msgspec.json.encode({"input": fields.take_text("input")}))
    return "assistant", [(ToolUse(id=_call_id(fields, name), name=name, input=given), fields.path)]


def _call_id(fields: Fields, name: str) -> str:
    call_id = fields.take_string("call_id")
    if call_id is None:
        call_id = derived_id(name)
        fields.notes.add("call_id_derived", fields.path, call_id)
    return call_id


def _output(fields: Fields) -> tuple[Role, list[Placed]]:
    call_id = fields.take_text("call_id")
    content = result_content(fields.take("output"), fields.at("output"), fields.notes, read_part)
    return "user", [(ToolResult(tool_use_id=call_id, content=content), fields.path)]


def _reasoning(fields: Fields) -> tuple[Role, list[Placed]]:
    """Reasoning: its summary, or where it is not encrypted its text, and the encrypted content as the signature."""
    sealed = fields.take_string("encrypted_content")
    key = "summary" if sealed or _texts(fields, "summary") else "content"
    texts = _texts(fields, key)
    fields.ignore(key)
    if len(texts) > 1:
        fields.notes.add("reasoning_joined", fields.at(key))
    if sealed and not texts:
        return "assistant", [(RedactedThinking(data=sealed, issuer=ISSUER), fields.path)]
    text = "\n\n".join(texts)
    block = Thinking(thinking=text, signature=UNSET if sealed is None else sealed, issuer=ISSUER)
    return "assistant", [(block, fields.path)]


def _texts(fields: Fields, key: str) -> list[str]:
    value = fields.peek(key)
    if value is None or not starts_with(value, b"["):
        return []
    parts = [Fields(item, fields.at(key), fields.notes) for item in as_list(value, fields.at(key))]
    return [text for part in parts if (text := part.take_text("text"))]


def _file(fields: Fields) -> Document | None:
    """A file: its data, where it lies, or the id of an upload."""
    data = openai_chat.url_source(fields.take_string("file_data") or "")
    url = fields.take_string("file_url")
    uploaded = fields.take_string("file_id")
    source: dict[str, str] | None = data
    if source is None and url:
        source = {"type": "url", "url": url}
    if source is None and uploaded:
        source = {"type": "file", "file_id": uploaded}
    if source is None:
        return None
    title = fields.take_string("filename")
    return Document(source=Raw(msgspec.json.encode(source)), title=UNSET if title is None else title)


_ITEMS: Final[dict[str, Callable[[Fields], tuple[Role, list[Placed]]]]] = {
    "function_call": _call,
    "custom_tool_call": _custom_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
}
