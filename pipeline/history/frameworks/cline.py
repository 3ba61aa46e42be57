"""Histories of Cline and Roo Code: Anthropic's messages with members of the programs' own.

Roo keeps the messages that it has condensed or truncated in the file, and does not send them. The provider that Cline
names is the issuer of the reasoning, even if it only forwarded it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_object,
    is_string,
    role_of,
    word,
)
from reknit.pipeline.history.pieces import GEMINI, as_json
from reknit.pipeline.history.readers.canonical import CONTENT
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Block, Issuer, RedactedThinking, Role, Thinking

_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant"}
# Members that only Roo writes, and the members that mark messages which it does not send.
_MARKS: Final = frozenset(
    {"condenseId", "condenseParent", "truncationId", "truncationParent", "isTruncationMarker", "isSummary"}
)
_REASONING: Final = frozenset({"reasoning_content", "reasoning_details"})
_HIDDEN_BY: Final = {"condenseParent": "condenseId", "truncationParent": "truncationId"}
_IGNORED: Final = ("ts", "id", "modelInfo", "metrics", "type", *sorted(_MARKS))
_OF_ITEMS: Final = ("role", "ts", *sorted(_MARKS))


def _decides(members: Members) -> bool:
    if word(members, "role") not in _ROLES:
        return False
    if is_object(members, "modelInfo"):
        return "providerId" in _object(members, "modelInfo")
    if "ts" not in members:
        return False
    is_row = word(members, "type") == "reasoning" and is_string(members, "encrypted_content")
    return is_row or not _MARKS.isdisjoint(members) or not _REASONING.isdisjoint(members)


def _object(members: Members, key: str) -> Members:
    return as_object(members[key], key)


def _fits(members: Members) -> bool:
    return word(members, "role") in _ROLES and "content" in members and "tool_calls" not in members


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in _sent(reading, items) if reading.whole else items:
        fields = item.fields
        if word(fields.members(), "type") == "reasoning" and "encrypted_content" in fields:
            members = {name: value for name, value in fields.members().items() if name not in _OF_ITEMS}
            if bytes(members.get("content", b"")) == b"[]":
                del members["content"]
            reading.add("assistant", [(parts.reasoning_item(as_json(members), None), fields.path)], item)
            fields.clear()
            continue
        info = fields.peek("modelInfo")
        told = _object({"modelInfo": info}, "modelInfo") if info is not None and starts_with(info, b"{") else {}
        issuer = parts.issuer_of(word(told, "providerId"), word(told, "modelId"))
        role = role_of(fields, _ROLES)
        placed: list[Placed] = []
        if (text := fields.take("reasoning_content")) is not None:
            placed.append(
                (Thinking(thinking=parts.value_text(text), issuer=issuer or UNSET), fields.at("reasoning_content"))
            )
        signatures = _signatures(fields) if issuer is not None and issuer.provider == GEMINI else {}
        for block, path in CONTENT.read(fields, "content"):
            placed += parts.sealed(_issued(block, issuer), signatures.get(path, ""), path, word(told, "modelId"))
        reading.add(role, placed, item)
        finish(fields, *_IGNORED)


def _signatures(fields: Fields) -> dict[str, str]:
    """Take the signatures of texts and calls, which are Gemini's, by the places of their blocks."""
    value, path = fields.peek("content"), fields.at("content")
    if value is None or not starts_with(value, b"["):
        return {}
    found: dict[str, str] = {}
    blocks: list[Members | Raw] = []
    for at, each in enumerate(as_list(value, path)):
        members = as_object(each, f"{path}.{at}") if starts_with(each, b"{") else {}
        if word(members, "type") in ("text", "tool_use") and (signature := word(members, "signature")):
            found[f"{path}.{at}"] = signature
            del members["signature"]
        blocks.append(members or each)
    if found:
        fields.put("content", Raw(msgspec.json.encode(blocks)))
    return found


def _issued(block: Block, issuer: Issuer | None) -> Block:
    """Add the issuer to reasoning, and remove an empty signature."""
    if isinstance(block, Thinking) and not block.signature:
        return replace(block, signature=UNSET)
    if isinstance(block, (Thinking, RedactedThinking)) and block.issuer is UNSET and issuer is not None:
        return replace(block, issuer=issuer)
    return block


def _sent(reading: Reading, items: Sequence[Item]) -> list[Item]:
    """Return the messages that Roo sends: from the last summary on, without messages that a summary or mark hides."""
    named = {key: {word(item.fields.members(), key) for item in items} - {""} for key in _HIDDEN_BY.values()}
    last = max((at for at, item in enumerate(items) if _flag(item.fields, "isSummary")), default=0)
    kept: list[Item] = []
    for at, item in enumerate(items):
        members = item.fields.members()
        is_hidden = any(word(members, parent) in named[key] for parent, key in _HIDDEN_BY.items())
        if at < last or is_hidden:
            reading.leave_out(item.fields, "condensed")
        else:
            kept.append(item)
    return kept


def _flag(fields: Fields, key: str) -> bool:
    return bytes(fields.peek(key) or Raw(b"false")) == b"true"


FRAMEWORK: Final = Framework(
    name="cline",
    title="Cline and Roo Code",
    forms="`api_conversation_history.json`",
    tried="types of cline 21cb8d25 and Roo-Code cb836567",
    decides=_decides,
    fits=_fits,
    read=_read,
)
