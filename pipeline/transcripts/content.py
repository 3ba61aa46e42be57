"""Repairs of content that all programs share: reasoning with a foreign signature, and images beyond a limit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec
from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.late import LATE_ERROR, LATE_RESULT
from reknit.pipeline.history.placeholders import INTERRUPTED
from reknit.pipeline.history.readers.cut import Needs, read_cut, whole_tail
from reknit.pipeline.targets.limits import MediaLimits
from reknit.pipeline.targets.media import Base64Source, inspect
from reknit.pipeline.transcripts.changes import Changes
from reknit.pipeline.transcripts.lines import JsonObject, TranscriptLine, TranscriptLines

# The content of a result that is missing.
MISSING: Final = INTERRUPTED


def image_fault(data: object, media_type: object, limits: MediaLimits) -> str:
    """Return why a provider refuses an inline image for its size, or "".

    Args:
        data: the base64 text.
        media_type: as declared.
        limits: of the provider and the model.
    """
    if not isinstance(data, str) or not isinstance(media_type, str):
        return ""
    facts = inspect(Raw(msgspec.json.encode(Base64Source(data=data, media_type=media_type))))
    if facts is None or facts.unreadable or facts.headless or facts.cut:
        return ""
    return facts.fault(lambda _type: True, limits)


def stub_of(fault: str) -> str:
    """Return the text in place of an image, as in requests."""
    return f"[Image left out: {fault}]"


def restore_bytes(lines: TranscriptLines, changes: Changes) -> None:
    """Write lines again that have bytes which are not UTF-8: as text, with U+FFFD for these bytes."""
    for line in lines:
        if not line.is_utf8:
            changes.add_change("line_restored", f"lines.{line.number}", "bytes that are not UTF-8 became U+FFFD")
            line.change()


def drop_unreadable(
    lines: TranscriptLines,
    changes: Changes,
    needs: Needs,
    marks: frozenset[str] = frozenset(),
    members: Collection[str] = (),
) -> list[TranscriptLine]:
    """Remove lines that cannot be read, and return them.

    A last line that was cut is written up to the cut. Half a line goes where a whole one was written directly after it.

    Args:
        lines: of the file.
        changes: get the fixes.
        needs: the use of the program's shape for a cut line.
        marks: a whole line has one of these members.
        members: without all of these the program does not read a line.

    Raises:
        InputError: ``unreadable``: the file is one document that cannot be read, and was not cut.
    """
    dropped = []
    unreadable = lines.unreadable()
    for line in unreadable:
        cut = read_cut(line.raw, needs) if lines.is_last(line) else None
        if cut is not None and lines.restore(line, cut.data, members):
            changes.add_fix("line_cut", f"lines.{line.number}", f"line {line.number + 1}, {len(line.raw)} bytes")
            continue
        if line.is_document:
            raise InputError("unreadable", "the file is one JSON document, and is damaged in the middle")
        rest = whole_tail(line.raw, marks)
        if rest is not None and lines.restore(line, rest):
            changes.add_unreadable_line(line.number, line.raw[: -len(rest)])
            continue
        changes.add_unreadable_line(line.number, line.raw)
        lines.drop(line)
        dropped.append(line)
    if unreadable:
        lines.end_last()
    return dropped


def late_line(name: str, call_id: str, *, is_error: bool = False) -> str:
    """Return the line that names the call of a late result, as in requests."""
    called = ", ".join(filter(None, (name, call_id)))
    return f"{LATE_ERROR if is_error else LATE_RESULT}{called}]"


def same_result(one: JsonObject, other: JsonObject) -> bool:
    """Return True if two Anthropic results say the same."""
    return _said(one) == _said(other)


def _said(result: JsonObject) -> tuple[bool, object]:
    content = result.get("content")
    return bool(result.get("is_error")), [{"type": "text", "text": content}] if isinstance(content, str) else content


def late_text(result: JsonObject, name: str, call_id: str) -> list[JsonObject]:
    """Return an Anthropic result as the blocks of user text that a request has for a late result."""
    content = result.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else items_in(content)
    texts = [text_in(members_of(part).get("text")) for part in parts if members_of(part).get("type") == "text"]
    words = "\n".join([late_line(name, call_id, is_error=bool(result.get("is_error"))), *filter(None, texts)])
    return [{"type": "text", "text": words}, *(part for part in parts if members_of(part).get("type") != "text")]


def items_in(value: object) -> list[Any]:
    """Return a list's items, or []."""
    return value if isinstance(value, list) else []


def members_of(value: object) -> dict[str, Any]:
    """Return an object's members, or {}."""
    return value if isinstance(value, dict) else {}


def text_in(value: object) -> str:
    """Return a text, or ""."""
    return value if isinstance(value, str) else ""
