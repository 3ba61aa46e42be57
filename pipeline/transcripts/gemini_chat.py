"""Repair of the Gemini CLI's chats, so that the program resumes from them.

A message is in a line of its own, in the members of the session (``$set``), or in an older document. The last message
of an id counts. Results are with their calls, and repeated in the user's message that follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from reknit.pipeline.policy import Endpoint
from reknit.pipeline.providers.gemini_cli.reader import NEEDS
from reknit.pipeline.targets.limits import MediaLimits, limits_of
from reknit.pipeline.targets.signatures import is_foreign
from reknit.pipeline.transcripts.changes import Changes
from reknit.pipeline.transcripts.content import (
    MISSING,
    drop_unreadable,
    image_fault,
    items_in,
    members_of,
    restore_bytes,
    stub_of,
    text_in,
)
from reknit.pipeline.transcripts.lines import JsonObject, TranscriptLine, TranscriptLines

_ISSUER: Final = Endpoint("", "google")
_SESSION: Final = re.compile(rb'"(sessionId|projectHash|startTime|lastUpdated|kind)"\s*:\s*"([^"\\]*)"')
_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]*)"')


class _Message(Struct):
    """A message of the chat as it is now: its line, its members, and its place."""

    line: TranscriptLine
    members: JsonObject
    place: str


def repair(lines: TranscriptLines, changes: Changes, _name: str, _version: str) -> None:
    """Repair a chat's lines in place, and record each change."""
    restore_bytes(lines, changes)
    _restore_session(lines, changes)
    _restore_rewinds(lines, changes)
    drop_unreadable(lines, changes, NEEDS)
    for message in _messages(lines):
        _repair_content(message, changes)
    _pair(lines, changes)


def _restore_session(lines: TranscriptLines, changes: Changes) -> None:
    """Write the first line again from what it still shows, since the program reads no chat without it."""
    if any("sessionId" in line.members for line in lines):
        return
    for line in lines.unreadable():
        if line.is_document:
            return
        found = {name.decode(): value.decode("utf-8", "replace") for name, value in _SESSION.findall(line.raw)}
        if {"sessionId", "projectHash"} <= found.keys():
            changes.add_change("line_restored", f"lines.{line.number}", "the session's own members")
            line.value = {name: found[name] for name in ("sessionId", "projectHash", *found)}
            line.change()
            return


def _restore_rewinds(lines: TranscriptLines, changes: Changes) -> None:
    """Let a rewind to a message that cannot be read go to the message after it, which it removes as well.

    A rewind to an id that is not in the chat removes everything.
    """
    lost = {found[1].decode("utf-8", "replace"): line for line in lines.unreadable() if (found := _ID.search(line.raw))}
    for line in lines:
        if (broken := lost.get(text_in(line.members.get("$rewindTo")))) is None:
            continue
        after = next((other for other in lines if other.number > broken.number and "id" in other.members), None)
        changes.add_change("parent_relinked", f"lines.{line.number}.$rewindTo", line.members["$rewindTo"])
        if after is None or after.number > line.number:
            lines.drop(line)
        else:
            line.members["$rewindTo"] = after.members["id"]
            line.change()


def _messages(lines: TranscriptLines) -> list[_Message]:
    """Return the messages of the chat as it is now, in order."""
    found: dict[str, _Message] = {}
    for line in lines:
        members, place = line.members, f"lines.{line.number}"
        if "$rewindTo" in members:
            ids = list(found)
            target = text_in(members["$rewindTo"])
            for message_id in ids[ids.index(target) :] if target in found else ids:
                del found[message_id]
        elif "id" in members and "type" in members:
            found[text_in(members["id"])] = _Message(line, members, place)
        else:
            holder = members_of(members.get("$set")) if "$set" in members else members
            if "messages" in holder:
                found.clear()
                at_place = f"{place}.$set.messages" if "$set" in members else f"{place}.messages"
                for at, each in enumerate(items_in(holder["messages"])):
                    if "id" in members_of(each):
                        found[text_in(each["id"])] = _Message(line, each, f"{at_place}.{at}")
    return list(found.values())


def _repair_content(message: _Message, changes: Changes) -> None:
    """Remove signatures of other providers, and replace images beyond the limits."""
    limits = limits_of("gemini", None)
    parts = items_in(message.members.get("content"))
    kept = [_repaired_part(part, limits, f"{message.place}.content.{at}", changes) for at, part in enumerate(parts)]
    if kept != parts:
        message.members["content"] = kept
        message.line.change()


def _repaired_part(part: Any, limits: MediaLimits, place: str, changes: Changes) -> Any:  # noqa: ANN401  any JSON
    members = members_of(part)
    data = members_of(members.get("inlineData"))
    if fault := image_fault(data.get("data"), data.get("mimeType"), limits):
        changes.add_fix("image_stubbed", place, fault)
        return {"text": stub_of(fault)}
    if is_foreign(text_in(members.get("thoughtSignature")), _ISSUER):
        changes.add_fix("reasoning_foreign", place)
        return {name: value for name, value in members.items() if name != "thoughtSignature"}
    return part


# Calls and results.


class _Call(Struct):
    """A call: its message, its index there, its members, and the number of its message."""

    message: _Message
    at: int
    members: JsonObject
    number: int


class _Response(Struct, frozen=True):
    """A result in a user's message, and the place of its part."""

    message: _Message
    at: int
    call_id: str
    said: object


def _pair(lines: TranscriptLines, changes: Changes) -> None:
    """Give each call before the end of the chat one result, and each result its call."""
    messages = _messages(lines)
    for message in messages:
        _keep_own_results(changes, message)
    calls = {
        text_in(call.get("id")): _Call(message, at, call, number)
        for number, message in enumerate(messages)
        for at, call in enumerate(map(members_of, items_in(message.members.get("toolCalls"))))
    }
    answered: dict[str, list[object]] = {}
    dropped: dict[int, tuple[_Message, set[int]]] = {}
    for message in messages:
        for response in _responses(message):
            call_id = _called(response.call_id, calls)
            code = "result_orphan" if call_id not in calls else ""
            if not code and response.said in answered.setdefault(call_id, []):
                code = "result_repeated"
            elif not code and answered[call_id]:
                code = "result_duplicate"
            if code:
                changes.add_fix(code, f"{message.place}.content.{response.at}")
                dropped.setdefault(id(message), (message, set()))[1].add(response.at)
            else:
                answered[call_id].append(response.said)
    for message, places in dropped.values():
        _drop_parts(lines, message, places)
    for call_id, call in calls.items():
        if not answered.get(call_id) and not items_in(call.members.get("result")) and call.number < len(messages) - 1:
            _answer(changes, call, messages[call.number + 1])


def _keep_own_results(changes: Changes, message: _Message) -> None:
    """Remove all results that are with a call but the first."""
    for at, call in enumerate(map(members_of, items_in(message.members.get("toolCalls")))):
        parts, ids, kept = items_in(call.get("result")), list[str](), list[Any]()
        for number, part in enumerate(parts):
            call_id = text_in(members_of(members_of(part).get("functionResponse")).get("id"))
            if "functionResponse" not in members_of(part):
                kept.append(part)
            elif not ids:
                ids.append(call_id)
                kept.append(part)
            else:
                code = "result_repeated" if part in kept else "result_duplicate" if call_id in ids else "result_orphan"
                changes.add_fix(code, f"{message.place}.toolCalls.{at}.result.{number}")
        if kept != parts:
            call["result"] = kept
            message.line.change()


def _responses(message: _Message) -> Iterator[_Response]:
    if message.members.get("type") != "user":
        return
    for at, part in enumerate(items_in(message.members.get("content"))):
        if "functionResponse" in members_of(part):
            response = members_of(part["functionResponse"])
            yield _Response(message, at, text_in(response.get("id")), response.get("response"))


def _called(response_id: str, calls: dict[str, _Call]) -> str:
    """Return the id of the call that a result answers. A result may lack the prefix of its call's id."""
    if response_id in calls:
        return response_id
    longer = [call_id for call_id in calls if response_id and call_id.endswith(f"__{response_id}")]
    return longer[0] if len(longer) == 1 else response_id


def _drop_parts(lines: TranscriptLines, message: _Message, places: set[int]) -> None:
    content = items_in(message.members.get("content"))
    kept = [part for at, part in enumerate(content) if at not in places]
    if kept or message.members is not message.line.members:
        message.members["content"] = kept
        message.line.change()
    else:
        lines.drop(message.line)


def _answer(changes: Changes, call: _Call, follower: _Message) -> None:
    """Add an error result to the call, and to the other results of its message."""
    call_id, name = text_in(call.members.get("id")), text_in(call.members.get("name"))
    changes.add_fix("result_synthesised", f"{call.message.place}.toolCalls.{call.at}", name)
    part = {"functionResponse": {"id": call_id, "name": name, "response": {"error": MISSING}}}
    call.members["result"] = [part]
    call.members["status"] = "error"
    call.message.line.change()
    if any(True for _ in _responses(follower)):
        follower.members["content"] = [
            *items_in(follower.members["content"]),
            msgspec.json.decode(msgspec.json.encode(part)),
        ]
        follower.line.change()
