"""LangChain's messages in their three forms, alone, in a LangGraph state, and in a LangGraph checkpoint.

`messages_to_dict` wraps a message's members in ``data``, `dumpd` in the ``kwargs`` of a constructor, and `model_dump`
writes them next to ``type``. A message often has a call twice, in its content and in ``tool_calls``; the place in the
content counts. The ``tool_calls`` of a chunk are the output of a parser that closes JSON, so that only the text in
``tool_call_chunks`` is the model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    NULL,
    Framed,
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_list,
    is_object,
    word,
)
from reknit.pipeline.history.pieces import ANTHROPIC, CHAT, CONVERSE, GEMINI, RESPONSES, is_native
from reknit.pipeline.history.readers.canonical import PART
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object, as_string
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import RedactedThinking, Role, Text, Thinking, ToolUse, Unknown
from reknit.pipeline.providers.bedrock_converse.reader import part_without_type

_NAMES: Final[dict[str, Role]] = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "user",
    "function": "user",
    "chat": "user",
    "remove": "user",
}
_OF_MESSAGES: Final = frozenset({"additional_kwargs", "response_metadata", "tool_calls", "tool_call_id"})
_CLASS: Final = re.compile(r"(\w+?)Message(?:Chunk)?")
_CLASSES: Final = {"human", "ai", "system", "tool", "function", "chat", "remove", "developer"}
_MODEL_ROLES: Final[dict[str, Role]] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "system": "system",
    "developer": "system",
}
# ``media`` is Google's: a file of any type.
_MEDIA: Final = frozenset({"image", "file", "audio", "video", "text-plain", "media"})
_CALLS: Final = frozenset({"tool_use", "tool_call", "function_call", "tool_call_chunk", "invalid_tool_call"})
# The providers whose own blocks are in messages that name no provider.
_RAW: Final = (ANTHROPIC, CHAT, CONVERSE, GEMINI, RESPONSES)
_GEMINI_SIGNATURES: Final = "__gemini_function_call_thought_signatures__"
_IGNORED: Final = (
    "type", "usage_metadata", "response_metadata", "chunk_position", "example", "name", "status", "index",
)  # fmt: skip
# Members of a content block that place it in a stream or name it.
_OF_BLOCKS: Final = ("index", "id")
_CITATIONS: Final = ("annotations", "citations")
REMOVE_ALL: Final = "__remove_all__"


def _kind(name: str) -> str:
    """Return the kind of a message by its ``type`` or its class, ``""`` for other values."""
    if name in _NAMES:
        return name
    found = _CLASS.fullmatch(name)
    kind = found[1].lower() if found else ""
    return kind if kind in _CLASSES else ""


def _constructor(members: Members) -> str:
    """Return the class that a constructor names, ``""`` for other values."""
    if not (word(members, "type") == "constructor" and "lc" in members and is_list(members, "id")):
        return ""
    names = as_list(members["id"], "id")
    return as_string(names[-1], "id") if names and starts_with(names[-1], b'"') else ""


def _decides(members: Members) -> bool:
    if "lc" in members:
        return bool(_kind(_constructor(members))) and is_object(members, "kwargs")
    if not _kind(word(members, "type")):
        return False
    if is_object(members, "data") and members.keys() <= {"type", "data"}:
        return b'"content"' in bytes(members["data"])
    if "role" in members and word(members, "type") != "chat":
        return False
    return "content" in members and not _OF_MESSAGES.isdisjoint(members)


def _fits(members: Members) -> bool:
    return bool(_kind(word(members, "type"))) and "role" not in members and "content" in members


def _frame(members: Members) -> Framed | None:
    """The messages of a LangGraph state or checkpoint.

    Raises:
        InputError: a state without a list of messages, or one in LangGraph's binary form.
    """
    if is_object(members, "values") and not members.keys().isdisjoint({"next", "tasks"}):
        return _of_state(as_object(members["values"], "values"), "values", members)
    checkpoint = as_object(members["checkpoint"], "checkpoint") if is_object(members, "checkpoint") else members
    if "channel_values" in checkpoint and not checkpoint.keys().isdisjoint({"channel_versions", "versions_seen"}):
        if not is_object(checkpoint, "channel_values"):
            told = "the checkpoint is in LangGraph's binary form; export it by graph.get_state(config)"
            raise InputError("no_messages", told, path="channel_values")
        return _of_state(as_object(checkpoint["channel_values"], "channel_values"), "channel_values", members)
    if "lc" in members and not _decides(members):
        raise InputError("no_messages", "expected LangChain messages, found another object of LangChain")
    return None


def _of_state(values: Members, path: str, document: Members) -> Framed:
    if not is_list(values, "messages"):
        raise InputError("no_messages", f"expected a list of messages in {path}.messages", path=path)
    # Questions to a person: the calls that wait for the answers stay open.
    asked = {name: document[name] for name in ("interrupts",) if name in document}
    return Framed(messages=as_list(values["messages"], f"{path}.messages"), dropped=asked)


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        kind = _kind(_constructor(fields.members())) if "lc" in fields else _kind(word(fields.members(), "type"))
        for name in ("kwargs", "data"):
            if (inner := fields.peek(name)) is not None and starts_with(inner, b"{") and "content" not in fields:
                fields = Fields(inner, fields.at(name), fields.notes)
                break
        if not kind:
            told = f"expected one of {', '.join(_NAMES)}, found {word(fields.members(), 'type')[:40]!r}"
            raise InputError("unknown_role", told, path=fields.at("type"))
        if kind == "remove":
            _remove(reading, fields)
        elif kind in ("tool", "function"):
            _read_result(reading, fields, item)
        else:
            _Message(reading, fields).add(kind, item)


def _remove(reading: Reading, fields: Fields) -> None:
    """Delete the message of an id, or all messages before: an instruction to the reducer of a state."""
    named = fields.take_text("id")
    if named == REMOVE_ALL:
        reading.turns.clear()
    else:
        reading.turns[:] = [turn for turn in reading.turns if not named or turn.id != named]
    reading.leave_out(fields, "remove")


def _read_result(reading: Reading, fields: Fields, item: Item) -> None:
    called, name = fields.take_text("tool_call_id"), fields.take_text("name")
    is_error = word(fields.members(), "status") == "error"
    message = _Message(reading, fields)
    value, path = fields.take("content"), fields.at("content")
    if value is not None and starts_with(value, b"["):
        content = parts.inner_blocks(value, path, reading.notes, message.read_part)
        block = parts.result(called or parts.id_made(reading, name), content, is_error=is_error)
    else:
        block = parts.result(called or parts.id_made(reading, name), parts.value_text(value), is_error=is_error)
    turn_id = fields.take_string("id")
    reading.add("user", [(block, path)], item, turn_id=turn_id)
    _finish(fields)


def _finish(fields: Fields) -> None:
    extra = fields.take_object("additional_kwargs")
    if extra is not None:
        extra.drop_rest()
    for name in ("tool_calls", "invalid_tool_calls", "tool_call_chunks"):
        if bytes(fields.peek(name) or b"[]") == b"[]":
            fields.ignore(name)
    finish(fields, *_IGNORED)


class _Message:
    """One message whose content is a text or a list of texts and blocks."""

    def __init__(self, reading: Reading, fields: Fields) -> None:
        self._reading = reading
        self._fields = fields
        metadata = fields.peek("response_metadata")
        told = as_object(metadata, "") if metadata is not None and starts_with(metadata, b"{") else {}
        self._model = word(told, "model_name") or word(told, "model") or reading.model
        self._issuer = parts.issuer_of(word(told, "model_provider") or reading.provider, self._model)
        extra = fields.take("additional_kwargs")
        self._extra = Fields(
            extra if extra is not None and starts_with(extra, b"{") else b"{}",
            fields.at("additional_kwargs"),
            fields.notes,
        )
        self._signatures = self._extra.take_object(_GEMINI_SIGNATURES)
        # The calls next to the content, by id: broken histories have one id twice.
        self._calls: dict[str, list[list[Placed]]] = {}

    def add(self, kind: str, item: Item) -> None:
        fields = self._fields
        role = _NAMES[kind]
        if kind == "chat":
            role = _MODEL_ROLES.get(fields.take_text("role").lower(), "user")
        # Written by the program, and not typed by the user.
        synthetic = "lc_source" in self._extra
        calls = list(self._called()) if role == "assistant" else []
        for called in calls:
            self._calls.setdefault(next(block.id for block, _ in called if isinstance(block, ToolUse)), []).append(
                called
            )
        placed = self._reasoning() + self._content()
        # Calls that the content does not have follow it.
        placed += [each for groups in self._calls.values() for called in groups for each in called]
        self._extra.ignore("lc_source", "lc_data", "refusal", "parsed")
        self._extra.drop_rest()
        turn_id = fields.take_string("id")
        fields.ignore("tool_calls", "invalid_tool_calls", "tool_call_chunks")
        self._reading.add(role, placed, item, turn_id=turn_id, synthetic=synthetic)
        finish(fields, *_IGNORED)

    def _content(self) -> list[Placed]:
        return parts.content_blocks(self._fields, "content", self.read_part)

    def _called(self) -> Iterator[list[Placed]]:
        """Return the calls next to the content, each after its Google signature."""
        fields = self._fields
        if fields.objects("tool_call_chunks"):
            yield from self._chunks()
            return
        named = False
        for name in ("tool_calls", "invalid_tool_calls"):
            for at, members in enumerate(fields.objects(name)):
                if members is None:
                    continue
                named = True
                each = Fields(b"{}", f"{fields.at(name)}.{at}", fields.notes, members=members)
                call_id, tool = each.take_text("id"), each.take_text("name")
                if name == "tool_calls":
                    block = parts.call(self._reading, call_id, tool, each.take("args"), each.at("args"))
                else:
                    block = parts.cut_call(self._reading, call_id, tool, parts.value_text(each.take("args")))
                yield self._signed(block, each.path)
        extra = self._extra
        if named:
            extra.ignore("tool_calls", "function_call")
            return
        # OpenAI's form, before there were tool_calls of the message.
        for at, members in enumerate(extra.objects("tool_calls")):
            if members is None:
                continue
            each = Fields(b"{}", f"{extra.at('tool_calls')}.{at}", fields.notes, members=members)
            if (function := each.take_object("function")) is not None:
                yield self._signed(self._function(each.take_text("id"), function), each.path)
        extra.ignore("tool_calls")
        if (function := extra.take_object("function_call")) is not None:
            yield self._signed(self._function("", function), function.path)

    def _function(self, call_id: str, function: Fields) -> ToolUse:
        name, arguments = function.take_text("name"), function.take("arguments")
        return parts.call(self._reading, call_id, name, arguments, function.at("arguments"))

    def _chunks(self) -> Iterator[list[Placed]]:
        """Return the calls of a chunk, with the texts of one index joined."""
        path = self._fields.at("tool_call_chunks")
        joined: dict[str, tuple[str, str, str, str]] = {}
        for at, members in enumerate(self._fields.objects("tool_call_chunks")):
            if members is None:
                continue
            key = bytes(members.get("index", NULL)).decode()
            key = key if key != "null" else f"at {at}"
            call_id, name, arguments, place = joined.get(key, ("", "", "", f"{path}.{at}"))
            arguments += parts.value_text(members.get("args"))
            joined[key] = (call_id or word(members, "id"), name or word(members, "name"), arguments, place)
        for call_id, name, arguments, place in joined.values():
            given = Raw(msgspec.json.encode(arguments)) if arguments else None
            yield self._signed(parts.call(self._reading, call_id, name, given, place), place)

    def _signed(self, block: ToolUse, path: str) -> list[Placed]:
        signature = self._signatures.take_string(block.id) if self._signatures is not None else None
        return parts.sealed(block, signature or "", path, self._model)

    def _reasoning(self) -> list[Placed]:
        """Return reasoning that is stored next to the content, as a Responses item or as a text."""
        extra = self._extra
        path = extra.at("reasoning")
        placed: list[Placed] = []
        if (item := extra.peek("reasoning")) is not None and starts_with(item, b"{"):
            extra.ignore("reasoning")
            # Some versions repeat an item of the content here.
            if word(as_object(item, path), "id") not in self._items_in_content():
                placed.append((parts.reasoning_item(item, self._model), path))
        path = extra.at("reasoning_content")
        if (text := extra.peek("reasoning_content")) is not None and starts_with(text, b'"'):
            extra.ignore("reasoning_content")
            placed.append((Thinking(thinking=as_string(text, path), issuer=self._issuer or UNSET), path))
        return placed

    def _items_in_content(self) -> set[str]:
        blocks = [each for each in self._fields.objects("content") if each is not None]
        return {word(each, "id") for each in blocks if word(each, "type") == "reasoning"} - {""}

    def read_part(self, fields: Fields) -> list[Placed]:
        """Read a content block: LangChain's own, or a provider's."""
        kind, path = kind_named(fields), fields.path
        if kind in _CALLS:
            return self._call(fields, kind)
        if kind == "text":
            fields.ignore(*_OF_BLOCKS)
            extras = fields.take_object("extras")
            block = Text(text=fields.take_text("text"))
            for name in _CITATIONS:
                if (cited := fields.take(name)) is not None and len(cited) > len(b"[]") and starts_with(cited, b"["):
                    fields.notes.add_fix("citations_dropped", path, before=bytes(cited))
            finish(fields, "type")
            signature = extras.take_text("signature") if extras is not None else ""
            return parts.sealed(block, signature if self._is(GEMINI) else "", path, self._model)
        if kind in ("reasoning", "thinking", "redacted_thinking", "reasoning_content"):
            return self._thought(fields, kind)
        if kind in _MEDIA and "source" not in fields:
            return self._media(fields, kind)
        if not kind and len(fields.members()) == 1 and (of_converse := part_without_type(fields)) is not None:
            return of_converse
        if kind == "non_standard" and (value := fields.peek("value")) is not None and starts_with(value, b"{"):
            return [self._native(Fields(value, fields.at("value"), fields.notes))]
        placed = PART(fields)
        if any(isinstance(block, Unknown) for block, _ in placed):
            return [self._native(Fields(fields.whole, path, fields.notes))]
        fields.drop_rest()
        return placed

    def _is(self, provider: str) -> bool:
        return self._issuer is not None and self._issuer.provider == provider

    def _native(self, fields: Fields) -> Placed:
        """A block of the provider's own, such as the call of a tool that the provider runs."""
        kind = kind_named(fields)
        if self._issuer is None and not any(is_native(provider, kind) for provider in _RAW):
            fields.notes.unknown.append((kind, fields.path))
        return parts.native(fields, kind, self._issuer, is_raw=True), fields.path

    def _call(self, fields: Fields, kind: str) -> list[Placed]:
        """Return the call at its place in the content, with the values that ``tool_calls`` has for its id."""
        named = fields.take_text("call_id") if kind == "function_call" else fields.take_text("id")
        known = self._calls.get(named)
        if known:
            fields.clear()
            return [(block, fields.path if isinstance(block, ToolUse) else path) for block, path in known.pop(0)]
        name = fields.take_text("name")
        arguments = next((found for key in ("input", "args", "arguments") if (found := fields.take(key))), None)
        if kind == "invalid_tool_call":
            block = parts.cut_call(self._reading, named, name, parts.value_text(arguments))
        else:
            block = parts.call(self._reading, named, name, arguments, fields.path)
        finish(fields, "type", "index", "id", "status", "extras", "caller", "error")
        return self._signed(block, fields.path)

    def _thought(self, fields: Fields, kind: str) -> list[Placed]:
        path, whole = fields.path, Raw(fields.whole)
        if kind == "reasoning" and ("summary" in fields or "encrypted_content" in fields):
            fields.clear()
            return [(parts.reasoning_item(_without(whole, "index"), self._model), path)]
        extras = fields.take_object("extras")
        inner = fields.take_object("reasoning_content") or fields
        text = next((found for name in ("thinking", "reasoning", "text") if (found := inner.take_string(name))), "")
        sealed_data = inner.take_string("data") or inner.take_string("redacted_content")
        signature = inner.take_text("signature") or (extras.take_text("signature") if extras is not None else "")
        block: Thinking | RedactedThinking
        if sealed_data and not text:
            block = parts.redacted(sealed_data, self._issuer)
        else:
            block = parts.thinking(text, signature, self._issuer)
        fields.ignore("type", "index", "id")
        inner.ignore("type", "index")
        inner.drop_rest()
        fields.drop_rest()
        return [(block, path)]

    def _media(self, fields: Fields, kind: str) -> list[Placed]:
        """A block of LangChain's own: ``source_type`` with ``data``, or ``base64``, ``url`` and ``file_id``."""
        source = fields.take_text("source_type")
        text = fields.take_string("text") if source == "text" or kind == "text-plain" else None
        if text is not None:
            fields.clear()
            return [(Text(text=text), fields.path)]
        extras = fields.peek("extras") or fields.peek("metadata")
        told = as_object(extras, "") if extras is not None and starts_with(extras, b"{") else {}
        block = parts.media(
            word(fields.members(), "mime_type"),
            data=word(fields.members(), "base64") or word(fields.members(), "data"),
            url=word(fields.members(), "url") or word(fields.members(), "file_uri"),
            file_id=word(fields.members(), "file_id") or (word(fields.members(), "id") if source == "id" else ""),
            title=word(fields.members(), "filename") or word(told, "filename") or None,
            kind={"file": "document", "media": ""}.get(kind, kind),
        )
        placed = parts.media_or_unknown(block, fields, kind)
        finish(fields, "type", "base64", "data", "url", "file_id", "mime_type", "id", "index", "filename", "metadata",
               "extras", "file_uri")  # fmt: skip
        return [placed]


def _without(value: Raw, name: str) -> Raw:
    members = as_object(value, "")
    return Raw(msgspec.json.encode({key: each for key, each in members.items() if key != name}))


FRAMEWORK: Final = Framework(
    name="langchain",
    title="LangChain and LangGraph",
    forms="messages_to_dict, dumpd, model_dump; a LangGraph StateSnapshot or checkpoint as JSON",
    tried="langchain-core 1.7.2, langgraph 1.2.22",
    decides=_decides,
    fits=_fits,
    read=_read,
    frame=_frame,
)
