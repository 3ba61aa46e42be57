"""Two columns of blocks: the content of a cell, its fixes, and the origin of its row.

A cell shows every block as text: words unchanged, everything else as its JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.fixes import FIXES, Fix, Severity, severity_of
from reknit.pipeline.healing.table import healed_summary

T = TypeVar("T")
How: TypeAlias = Literal["same", "changed", "moved", "appeared", "vanished"]

# Members of a block that describe its place in a cache, a stream or a list, and are not shown.
_BESIDE_TEXT = frozenset({"type", "text", "cache_control", "annotations", "logprobs"})
# Under which key a call or a result has what it is about, in one provider's words or another's.
_INSIDE = ("function", "functionCall", "functionResponse", "toolUse", "toolResult", "custom")


class Mark(Struct, frozen=True, kw_only=True):
    """A fix at its block. ``new``: no earlier request stood on it."""

    code: str
    severity: Severity
    summary: str
    path: str
    target: str = ""
    detail: str = ""
    before: str = ""
    after: str = ""
    tool_id: str = ""
    new: bool = False


class Cell(Struct, frozen=True, kw_only=True):
    """A block on one side.

    Attributes:
        path: its place on that side.
        role: the role of its message.
        kind: its type, in the words of its side (``text``, ``tool_use``, ``function_call``).
        text: the shown text.
        name: the tool, of a call or a result.
        tool_id: the call's id, of either.
        message: the place of its message; with ``begins`` it is the first shown block of it.
        message_id: the message's id, if it has one.
        note: the other place of the block, if the other side has it elsewhere.
        to: the path on the other side that ``note`` refers to.
        fixes: its repairs.
    """

    path: str
    role: str
    kind: str
    text: str
    name: str = ""
    tool_id: str = ""
    message: str = ""
    message_id: str = ""
    begins: bool = False
    note: str = ""
    to: str = ""
    fixes: Sequence[Mark] = ()


class Row(Struct, frozen=True, kw_only=True):
    """Two cells side by side; ``lines`` are a diff that is shown in place of two long texts."""

    left: Cell | None
    right: Cell | None
    how: How = "same"
    lines: Sequence[str] = ()
    number: int = 0

    @property
    def marks(self) -> list[Mark]:
        return [mark for cell in (self.left, self.right) if cell is not None for mark in cell.fixes]


def mark_of(fix: Fix, *, new: bool = False) -> Mark:
    """A fix as a page shows it, also one whose code a newer build gave."""
    known = FIXES.get(fix.code)
    return Mark(
        code=fix.code,
        severity=severity_of(lossless=fix.lossless, observed=fix.observed),
        summary=healed_summary(fix.code) if known is None else known.summary,
        path=fix.path,
        target=fix.target,
        detail=fix.detail,
        before=fix.before,
        after=fix.after,
        tool_id=fix.id,
        new=new,
    )


def cell_of(raw: bytes, *, path: str, role: str = "", message: str = "", message_id: str = "") -> Cell:
    """The cell of a block that is a JSON value. Nothing that it holds raises."""
    kind, name, tool_id = "text", "", ""
    members = members_of(raw)
    text = words_of(raw)
    if members:
        kind = string_of(members.get("type")) or next((key for key in members if key != "role"), "")
        within = next((key for key in _INSIDE if members_of(members.get(key))), "")
        both = members_of(members.get(within)) | {key: value for key, value in members.items() if key != within}
        name = string_of(both.get("name")) or ""
        tool_id = next((found for key in _IDS if (found := string_of(both.get(key)))), "")
        if (name or tool_id) and text is None:
            text = _said(both)
    return Cell(
        path=path,
        role=role,
        kind=kind,
        text=pretty(raw) if text is None else text,
        name=name,
        tool_id=tool_id,
        message=message,
        message_id=message_id,
    )


# The names of a call's id, the more specific ones first.
_IDS = ("call_id", "tool_use_id", "toolUseId", "tool_call_id", "id")
_ABOVE = frozenset({"type", "name", *_IDS})


def _said(members: dict[str, Raw]) -> str:
    """Return the content of a call or a result besides its type, name and id, which are shown above it."""
    said = {name: value for name, value in members.items() if name not in _ABOVE}
    if len(said) != 1:
        return pretty(msgspec.json.encode(said))
    (only,) = said.values()
    texts = [words_of(item) for item in items_of(only)] or [words_of(only)]
    return pretty(bytes(only)) if len(texts) > 1 or texts[0] is None else texts[0]


def words_of(raw: bytes) -> str | None:
    """The words of a value that is nothing but text, alone or as a block; None for any other."""
    members = members_of(raw)
    if not members:
        return string_of(raw)
    return string_of(members["text"]) if "text" in members and _BESIDE_TEXT.issuperset(members) else None


def members_of(raw: bytes | None) -> dict[str, Raw]:
    """The members of a JSON object; of anything else none."""
    return _decoded(raw, dict[str, Raw]) or {}


def items_of(raw: bytes | None) -> list[Raw]:
    """The elements of a JSON list; of anything else none."""
    return _decoded(raw, list[Raw]) or []


def string_of(raw: bytes | None) -> str | None:
    """A JSON string; None for anything else."""
    return _decoded(raw, str)


def _decoded(raw: bytes | None, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw or b"", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def pretty(raw: bytes) -> str:
    """Return JSON on several lines, with unchanged numbers and texts; other content as text."""
    try:
        return msgspec.json.format(raw, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return plain(raw)


# Longer JSON is shown unchanged: it is too long to be read in any layout.
_LAID_OUT = 64 * 1024


def laid_out(raw: bytes) -> str:
    """Return JSON on as many lines as it needs; content that is not JSON stays unchanged."""
    return pretty(bytes(raw)) if len(raw) <= _LAID_OUT else plain(raw)


def plain(raw: bytes) -> str:
    return bytes(raw).decode("utf-8", "replace")


def texts_of(content: bytes) -> list[str]:
    """Content block by block: texts as they are, others as JSON."""
    try:
        blocks = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return [plain(content)]
    return [_block_text(block) for block in (blocks if isinstance(blocks, list) else [blocks])]


def _block_text(block: object) -> str:
    match block:
        case str():
            return block
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return laid_out(msgspec.json.encode(block))


# Decoded values, by their path and whether elements or members were requested.
_Opened: TypeAlias = dict[tuple[tuple[str, ...], bool], list[Raw] | dict[str, Raw]]


class Document:
    """A JSON object whose values are taken apart once, however many of their elements are asked for."""

    def __init__(self, raw: bytes) -> None:
        self.members = members_of(raw)
        self._lists: dict[str, list[Raw]] = {}
        self._opened: dict[str, _Opened] = {}

    def items(self, name: str) -> list[Raw]:
        """The elements of the list under this name; none where there is no list."""
        if name not in self._lists:
            self._lists[name] = items_of(self.members.get(name))
        return self._lists[name]

    def find(self, path: str) -> tuple[bytes, str]:
        """Return the value at a path such as ``messages.3.content.0``, and the existing part of the path."""
        name, _, rest = path.partition(".")
        number, _, below = rest.partition(".")
        items = self.items(name)
        if number.isdecimal() and int(number) < len(items):
            opened = self._opened.setdefault(f"{name}.{number}", {})
            raw, reached = value_at(items[int(number)], below, opened)
            return raw, ".".join(filter(None, (name, number, reached)))
        return value_at(self.members.get(name, Raw(b"null")), rest)[0], name


def value_at(raw: bytes, path: str, opened: _Opened | None = None) -> tuple[bytes, str]:
    """Return the value at a path inside of a value, and the existing part of the path.

    ``opened`` caches decoded values for the next path.
    """
    opened = {} if opened is None else opened
    reached: tuple[str, ...] = ()
    for step in path.split(".") if path else ():
        place = reached, step.isdecimal()
        if place not in opened:
            opened[place] = items_of(raw) if step.isdecimal() else members_of(raw)
        parts = opened[place]
        below = parts.get(step) if isinstance(parts, dict) else parts[int(step)] if int(step) < len(parts) else None
        if below is None:
            break
        raw = below
        reached += (step,)
    return bytes(raw), ".".join(reached)


# At most this many bytes of binary data are shown.
_HEX_BYTES = 2048


def as_text(data: bytes) -> str:
    """A record's value for people: JSON on several lines, any other text as it is, bytes by their numbers."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        lines = (data[at : at + 16] for at in range(0, min(len(data), _HEX_BYTES), 16))
        shown = [f"{at * 16:08x}  {line.hex(' '):47}  {_printable(line)}" for at, line in enumerate(lines)]
        rest = [f"… {len(data) - _HEX_BYTES:,} more bytes"] if len(data) > _HEX_BYTES else []
        return "\n".join([*shown, *rest])
    return pretty(data) if text.lstrip()[:1] in {"{", "["} else text


def _printable(line: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
