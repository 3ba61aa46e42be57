"""pydantic-ai's ModelMessages: requests and responses of parts, each part of a ``part_kind``.

Bytes are in the URL-safe alphabet. Reasoning names its provider, and the response its model. Only the last
``instructions`` of the requests apply; they follow the system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import Framework, Item, Members, Reading, cached, finish, is_list, word
from reknit.pipeline.history.pieces import ANTHROPIC, as_json
from reknit.pipeline.history.readers.fields import Fields, arguments_object, as_list
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Inner, Placed, inner_only
from reknit.pipeline.model import Issuer, Role, Text, ToolResult, Turn, Unknown

_OF_SYSTEM: Final = frozenset({"system-prompt", "instruction", "instruction-baseline"})
# Members of a request that describe the run. The model does not see them.
_BOOKKEEPING: Final = frozenset(
    {
        "instruction-delta", "tool-availability-delta", "capability-load-delta", "model-settings-delta",
        "instruction-baseline", "instruction",
    }
)  # fmt: skip
_OF_ERRORS: Final = frozenset({"failed", "retried"})
_CUT: Final = frozenset({"incomplete", "interrupted"})
_OF_REQUESTS: Final = ("kind", "timestamp", "run_id", "conversation_id", "state")
_OF_RESPONSES: Final = (
    *_OF_REQUESTS, "usage", "model_name", "model_id", "provider_name", "provider_url", "canonical_system",
    "provider_details", "provider_response_id", "finish_reason", "vendor_details", "vendor_id", "workspace_ref",
    "history_digest",
)  # fmt: skip
_OF_PARTS: Final = (
    "part_kind", "timestamp", "dynamic_ref", "context_id", "scope", "id", "provider_name", "provider_details",
    "tool_kind", "retry", "content_file_digests", "outcome",
)  # fmt: skip
_OF_FILES: Final = ("kind", "force_download", "vendor_metadata", "identifier")
_FILES: Final = {
    "image-url": "image", "document-url": "document", "audio-url": "audio", "video-url": "video", "binary": "",
    "uploaded-file": "document",
}  # fmt: skip


def _decides(members: Members) -> bool:
    return word(members, "kind") in ("request", "response") and is_list(members, "parts")


def _fits(members: Members) -> bool:
    return _decides(members)


def _read(reading: Reading, items: Sequence[Item]) -> None:
    instructions: tuple[Fields, Raw, Item] | None = None
    for item in items:
        fields = item.fields
        kind = fields.take_text("kind")
        if kind == "response":
            _read_response(reading, fields, item)
        elif kind == "request":
            given = fields.take("instructions")
            if given is not None:
                instructions = fields, given, item
            _read_request(reading, fields, item)
        else:
            told = f"expected request or response, found {kind[:40]!r}"
            raise InputError("unknown_role", told, path=fields.at("kind"))
    if instructions is not None:
        _add_instructions(reading, *instructions)


def _add_instructions(reading: Reading, fields: Fields, given: Raw, item: Item) -> None:
    path, text = fields.at("instructions"), parts.value_text(given)
    if not reading.whole:
        # The system prompt belongs to the session, and its turns cannot change it.
        reading.notes.add_fix("field_dropped", path, "instructions", before=bytes(given))
        return
    first = next((at for at, turn in enumerate(reading.turns) if turn.role != "system"), len(reading.turns))
    # The indexes of a session's turns never decrease.
    index = reading.turns[first].index if first < len(reading.turns) else item.index
    reading.turns.insert(first, Turn(role="system", blocks=(Text(text=text),), index=index, paths=(path,)))


def _parts(fields: Fields) -> list[Fields]:
    value, path = fields.take("parts"), fields.at("parts")
    listed = [] if value is None else as_list(value, path)
    return [Fields(each, f"{path}.{at}", fields.notes) for at, each in enumerate(listed)]


def _read_request(reading: Reading, fields: Fields, item: Item) -> None:
    groups: list[tuple[Role, bool, list[Placed]]] = []
    for part in _parts(fields):
        kind = part.take_text("part_kind")
        role, synthetic, placed = _request_part(reading, part, kind)
        if not placed:
            continue
        if not groups or groups[-1][:2] != (role, synthetic):
            groups.append((role, synthetic, []))
        groups[-1][2].extend(placed)
    for role, synthetic, placed in groups:
        reading.add(role, placed, item, synthetic=synthetic)
    finish(fields, *_OF_REQUESTS)


def _request_part(reading: Reading, part: Fields, kind: str) -> tuple[Role, bool, list[Placed]]:
    """Return the role, True if the program wrote the part, and its blocks."""
    path = part.at("content")
    if kind in _BOOKKEEPING:
        reading.leave_out(part, kind)
        return "user", False, []
    if kind in _OF_SYSTEM:
        placed: list[Placed] = [(Text(text=parts.value_text(part.take("content"))), path)]
        role: Role = "system"
    elif kind == "user-prompt":
        placed, role = _content(part), "user"
    elif kind == "tool-return" or (kind == "retry-prompt" and "tool_name" in part):
        placed, role = [(_tool_return(reading, part, kind), path)], "user"
    elif kind in ("retry-prompt", "retry-feedback", "compaction"):
        part.ignore("tool_call_id", "tool_name")
        text = parts.value_text(part.take("content"))
        finish(part, *_OF_PARTS)
        return "user", True, [(Text(text=text), path)]
    elif kind == "speech":
        placed, role = [(Text(text=part.take_text("transcript")), part.at("transcript"))], "user"
        part.ignore("speaker")
    else:
        return "user", False, [(parts.native(part, kind), part.path)]
    finish(part, *_OF_PARTS)
    return role, False, placed


def _tool_return(reading: Reading, part: Fields, kind: str) -> ToolResult:
    name, called = part.take_text("tool_name"), part.take_text("tool_call_id")
    outcome = part.take_text("outcome")
    is_error = outcome in _OF_ERRORS or kind == "retry-prompt"
    value, path = part.take("content"), part.at("content")
    called = called or parts.id_made(reading, name)
    if value is not None and starts_with(value, b"[") and b'"kind"' in bytes(value):
        return parts.result(called, _inner(value, path, reading), is_error=is_error)
    if value is not None and starts_with(value, b"{") and b'"kind":"binary"' in bytes(value).replace(b" ", b""):
        return parts.result(called, _inner(Raw(b"[%b]" % bytes(value)), path, reading), is_error=is_error)
    if kind == "retry-prompt" and value is not None and starts_with(value, b"["):
        return parts.result(called, _validation_errors(value), is_error=True)
    return parts.result(called, parts.value_text(value), is_error=is_error, is_value=True)


def _validation_errors(value: Raw) -> str:
    """Return the words with which pydantic-ai reports invalid arguments to the model."""
    count = len(as_list(value, ""))
    listed = msgspec.json.format(bytes(value), indent=2).decode()
    plural = "s" if count != 1 else ""
    return f"{count} validation error{plural}:\n```json\n{listed}\n```\n\nFix the errors and try again."


def _inner(value: Raw, path: str, reading: Reading) -> list[Inner]:
    """Return the content of a result: values of the tool; files become blocks."""
    blocks: list[Inner] = []
    for at, each in enumerate(as_list(value, path)):
        place = f"{path}.{at}"
        if starts_with(each, b"{") and word(Fields(each, place, reading.notes).members(), "kind") in _FILES:
            blocks += inner_only(_file(Fields(each, place, reading.notes)), reading.notes)
        else:
            blocks.append(Text(text=parts.value_text(each)))
    return blocks


def _content(part: Fields) -> list[Placed]:
    """A user's content: a text, or texts, files and cache breakpoints."""
    value, path = part.take("content"), part.at("content")
    if value is None:
        return []
    if not starts_with(value, b"["):
        return [(Text(text=parts.value_text(value)), path)]
    placed: list[Placed] = []
    for at, each in enumerate(as_list(value, path)):
        place = f"{path}.{at}"
        if not starts_with(each, b"{"):
            placed.append((Text(text=parts.value_text(each)), place))
            continue
        fields = Fields(each, place, part.notes)
        kind = word(fields.members(), "kind")
        if kind == "cache-point":
            ttl = fields.take_text("ttl")
            mark = as_json({"type": "ephemeral", **({"ttl": ttl} if ttl else {})})
            if placed:
                block, where = placed[-1]
                placed[-1] = cached(block, mark), where
        elif kind in ("text-content", "structured-content"):
            placed.append((Text(text=parts.value_text(fields.take("content"))), place))
            fields.ignore("value", "metadata")
            finish(fields, *_OF_FILES)
        else:
            placed += _file(fields)
    return placed


def _file(fields: Fields) -> list[Placed]:
    kind = fields.take_text("kind")
    if kind not in _FILES:
        return [(parts.native(fields, kind), fields.path)]
    members = fields.members()
    block = parts.media(
        word(members, "media_type"),
        data=word(members, "data"),
        url=word(members, "url"),
        file_id=word(members, "file_id"),
        kind=_FILES[kind],
    )
    placed = parts.media_or_unknown(block, fields, kind)
    finish(fields, "data", "url", "file_id", "media_type", "provider_name", *_OF_FILES)
    return [placed]


def _read_response(reading: Reading, fields: Fields, item: Item) -> None:
    members = fields.members()
    provider, model = word(members, "provider_name"), word(members, "model_name")
    is_cut = word(members, "state") in _CUT
    placed: list[Placed] = []
    ends_with_text = False
    for part in _parts(fields):
        found = _response_part(reading, part, word(part.members(), "provider_name") or provider, model)
        placed += found
        ends_with_text = bool(found) and isinstance(found[-1][0], Text)
    reading.add("assistant", placed, item, incomplete=is_cut and ends_with_text)
    fields.ignore("failed_attempts", "metadata")
    finish(fields, *_OF_RESPONSES)


def _response_part(reading: Reading, part: Fields, provider: str, model: str) -> list[Placed]:
    kind, path = part.take_text("part_kind"), part.path
    issuer = parts.issuer_of(provider, model)
    details = part.take_object("provider_details")
    signature = details.take_text("thought_signature") if details is not None else ""
    if kind == "text":
        block = Text(text=part.take_text("content"))
        if (citations := part.take("citations")) is not None and starts_with(citations, b"["):
            part.notes.add_fix("citations_dropped", path, before=bytes(citations))
        finish(part, *_OF_PARTS)
        return parts.sealed(block, signature, path, model)
    if kind == "thinking":
        placed = _thinking(part, issuer)
    elif kind == "tool-call":
        name, called = part.take_text("tool_name"), part.take_text("tool_call_id")
        block_of_call = parts.call(reading, called, name, part.take("args"), part.at("args"))
        placed = parts.sealed(block_of_call, signature, path, model)
    elif kind == "file":
        content = part.take_object("content")
        placed = [] if content is None else _file(content)
    elif kind in ("builtin-tool-call", "builtin-tool-return"):
        return [(_native(part, kind, issuer), path)]
    elif kind == "speech":
        placed = [(Text(text=part.take_text("transcript")), path)]
        part.ignore("speaker")
    else:
        part.notes.unknown += [] if kind == "compaction" else [(kind, path)]
        return [(parts.native(part, kind, issuer, is_known=True), path)]
    finish(part, *_OF_PARTS)
    return placed


def _thinking(part: Fields, issuer: Issuer | None) -> list[Placed]:
    text, signature, named = part.take_text("content"), part.take_text("signature"), part.take_text("id")
    return parts.pydantic_ai_reasoning(text, signature, named, issuer, part.path)


def _native(part: Fields, kind: str, issuer: Issuer | None) -> Unknown:
    """Return a call that the provider ran itself, or its result, in the provider's own form if that is known."""
    if issuer is None or issuer.provider != ANTHROPIC:
        return parts.native(part, kind, issuer, is_known=True)
    name, called = part.take_text("tool_name"), part.take_text("tool_call_id")
    if kind == "builtin-tool-call":
        given = part.take("args")
        if given is not None and starts_with(given, b'"'):
            given = arguments_object(msgspec.json.decode(given, type=str))
        own = {"type": "server_tool_use", "id": called, "name": name, "input": given or Raw(b"{}")}
    else:
        content = part.take("content") or Raw(b"[]")
        own = {"type": f"{name}_tool_result", "tool_use_id": called, "content": content}
    part.clear()
    return Unknown(kind=str(own["type"]), raw=as_json(own), issuer=issuer)


FRAMEWORK: Final = Framework(
    name="pydantic-ai",
    title="pydantic-ai",
    forms="ModelMessages",
    tried="pydantic-ai-slim 2.68.0",
    decides=_decides,
    fits=_fits,
    read=_read,
)
