"""Repair of Claude Code's transcripts, so that the program resumes from them.

The program follows ``parentUuid`` from the newest leaf, so a line that is missing in the middle costs everything before
it. A call without its result, a result without its call, two results of one call, a signature of another provider and
an image beyond the limits make the API refuse every further request of the session.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.uuids import uuid_of
from reknit.pipeline.model import RedactedThinking, Thinking
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.providers.claude_cli.lines import MARKS, NEEDS, Line
from reknit.pipeline.providers.claude_cli.reader import Tree, main_chain
from reknit.pipeline.targets.limits import MediaLimits, limits_of
from reknit.pipeline.targets.signatures import has_foreign_signature, issuer_of
from reknit.pipeline.transcripts.changes import Changes
from reknit.pipeline.transcripts.content import (
    MISSING,
    drop_unreadable,
    image_fault,
    items_in,
    late_text,
    members_of,
    restore_bytes,
    same_result,
    stub_of,
    text_in,
)
from reknit.pipeline.transcripts.lines import JsonObject, TranscriptLine, TranscriptLines

_UUID: Final = re.compile(rb'"uuid"\s*:\s*"([0-9a-fA-F-]{36})"')
_PARENT: Final = re.compile(rb'"parentUuid"\s*:\s*(?:null|"([0-9a-fA-F-]{36})")')
_SECONDS: Final = re.compile(r":(\d\d)\.(\d\d\d)Z$")
_LINE: Final = msgspec.json.Decoder(Line)
_REASONING: Final = msgspec.json.Decoder(Thinking | RedactedThinking)
# The members of a line that its neighbours share.
_ENVELOPE: Final = (
    "isSidechain",
    "agentId",
    "userType",
    "entrypoint",
    "cwd",
    "sessionId",
    "version",
    "gitBranch",
    "slug",
)
_MESSAGES: Final = ("user", "assistant")


def repair(lines: TranscriptLines, changes: Changes, _name: str, _version: str) -> None:
    """Repair a transcript's lines in place, and record each change."""
    restore_bytes(lines, changes)
    _drop_unreadable(lines, changes)
    if any(fix.code == "line_cut" for fix in changes.fixes):
        _complete(list(lines))
    _link(lines, changes)
    for line in lines:
        _repair_content(lines, line, changes)
    _Pairing(lines, changes).repair()


# Lines and their parents.


def _drop_unreadable(lines: TranscriptLines, changes: Changes) -> None:
    """Remove lines that cannot be read. The children of one that still shows its place get its parent."""
    for line in drop_unreadable(lines, changes, NEEDS, MARKS):
        uuid, parent = _UUID.search(line.raw), _PARENT.search(line.raw)
        if uuid and parent:
            _adopt(lines, uuid[1].decode(), parent[1].decode() if parent[1] else None)


def _complete(lines: list[TranscriptLine]) -> None:
    """Give a last line that was cut the members that the program writes after a message: type, id and time."""
    line, before = lines[-1], [other for other in lines[:-1] if other.members.get("type") in _MESSAGES]
    message = members_of(line.members.get("message"))
    kind = line.members.get("type") or message.get("role")
    if kind not in _MESSAGES or not message or not before:
        return
    near = before[-1].members
    if kind == "assistant":
        # The program adds up the tokens of its messages.
        message.setdefault("stop_reason", None)
        message.setdefault("usage", {"input_tokens": 0, "output_tokens": 0})
    line.members.setdefault("type", kind)
    for name in _ENVELOPE:
        if name in near:
            line.members.setdefault(name, near[name])
    line.members.setdefault("uuid", uuid_of(f"reknit:{near.get('sessionId')}:{near.get('uuid')}:cut"))
    line.members.setdefault("timestamp", _just_after(text_in(near.get("timestamp"))))
    line.change()


def _drop(lines: TranscriptLines, line: TranscriptLine) -> None:
    """Remove a line that has no content left; its children get its parent."""
    lines.drop(line)
    if uuid := text_in(line.members.get("uuid")):
        _adopt(lines, uuid, line.members.get("parentUuid"))


def _adopt(lines: TranscriptLines, uuid: str, parent: str | None) -> None:
    for line in lines:
        if line.members.get("parentUuid") == uuid:
            line.members["parentUuid"] = parent
            line.change()


def _link(lines: TranscriptLines, changes: Changes) -> None:
    """Give each message whose parent is not in the file, or is one of its descendants, the message before it.

    The first message of a file may name a parent that is not in it: the file is a part of a session. Lines of
    sub-agents stay: the program does not resume from them, and their files may name parents of other files.
    """
    parents = {text_in(line.members.get("uuid")): text_in(line.members.get("parentUuid")) for line in lines}
    previous = ""
    for line in lines:
        if line.members.get("type") not in _MESSAGES or line.members.get("isSidechain"):
            continue
        uuid, parent = text_in(line.members.get("uuid")), text_in(line.members.get("parentUuid"))
        if parent and previous and (parent not in parents or _is_ring(uuid, parents)):
            changes.add_change("parent_relinked", f"lines.{line.number}.parentUuid", parent)
            line.members["parentUuid"] = parents[uuid] = previous
            line.change()
        previous = uuid or previous


def _is_ring(uuid: str, parents: dict[str, str]) -> bool:
    """Return True if a line is its own ancestor."""
    step, passed = parents.get(uuid, ""), set[str]()
    while step and step not in passed:
        if step == uuid:
            return True
        passed.add(step)
        step = parents.get(step, "")
    return False


# Content.


def _repair_content(lines: TranscriptLines, line: TranscriptLine, changes: Changes) -> None:
    """Remove reasoning with a foreign signature, and replace images beyond the limits."""
    message = members_of(line.members.get("message"))
    content = message.get("content")
    if line.members.get("type") not in _MESSAGES or not isinstance(content, list):
        return
    limits = limits_of("anthropic", text_in(message.get("model")))
    place = f"lines.{line.number}.message.content"
    kept: list[Any] = []
    for at, block in enumerate(content):
        if _is_foreign(block, text_in(message.get("model"))):
            changes.add_fix("reasoning_foreign", f"{place}.{at}", before=msgspec.json.encode(block))
        elif _is_cut_call(block):
            changes.add_fix("call_incomplete", f"{place}.{at}", text_in(members_of(block).get("input")))
        else:
            kept.append(_within_limits(block, limits, f"{place}.{at}", changes))
    if kept != content:
        _write(lines, line, kept)


def _is_foreign(block: object, model: str) -> bool:
    if members_of(block).get("type") not in ("thinking", "redacted_thinking"):
        return False
    found = decoded(_REASONING, Raw(msgspec.json.encode(block)))
    return found is not None and has_foreign_signature(found, Endpoint("", issuer_of(model) or "anthropic"))


def _is_cut_call(block: object) -> bool:
    """Return True if a line ended inside the input of a call, which is the text so far."""
    return members_of(block).get("type") == "tool_use" and isinstance(members_of(block).get("input"), str)


def _within_limits(block: Any, limits: MediaLimits, place: str, changes: Changes) -> Any:  # noqa: ANN401  any JSON
    """Return a block, or its equal without images beyond the limits."""
    members = members_of(block)
    if members.get("type") == "tool_result":
        content = members.get("content")
        parts = [
            _within_limits(part, limits, f"{place}.content.{at}", changes) for at, part in enumerate(items_in(content))
        ]
        return block if parts == items_in(content) else {**members, "content": parts}
    source = members_of(members.get("source")) if members.get("type") == "image" else {}
    if fault := image_fault(source.get("data"), source.get("media_type"), limits):
        changes.add_fix("image_stubbed", place, fault)
        return {"type": "text", "text": stub_of(fault)}
    return block


def _write(lines: TranscriptLines, line: TranscriptLine, content: list[Any]) -> None:
    if content:
        members_of(line.members["message"])["content"] = content
        line.change()
    else:
        _drop(lines, line)


# Calls and results.


class _Result(Struct, frozen=True):
    """A result: its line, its place in the content, and the number of assistant messages before it on the path."""

    line: TranscriptLine
    at: int
    answers: int

    @property
    def block(self) -> JsonObject:
        return members_of(members_of(self.line.members["message"])["content"][self.at])

    @property
    def place(self) -> str:
        return f"lines.{self.line.number}.message.content.{self.at}"


class _Call(Struct):
    """A call: its line, its place, the last line of its message on the path, and its results in order."""

    id: str
    name: str
    line: TranscriptLine
    at: int
    tail: TranscriptLine
    results: list[_Result] = []


class _Pairing:
    """Gives each call before the end of the conversation one result, and each result its call."""

    def __init__(self, lines: TranscriptLines, changes: Changes) -> None:
        self._lines = lines
        self._changes = changes
        self._calls: dict[str, _Call] = {}
        self._orphans: list[_Result] = []
        # New blocks in place of one, by line and place.
        self._edits: dict[TranscriptLine, dict[int, list[JsonObject]]] = defaultdict(dict)

    def repair(self) -> None:
        slots = list(self._lines)
        read = [decoded(_LINE, line.raw) for line in slots]
        chain = main_chain([structs.replace(line, number=at) for at, line in enumerate(read) if line is not None])
        tree = Tree(chain)
        path = tree.newest_path()
        self._collect(tree, path, slots)
        for call in self._calls.values():
            self._settle(call)
        for orphan in self._orphans:
            self._changes.add_fix("result_orphan", orphan.place, before=msgspec.json.encode(orphan.block))
            self._edits[orphan.line][orphan.at] = []
        on_path = [slots[line.number] for line in path]
        for call in self._calls.values():
            if not call.results and call.tail is not on_path[-1]:
                self._answer(call, on_path)
        for line, edits in self._edits.items():
            content = members_of(line.members["message"])["content"]
            _write(self._lines, line, [new for at, block in enumerate(content) for new in edits.get(at, [block])])

    def _collect(self, tree: Tree, path: list[Line], slots: list[TranscriptLine]) -> None:
        """Find the calls of the messages on the path, and the results on it and next to it."""
        on_path = {line.number for line in path}
        tails = {line.message_id: line for line in path if line.type == "assistant" and not line.is_notice}
        owner: dict[int, str] = {}
        for line in tree.messages:
            if line.type == "assistant" and line.message_id in tails:
                owner[line.number] = line.message_id
                self._add_calls(slots[line.number], slots[tails[line.message_id].number])
        answers: dict[str, int] = {}
        for line in path:
            if line.type == "assistant":
                answers.setdefault(line.message_id, len(answers) + 1)
        for line in tree.messages:
            above = None if line.type != "user" or line.number in on_path else tree.message_above(line)
            if above is not None and above.number in owner:
                self._add_results(slots[line.number], answers[owner[above.number]], is_on_path=False)
                owner[line.number] = owner[above.number]
        count = 0
        for line in path:
            if line.type == "user":
                self._add_results(slots[line.number], count, is_on_path=True)
            elif line.type == "assistant":
                count = answers[line.message_id]

    def _add_calls(self, line: TranscriptLine, tail: TranscriptLine) -> None:
        for at, block in enumerate(_blocks(line)):
            call_id = text_in(block.get("id")) if block.get("type") == "tool_use" else ""
            if call_id:
                self._calls[call_id] = _Call(call_id, text_in(block.get("name")), line, at, tail)

    def _add_results(self, line: TranscriptLine, answers: int, *, is_on_path: bool) -> None:
        for at, block in enumerate(_blocks(line)):
            if block.get("type") != "tool_result":
                continue
            call = self._calls.get(text_in(block.get("tool_use_id")))
            if call is not None:
                call.results.append(_Result(line, at, answers))
            elif is_on_path:
                self._orphans.append(_Result(line, at, answers))

    def _settle(self, call: _Call) -> None:
        """Keep one result of a call, by the rule for late results (DESIGN, section 4)."""
        if not call.results:
            return
        first, *others = call.results
        shown = [first.block]
        for other in others:
            if any(same_result(other.block, earlier) for earlier in shown):
                self._changes.add_fix("result_repeated", other.place, before=msgspec.json.encode(other.block))
                self._edits[other.line][other.at] = []
                continue
            shown.append(other.block)
            if other.answers == first.answers:
                self._changes.add_fix("result_replaced", first.place, before=msgspec.json.encode(first.block))
                self._edits[first.line][first.at] = [other.block]
                self._edits[other.line][other.at] = []
            else:
                self._changes.add_fix("result_late_turn", other.place)
                self._edits[other.line][other.at] = late_text(other.block, call.name, call.id)

    def _answer(self, call: _Call, path: list[TranscriptLine]) -> None:
        """Insert an error result for a call without one, after the call's message."""
        place = f"lines.{call.line.number}.message.content.{call.at}"
        self._changes.add_fix("result_synthesised", place, call.name)
        tail = call.tail.members
        uuid = uuid_of(f"reknit:{tail.get('sessionId')}:{call.id}")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": MISSING, "is_error": True}
        value: JsonObject = {"parentUuid": tail.get("uuid")}
        value |= {name: tail[name] for name in _ENVELOPE if name in tail}
        value |= {"type": "user", "message": {"role": "user", "content": [result]}, "uuid": uuid}
        value |= {"timestamp": tail.get("timestamp"), "toolUseResult": f"Error: {MISSING}"}
        self._link_below(path, call.tail, uuid)
        inserted = self._lines.insert_after(call.tail, value)
        # A second result of the same message follows this one.
        for other in self._calls.values():
            if other.tail is call.tail and other is not call:
                other.tail = inserted
        path.insert(path.index(call.tail) + 1, inserted)

    def _link_below(self, path: list[TranscriptLine], tail: TranscriptLine, uuid: str) -> None:
        """Make the line that follows the tail on the path a child of ``uuid``; lines between may be no messages."""
        by_uuid = {text_in(line.members.get("uuid")): line for line in self._lines}
        step: TranscriptLine | None = path[path.index(tail) + 1]
        passed: set[int] = set()
        while step is not None and id(step) not in passed:
            passed.add(id(step))
            if step.members.get("parentUuid") == tail.members.get("uuid"):
                step.members["parentUuid"] = uuid
                step.change()
                return
            step = by_uuid.get(text_in(step.members.get("parentUuid")))


def _just_after(stamp: str) -> str:
    """Return the next millisecond within the minute: the program resumes from the newest line (2.0.37)."""
    found = _SECONDS.search(stamp)
    count = 0 if found is None else int(found[1] + found[2]) + 1
    if found is None or count == 60_000:
        return stamp
    return f"{stamp[: found.start()]}:{count // 1000:02d}.{count % 1000:03d}Z"


def _blocks(line: TranscriptLine) -> Iterator[JsonObject]:
    return (members_of(block) for block in items_in(members_of(line.members.get("message")).get("content")))
