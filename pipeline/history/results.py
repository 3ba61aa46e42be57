"""Tool results that are not what they should be: without a call, one too many, or only a placeholder.

Frameworks that find a call without a result write a text in its place. Such a text keeps a request valid, but it is
not what the tool returned: when the real result is there too, or comes later, the placeholder gives way.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import UNSET

from pipeline.history.pieces import Book, Piece
from pipeline.model import Document, Image, Text, ToolResult, Unknown

ORPHAN_MARK = "[Tool result without its call]"


def orphan_pieces(piece: Piece, result: ToolResult, code: str, book: Book) -> list[Piece]:
    """A result as user text, followed by the media it held."""
    if isinstance(result.content, list):
        texts = [part.text for part in result.content if isinstance(part, Text)]
        media = [(at, part) for at, part in enumerate(result.content) if not isinstance(part, Text)]
    else:
        texts = [] if result.content is UNSET else [result.content]
        media = []
    text = "\n".join([ORPHAN_MARK, *(text for text in texts if text)])
    flat = book.change(code, piece, Text(text=text))
    return [flat, *(_medium(piece, at, part, code) for at, part in media)]


def _medium(piece: Piece, at: int, part: Image | Document | Unknown | Text, code: str) -> Piece:
    path = f"{piece.path}.content.{at}"
    return Piece(part, piece.turn, path, fate="flattened", code=code, came_as=piece.tool_id)


def same_content(one: Piece, other: Piece) -> bool:
    """Whether two results say the same, whatever the ids they came under."""
    left, right = one.block, other.block
    return (
        isinstance(left, ToolResult)
        and isinstance(right, ToolResult)
        and left.is_error == right.is_error
        and left.content == right.content
    )


# What we write ourselves.
INTERRUPTED = "[No result was recorded for this tool call: it was interrupted, or its result was lost.]"

# Exact texts that frameworks write, and who does. Nothing is matched by pattern: a tool may well return a text that
# merely begins like one of these.
PLACEHOLDERS: Mapping[str, str] = MappingProxyType(
    {
        INTERRUPTED: "this project",
        "[Request interrupted by user]": "Claude Code",
        "[Request interrupted by user for tool use]": "Claude Code",
        "[Tool result missing due to internal error]": "Claude Code",
        "Tool result missing": "agent loops over the Messages API",
        "Tool was interrupted.": "strands-agents: missing tool results",
        "[Tool execution was interrupted]": "opencode: message-v2",
        "Tool execution was interrupted before completion.": "Roo Code, Kilo Code: validateToolResultIds",
        "aborted": "OpenAI Codex: context normalisation",
        "[openclaw] missing tool result in session history; inserted synthetic error result for transcript repair.": (
            "OpenClaw: session-transcript-repair"
        ),
    }
)

# Texts that name the call: ``{name}`` and ``{id}`` are filled in before comparing.
TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "[System: Tool execution skipped/interrupted by user. No result provided for tool '{name}'.]": "LiteLLM",
        "Tool call {name} with id {id} was cancelled - another message came in before it could be completed.": (
            "deepagents: PatchToolCallsMiddleware"
        ),
    }
)


# Longer than any of them with a name and an id in it, and what they begin with: most real results are told at once.
LONGEST_PLACEHOLDER = 400
_STARTS = frozenset(text[0] for text in (*PLACEHOLDERS, *TEMPLATES))


def may_be_placeholder(text: str) -> bool:
    """Whether a result's text needs a closer look."""
    if len(text) > LONGEST_PLACEHOLDER:
        return False
    start = text[:1]
    return start in _STARTS or start.isspace()


def is_placeholder(result: ToolResult, name: str, call_id: str) -> bool:
    """Whether a result is one of the published texts and nothing else; ``name`` and ``call_id`` are its call's."""
    content = result.content
    if isinstance(content, list):
        if len(content) != 1 or not isinstance(content[0], Text):
            return False
        content = content[0].text
    if not isinstance(content, str) or not may_be_placeholder(content):
        return False
    text = content.strip()
    return text in PLACEHOLDERS or any(
        text == template.replace("{name}", name).replace("{id}", call_id) for template in TEMPLATES
    )
