"""Session files of pi and OpenClaw: entries in a tree. One path through it is the conversation.

The path leads from the last entry to the root. After its last compaction the conversation is the summary, then the
entries from the first one that was kept. The wire form of a message decides the form of its signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_object,
    is_string,
    word,
)
from reknit.pipeline.history.pieces import GEMINI, RESPONSES
from reknit.pipeline.history.readers.fields import Fields, as_list
from reknit.pipeline.history.readers.rawjson import compact, starts_with
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import Issuer, Text

_COMPACTED: Final = (
    "The conversation history before this point was compacted into the following summary:\n\n<summary>\n{}\n</summary>"
)
_BRANCH: Final = (
    "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n{}\n</summary>"
)
_TYPES: Final = frozenset(
    {"session", "message", "model_change", "thinking_level_change", "compaction", "branch_summary", "custom",
     "custom_message", "label", "session_info"}
)  # fmt: skip
_OF_OTHERS: Final = frozenset({"uuid", "parentUuid", "data", "role", "content"})
_RESPONSES_APIS: Final = frozenset({"openai-responses", "azure-openai-responses", "openai-codex-responses"})
_OF_ENTRIES: Final = ("type", "id", "parentId", "timestamp", "details", "fromHook", "tokensBefore",
                      "firstKeptEntryId", "fromId")  # fmt: skip
_OF_MESSAGES: Final = ("role", "timestamp", "api", "provider", "model", "usage", "stopReason", "errorMessage",
                       "responseId", "responseModel", "toolName")  # fmt: skip
_CUT: Final = frozenset({"aborted", "error"})


def _decides(members: Members) -> bool:
    kind = word(members, "type")
    if kind not in _TYPES or not _OF_OTHERS.isdisjoint(
        members.keys() - {"content" if kind == "custom_message" else ""}
    ):
        # A custom entry has data of its own.
        return kind == "custom" and {"customType", "parentId", "id"} <= members.keys()
    if kind == "session":
        return "cwd" in members and is_string(members, "id")
    if "parentId" not in members or not is_string(members, "id"):
        return False
    return kind != "message" or is_object(members, "message")


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in _conversation(reading, items) if reading.whole else items:
        fields = item.fields
        kind, turn_id = word(fields.members(), "type"), word(fields.members(), "id") or None
        if kind == "message":
            message = fields.take_object("message") or Fields(b"{}", fields.at("message"), fields.notes)
            _read_message(reading, message, item, turn_id)
        elif kind == "compaction":
            _add_text(reading, fields, item, _COMPACTED)
        elif kind == "branch_summary":
            _add_text(reading, fields, item, _BRANCH)
        elif kind == "custom_message":
            fields.ignore("customType", "display")
            reading.add("user", _content(reading, fields, None), item, turn_id=turn_id, synthetic=True)
        else:
            reading.skipped[kind] += 1
            fields.clear()
        finish(fields, *_OF_ENTRIES)


def _add_text(reading: Reading, fields: Fields, item: Item, words: str) -> None:
    summary = fields.take_text("summary")
    placed: list[Placed] = [(Text(text=words.format(summary)), fields.at("summary"))] if summary else []
    reading.add("user", placed, item, synthetic=True)


def _conversation(reading: Reading, items: Sequence[Item]) -> list[Item]:
    """Return the entries on the path from the root to the last entry, after the last compaction."""
    by_id = {word(item.fields.members(), "id"): item for item in items if "parentId" in item.fields.members()}
    path: dict[int, Item] = {}
    step = next((item for item in reversed(items) if "parentId" in item.fields.members()), None)
    while step is not None and step.index not in path:
        path[step.index] = step
        step = by_id.get(word(step.fields.members(), "parentId"))
    entries = list(path.values())[::-1]
    last = next((at for at in reversed(range(len(entries))) if _kind(entries[at]) == "compaction"), None)
    if last is not None:
        kept = word(entries[last].fields.members(), "firstKeptEntryId")
        first = next((at for at in range(last) if word(entries[at].fields.members(), "id") == kept), last)
        # The summary comes first, and has the index of the first entry that was kept.
        summary = Item(entries[last].fields, entries[first].index)
        entries = [summary, *entries[first:last], *entries[last + 1 :]]
    used = {id(item.fields) for item in entries}
    for item in items:
        if id(item.fields) not in used:
            reading.leave_out(item.fields, _kind(item)) if _kind(item) == "message" else reading.skipped.update(
                [_kind(item)]
            )
    return entries


def _kind(item: Item) -> str:
    return word(item.fields.members(), "type")


def _read_message(reading: Reading, message: Fields, item: Item, turn_id: str | None) -> None:
    members = message.members()
    role = word(members, "role")
    if role == "assistant":
        _read_answer(reading, message, item, turn_id)
    elif role == "toolResult":
        called = message.take_text("toolCallId").partition("|")[0]
        is_error = message.take_flag("isError")
        value, path = message.take("content"), message.at("content")
        if value is not None and starts_with(value, b"["):
            blocks = parts.inner_blocks(value, path, message.notes, lambda part: _part(reading, part, None))
            block = parts.result(called, blocks, is_error=is_error)
        else:
            block = parts.result(called, parts.value_text(value), is_error=is_error)
        reading.add("user", [(block, path)], item, turn_id=turn_id)
    elif role == "bashExecution":
        _read_command(reading, message, item, turn_id)
    elif role in ("branchSummary", "compactionSummary"):
        message.ignore("fromId", "tokensBefore")
        _add_text(reading, message, item, _BRANCH if role == "branchSummary" else _COMPACTED)
    elif role in ("user", "custom"):
        message.ignore("customType", "display", "details")
        placed = _content(reading, message, None)
        reading.add("user", placed, item, turn_id=turn_id, synthetic=role == "custom")
    else:
        told = f"expected user, assistant or toolResult, found {role[:40]!r}"
        raise InputError("unknown_role", told, path=message.at("role"))
    finish(message, *_OF_MESSAGES)


def _read_command(reading: Reading, message: Fields, item: Item, turn_id: str | None) -> None:
    """Add a command that the person ran, in the words that pi sends to the model."""
    command, output = message.take_text("command"), message.take_text("output")
    excluded = message.take_flag("excludeFromContext")
    if excluded:
        reading.leave_out(message, "bashExecution")
        return
    text = f"Ran `{command}`\n" + (f"```\n{output}\n```" if output else "(no output)")
    code = bytes(message.peek("exitCode") or b"0").decode()
    if message.take_flag("cancelled"):
        text += "\n\n(command cancelled)"
    elif code != "0":
        text += f"\n\nCommand exited with code {code}"
    message.ignore("exitCode", "truncated", "fullOutputPath")
    reading.add("user", [(Text(text=text), message.at("command"))], item, turn_id=turn_id, synthetic=True)


def _read_answer(reading: Reading, message: Fields, item: Item, turn_id: str | None) -> None:
    members = message.members()
    model = word(members, "responseModel") or word(members, "model")
    api = word(members, "api")
    issuer = _issuer(api, word(members, "provider"), model)
    is_cut = word(members, "stopReason") in _CUT
    placed: list[Placed] = []
    for block, path in _content(reading, message, (api, issuer)):
        # An aborted message's arguments were closed by a parser of partial JSON.
        placed.append(
            (replace(block, incomplete=True), path) if is_cut and hasattr(block, "incomplete") else (block, path)
        )
    ends_with_text = bool(placed) and isinstance(placed[-1][0], Text)
    reading.add("assistant", placed, item, turn_id=turn_id, incomplete=is_cut and ends_with_text)


def _issuer(api: str, provider: str, model: str) -> Issuer | None:
    if api.startswith("google-"):
        return parts.issuer_of("google" if api == "google-generative-ai" else provider, model)
    if api in _RESPONSES_APIS:
        return Issuer(provider=RESPONSES, model=model or None)
    return parts.issuer_of(provider, model)


def _content(reading: Reading, fields: Fields, answer: tuple[str, Issuer | None] | None) -> list[Placed]:
    value, path = fields.take("content"), fields.at("content")
    if value is None:
        return []
    if not starts_with(value, b"["):
        return [(Text(text=parts.value_text(value)), path)]
    placed: list[Placed] = []
    for at, each in enumerate(as_list(value, path)):
        if starts_with(each, b"{"):
            placed += _part(reading, Fields(each, f"{path}.{at}", fields.notes), answer)
    return placed


def _part(reading: Reading, fields: Fields, answer: tuple[str, Issuer | None] | None) -> list[Placed]:
    kind, path = kind_named(fields), fields.path
    placed: list[Placed]
    if kind == "text":
        placed = [(Text(text=parts.value_text(fields.take("text"))), path)]
        fields.ignore("textSignature")
    elif kind == "image":
        found = parts.media(fields.take_text("mimeType"), data=fields.take_text("data"), kind="image")
        placed = [parts.media_or_unknown(found, fields, kind)]
    elif kind == "toolCall":
        # The id of Responses' item follows the id of the call.
        called, name = fields.take_text("id").partition("|")[0], fields.take_text("name")
        signature = fields.take_text("thoughtSignature")
        issuer = None if answer is None else answer[1]
        is_geminis = issuer is not None and issuer.provider == GEMINI
        block = parts.call(reading, called, name, fields.take("arguments"), fields.at("arguments"))
        placed = parts.sealed(block, signature if is_geminis else "", path, None if issuer is None else issuer.model)
    elif kind == "thinking":
        placed = _thinking(fields, *(answer or ("", None)))
    else:
        placed = [(parts.native(fields, kind), path)]
        fields.clear()
    finish(fields, "type")
    return placed


def _thinking(fields: Fields, api: str, issuer: Issuer | None) -> list[Placed]:
    text, signature, path = fields.take_text("thinking"), fields.take_text("thinkingSignature"), fields.path
    if fields.take_flag("redacted"):
        return [(parts.redacted(signature, issuer), path)]
    if api in _RESPONSES_APIS and signature.startswith("{"):
        item = Raw(compact(signature.encode("utf-8", "replace")))
        return [(parts.reasoning_item(item, None if issuer is None else issuer.model), path)]
    if api == "openai-completions":
        # The name of the field that held the reasoning, and no signature.
        signature = ""
    return [(parts.thinking(text, signature, issuer), path)]


FRAMEWORK: Final = Framework(
    name="pi-session",
    title="pi and OpenClaw",
    forms="session files (`.jsonl`)",
    tried="@earendil-works/pi-coding-agent 0.74.2",
    decides=_decides,
    fits=_decides,
    read=_read,
    lines=True,
)
