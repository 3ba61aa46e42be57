"""Requests for Claude Code's command line: one envelope with the history as text, and the current input's media."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock
from reknit.pipeline.model import Block, Document, Image, Text, ToolResult, Unknown, on_the_wire
from reknit.pipeline.providers.programs.writer import (
    Program,
    ProgramDialect,
    encoded,
    stubbed_if_empty,
    with_current,
    without_media,
)
from reknit.pipeline.targets import Encoded, Ending, Setting, in_common_words
from reknit.pipeline.targets.fitting import without_own_inside
from reknit.pipeline.targets.media import has_source, with_source
from reknit.pipeline.text.flatten import (
    BETWEEN,
    LINES,
    current_input,
    neutralize,
    part_lost,
    said_now,
    with_each,
    with_pieces,
)
from reknit.pipeline.text.jsontext import ascii_quoted, in_ascii, spaced
from reknit.pipeline.text.neutral import KEYWORDS, MENTION, Neutralizer

_OPENING: Final = '{"type": "user", "message": {"role": "user", "content": '
_encode = msgspec.json.Encoder().encode


class ClaudeCli(Program):
    """Claude Code's command line (``--input-format stream-json``)."""

    name = "claude-cli"
    guard = Neutralizer(LINES, (MENTION, *KEYWORDS))
    tail_rule = "CLI-01"

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> EnvelopeDialect:
        return EnvelopeDialect(self, setting, system)


class EnvelopeDialect(ProgramDialect):
    """One ``type:user`` envelope with the text as a JSON string, and the current input's media before it.

    The program refuses any other role (``Error: Expected message role 'user', got 'assistant'``), so earlier turns
    become text. The envelope is written with the separators ``", "`` and ``": "``, escaped to ASCII, on one line:
    versions up to 2.1.50 decode standard input chunk by chunk, and damage a longer character that a chunk ends in.
    """

    separator = b"\\n\\n"

    def __init__(self, program: ClaudeCli, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        super().__init__(program, setting, system)
        self.prefix = (_OPENING + '"' + _escaped(self.opening)).encode()

    def ending(self, parts: list[Encoded], given: Message, book: FixLog, *, alone: bool) -> Ending:
        message = _with_sources(given, book)
        if alone:
            return Ending(parts=[*parts, self._alone(message, book)], suffix=b"}}\n", prefix=_OPENING.encode())
        message = stubbed_if_empty(self.shown(message, book), given, book)
        message = neutralize(message, self._guard, book, said_now(message))
        message = self.with_documents_as_text(message, book, said_now(message))
        message = without_media(message, book, said_now(message))
        before, current = current_input(message)
        parts.append(encoded(_escaped(BETWEEN.join(with_current(before, current))), message, book))
        media = ", ".join(_written(medium) for medium in _media(current))
        if not media:
            return Ending(parts=parts, suffix=b'"}}\n')
        prefix = self.prefix.removeprefix((_OPENING + '"').encode())
        opening = f'{_OPENING}[{media}, {{"type": "text", "text": "'.encode()
        return Ending(parts=parts, suffix=b'"}]}}\n', prefix=opening + prefix, reset="media")

    def ending_of_nothing(self) -> Ending:
        return Ending(parts=(), suffix=b'""}}\n', prefix=_OPENING.encode())

    def _alone(self, message: Message, book: FixLog) -> Encoded:
        """A single user turn as it is: its string, or its blocks, less those the program has no use for."""
        pieces = []
        for piece in in_common_words(message, book).pieces:
            if isinstance(piece.block, Unknown):
                book.drop_unknown(piece)
            else:
                pieces.append(without_own_inside(piece, book))
        fitted = stubbed_if_empty(with_pieces(message, pieces), message, book)
        fitted = neutralize(fitted, self._guard, book, fitted.pieces)
        first = fitted.pieces[0]
        if len(fitted.pieces) == 1 and isinstance(first.block, Text) and first.whole:
            content = ascii_quoted(first.block.text)
        else:
            content = "[" + ", ".join(_written(piece.block) for piece in fitted.pieces) + "]"
        return encoded(content, fitted, book)

    def written(self, message: Message, book: FixLog, layout: Callable[[Message], list[str]]) -> Encoded:
        message = without_media(message, book)
        return encoded(_escaped(BETWEEN.join(layout(message))), message, book)

    def shows(self, block: Block) -> bool:
        """A document without a source is no attachment."""
        return not isinstance(block, Unknown) and not (isinstance(block, Document) and not has_source(block))

    def bared(self, piece: TrackedBlock, book: FixLog) -> TrackedBlock:
        """The piece without what the text does not show: citations, and parts of a result."""
        piece = super().bared(piece, book)
        result = piece.block
        if not isinstance(result, ToolResult) or not isinstance(result.content, list):
            return piece
        kept = []
        for at, part in enumerate(result.content):
            if self.shows(part):
                kept.append(part)
            else:
                piece = part_lost(piece, at, part, book)  # type: ignore[arg-type]  # only those are not shown
        if len(kept) == len(result.content):
            return piece
        return structs.replace(piece, block=structs.replace(result, content=kept))


def _with_sources(message: Message, book: FixLog) -> Message:
    """The message whose media go out as they are, a line of text for an image or document that has no source."""
    return with_pieces(message, [with_each(piece, lambda part: with_source(part, book)) for piece in message.pieces])


def _media(pieces: Sequence[TrackedBlock]) -> Iterator[Image | Document]:
    """The images and documents of the current input, in order, those inside of results too."""
    for piece in pieces:
        block = piece.block
        parts = block.content if isinstance(block, ToolResult) and isinstance(block.content, list) else [block]
        yield from (part for part in parts if isinstance(part, (Image, Document)))


def _written(block: Any) -> str:  # noqa: ANN401  any block
    return in_ascii(spaced(_encode(on_the_wire(block))))


def _escaped(text: str) -> str:
    return ascii_quoted(text)[1:-1]
