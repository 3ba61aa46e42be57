"""What each kind of block may hold and where it may stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pipeline.rules._shape import Hole
from pipeline.rules.anthropic import catalogue as rules
from pipeline.rules.anthropic.images import judge_document, judge_image
from pipeline.rules.anthropic.state import State
from pipeline.rules.anthropic.turns import Turns
from pipeline.rules.anthropic.wire import (
    KINDS,
    Document,
    Image,
    McpResult,
    McpToolUse,
    RedactedThinking,
    ServerResult,
    ServerToolUse,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from pipeline.rules.base import Severity, Violation

NAME_LENGTH: Final = 200


class Place(Turns):
    """Where the walk stands, and what it counts over the whole request."""

    __slots__ = ("blocks", "calls_here", "family", "first_call", "images", "index", "markers", "tool_blocks", "wide")

    def __init__(self, state: State, found: list[Violation]) -> None:
        super().__init__(state, found)
        self.family = state.head.family
        self.markers = state.markers
        self.images = state.images
        self.wide = state.wide
        self.tool_blocks = state.tool_blocks
        # The message at hand: its index, its blocks, its first call and how many it holds so far.
        self.index = 0
        self.blocks: Sequence[Any] = ()
        self.first_call = 0
        self.calls_here = 0

    def path(self, at: int) -> str:
        """Name the block at ``at`` of the message at hand."""
        return f"messages.{self.index}.content.{at}"

    def end_calls(self) -> None:
        """Check, at a message's end, that nothing but calls followed its first call."""
        if self.calls_here != len(self.blocks) - self.first_call:
            ids = ", ".join(block.id for block in self.blocks if block.__class__ is ToolUse)
            self.found.append(rules.AFTER_CALL.broken(f"messages.{self.index}", ids=ids))
        self.calls_here = 0

    def belongs(self, kind: str, role: str) -> bool:
        """Tell whether the message may hold a block of ``kind``; report it when not."""
        if self.role == role:
            return True
        self.found.append(rules.BLOCK_ROLE.broken(f"messages.{self.index}", kind=kind, role=role))
        return False


def judge_text(place: Place, block: Text, at: int) -> None:
    """Judge a text block that is blank or cached; the walk itself passes the others."""
    place.sealed = True
    if block.cache_control is not None:
        place.markers += 1
    text = block.text
    if not text or text.isspace():
        alone = all(isinstance(other, Text) and not other.text.strip() for other in place.blocks)
        path = place.path(at)
        place.found.extend(judge_blank(block, path, f"{path}.text", "messages", alone=alone))


def judge_blank(block: Text, path: str, at: str, where: str, *, alone: bool) -> list[Violation]:
    """Say what a blank text block breaks; whitespace ``alone`` in its message fails it, beside others it warns."""
    if block.text:
        rule = rules.BLANK_TEXT if alone else rules.BLANK_BESIDE
        return [rule.broken(path, where=where)]
    found = [rules.EMPTY_TEXT.broken(path, where=where)]
    if block.cache_control is not None:
        found.append(rules.CACHED_EMPTY.broken(path, at=at))
    return found


def _tool_use(place: Place, block: ToolUse, at: int) -> None:
    place.tool_blocks = True
    place.sealed = True
    if block.cache_control is not None:
        place.markers += 1
    if not 0 < len(block.name) <= NAME_LENGTH:
        bound = f"most {NAME_LENGTH} characters" if block.name else "least 1 character"
        path = place.path(at)
        place.found.append(rules.CALL_NAME.broken(f"{path}.name", at=f"{path}.tool_use.name", bound=bound))
    if place.role == "assistant" or place.belongs("tool_use", "assistant"):
        if not place.calls_here:
            place.first_call = at
        place.calls_here += 1
        place.call(block.id, place.index, at)


def _tool_result(place: Place, block: ToolResult, at: int) -> None:
    place.tool_blocks = True
    if block.cache_control is not None:
        place.markers += 1
    if place.role == "user" or place.belongs("tool_result", "user"):
        place.result(block.tool_use_id, place.index, at)
    content = block.content
    if content and content.__class__ is list:
        _in_result(place, block, content, at)


def _in_result(place: Place, result: ToolResult, blocks: list[Any], at: int) -> None:
    """Judge the blocks inside a tool result."""
    for inner_at, block in enumerate(blocks):
        if block.__class__ is Hole:
            continue
        if block.cache_control is not None:
            place.markers += 1
        if block.__class__ is Text:
            if block.text and not block.text.isspace():
                continue
            path, provider = _inner_place(place, at, inner_at)
            place.found.extend(judge_blank(block, path, f"{provider}.text", "messages", alone=False))
        elif block.__class__ is Image:
            _judge_image(place, block, *_inner_place(place, at, inner_at))
        elif block.__class__ is Document:
            place.found.extend(judge_document(block, *_inner_place(place, at, inner_at)))
    if result.is_error and any(block.__class__ is not Text for block in blocks):
        path = place.path(at)
        place.found.append(rules.ERROR_RESULT.broken(path, at=f"{path}.tool_result"))


def _inner_place(place: Place, at: int, inner_at: int) -> tuple[str, str]:
    """Name a block inside a tool result, in our way and in the provider's."""
    path = place.path(at)
    return f"{path}.content.{inner_at}", f"{path}.tool_result.content.{inner_at}"


def _image(place: Place, block: Image, at: int) -> None:
    place.sealed = True
    if block.cache_control is not None:
        place.markers += 1
    path = place.path(at)
    if place.role == "assistant":
        place.found.append(rules.ASSISTANT_IMAGE.broken(path))
    _judge_image(place, block, path, path)


def _judge_image(place: Place, block: Image, path: str, at: str) -> None:
    found, wide = judge_image(block, path, at, place.family)
    place.found.extend(found)
    place.images += 1
    if wide:
        place.wide += ((f"{path}.source.data", f"{at}.image.source.base64.data"),)


def _document(place: Place, block: Document, at: int) -> None:
    place.sealed = True
    if block.cache_control is not None:
        place.markers += 1
    path = place.path(at)
    place.found.extend(judge_document(block, path, path))


def _thinking(place: Place, block: Thinking, at: int) -> None:
    place.sealed = place.thought = True
    place.belongs("thinking", "assistant")
    path = place.path(at)
    if not block.signature:
        place.found.append(rules.BAD_SIGNATURE.broken(f"{path}.signature", at=path))
    accepted = place.family.empty_thinking
    if not block.thinking and not accepted:
        severity: Severity = "model" if accepted is None else "hard"
        place.found.append(rules.EMPTY_THINKING.broken(f"{path}.thinking", severity, at=f"{path}.thinking"))


def _redacted(place: Place, block: RedactedThinking, at: int) -> None:
    place.sealed = True
    place.belongs("redacted_thinking", "assistant")
    if not block.data:
        path = place.path(at)
        place.found.append(rules.BAD_REDACTED.broken(f"{path}.data", at=path))


def _server_call(place: Place, block: ServerToolUse | McpToolUse, _at: int) -> None:
    kind = KINDS[type(block)]
    place.sealed = True
    if block.cache_control is not None:
        place.markers += 1
    if place.belongs(kind, "assistant"):
        name = "mcp" if isinstance(block, McpToolUse) else block.name
        place.servers[block.id] = (place.index, name)


def _server_result(place: Place, block: ServerResult | McpResult, at: int) -> None:
    place.sealed = True
    if block.cache_control is not None:
        place.markers += 1
    place.server_result(block.tool_use_id, KINDS[type(block)], place.path(at))


def _other(place: Place, block: Any, _at: int) -> None:  # noqa: ANN401 - any kind without rules of its own
    place.sealed = True
    if getattr(block, "cache_control", None) is not None:
        place.markers += 1


# Every kind of block, and what could not be read.
JUDGES: dict[type, Callable[[Place, Any, int], None]] = {
    **dict.fromkeys(KINDS, _other),
    **{kind: _server_result for kind in KINDS if issubclass(kind, ServerResult)},
    Hole: _other,
    Text: judge_text,
    Image: _image,
    Document: _document,
    Thinking: _thinking,
    RedactedThinking: _redacted,
    ToolUse: _tool_use,
    ToolResult: _tool_result,
    ServerToolUse: _server_call,
    McpToolUse: _server_call,
    McpResult: _server_result,
}
