"""The Copilot command line: one prompt, plain text, the whole history in it.

The text is laid out as for ``claude-cli``, without the envelope: sections for the system prompt and earlier turns, then
the current input; a single user turn without a system prompt is its text. The prompt carries no media, so every image
and document is a fix, and no NUL, at which an argument would end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn, Unknown
from pipeline.targets.base import STUB, Encoded, Ending, Row, Setting
from pipeline.text.flatten import (
    IMAGE,
    current_input,
    flat,
    given_system,
    is_shown,
    part_lost,
    sections,
    system_section,
)

NAME: Final = "copilot-cli"

_SO_FAR: Final = "## Conversation so far"
_CURRENT: Final = "## Current input"
_BETWEEN: Final = "\n\n"
_NUL, _INSTEAD = "\0", "\N{REPLACEMENT CHARACTER}"


class CopilotCliDialect:
    """The prompt for one setting. The chunks are sections of text."""

    separator = _BETWEEN.encode()
    head = b"{}"
    marks_left = 0
    state = None

    def __init__(self, setting: Setting, system: Sequence[Piece]) -> None:
        self.fixes: list[Fix] = []
        self._system = [self._system_section(piece) for piece in (*given_system(setting.system), *system)]
        self.prefix = _BETWEEN.join([_SO_FAR, *self._system, ""]).encode()

    def encode(self, message: Message, _state: None) -> Encoded:
        """A turn of the history as its sections; empty where nothing of it can be shown."""
        return _encoded(*_fitted(message), sections)

    def encode_run(self, turns: Sequence[Turn], names: set[str]) -> None:
        """Nothing is written as it is."""

    def end(self, messages: Sequence[Message], _state: None, settled: int, *, final: bool) -> Ending:  # noqa: ARG002  this target has no prefill
        """Write the last turns: all but the final one are history, that one is the current input."""
        if not messages:
            return Ending(parts=(), suffix=b"", prefix=b"")
        parts = [self.encode(message, None) for message in messages[:-1]]
        message, book = _fitted(messages[-1])
        if not any(is_shown(piece) for piece in message.pieces):
            book.note("turn_stubbed", messages[-1].pieces[0].path)
            stub = Piece(Text(text=STUB), -1, "", fate="synthesised", code="turn_stubbed")
            message = structs.replace(message, pieces=[*message.pieces, stub])
        alone = not (settled or self._system or any(part.data for part in parts))
        last = _encoded(message, book, _alone if alone else _current)
        return Ending(parts=[*parts, last], suffix=b"", prefix=b"" if alone else None)

    def _system_section(self, piece: Piece) -> str:
        section = system_section(piece)
        if _NUL in section:
            self.fixes.append(make("nul_replaced", piece.path, target=NAME))
        return section.replace(_NUL, _INSTEAD)


def _encoded(message: Message, book: Book, layout: Any) -> Encoded:  # noqa: ANN401  makes sections of a message
    rows: list[Row] = [(piece.path, piece.fate, piece.code) for piece in message.pieces]
    data = _BETWEEN.join(layout(message)).encode()
    return Encoded(data=data, rows=rows, fixes=book.fixes, gone=book.gone)


def _current(message: Message) -> list[str]:
    before, current = current_input(message)
    return [*before, f"{_CURRENT}\n{flat(current)}".rstrip()]


def _alone(message: Message) -> list[str]:
    return [flat(message.pieces)]


def _fitted(message: Message) -> tuple[Message, Book]:
    """The message with what can be shown of it, and what became of the rest."""
    book = Book(NAME)
    pieces = []
    for piece in message.pieces:
        block = piece.block
        if isinstance(block, (Thinking, RedactedThinking)):
            book.drop("thinking_dropped", piece)
        elif not is_shown(piece):
            book.drop("unknown_dropped", piece, detail=block.kind if isinstance(block, Unknown) else "document")
        else:
            pieces.append(_printable(_without_media(piece, book), book))
    return structs.replace(message, pieces=pieces), book


def _without_media(piece: Piece, book: Book) -> Piece:
    block = piece.block
    if isinstance(block, Image):
        return book.change("image_stubbed", piece, Text(text=IMAGE))
    if not isinstance(block, ToolResult) or not isinstance(block.content, list):
        return piece
    for at, part in enumerate(block.content):
        if isinstance(part, Image):
            piece = book.change("image_stubbed", piece, detail=f"content.{at}")
        elif not isinstance(part, Text):
            piece = part_lost(piece, at, part, book)
    return piece


def _printable(piece: Piece, book: Book) -> Piece:
    """The piece without NULs; those in a call's input are escaped."""
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


class CopilotCli:
    """The target ``copilot-cli``."""

    name = NAME
    text = True
    # A prompt that ends with the assistant asks for nothing.
    tail_rule = "COP-05"
    tail_rules: frozenset[str] = frozenset()

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> CopilotCliDialect:
        """Get ready for a session."""
        return CopilotCliDialect(setting, system)
