"""The lines of Claude Code's transcripts: their members, and the types that are no messages."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.cut import Cut, Needs, read_cut, whole_tail
from reknit.pipeline.history.readers.fields import Notes
from reknit.pipeline.history.readers.lines import holds_content, members_of, numbered_lines
from reknit.pipeline.history.readers.rawjson import check_nesting, is_utf8, starts_with
from reknit.pipeline.history.readers.strict import decoded

_SYNTHETIC: Final = "<synthetic>"
# The types of lines that are no messages, from 1.0.0 to 2.1.332: those that the readers of 2.1.50 and 2.1.332 know.
_NO_MESSAGES: Final = frozenset(
    {
        "agent-color",
        "agent-name",
        "agent-setting",
        "ai-title",
        "api-request",
        "api-request-blob",
        "api-request-resumed",
        "api-request-shape",
        "artifact-autoreact-ledger",
        "artifact-comment-monitor",
        "atis-latch",
        "attachment",
        "attribution-snapshot",
        "bridge-session",
        "content-replacement",
        "continued-in",
        "cost-state",
        "custom-title",
        "data-flow-incomplete",
        "data-flow-records",
        "derived-from",
        "dev-mods",
        "ended-by-model",
        "file-history-delta",
        "file-history-snapshot",
        "fork-context-ref",
        "frame-link",
        "history-suppression",
        "host-row",
        "hybrid-organization",
        "isolation-latch",
        "last-prompt",
        "memory-mode",
        "mode",
        "observer-ref",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "relocated",
        "repl-mode",
        "resume-head-vouch",
        "session-owner",
        "speculation-accept",
        "summary",
        "system",
        "tag",
        "tools-used",
        "worktree-state",
    }
)
_MESSAGES: Final = ("user", "assistant")
MARKS: Final = frozenset({"uuid", "sessionId", "leafUuid"})
_UNREADABLE: Final = "unreadable"
_UUID: Final = re.compile(rb'"uuid"\s*:\s*"([^"\\]+)"')
_PARENT: Final = re.compile(rb'"parentUuid"\s*:\s*"([^"\\]+)"')
# The members without which a line, a message or a block that was cut is of no use.
NEEDS: Final = Needs(
    texts=frozenset({"text", "thinking", "content", "prompt"}),
    types={
        "user": frozenset({"message"}),
        "assistant": frozenset({"message"}),
        "attachment": frozenset({"attachment"}),
        "message": frozenset({"content"}),
        "text": frozenset({"text"}),
        "thinking": frozenset({"thinking"}),
        "tool_use": frozenset({"id", "name", "input"}),
        "tool_result": frozenset({"tool_use_id", "content"}),
        "queued_command": frozenset({"prompt"}),
    },
    members={"message": [frozenset({"content"})]},
    opaque=frozenset({"input"}),
)
_NULL: Final = Raw(b"null")
_FALSE: Final = Raw(b"false")


class Content(Struct, frozen=True):
    """The message inside a line; what else the API's response had is about the response."""

    content: Raw = _NULL
    id: str | None = None
    model: str | None = None
    role: Raw = _NULL


class _Segment(Struct, frozen=True, rename="camel"):
    head_uuid: str
    anchor_uuid: str
    tail_uuid: str


class _Preserved(Struct, frozen=True, rename="camel"):
    anchor_uuid: str
    uuids: list[str]


class _Compaction(Struct, frozen=True, rename="camel"):
    """The messages that a compaction kept: all of them (2.1.332), or the first and the last."""

    preserved_messages: _Preserved | None = None
    preserved_segment: _Segment | None = None


class Command(Struct, frozen=True, rename="camel"):
    """A queued prompt that the program gave to the model in the middle of a turn."""

    type: str = ""
    prompt: Raw = _NULL
    command_mode: Raw = _NULL
    is_meta: Raw = _FALSE


class Line(Struct, frozen=True, rename="camel", kw_only=True):
    """The members of a line that decide its place. ``number`` counts all lines of the file from 0.

    ``leaf_uuid`` and ``explicit`` are those of a ``last-prompt``, ``content`` and ``operation`` those of a queue, whose
    lines have no place in the tree. ``is_cut`` marks the last line of a file that was read up to its cut,
    ``ends_in_text`` one whose text was cut.
    """

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    timestamp: str = ""
    is_sidechain: bool = False
    is_api_error_message: bool = False
    is_meta: Raw = _FALSE
    is_synthetic_: Raw = field(default=_FALSE, name="isSynthetic")
    is_compact_summary: Raw = _FALSE
    message: Content | None = None
    attachment: Command | None = None
    operation: Raw = _NULL
    content: Raw = _NULL
    compact_metadata: _Compaction | None = None
    leaf_uuid: Raw = _NULL
    explicit: Raw = _FALSE
    number: int = -1
    is_cut: bool = False
    ends_in_text: bool = False

    @property
    def kind(self) -> str:
        """The type under which the line is counted."""
        return self.type if self.subtype is None else f"{self.type}/{self.subtype}"

    @property
    def is_message(self) -> bool:
        """True if the line holds words of the user or the assistant, or results."""
        return self.command is not None or (self.type in _MESSAGES and self.message is not None)

    @property
    def command(self) -> Command | None:
        """The queued prompt that the line gave to the model, None for another line."""
        found = self.attachment if self.type == "attachment" else None
        return found if found is not None and found.type == "queued_command" else None

    @property
    def is_users(self) -> bool:
        """True for a message in the user's name."""
        return self.is_message and self.type != "assistant"

    @property
    def said(self) -> tuple[Raw, str]:
        """The content of the message or the queued prompt, and its place in the file."""
        if self.command is not None:
            return self.command.prompt, f"lines.{self.number}.attachment.prompt"
        if self.type == "queue-operation":
            return self.content, f"lines.{self.number}.content"
        content = _NULL if self.message is None else self.message.content
        return content, f"lines.{self.number}.message.content"

    @property
    def model(self) -> str | None:
        return None if self.message is None else self.message.model

    @property
    def message_id(self) -> str:
        """The id of the message that the line is a part of; a line that names none is a message of its own."""
        named = None if self.message is None else self.message.id
        return named or self.uuid or f"line-{self.number}"

    @property
    def is_synthetic(self) -> bool:
        """True if the CLI itself speaks here, in the user's name."""
        if self.command is not None:
            return bytes(self.command.command_mode) == b'"task-notification"' or bytes(self.command.is_meta) == b"true"
        return self.type == "user" and b"true" in (bytes(self.is_meta), bytes(self.is_synthetic_))

    @property
    def is_notice(self) -> bool:
        """True if the CLI itself speaks here, in the assistant's name."""
        return self.type == "assistant" and (self.is_api_error_message or self.model == _SYNTHETIC)


_LINE: Final = msgspec.json.Decoder(Line)
_STRING: Final = msgspec.json.Decoder(str)


def decode_lines(text: bytes, skipped: Counter[str], notes: Notes) -> list[Line]:
    """The lines of a file.

    Lines that cannot be read have a fix, and so have those of unknown types that hold content; repetitions of a line
    are only counted.

    Raises:
        InputError: no line can be read, or a line nests too deeply.
    """
    lines: list[Line] = []
    seen: dict[str, bytes] = {}
    for number, raw, is_last in numbered_lines(text):
        check_nesting(raw, f"lines.{number}")
        line, cut, rest = _read_line(raw, is_last=is_last)
        if line is None or rest is not None:
            lines += _left_out(number, raw if rest is None else raw[: -len(rest)], skipped, notes)
        if line is None:
            continue
        written = raw if rest is None else rest
        if cut is not None:
            notes.add_cut_line(number, raw, cut.place)
            written = cut.data
        if line.uuid is not None and seen.setdefault(line.uuid, written) is not written and seen[line.uuid] == written:
            skipped[f"{line.kind}/repeated"] += 1
            continue
        if not line.is_message and not line.is_sidechain and line.type not in _NO_MESSAGES:
            _note_content(line, number, written, notes)
        ends_in_text = cut is not None and cut.in_text
        lines.append(replace(line, number=number, is_cut=cut is not None, ends_in_text=ends_in_text))
    if all(line.type == _UNREADABLE for line in lines):
        raise InputError("no_messages", "expected the lines of a transcript, found no readable line")
    return lines


def _read_line(raw: bytes, *, is_last: bool) -> tuple[Line | None, Cut | None, bytes | None]:
    """Decode a line, whole, or after half of another one, or up to the cut of the last.

    Returns:
        The line; its cut; the bytes of it, if half of another line is before it.
    """
    line = _decode_line(raw)
    if line is not None:
        return line, None, None
    rest = whole_tail(raw, MARKS)
    if rest is not None and (line := _decode_line(rest)) is not None:
        return line, None, rest
    cut = read_cut(raw, NEEDS) if is_last else None
    line = None if cut is None else _decode_cut(cut)
    return line, None if line is None else cut, None


def _left_out(number: int, raw: bytes, skipped: Counter[str], notes: Notes) -> list[Line]:
    """Record a line that cannot be read; return its place in the tree if it is known, so that others are not moved."""
    notes.add_unreadable_line(number, raw)
    uuids, parents = set(_UUID.findall(raw)), set(_PARENT.findall(raw))
    if len(uuids) != 1 or len(parents) != 1:
        skipped[_UNREADABLE] += 1
        return []
    uuid, parent = uuids.pop().decode("utf-8", "replace"), parents.pop().decode("utf-8", "replace")
    return [Line(type=_UNREADABLE, uuid=uuid, parent_uuid=parent, number=number)]


def _note_content(line: Line, number: int, raw: bytes, notes: Notes) -> None:
    if holds_content(members_of(raw) or {}):
        notes.add_skipped_line(number, line.type, raw)


def _decode_line(raw: bytes) -> Line | None:
    """Decode a line; of one that is no message, members of other types than in the versions so far are passed over."""
    line = decoded(_LINE, raw) if is_utf8(raw) else None
    members = members_of(raw) if line is None else None
    kind = None if members is None else _string(members, "type")
    if members is None or kind in _MESSAGES:
        return line
    return Line(
        content=members.get("content", _NULL),
        operation=members.get("operation", _NULL),
        type=kind or "",
        subtype=_string(members, "subtype"),
        uuid=_string(members, "uuid"),
        parent_uuid=_string(members, "parentUuid"),
        timestamp=_string(members, "timestamp") or "",
        is_sidechain=bytes(members.get("isSidechain", b"")) == b"true",
    )


def _decode_cut(cut: Cut) -> Line | None:
    """Decode a line up to its cut; an assistant's has its type after the message, and one of no type is of no use."""
    line = _decode_line(cut.data)
    if line is None or line.type or line.message is None:
        return line if line is not None and line.type else None
    role = bytes(line.message.role).strip(b'"').decode("utf-8", "replace")
    return replace(line, type=role) if role in _MESSAGES else None


def _string(members: dict[str, Raw], name: str) -> str | None:
    value = members.get(name)
    return None if value is None or not starts_with(value, b'"') else decoded(_STRING, value)
