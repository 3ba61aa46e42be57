"""Events of Bedrock AgentCore's memory, and snapshots of Strands: Converse's messages in other frames.

A memory lists its events newest first. With Strands the text of an event is the JSON of a session's message, whose own
role counts, and a text that is too long for an event is stored in a blob with its role.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.history.frameworks.base import (
    NULL,
    Framed,
    Framework,
    Item,
    Members,
    Reading,
    is_list,
    is_object,
    word,
)
from reknit.pipeline.history.readers.fields import as_list, as_object, as_string
from reknit.pipeline.history.readers.rawjson import compact, starts_with
from reknit.pipeline.history.readers.strict import decoded

_ROLES: Final = {"ASSISTANT": "assistant"}
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_PAIR: Final = msgspec.json.Decoder(list[str])
_PAIR_LENGTH: Final = 2


def _frame(members: Members) -> Framed | None:
    if is_list(members, "events"):
        events = [as_object(each, "events") for each in as_list(members["events"], "events") if starts_with(each, b"{")]
        if events and all("eventId" in each and is_list(each, "payload") for each in events):
            return Framed(messages=_of_memory(events))
    if is_object(members, "data") and {"schema_version", "scope"} <= members.keys():
        data = as_object(members["data"], "data")
        if is_list(data, "messages"):
            return Framed(messages=as_list(data["messages"], "data.messages"))
    return None


def _of_memory(events: Sequence[dict[str, Raw]]) -> list[Raw]:
    def place(event: Members) -> tuple[str, str]:
        return bytes(event.get("eventTimestamp", NULL)).decode(), word(event, "eventId")

    ordered = [*events]
    if place(ordered[0]) > place(ordered[-1]):
        ordered.reverse()
    found = [_message(as_object(each, "payload")) for event in ordered for each in as_list(event["payload"], "payload")]
    return [message for message in found if message is not None]


def _message(payload: Members) -> Raw | None:
    """Return the message of a payload; None for a payload without a message, and for an empty text."""
    if is_object(payload, "conversational"):
        inner = as_object(payload["conversational"], "conversational")
        content = as_object(inner["content"], "content") if is_object(inner, "content") else {}
        return _of_text(word(content, "text"), word(inner, "role"))
    blob = payload.get("blob", NULL)
    if starts_with(blob, b'"'):
        blob = Raw(as_string(blob, "blob").encode())
    pair = decoded(_PAIR, blob)
    return None if pair is None or len(pair) != _PAIR_LENGTH else _of_text(pair[0], pair[1])


def _of_text(text: str, role: str) -> Raw | None:
    if not text.strip():
        return None
    told = decoded(_OBJECT, text.encode("utf-8", "replace")) if text.startswith("{") else None
    if told is not None and is_object(told, "message"):
        return Raw(compact(text.encode("utf-8", "replace")))
    return Raw(msgspec.json.encode({"role": _ROLES.get(role.upper(), "user"), "content": [{"text": text}]}))


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        reading.read_as("bedrock-converse", item)


def _fits(members: Members) -> bool:
    return "role" in members or "message" in members


FRAMEWORK: Final = Framework(
    name="agentcore-memory",
    title="Bedrock AgentCore memory and Strands snapshots",
    forms="`ListEvents` of AgentCore, snapshots of Strands",
    tried="types of bedrock-agentcore-sdk ddfab761, strands-agents 1.62.0",
    decides=lambda _: False,
    fits=_fits,
    read=_read,
    frame=_frame,
)
