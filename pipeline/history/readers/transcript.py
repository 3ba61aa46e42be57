"""The tree of a Claude Code transcript: which lines there are, how they hang together, which path is the newest."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from pipeline.errors import InputError
from pipeline.history.readers.rawjson import check_nesting

_SYNTHETIC: Final = "<synthetic>"


class Content(Struct, frozen=True):
    """The message inside a line; what else the API's response had is about the response."""

    content: Raw = Raw(b"null")
    id: str | None = None
    model: str | None = None


class _Segment(Struct, frozen=True, rename="camel"):
    head_uuid: str
    anchor_uuid: str
    tail_uuid: str


class _Compaction(Struct, frozen=True, rename="camel"):
    preserved_segment: _Segment | None = None


class Line(Struct, frozen=True, rename="camel", kw_only=True):
    """What of a line decides where it belongs. ``number`` counts all lines of the file from 0."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    timestamp: str = ""
    is_sidechain: bool = False
    is_api_error_message: bool = False
    is_meta: Raw = Raw(b"false")
    is_synthetic_: Raw = field(default=Raw(b"false"), name="isSynthetic")
    message: Content | None = None
    compact_metadata: _Compaction | None = None
    number: int = -1

    @property
    def kind(self) -> str:
        """The type under which the line is counted."""
        return self.type if self.subtype is None else f"{self.type}/{self.subtype}"

    @property
    def is_message(self) -> bool:
        """Whether the line holds words of the user or the assistant, or results."""
        return self.type in ("user", "assistant") and self.message is not None

    @property
    def model(self) -> str | None:
        """The model that wrote the message, as the line says."""
        return None if self.message is None else self.message.model

    @property
    def message_id(self) -> str:
        """The id of the message that the line is a part of; a line that names none is a message of its own."""
        named = None if self.message is None else self.message.id
        return named or self.uuid or f"line-{self.number}"

    @property
    def is_synthetic(self) -> bool:
        """Whether the CLI itself speaks here, in the user's name."""
        return self.type == "user" and b"true" in (bytes(self.is_meta), bytes(self.is_synthetic_))

    @property
    def is_notice(self) -> bool:
        """Whether the CLI itself speaks here, in the assistant's name."""
        return self.type == "assistant" and (self.is_api_error_message or self.model == _SYNTHETIC)


_LINE: Final = msgspec.json.Decoder(Line)


def decode_lines(text: bytes, skipped: Counter[str]) -> list[Line]:
    """The lines of a file. Lines that cannot be read and repetitions of a line are skipped.

    Raises:
        InputError: a line nests too deeply.
    """
    lines: list[Line] = []
    seen: dict[str, bytes] = {}
    for number, raw in enumerate(text.split(b"\n")):
        if not raw.strip():
            continue
        check_nesting(raw, f"lines.{number}")
        try:
            line = _LINE.decode(raw)
        except msgspec.DecodeError:
            # The last line of a session that was killed is often cut.
            skipped["unreadable"] += 1
            continue
        if line.uuid is not None and seen.setdefault(line.uuid, raw) is not raw and seen[line.uuid] == raw:
            skipped[f"{line.kind}/repeated"] += 1
            continue
        lines.append(replace(line, number=number))
    if not lines:
        raise InputError("no_messages", "expected the lines of a transcript, found no readable line")
    return lines


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
        # The nearest message above a line that is none, so that long runs of such lines are walked once.
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
        """The messages from the root to the newest leaf: the latest by its time, then by its place in the file."""
        above = {line.number: self.message_above(line) for line in self.messages}
        inner = {line.number for line in above.values() if line is not None}
        leaves = [line for line in self.messages if line.number not in inner] or self.messages
        step: Line | None = max(leaves, key=lambda line: (line.timestamp, line.number), default=None)
        path: dict[int, Line] = {}
        while step is not None and step.number not in path:
            path[step.number] = step
            step = above[step.number]
        return list(path.values())[::-1]

    def _parent(self, line: Line) -> Line | None:
        uuid = self._parents.get(line.uuid or "", line.parent_uuid)
        if uuid is not None and uuid in self._by_uuid:
            return self._by_uuid[uuid]
        if uuid is None and self._is_linked:
            return None
        return self._before.get(line.number)

    def _relinked(self, lines: list[Line]) -> dict[str, str]:
        """New parents around the messages that a compaction kept: after its anchor, before what followed that."""
        parents: dict[str, str] = {}
        for line in lines:
            kept = line.compact_metadata and line.compact_metadata.preserved_segment
            if not kept or not {kept.head_uuid, kept.anchor_uuid, kept.tail_uuid} <= self._by_uuid.keys():
                continue
            for other in lines:
                if other.uuid is not None and other.parent_uuid == kept.anchor_uuid:
                    parents[other.uuid] = kept.tail_uuid
            parents[kept.head_uuid] = kept.anchor_uuid
        return parents
