"""Letta's messages, as its API lists them: one row for each part of a message, in the order of their dates.

Rows of one model message share its id. ``tool_call`` repeats the first of ``tool_calls``. A denied
approval is the result of its call, without an error flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import Framework, Item, Members, Reading, finish, is_string, word
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import Role, Text

_IGNORED: Final = ("message_type", "date", "id", "otid", "step_id", "run_id", "name", "sender_id", "seq_id", "is_err",
                   "source", "attachments", "stdout", "stderr")  # fmt: skip
_WORDS: Final[dict[str, Role]] = {
    "system_message": "system",
    "user_message": "user",
    "assistant_message": "assistant",
    "summary_message": "user",
}
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_DENIED: Final = "The tool call was denied."


def _decides(members: Members) -> bool:
    return word(members, "message_type").endswith("_message") and is_string(members, "date")


def _fits(members: Members) -> bool:
    return word(members, "message_type").endswith("_message")


def _read(reading: Reading, items: Sequence[Item]) -> None:
    dates = [word(item.fields.members(), "date") for item in items]
    # Lists may come newest first. Rows of one time stay in their order.
    newest_first = len(dates) > 1 and dates[0] > dates[-1]
    ordered = sorted(reversed(items) if newest_first else items, key=lambda item: word(item.fields.members(), "date"))
    for at, item in enumerate(ordered):
        # A session's turns have increasing indexes.
        _read_row(reading, Item(item.fields, items[0].index + at))


def _read_row(reading: Reading, item: Item) -> None:
    fields = item.fields
    kind, turn_id = fields.take_text("message_type"), word(fields.members(), "id") or None
    if kind in _WORDS:
        key = "summary" if "summary" in fields and "content" not in fields else "content"
        placed = _content(fields, key)
        reading.add(_WORDS[kind], placed, item, turn_id=turn_id, synthetic=kind == "summary_message")
    elif kind == "reasoning_message":
        block = parts.thinking(parts.value_text(fields.take("reasoning")), fields.take_text("signature"), None)
        reading.add("assistant", [(block, fields.at("reasoning"))], item, turn_id=turn_id)
    elif kind == "hidden_reasoning_message":
        data = fields.take_text("hidden_reasoning")
        if data:
            reading.add(
                "assistant", [(parts.redacted(data, None), fields.at("hidden_reasoning"))], item, turn_id=turn_id
            )
        fields.ignore("state")
    elif kind in ("tool_call_message", "approval_request_message"):
        reading.add("assistant", _calls(reading, fields), item, turn_id=turn_id)
    elif kind == "tool_return_message":
        reading.add("user", _returns(reading, fields), item, turn_id=turn_id)
    elif kind == "approval_response_message":
        reading.add("user", _approvals(reading, fields), item, turn_id=turn_id)
    elif kind.endswith("_message"):
        reading.leave_out(fields, kind)
        return
    else:
        told = f"expected the type of a Letta message, found {kind[:40]!r}"
        raise InputError("unknown_role", told, path=fields.at("message_type"))
    finish(fields, *_IGNORED)


def _calls(reading: Reading, fields: Fields) -> list[Placed]:
    first, listed = fields.take("tool_call"), fields.take("tool_calls")
    path = fields.at("tool_calls")
    calls = [] if listed is None else as_list(listed, path) if starts_with(listed, b"[") else [listed]
    if not calls and first is not None:
        calls, path = [first], fields.at("tool_call")
    placed: list[Placed] = []
    for at, each in enumerate(calls):
        one = Fields(each, f"{path}.{at}", fields.notes)
        name, called = one.take_text("name"), one.take_text("tool_call_id")
        placed.append((parts.call(reading, called, name, one.take("arguments"), one.at("arguments")), one.path))
        one.drop_rest()
    return placed


def _returns(reading: Reading, fields: Fields) -> list[Placed]:
    placed: list[Placed] = []
    listed = fields.take("tool_returns")
    rows = [] if listed is None else as_list(listed, fields.at("tool_returns"))
    if "tool_call_id" in fields or not rows:
        placed.append(_return(reading, fields, word(fields.members(), "name")))
        return placed
    for at, each in enumerate(rows):
        one = Fields(each, f"{fields.at('tool_returns')}.{at}", fields.notes)
        placed.append(_return(reading, one, word(one.members(), "name")))
        finish(one, "type", *_IGNORED)
    return placed


def _return(reading: Reading, fields: Fields, name: str) -> Placed:
    called = fields.take_text("tool_call_id") or parts.id_made(reading, name)
    is_error = fields.take_text("status") == "error"
    value, path = fields.take("tool_return"), fields.at("tool_return")
    if value is not None and starts_with(value, b"[") and b'"type"' in bytes(value):
        return parts.result(called, parts.inner_blocks(value, path, fields.notes, _part), is_error=is_error), path
    return parts.result(called, parts.value_text(value), is_error=is_error), path


def _approvals(reading: Reading, fields: Fields) -> list[Placed]:
    """Return the results of denials, and the tool returns among the answers. An approval is not a result."""
    placed: list[Placed] = []
    value, path = fields.take("approvals"), fields.at("approvals")
    fields.ignore("approve", "approval_request_id", "reason")
    for at, each in enumerate([] if value is None else as_list(value, path)):
        one = Fields(each, f"{path}.{at}", fields.notes)
        if kind_named(one) == "tool" or "tool_return" in one:
            placed.append(_return(reading, one, word(one.members(), "name")))
        elif bytes(one.peek("approve") or b"") == b"false":
            reason = one.take_text("reason")
            placed.append((parts.result(one.take_text("tool_call_id"), reason or _DENIED), one.path))
        else:
            one.ignore("tool_call_id", "reason")
        finish(one, "type", "approve", *_IGNORED)
    return placed


def _content(fields: Fields, key: str) -> list[Placed]:
    return parts.content_blocks(fields, key, _part, words=_unwrapped)


def _unwrapped(text: str) -> str:
    """Return a user's words without the envelope that the server adds."""
    if not text.startswith("{"):
        return text
    told = decoded(_OBJECT, text.encode("utf-8", "replace"))
    if told is None or word(told, "type") != "user_message" or not is_string(told, "message"):
        return text
    return word(told, "message")


def _part(fields: Fields) -> list[Placed]:
    kind, path = kind_named(fields), fields.path
    if kind == "text":
        block = Text(text=parts.value_text(fields.take("text")))
        finish(fields, "type", "signature")
        return [(block, path)]
    source = fields.peek("source")
    if kind == "image" and source is not None and starts_with(source, b"{"):
        told = as_object(source, "")
        found = parts.media(
            word(told, "media_type"),
            data=word(told, "data"),
            url=word(told, "url"),
            file_id=word(told, "file_id"),
            kind="image",
        )
        placed = parts.media_or_unknown(found, fields, kind)
        finish(fields, "type", "source")
        return [placed]
    return [(parts.native(fields, kind), path)]


FRAMEWORK: Final = Framework(
    name="letta",
    title="Letta",
    forms="messages of the API",
    tried="types of @letta-ai/letta-client 1.12.1",
    decides=_decides,
    fits=_fits,
    read=_read,
)
