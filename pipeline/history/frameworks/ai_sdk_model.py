"""ModelMessages of Vercel's AI SDK, versions 5 to 7, and CoreMessages of version 4.

A message of strings and text parts is a message of OpenAI's Chat Completions API too, with the same result. The key of
a part's provider options names the issuer of a signature; the model is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, Raw

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.ai_sdk import (
    DENIED,
    Reasoning,
    file_part,
    options,
    output_result,
    signature_of_gemini,
    value_result,
)
from reknit.pipeline.history.frameworks.base import (
    NULL,
    Framework,
    Item,
    Members,
    Reading,
    cached,
    finish,
    is_list,
    is_string,
    role_of,
    word,
)
from reknit.pipeline.history.pieces import GEMINI
from reknit.pipeline.history.readers.canonical import PART
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import Role, Text, Unknown

_ROLES: Final[dict[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "user"}
_KINDS: Final = frozenset(
    {"tool-call", "tool-result", "tool-approval-request", "tool-approval-response", "reasoning-file"}
)
# A message of Mastra's first version has the same parts.
_OF_OTHERS: Final = frozenset({"threadId", "parts", "info", "created"})
_TOOL_PARTS: Final = frozenset({"tool-call", "tool-result"})
_IGNORED: Final = ("id", "createdAt")


def _decides(members: Members) -> bool:
    if word(members, "role") not in _ROLES or not is_list(members, "content") or not _OF_OTHERS.isdisjoint(members):
        return False
    return any(_is_own(each) for each in as_list(members["content"], ""))


def _is_own(part: Raw) -> bool:
    if not starts_with(part, b"{"):
        return False
    members = as_object(part, "")
    kind = word(members, "type")
    if kind in _KINDS:
        return kind not in _TOOL_PARTS or "toolCallId" in members
    if "providerOptions" in members and kind:
        return True
    if kind == "reasoning":
        # Reasoning items of Responses have summaries, LangChain's reasoning has its text under another name.
        return members.keys() == {"type", "text"} and is_string(members, "text")
    if kind == "image":
        return "image" in members and "source" not in members
    return kind == "file" and "data" in members and ("mediaType" in members or "mimeType" in members)


def _fits(members: Members) -> bool:
    return word(members, "role") in _ROLES and "content" in members and members.keys() <= {
        "role", "content", "id", "providerOptions", "createdAt",
    }  # fmt: skip


def _read(reading: Reading, items: Sequence[Item]) -> None:
    asked, answered = _approvals(items)
    for item in items:
        fields = item.fields
        role = role_of(fields, _ROLES)
        turn_id = fields.take_string("id")
        given = options(fields)
        value, path = fields.take("content"), fields.at("content")
        if value is None or not starts_with(value, b"["):
            text = parts.value_text(value)
            placed: list[Placed] = [(Text(text=text), path)] if text else []
        else:
            listed = _Parts(reading, asked, answered)
            placed = []
            for at, each in enumerate(as_list(value, path)):
                place = f"{path}.{at}"
                if starts_with(each, b"{"):
                    listed.read(placed, Fields(each, place, fields.notes))
                else:
                    placed.append((Text(text=parts.value_text(each)), place))
        if given and placed:
            placed[-1] = _marked(placed[-1], given)
        reading.add(role, placed, item, turn_id=turn_id)
        finish(fields, *_IGNORED)


def _marked(placed: Placed, given: dict[str, Members]) -> Placed:
    """Add the cache breakpoint that the Anthropic options of a message or part name."""
    block, path = placed
    mark = given.get("anthropic", {}).get("cacheControl")
    if mark is None or not starts_with(mark, b"{") or isinstance(block, Unknown) or block.cache_control is not UNSET:
        return placed
    return cached(block, mark), path


def _approvals(items: Sequence[Item]) -> tuple[dict[str, str], set[str]]:
    """Return the calls that wait for an approval, by the approval's id, and the calls that have a result."""
    asked: dict[str, str] = {}
    answered: set[str] = set()
    for item in items:
        for members in item.fields.objects("content"):
            if members is None:
                continue
            kind = word(members, "type")
            if kind == "tool-approval-request":
                asked[word(members, "approvalId")] = word(members, "toolCallId")
            elif kind == "tool-result":
                answered.add(word(members, "toolCallId"))
    return asked, answered


class _Parts:
    """Reads the parts of one message."""

    def __init__(self, reading: Reading, asked: dict[str, str], answered: set[str]) -> None:
        self._reading = reading
        self._asked = asked
        self._answered = answered
        self._reasoning = Reasoning()
        # The calls of this message that the provider ran itself; their results are in it too.
        self._executed: set[str] = set()

    def read(self, placed: list[Placed], fields: Fields) -> None:
        kind, path = kind_named(fields), fields.path
        if kind in ("file", "image") and "source" not in fields and "file" not in fields:
            placed += file_part(fields)
            return
        match kind:
            case "text":
                given = options(fields)
                text = Text(text=parts.value_text(fields.take("text")))
                found = parts.sealed(text, signature_of_gemini(given), path)
                found[-1] = _marked(found[-1], given)
                placed += found
            case "redacted-reasoning":
                # Version 4.
                given = {"anthropic": {"redactedData": fields.take("data") or NULL}}
                self._reasoning.add(placed, "", given, path)
            case "reasoning":
                # Version 4 has the signature in the part; only Anthropic's reasoning had one.
                given = options(fields)
                if (signature := fields.take("signature")) is not None:
                    given |= {"anthropic": {"signature": signature}}
                self._reasoning.add(placed, parts.value_text(fields.take("text")), given, path)
            case "tool-call":
                placed += self._call(fields)
            case "tool-result":
                is_providers = word(fields.members(), "toolCallId") in self._executed
                placed.append(self._native(fields) if is_providers else self._result(fields))
            case "tool-approval-request":
                fields.clear()
            case "tool-approval-response":
                placed += self._denial(fields)
            case "custom":
                provider = word(fields.members(), "kind").partition(".")[0]
                issuer = parts.issuer_of(provider)
                placed.append((parts.native(fields, kind, issuer, is_known=True), path))
                fields.clear()
            case _:
                placed += PART(fields)
        finish(fields, "type")

    def _call(self, fields: Fields) -> list[Placed]:
        path = fields.path
        if bytes(fields.peek("providerExecuted") or b"") == b"true":
            self._executed.add(word(fields.members(), "toolCallId"))
            return [self._native(fields)]
        name = "args" if "args" in fields and "input" not in fields else "input"
        given = options(fields)
        block = parts.call(
            self._reading,
            fields.take_text("toolCallId"),
            fields.take_text("toolName"),
            fields.take(name),
            fields.at(name),
        )
        fields.ignore("providerExecuted", "dynamic", "invalid", "error", "title")
        return parts.sealed(block, self._signature(given, path), path)

    def _signature(self, given: dict[str, Members], path: str) -> str:
        """Return the signature of a call. It is valid unless the reasoning of its message is another provider's."""
        signature = signature_of_gemini(given)
        if signature and self._reasoning.issuers - {GEMINI}:
            self._reading.notes.add_fix("field_dropped", f"{path}.providerOptions", "thoughtSignature")
            return ""
        return signature

    def _native(self, fields: Fields) -> Placed:
        """A call that the provider ran itself, or its result."""
        given = options(Fields(fields.whole, fields.path, fields.notes))
        issuer = parts.issuer_of(next(iter(given), ""))
        block = parts.native(fields, kind_named(fields), issuer, is_known=True)
        fields.clear()
        return block, fields.path

    def _result(self, fields: Fields) -> Placed:
        called, name = fields.take_text("toolCallId"), fields.take_text("toolName")
        called = called or parts.id_made(self._reading, name)
        options(fields)
        fields.ignore("dynamic", "preliminary", "providerExecuted")
        if "output" in fields:
            block = output_result(called, fields.take("output"), fields.at("output"), fields.notes)
        else:
            # Version 4.
            flag = fields.take_flag("isError")
            fields.ignore("experimental_content")
            block = value_result(called, fields.take("result"), fields.at("result"), fields.notes, is_error=flag)
        return block, fields.path

    def _denial(self, fields: Fields) -> list[Placed]:
        """Return a denial as the result of its call, unless the call has a result."""
        called = self._asked.get(word(fields.members(), "approvalId"), "")
        denied = bytes(fields.peek("approved") or b"") == b"false"
        reason = word(fields.members(), "reason")
        if called and (called in self._answered or not denied):
            fields.clear()
            return []
        if not called:
            self._reading.leave_out(fields, "tool-approval-response")
            return []
        fields.clear()
        return [(parts.result(called, reason or DENIED), fields.path)]


FRAMEWORK: Final = Framework(
    name="ai-sdk-model",
    title="Vercel AI SDK, ModelMessage",
    forms="ModelMessage, CoreMessage",
    tried="ai 5.0.277, 6.0.326, 7.0.173",
    decides=_decides,
    fits=_fits,
    read=_read,
)
