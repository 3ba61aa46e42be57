"""Programs that take one prompt: plain text, the whole history in it.

The text is laid out as for ``claude-cli``, without the envelope: sections for the system prompt and earlier turns, then
the current input; a single user turn without a system prompt is its text. The prompt carries no media, so every image
and document is a fix, and, where it is an argument, no NUL, at which it would end. What makes a program act
(``pipeline.text.neutral``) is broken in all but the current user's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Document, Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Unknown
from pipeline.targets import Encoded, Ending, Setting, row, stub_for
from pipeline.targets.fitting import in_common_words, is_bare, system_rows, without_own_inside
from pipeline.text.flatten import (
    BETWEEN,
    CURRENT,
    DOCUMENT,
    IMAGE,
    LINES,
    SO_FAR,
    current_input,
    flat,
    given_system,
    part_lost,
    quiet,
    said_now,
    sections,
    system_section,
    uncited,
    with_pieces,
)
from pipeline.text.neutral import ANY_MENTION, MENTION, PLUGIN, SKILL, Guard

_NUL, _INSTEAD = "\0", "\N{REPLACEMENT CHARACTER}"


class Prompt:
    """A program that takes one prompt; each names what it acts on, and whether an argument or its input holds it."""

    name: str
    guard: Guard
    holds_nul = False
    text = True
    # A prompt that ends with the assistant asks for nothing.
    tail_rule: str
    tail_rules: frozenset[str] = frozenset()

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> PromptDialect:
        return PromptDialect(self, setting, system)


class CopilotCli(Prompt):
    """The Copilot command line, which takes its prompt as an argument."""

    name = "copilot-cli"
    guard = Guard(LINES, (MENTION,))
    tail_rule = "COP-05"


class CodexCli(Prompt):
    """``codex exec``, which takes its prompt on standard input."""

    name = "codex-cli"
    guard = Guard(LINES, (SKILL, PLUGIN))
    holds_nul = True
    tail_rule = "CDX-04"


class GeminiCli(Prompt):
    """The Gemini command line, which takes its prompt on standard input."""

    name = "gemini-cli"
    guard = Guard(LINES, (ANY_MENTION,))
    holds_nul = True
    tail_rule = "GCL-05"


class PromptDialect:
    """A program's prompt for one setting. The chunks are sections of text."""

    separator = BETWEEN.encode()
    head = b"{}"
    marks_left = 0
    state = None

    def __init__(self, program: Prompt, setting: Setting, system: Sequence[Piece]) -> None:
        self._program = program
        self.fixes: list[Fix] = []
        name = program.name
        pieces = [*given_system(setting.system, name, self.fixes), *system_rows(system, name, self.fixes)]
        self._system = [self._system_section(piece) for piece in pieces]
        self.prefix = BETWEEN.join([SO_FAR, *self._system, ""]).encode()

    def encode(self, message: Message, _state: None) -> Encoded:
        """A turn of the history as its sections; empty where nothing of it can be shown."""
        book = Book(self._program.name)
        message = quiet(_shown(message, book), self._program.guard, book)
        return self._encoded(message, book, sections)

    def encode_ending(self, messages: Sequence[Message], _state: None, settled: int, *, final: bool) -> Ending:  # noqa: ARG002  this target has no prefill
        """Write the last turns: all but the final one are history, that one is the current input."""
        if not messages:
            return Ending(parts=(), suffix=b"", prefix=b"")
        parts = [self.encode(message, None) for message in messages[:-1]]
        book = Book(self._program.name)
        message = _shown(messages[-1], book)
        if not message.pieces:
            message = structs.replace(message, pieces=[stub_for(messages[-1], book)])
        alone = not (settled or self._system or any(part.data for part in parts))
        message = quiet(message, self._program.guard, book, message.pieces if alone else said_now(message))
        last = self._encoded(message, book, _alone if alone else _current)
        return Ending(parts=[*parts, last], suffix=b"", prefix=b"" if alone else None)

    def _system_section(self, piece: Piece) -> str:
        book = Book(self._program.name)
        section = system_section(self._program.guard.piece(piece, book))
        self.fixes += book.fixes
        if self._program.holds_nul or _NUL not in section:
            return section
        self.fixes.append(make("nul_replaced", piece.path, target=self._program.name))
        return section.replace(_NUL, _INSTEAD)

    def _encoded(self, message: Message, book: Book, layout: Callable[[Message], list[str]]) -> Encoded:
        """A message in the sections that the layout makes of it, with nothing in it that the prompt cannot hold."""
        pieces = [self._printable(_without_media(piece, book), book) for piece in message.pieces]
        message = with_pieces(message, pieces)
        data = BETWEEN.join(layout(message)).encode()
        return Encoded(data=data, rows=list(map(row, message.pieces)), fixes=book.fixes, gone=book.gone)

    def _printable(self, piece: Piece, book: Book) -> Piece:
        """The piece without NULs where none can be held; those in a call's input are escaped."""
        if self._program.holds_nul:
            return piece
        block = piece.block
        clean: Any = block
        match block:
            case Text(text=text) if _NUL in text:
                clean = structs.replace(block, text=text.replace(_NUL, _INSTEAD))
            case ToolUse(name=name) if _NUL in name:
                clean = structs.replace(block, name=name.replace(_NUL, _INSTEAD))
            case ToolResult(content=str() as text) if _NUL in text:
                clean = structs.replace(block, content=text.replace(_NUL, _INSTEAD))
            case ToolResult(content=list() as parts):
                shown = [
                    structs.replace(part, text=part.text.replace(_NUL, _INSTEAD)) if isinstance(part, Text) else part
                    for part in parts
                ]
                clean = structs.replace(block, content=shown) if shown != parts else block
            case _:
                pass
        return piece if clean is block else book.change("nul_replaced", piece, clean)


def _current(message: Message) -> list[str]:
    before, current = current_input(message)
    return [*before, f"{CURRENT}\n{flat(current)}".rstrip()]


def _alone(message: Message) -> list[str]:
    return [flat(message.pieces)]


def _shown(message: Message, book: Book) -> Message:
    """The message with what can be shown of it; the rest is recorded."""
    pieces = []
    for piece in in_common_words(message, book).pieces:
        block = piece.block
        if isinstance(block, (Thinking, RedactedThinking)):
            book.drop("thinking_dropped", piece)
        elif isinstance(block, Unknown):
            book.drop_unknown(piece)
        else:
            pieces.append(piece if is_bare(piece) else uncited(without_own_inside(piece, book), book))
    return with_pieces(message, pieces)


def _without_media(piece: Piece, book: Book) -> Piece:
    block = piece.block
    if isinstance(block, Image):
        return book.change("image_stubbed", piece, Text(text=IMAGE))
    if isinstance(block, Document):
        return book.change("document_stubbed", piece, Text(text=DOCUMENT))
    if not isinstance(block, ToolResult) or not isinstance(block.content, list):
        return piece
    for at, part in enumerate(block.content):
        if isinstance(part, Image):
            piece = book.change("image_stubbed", piece, detail=f"content.{at}")
        elif isinstance(part, Document):
            piece = book.change("document_stubbed", piece, detail=f"content.{at}")
        elif not isinstance(part, Text):
            piece = part_lost(piece, at, part, book)
    return piece
