"""Claude Code's command line (``--input-format stream-json``): the whole history in one ``type:user`` envelope.

The CLI refuses any other role (``Error: Expected message role 'user', got 'assistant'``), so earlier turns become
text. The envelope is written with the separators ``", "`` and ``": "``, escaped to ASCII, on one line: versions up to
2.1.50 decode standard input chunk by chunk, and damage a longer character that a chunk ends in.

The CLI acts on words (``pipeline.text.neutral``), whoever said them, so all but the current user's own are kept from
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from pipeline.fixes import Fix
from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Document, Image, RedactedThinking, Text, Thinking, ToolResult, Unknown, on_the_wire
from pipeline.targets import Encoded, Ending, Setting, row, stub_for
from pipeline.targets.fitting import in_common_words, is_bare, system_rows, without_own_inside
from pipeline.targets.media import has_source, with_source
from pipeline.text.flatten import (
    BETWEEN,
    CURRENT,
    LINES,
    SO_FAR,
    current_input,
    flat,
    given_system,
    is_shown,
    part_lost,
    quiet,
    said_now,
    sections,
    system_section,
    uncited,
    with_each,
    with_pieces,
)
from pipeline.text.jsontext import ascii_quoted, in_ascii, spaced
from pipeline.text.neutral import KEYWORD, MENTION, Guard

NAME: Final = "claude-cli"

_OPENING: Final = '{"type": "user", "message": {"role": "user", "content": '
_GUARD: Final = Guard(LINES, (MENTION, KEYWORD))

_encode = msgspec.json.Encoder().encode


class ClaudeCliDialect:
    """The envelope for one setting. The chunks are sections of text, escaped as JSON strings are."""

    separator = b"\\n\\n"
    head = b"{}"
    marks_left = 0
    state = None

    def __init__(self, setting: Setting, system: Sequence[Piece]) -> None:
        book = Book(NAME)
        given = [*given_system(setting.system, NAME, book.fixes), *system_rows(system, NAME, book.fixes)]
        pieces = [_GUARD.piece(piece, book) for piece in given]
        self.fixes: list[Fix] = book.fixes
        self._system = [system_section(piece) for piece in pieces]
        self.prefix = (_OPENING + '"' + _escaped(BETWEEN.join([SO_FAR, *self._system, ""]))).encode()

    def encode(self, message: Message, _state: None) -> Encoded:
        """A turn of the history as its sections; empty where nothing of it can be shown."""
        book = Book(NAME)
        message = quiet(_fitted(message, book), _GUARD, book)
        return _encoded(_escaped(BETWEEN.join(sections(message))), message, book)

    def encode_ending(self, messages: Sequence[Message], _state: None, settled: int, *, final: bool) -> Ending:  # noqa: ARG002  this target has no prefill
        """Write the last turns: all but the final one are history, that one is the current input."""
        if not messages:
            # The envelope of nothing, which the rules refuse.
            return Ending(parts=(), suffix=b'""}}\n', prefix=_OPENING.encode())
        parts = [self.encode(message, None) for message in messages[:-1]]
        book = Book(NAME)
        message = _with_sources(messages[-1], book)
        if not settled and not self._system and not any(part.data for part in parts):
            return Ending(parts=[*parts, _alone(message, book)], suffix=b"}}\n", prefix=_OPENING.encode())
        message = _stubbed_if_empty(_fitted(message, book), messages[-1], book)
        message = quiet(message, _GUARD, book, said_now(message))
        before, current = current_input(message)
        text = f"{CURRENT}\n{flat(current)}".rstrip()
        parts.append(_encoded(_escaped(BETWEEN.join([*before, text])), message, book))
        media = ", ".join(_written(medium) for medium in _media(current))
        if not media:
            return Ending(parts=parts, suffix=b'"}}\n')
        prefix = self.prefix.removeprefix((_OPENING + '"').encode())
        opening = f'{_OPENING}[{media}, {{"type": "text", "text": "'.encode()
        return Ending(parts=parts, suffix=b'"}]}}\n', prefix=opening + prefix)


def _alone(message: Message, book: Book) -> Encoded:
    """A single user turn passes through: its string, or its blocks as they are, less those the CLI has no use for."""
    pieces = []
    for piece in in_common_words(message, book).pieces:
        if isinstance(piece.block, Unknown):
            book.drop_unknown(piece)
        else:
            pieces.append(without_own_inside(piece, book))
    fitted = _stubbed_if_empty(with_pieces(message, pieces), message, book)
    fitted = quiet(fitted, _GUARD, book, fitted.pieces)
    first = fitted.pieces[0]
    if len(fitted.pieces) == 1 and isinstance(first.block, Text) and first.whole:
        content = ascii_quoted(first.block.text)
    else:
        content = "[" + ", ".join(_written(piece.block) for piece in fitted.pieces) + "]"
    return _encoded(content, fitted, book)


def _stubbed_if_empty(fitted: Message, given: Message, book: Book) -> Message:
    """The message, or a line of text where nothing of the given one can be shown."""
    return fitted if fitted.pieces else structs.replace(fitted, pieces=[stub_for(given, book)])


def _fitted(message: Message, book: Book) -> Message:
    """The message with what can be shown of it; a document without a source is no attachment."""
    pieces = []
    for piece in in_common_words(message, book).pieces:
        block = piece.block
        if is_shown(piece) and not (isinstance(block, Document) and not has_source(block)):
            pieces.append(_with_losses_named(piece, book))
            continue
        if isinstance(block, (Thinking, RedactedThinking)):
            book.drop("thinking_dropped", piece)
        else:
            book.drop_unknown(piece)
    return with_pieces(message, pieces)


def _with_losses_named(piece: Piece, book: Book) -> Piece:
    """The piece without what the text does not show: citations, and parts of a result; each is recorded."""
    if is_bare(piece):
        return piece
    piece = uncited(without_own_inside(piece, book), book)
    result = piece.block
    if not isinstance(result, ToolResult) or not isinstance(result.content, list):
        return piece
    kept = []
    for at, part in enumerate(result.content):
        if isinstance(part, Unknown) or (isinstance(part, Document) and not has_source(part)):
            piece = part_lost(piece, at, part, book)
        else:
            kept.append(part)
    if len(kept) == len(result.content):
        return piece
    return structs.replace(piece, block=structs.replace(result, content=kept))


def _with_sources(message: Message, book: Book) -> Message:
    """The message whose media go out as they are, a line of text for an image or document that has no source."""
    return with_pieces(message, [with_each(piece, lambda part: with_source(part, book)) for piece in message.pieces])


def _media(pieces: Sequence[Piece]) -> Iterator[Image | Document]:
    """The images and documents of the current input, in order, those inside of results too."""
    for piece in pieces:
        block = piece.block
        parts = block.content if isinstance(block, ToolResult) and isinstance(block.content, list) else [block]
        yield from (part for part in parts if isinstance(part, (Image, Document)))


def _written(block: Any) -> str:  # noqa: ANN401  any block
    return in_ascii(spaced(_encode(on_the_wire(block))))


def _encoded(data: str, message: Message, book: Book) -> Encoded:
    return Encoded(data=data.encode(), rows=list(map(row, message.pieces)), fixes=book.fixes, gone=book.gone)


def _escaped(text: str) -> str:
    return ascii_quoted(text)[1:-1]


class ClaudeCli:
    name = NAME
    text = True
    tail_rule = "CLI-01"
    tail_rules: frozenset[str] = frozenset()

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> ClaudeCliDialect:
        return ClaudeCliDialect(setting, system)
