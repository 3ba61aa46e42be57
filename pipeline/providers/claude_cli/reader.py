"""Claude Code's transcripts: lines in a tree. One path through it is the conversation.

Each line names its parent. The conversation is the path to the newest leaf of the main chain, the lines that are not a
sub-agent's. A file that holds only a sub-agent's lines is that agent's own conversation. An assistant message is
written as one line for each block, under one message id, and parallel calls branch: the parent of a later call is the
previous call, and so is that of the previous call's result. So all lines of a message on the path are one turn, at the
place of the first, and the results of its calls follow, on the path or off it.

After a compaction the path begins at the boundary's summary, and messages that the boundary kept are linked in, as in
the CLI's own resume. Lines that the CLI wrote itself in the user's name (``isMeta``, ``isSynthetic``) are kept and
marked: it hides them from the user but sends them to the model. Notices of the CLI (API errors, the model
``<synthetic>``) are not the assistant's words and are skipped, as is every line that is not a message; all skipped
lines are counted by type, and those of unknown types that hold content have a fix. A prompt that the user queued and
that nothing took is a turn of its own. The last line of a program that was killed is read up to its cut.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.canonical import CONTENT
from reknit.pipeline.history.readers.fields import Fields, Notes
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Block, Issuer, RedactedThinking, Role, Text, Thinking, ToolResult, ToolUse, Turn
from reknit.pipeline.providers.claude_cli.lines import Line, decode_lines
from reknit.pipeline.providers.claude_cli.queue import Waiting, waiting_prompts

# At most this many lines are read to detect a transcript, which has one of these keys in a line.
_LINES_SEEN: Final = 50
_TRANSCRIPT_KEYS: Final = frozenset({"uuid", "parentUuid", "sessionId", "leafUuid"})
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_STRING: Final = msgspec.json.Decoder(str)
_BOUNDARY: Final = "system/compact_boundary"
_LAST_PROMPT: Final = "last-prompt"


class Tree:
    """The lines of one chain and the links between them.

    A line without a parent is a root, unless no line has a parent: then each follows the one before it. So does a
    line whose parent is not in the file, as the file holds only a part of the tree.
    """

    def __init__(self, lines: list[Line]) -> None:
        self.messages = [line for line in lines if line.is_message]
        self._by_uuid: dict[str, Line] = {}
        for line in lines:
            if line.uuid is not None:
                self._by_uuid.setdefault(line.uuid, line)
        self._is_linked = any(line.parent_uuid is not None for line in self.messages)
        self._before = dict(zip((line.number for line in self.messages[1:]), self.messages, strict=False))
        self._parents = self._relinked(lines)
        self._last_prompt = _last_prompt(lines)
        last = self._last_prompt
        self._is_emptied = last is not None and bytes(last.explicit) == b"true" and bytes(last.leaf_uuid) == b"null"
        # The nearest message above a line that is not one, so that long runs of such lines are walked once.
        self._known: dict[int, Line | None] = {}

    def message_above(self, line: Line) -> Line | None:
        """The nearest message on the way from a line to its root."""
        passed: list[int] = []
        above = self._parent(line)
        while above is not None and not above.is_message:
            if above.number in self._known:
                above = self._known[above.number]
                break
            # Lines that form a ring have no root.
            self._known[above.number] = None
            passed.append(above.number)
            above = self._parent(above)
        for number in passed:
            self._known[number] = above
        return above

    def newest_path(self) -> list[Line]:
        """The messages from the root to the newest leaf: the latest by its time, then by its place in the file.

        A line that was cut is the last that was written, and has lost its time. Where no message follows a
        ``last-prompt`` that names a leaf, the path ends there: the user went back to it, or to the beginning.
        """
        if self._is_emptied:
            return []
        above = {line.number: self.message_above(line) for line in self.messages}
        inner = {line.number for line in above.values() if line is not None}
        leaves = [line for line in self.messages if line.number not in inner] or self.messages
        step: Line | None = self._checkpoint() or max(
            leaves, key=lambda line: (line.is_cut, line.timestamp, line.number), default=None
        )
        path: dict[int, Line] = {}
        while step is not None and step.number not in path:
            path[step.number] = step
            step = above[step.number]
        return list(path.values())[::-1]

    def _checkpoint(self) -> Line | None:
        """The message at which the last ``last-prompt`` says that the conversation ends."""
        leaf = None if self._last_prompt is None else self._by_uuid.get(_id_in(self._last_prompt.leaf_uuid))
        return leaf if leaf is None or leaf.is_message else self.message_above(leaf)

    def _parent(self, line: Line) -> Line | None:
        uuid = self._parents.get(line.uuid or "", line.parent_uuid)
        if uuid is not None and uuid in self._by_uuid:
            return self._by_uuid[uuid]
        if uuid is None and self._is_linked:
            return None
        return self._before.get(line.number)

    def _relinked(self, lines: list[Line]) -> dict[str, str]:
        """New parents around the messages that the last compaction kept: after its anchor, before what followed that.

        A message after the compaction whose parent was before it, and was not kept, follows what was kept.
        """
        boundary = next((line for line in reversed(lines) if line.kind == _BOUNDARY), None)
        anchor, kept = ("", []) if boundary is None else self._kept(boundary)
        if boundary is None or not kept:
            return {}
        parents = dict(zip(kept, (anchor, *kept), strict=False))
        for line in lines:
            above = self._by_uuid.get(line.parent_uuid or "")
            if line.uuid is None or line.uuid in parents or above is None:
                continue
            is_lost = line.is_message and above.number < boundary.number < line.number and above.uuid not in parents
            if line.parent_uuid == anchor or is_lost:
                parents[line.uuid] = kept[-1]
        return parents

    def _kept(self, boundary: Line) -> tuple[str, list[str]]:
        """The anchor of what a compaction kept, and the ids of that; none where a line of it is missing."""
        made = boundary.compact_metadata
        listed = None if made is None else made.preserved_messages
        segment = None if made is None else made.preserved_segment
        if listed is not None:
            is_whole = {listed.anchor_uuid, *listed.uuids} <= self._by_uuid.keys()
            return (listed.anchor_uuid, listed.uuids) if is_whole else ("", [])
        if segment is None or segment.anchor_uuid not in self._by_uuid:
            return "", []
        walked: dict[str, None] = {}
        step = self._by_uuid.get(segment.tail_uuid)
        while step is not None and step.uuid is not None and step.uuid not in walked:
            walked[step.uuid] = None
            if step.uuid == segment.head_uuid:
                return segment.anchor_uuid, list(walked)[::-1]
            step = self._by_uuid.get(step.parent_uuid or "")
        return "", []


def _last_prompt(lines: list[Line]) -> Line | None:
    """Return the line that says where the conversation ends, if no message follows it."""
    for line in reversed(lines):
        if line.is_message:
            return None
        if line.type == _LAST_PROMPT and (_id_in(line.leaf_uuid) or bytes(line.explicit) == b"true"):
            return line
    return None


def _id_in(value: Raw) -> str:
    return decoded(_STRING, value) or ""


def is_transcript(text: bytes) -> bool:
    """Return True if these are the lines of a Claude Code transcript; it may begin with lines that carry no ids."""
    for line in text.split(b"\n", _LINES_SEEN)[:_LINES_SEEN]:
        try:
            keys = _OBJECT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if is_transcript_line(keys):
            return True
    return False


def is_transcript_line(keys: dict[str, Raw]) -> bool:
    """Return True if these are the keys of a transcript's line: a type, one of the transcript's ids, and no role."""
    return "type" in keys and "role" not in keys and not _TRANSCRIPT_KEYS.isdisjoint(keys)


def read_lines(text: bytes, notes: Notes) -> tuple[list[Turn], str | None, dict[str, int]]:
    """Read a transcript: its turns, the model of the last answer, and the skipped lines by type.

    Every line that is not blank is either counted in the last, or is the place of a block: paths are
    ``lines.N.message.content.I``, with N counted from 0.

    Raises:
        InputError: no readable line, a field of the wrong type, or nested too deeply.
    """
    skipped: Counter[str] = Counter()
    lines = decode_lines(text, skipped, notes)
    chain = main_chain(lines, skipped)
    tree = Tree(chain)
    path = tree.newest_path()
    conversation = _Conversation(tree, path, notes)
    turns = conversation.turns(waiting_prompts(chain))
    for line in chain:
        if line.number in conversation.used:
            continue
        skipped[f"{line.kind}/{conversation.reason(line)}" if line.is_message else line.kind] += 1
    return turns, conversation.model, dict(skipped)


def main_chain(lines: list[Line], skipped: Counter[str] | None = None) -> list[Line]:
    """Return the main chain; in a sub-agent's own file, which has none, the sub-agent's.

    ``skipped`` counts the others by type.
    """
    if not any(line.is_message and not line.is_sidechain for line in lines):
        return lines
    if skipped is not None:
        skipped.update(f"{line.kind}/sidechain" for line in lines if line.is_sidechain)
    return [line for line in lines if not line.is_sidechain]


class _Conversation:
    """The turns of one path, with the lines that belong to them off the path."""

    def __init__(self, tree: Tree, path: list[Line], notes: Notes) -> None:
        self._tree = tree
        self._path = path
        self._notes = notes
        self._read_lines: dict[int, tuple[list[Placed], Notes]] = {}
        self._parts: dict[str, list[Line]] = defaultdict(list)
        self._answers: dict[str, list[Line]] = defaultdict(list)
        self.used: set[int] = set()
        self.model: str | None = None
        for line in tree.messages:
            if line.type == "assistant" and not line.is_notice:
                self._parts[line.message_id].append(line)
                self.model = line.model or self.model

    def turns(self, waiting: Sequence[Waiting]) -> list[Turn]:
        """Return the turns in order: each message once, at its first line, then the results that are off the path.

        A prompt that waits in the queue is before the user's next own message, or at the end.
        """
        self._gather_answers()
        turns: list[Turn] = []
        seen_ids: set[str] = set()
        queue = deque(waiting)
        for line in self._path:
            while queue and queue[0].line.number < line.number and self._is_own(line):
                self._add_waiting(turns, queue.popleft())
            if line.is_users:
                self._add(turns, "user", line.uuid, [line])
            elif not line.is_notice and line.message_id not in seen_ids:
                seen_ids.add(line.message_id)
                self.model = line.model or self.model
                self._add(turns, "assistant", line.message_id, self._parts[line.message_id])
                for answer in self._answers[line.message_id]:
                    self._add(turns, "user", answer.uuid, [answer])
        for prompt in queue:
            self._add_waiting(turns, prompt)
        return turns

    def reason(self, line: Line) -> str:
        if line.is_notice:
            return "notice"
        read = self._read_lines.get(line.number)
        return "empty" if read is not None and not read[0] else "off-path"

    def _is_own(self, line: Line) -> bool:
        """Return True for words of the user's own: no result, no words of the program, no attachment within a turn."""
        written = line.is_synthetic or line.command is not None or bytes(line.is_compact_summary) == b"true"
        return line.is_users and not written and not self._answered_by(line)

    def _add_waiting(self, turns: list[Turn], prompt: Waiting) -> None:
        if prompt.text is None or prompt.is_lost:
            why = "that was taken, and no message has it" if prompt.is_lost else "without its words"
            number = prompt.line.number
            self._notes.add_fix("line_skipped", f"lines.{number}", f"line {number + 1}, a queued prompt {why}")
            return
        count = len(turns)
        self._add(turns, "user", None, [prompt.line])
        if len(turns) > count and prompt.is_notification:
            turns[-1] = replace(turns[-1], synthetic=True)

    def _gather_answers(self) -> None:
        """Find the results off the path that answer calls of the messages on it."""
        on_path = {line.number for line in self._path}
        messages = {line.message_id for line in self._path if line.type == "assistant" and not line.is_notice}
        owner = {part.number: message_id for message_id in messages for part in self._parts[message_id]}
        calls = {message_id: self._calls_of(message_id) for message_id in messages}
        for line in self._tree.messages:
            if not line.is_users or line.number in on_path:
                continue
            above = self._tree.message_above(line)
            message_id = None if above is None else owner.get(above.number)
            if message_id is not None and not calls[message_id].isdisjoint(self._answered_by(line)):
                owner[line.number] = message_id
                self._answers[message_id].append(line)

    def _calls_of(self, message_id: str) -> set[str]:
        parts = self._parts[message_id]
        return {block.id for part in parts for block, _ in self._read(part) if isinstance(block, ToolUse)}

    def _answered_by(self, line: Line) -> set[str]:
        return {block.tool_use_id for block, _ in self._read(line) if isinstance(block, ToolResult)}

    def _add(self, turns: list[Turn], role: Role, turn_id: str | None, lines: list[Line]) -> None:
        """Add the turn of these lines, with the fixes that reading them made; lines without blocks make none."""
        placed = [one for line in lines for one in self._read(line)]
        for line in lines:
            blocks, notes = self._read_lines[line.number]
            self._notes.fixes += notes.fixes
            if blocks:
                self.used.add(line.number)
        if placed:
            paths = tuple(path for _, path in placed)
            blocks_of_turn = tuple(block for block, _ in placed)
            turn = Turn(role=role, blocks=blocks_of_turn, index=len(turns), id=turn_id, paths=paths)
            is_cut = role == "assistant" and lines[-1].ends_in_text and isinstance(blocks_of_turn[-1], Text)
            turns.append(replace(turn, synthetic=lines[0].is_synthetic, incomplete=is_cut))

    def _read(self, line: Line) -> list[Placed]:
        """The blocks of a line, read once; reasoning gets the model that signed it."""
        if line.number not in self._read_lines:
            notes = self._notes.attempt()
            content, place = line.said
            where, _, name = place.rpartition(".")
            message = Fields(content, where, notes, members={name: content})
            try:
                signed = [(_signed(block, line.model), path) for block, path in CONTENT.read(message, name)]
            except InputError as error:
                notes.fixes.clear()
                notes.add_unusable_line(line.number, error)
                signed = []
            self._read_lines[line.number] = (signed, notes)
        return self._read_lines[line.number][0]


def _signed(block: Block, model: str | None) -> Block:
    if model is None or not isinstance(block, (Thinking, RedactedThinking)) or block.issuer is not UNSET:
        return block
    return replace(block, issuer=Issuer(provider="anthropic", model=model))
