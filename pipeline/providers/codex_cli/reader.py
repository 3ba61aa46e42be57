"""Codex's rollouts: the file of lines that Codex keeps of a thread.

Each line has a type and a payload. The model's input is in the ``response_item`` lines, which are items of OpenAI's
Responses shape; nearly all of their texts are repeated in an ``event_msg``, for screens. So items are read, and only
those events that change the model's input: a thread that was rolled back has lost its last turns. ``compacted``
replaces everything before it by a shorter history: its own, or the user's messages so far and a summary.

Messages that Codex wrote in the user's name (``<environment_context>``, ``<turn_aborted>``, a skill's instructions),
and those of other agents, are kept and marked, because they were sent to the model. A fork begins with its parent's
lines, its ``session_meta`` included, so it is read like any other thread. Ordinals do not identify a line: some were
given twice, and only a line that is equal in every byte is a repetition. All other lines are skipped, and counted by
type; those of unknown types that hold content have a fix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.readers.cut import Cut, Needs, read_cut, whole_tail
from reknit.pipeline.history.readers.fields import Notes
from reknit.pipeline.history.readers.lines import holds_content, members_of, numbered_lines
from reknit.pipeline.history.readers.message import read_tolerantly
from reknit.pipeline.history.readers.rawjson import check_nesting, is_utf8, starts_with
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Text, Turn

# The beginnings of Codex's own messages in the user's name, for lines that do not state their author.
_INJECTED: Final = (
    "<environment_context>",
    "<turn_aborted>",
    "<user_instructions>",
    "<user_shell_command>",
    "<subagent_notification>",
    "<skill>",
    "# AGENTS.md instructions",
)
# Items that the model is never sent.
_KEPT_FOR_CODEX: Final = frozenset({"ghost_snapshot"})
# Lines with the message of another agent.
_FROM_AGENT: Final = "inter_agent_communication"
# Codex's private notes with an item.
_NOTE: Final = "internal_chat_message_metadata_passthrough"
_TYPES: Final = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
_LINES_SEEN: Final = 50
MARKS: Final = frozenset({"payload"})
# The types of lines that hold nothing which the model is sent, of 0.44 to 0.171.
_NO_ITEMS: Final = frozenset(
    {
        "session_meta",
        "turn_context",
        "event_msg",
        "world_state",
        "token_usage_record",
        "inter_agent_communication_metadata",
    }
)


# The members without which an item that was cut is of no use. One that replaces others is of none.
NEEDS: Final = Needs(
    texts=frozenset({"text", "output"}),
    types={
        "response_item": frozenset({"payload"}),
        "compacted": frozenset({"payload"}),
        "message": frozenset({"role", "content"}),
        "input_text": frozenset({"text"}),
        "output_text": frozenset({"text"}),
        "summary_text": frozenset({"text"}),
        "reasoning": frozenset({"summary"}),
        "function_call": frozenset({"name", "arguments", "call_id"}),
        "custom_tool_call": frozenset({"name", "input", "call_id"}),
        "function_call_output": frozenset({"call_id", "output"}),
        "custom_tool_call_output": frozenset({"call_id", "output"}),
    },
)


class _Line(Struct, frozen=True):
    type: str
    payload: Raw = Raw(b"null")
    ordinal: int | None = None


class _Payload(Struct, frozen=True):
    """The members of a payload that decide about its line."""

    type: str = ""
    role: str = ""
    model: str | None = None
    num_turns: int = 0
    message: str = ""
    content_: Raw = field(default=Raw(b"null"), name="content")
    replacement_history: list[Raw] | None = None

    @property
    def content(self) -> str:
        """The words of another agent's message; other contents are lists."""
        return decoded(_text, self.content_) or ""


class _Provenance(Struct, frozen=True):
    type: str = ""


class _ContentNote(Struct, frozen=True):
    provenance: _Provenance = _Provenance()


class _ItemNote(Struct, frozen=True):
    content_item_metadata: list[_ContentNote] = []


class _Entry(Struct):
    """A turn that the model is sent, with the type of its line, and the fixes of its reading."""

    turn: Turn
    kind: str
    fixes: list[Fix]


_line: Final = msgspec.json.Decoder(_Line)
_payload: Final = msgspec.json.Decoder(_Payload)
_note: Final = msgspec.json.Decoder(_ItemNote)
_text: Final = msgspec.json.Decoder(str)
_object: Final = msgspec.json.Decoder(dict[str, Raw])


def is_rollout(text: bytes) -> bool:
    """Return True if these are the lines of a rollout, by the first of them that can be read and has a payload."""
    if b'"payload"' not in text:
        return False  # each document is looked at, and a split copies it
    for line in text.split(b"\n", _LINES_SEEN)[:_LINES_SEEN]:
        if b'"payload"' in line and (keys := members_of(line)) is not None:
            return is_rollout_line(keys)
    return False


def is_rollout_line(keys: dict[str, Raw]) -> bool:
    """Return True if these are the keys of a rollout's line."""
    named = bytes(keys.get("type", b"")).strip(b'"').decode("utf-8", "replace")
    return "payload" in keys and named in _TYPES


def read_lines(text: bytes, notes: Notes) -> tuple[list[Turn], str | None, dict[str, int]]:
    """Read a rollout: its turns, the model of the last turn, and the skipped lines by type.

    A line is skipped that holds no item which the model is sent at the end. The place of an item is ``lines.N.payload``
    with N counted from 0.

    Raises:
        InputError: no readable line, an item of no meaning, or nested too deeply.
    """
    thread = _Thread(notes)
    cut: Cut | None = None
    seen: set[bytes] = set()
    for number, raw, is_last in numbered_lines(text):
        check_nesting(raw, f"lines.{number}")
        line, written = _decode_line(raw), raw
        if line is None and (rest := whole_tail(raw, MARKS)) is not None:
            # Half of another line is before it.
            thread.leave_out(number, raw[: -len(rest)])
            line, written = _decode_line(rest), rest
        elif line is None and is_last and (cut := read_cut(raw, NEEDS)) is not None:
            line, written = _decode_line(cut.data), cut.data
        if line is None:
            thread.leave_out(number, raw)
            cut = None
            continue
        if cut is not None:
            notes.add_cut_line(number, raw, cut.place)
        if line.ordinal is not None and written in seen:
            thread.skipped[f"{line.type}/repeated"] += 1
            continue
        seen.add(written)
        thread.take_line(line, number, written)
    if cut is not None and cut.in_text:
        thread.mark_cut()
    if not seen:
        raise InputError("no_messages", "expected the lines of a rollout, found no readable line")
    return thread.turns(), thread.model, dict(thread.skipped)


class _Thread:
    """The model's input, after the lines so far."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._entries: list[_Entry] = []
        self.model: str | None = None
        self.skipped: Counter[str] = Counter()

    def leave_out(self, number: int, raw: bytes) -> None:
        """Count a line that cannot be read, with a fix."""
        self.skipped["unreadable"] += 1
        self._notes.add_unreadable_line(number, raw)

    def take_line(self, line: _Line, number: int, raw: bytes) -> None:
        place = f"lines.{number}.payload"
        payload = decoded(_payload, line.payload)
        if payload is None and line.type in ("response_item", "compacted"):
            self.leave_out(number, raw)
            return
        payload = payload or _Payload()
        kind = f"{line.type}/{payload.type}" if payload.type else line.type
        if line.type == "response_item" and payload.type and payload.type not in _KEPT_FOR_CODEX:
            self._take_item(line.payload, number, place, kind)
            return
        if line.type == "compacted":
            self._compact(payload, place, kind)
            return
        if line.type == _FROM_AGENT and payload.content.strip():
            self._entries.append(self._said(payload.content, place, kind))
            return
        self.skipped[kind] += 1
        if line.type == "turn_context":
            self.model = payload.model or self.model
        elif payload.type == "thread_rolled_back":
            self._roll_back(payload.num_turns)
        elif line.type not in _NO_ITEMS and payload.type not in _KEPT_FOR_CODEX and _holds_content(raw):
            self._notes.add_skipped_line(number, kind, raw)

    def _take_item(self, item: Raw, number: int, place: str, kind: str) -> None:
        try:
            self._entries.append(self._read(item, place, kind))
        except InputError as error:
            self.skipped["unreadable"] += 1
            self._notes.add_unusable_line(number, error)

    def mark_cut(self) -> None:
        """Mark the last answer, whose text ends at the cut."""
        turn = self._entries[-1].turn if self._entries else None
        if turn is not None and turn.role == "assistant" and turn.blocks and isinstance(turn.blocks[-1], Text):
            self._entries[-1].turn = replace(turn, incomplete=True)

    def turns(self) -> list[Turn]:
        turns: list[Turn] = []
        for entry in self._entries:
            self._notes.fixes += entry.fixes
            if entry.turn.blocks:
                turns.append(replace(entry.turn, index=len(turns)))
            else:
                self.skipped[f"{entry.kind}/empty"] += 1
        return turns

    def _read(self, item: Raw, place: str, kind: str) -> _Entry:
        members = _object.decode(item)
        note = members.pop(_NOTE, None)
        notes = self._notes.attempt()
        turn, *_ = read_tolerantly(Raw(msgspec.json.encode(members)), 0, "openai-responses", notes)
        paths = tuple(place + path.removeprefix("input.0") for path in turn.paths or ())
        fixes = [replace(fix, path=place + fix.path.removeprefix("input.0")) for fix in notes.fixes]
        turn = replace(turn, paths=paths)
        return _Entry(replace(turn, synthetic=True) if _is_injected(turn, note) else turn, kind, fixes)

    def _compact(self, payload: _Payload, place: str, kind: str) -> None:
        before = self._entries
        if payload.replacement_history is not None:
            places = [f"{place}.replacement_history.{at}" for at in range(len(payload.replacement_history))]
            items = zip(payload.replacement_history, places, strict=True)
            self._entries = [self._read(item, at, kind) for item, at in items if starts_with(item, b"{")]
            self._skip(before, "compacted")
            return
        self._entries = [*filter(_is_users, before), self._said(payload.message, place, kind)]
        self._skip([entry for entry in before if not _is_users(entry)], "compacted")

    def _said(self, words: str, place: str, kind: str) -> _Entry:
        """A text that Codex gave to the model in the user's name."""
        entry = self._read(Raw(msgspec.json.encode({"type": "message", "role": "user", "content": words})), place, kind)
        entry.turn = replace(entry.turn, synthetic=True)
        return entry

    def _roll_back(self, count: int) -> None:
        """Remove the last N user turns, each with everything that followed it."""
        begins = [at for at, entry in enumerate(self._entries) if _is_users(entry)][-count:] if count > 0 else []
        if begins:
            self._skip(self._entries[begins[0] :], "rolled-back")
            del self._entries[begins[0] :]

    def _skip(self, entries: Sequence[_Entry], reason: str) -> None:
        self.skipped.update(f"{entry.kind}/{reason}" for entry in entries)


def _decode_line(raw: bytes) -> _Line | None:
    return decoded(_line, raw) if is_utf8(raw) else None


def _holds_content(raw: bytes) -> bool:
    return holds_content(members_of(raw) or {})


def _is_users(entry: _Entry) -> bool:
    """Return True if it is a message of the user's own."""
    turn = entry.turn
    return turn.role == "user" and not turn.synthetic and entry.kind.endswith("message")


def _is_injected(turn: Turn, note: Raw | None) -> bool:
    """Return True if Codex wrote a user's message: by what it notes of its parts, or by how it begins."""
    if turn.role != "user" or not any(isinstance(block, Text) for block in turn.blocks):
        return False
    parts = (None if note is None else decoded(_note, note)) or _ItemNote()
    provenances = [part.provenance.type for part in parts.content_item_metadata if part.provenance.type]
    if provenances:
        return "user" not in provenances
    first = turn.blocks[0]
    return isinstance(first, Text) and first.text.lstrip().startswith(_INJECTED)
