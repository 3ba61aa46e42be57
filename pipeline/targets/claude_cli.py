"""Claude Code's command line (``--input-format stream-json``): the whole history in one ``type:user`` envelope.

The CLI refuses any other role (``Error: Expected message role 'user', got 'assistant'``), so earlier turns become
text. The envelope is written with the separators ``", "`` and ``": "`` and non-ASCII as it is, on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Image, Text, ToolResult, Turn, Unknown
from pipeline.targets.base import STUB, Encoded, Ending, Setting
from pipeline.targets.media import with_source
from pipeline.text.flatten import current_input, flat, given_system, is_shown, part_lost, sections, system_section
from pipeline.text.jsontext import quoted, spaced
from pipeline.wire import on_the_wire

NAME: Final = "claude-cli"

_OPENING: Final = '{"type": "user", "message": {"role": "user", "content": '
_SO_FAR: Final = "## Conversation so far"
_CURRENT: Final = "## Current input"
_BETWEEN: Final = "\n\n"

_encode = msgspec.json.Encoder().encode


class ClaudeCliDialect:
    """The envelope for one setting. The chunks are sections of text, escaped as JSON strings are."""

    separator = b"\\n\\n"
    head = b"{}"
    marks_left = 0
    state = None

    def __init__(self, setting: Setting, system: Sequence[Piece]) -> None:
        self.fixes: list[Any] = []
        self._system = [system_section(piece) for piece in (*given_system(setting.system), *system)]
        self.prefix = (_OPENING + '"' + _escaped(_BETWEEN.join([_SO_FAR, *self._system, ""]))).encode()

    def encode(self, message: Message, _state: None) -> Encoded:
        """A turn of the history as its sections; empty where nothing of it can be shown."""
        book = Book(NAME)
        for piece in message.pieces:
            if not is_shown(piece):
                kind = piece.block.kind if isinstance(piece.block, Unknown) else ""
                code = "unknown_dropped" if kind or not _is_reasoning(piece) else "thinking_dropped"
                book.drop(code, piece, detail=kind)
        pieces = [_with_losses_named(piece, book) for piece in message.pieces if is_shown(piece)]
        rows = [(piece.path, piece.fate, piece.code) for piece in pieces]
        data = _escaped(_BETWEEN.join(sections(message))).encode()
        return Encoded(data=data, rows=rows, fixes=book.fixes, gone=book.gone)

    def encode_run(self, turns: Sequence[Turn], names: set[str]) -> None:
        """Nothing is written as it is."""

    def end(self, messages: Sequence[Message], _state: None, settled: int, *, final: bool) -> Ending:  # noqa: ARG002  this target has no prefill
        """Write the last turns: all but the final one are history, that one is the current input."""
        if not messages:
            return Ending(parts=(), suffix=b"", prefix=b"")
        parts = [self.encode(message, None) for message in messages[:-1]]
        if not settled and not self._system and not any(part.data for part in parts):
            alone = _alone(messages[-1])
            return msgspec.structs.replace(alone, parts=[*parts, *alone.parts])
        book = Book(NAME)
        message = _with_sources(messages[-1], book)
        parts.append(self.encode(message, None))
        before, current = current_input(message)
        images = [piece.block for piece in current if isinstance(piece.block, Image)]
        text = f"{_CURRENT}\n{flat(current) or STUB}".rstrip()
        last = _escaped(_BETWEEN.join([*before, text])).encode()
        parts[-1] = msgspec.structs.replace(parts[-1], data=last, fixes=[*book.fixes, *parts[-1].fixes])
        if not images:
            return Ending(parts=parts, suffix=b'"}}\n')
        shown = ", ".join(spaced(_encode(on_the_wire(image))) for image in images)
        prefix = self.prefix.removeprefix((_OPENING + '"').encode())
        opening = f'{_OPENING}[{shown}, {{"type": "text", "text": "'.encode()
        return Ending(parts=parts, suffix=b'"}]}}\n', prefix=opening + prefix)


def _alone(message: Message) -> Ending:
    """A single user turn passes through: its string, or its blocks as they are, less those the CLI has no use for."""
    book = Book(NAME)
    pieces = []
    for piece in _with_sources(message, book).pieces:
        if isinstance(piece.block, Unknown):
            book.drop("unknown_dropped", piece, detail=piece.block.kind)
        else:
            pieces.append(piece)
    if not pieces:
        book.note("turn_stubbed", message.pieces[0].path)
        pieces = [Piece(Text(text=STUB), -1, "", fate="synthesised", code="turn_stubbed")]
    first = pieces[0].block
    if len(pieces) == 1 and isinstance(first, Text) and pieces[0].whole:
        content = quoted(first.text)
    else:
        content = "[" + ", ".join(spaced(_encode(on_the_wire(piece.block))) for piece in pieces) + "]"
    rows = [(piece.path, piece.fate, piece.code) for piece in pieces]
    part = Encoded(data=content.encode(), rows=rows, fixes=book.fixes, gone=book.gone)
    return Ending(parts=(part,), suffix=b"}}\n", prefix=_OPENING.encode())


def _with_sources(message: Message, book: Book) -> Message:
    """The message whose blocks go out as they are, a line of text for an image or document that has no source."""
    return msgspec.structs.replace(message, pieces=[with_source(piece, book) for piece in message.pieces])


def _with_losses_named(piece: Piece, book: Book) -> Piece:
    """The piece, once every part of a result that the text does not show has been recorded."""
    result = piece.block
    if isinstance(result, ToolResult) and isinstance(result.content, list):
        for at, part in enumerate(result.content):
            if not isinstance(part, (Text, Image)):
                piece = part_lost(piece, at, part, book)
    return piece


def _is_reasoning(piece: Piece) -> bool:
    return piece.block.__struct_config__.tag in {"thinking", "redacted_thinking"}


def _escaped(text: str) -> str:
    return quoted(text)[1:-1]


class ClaudeCli:
    """The target ``claude-cli``."""

    name = NAME
    text = True
    tail_rule = "CLI-01"
    tail_rules: frozenset[str] = frozenset()

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> ClaudeCliDialect:
        """Get ready for a session."""
        return ClaudeCliDialect(setting, system)
