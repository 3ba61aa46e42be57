"""Agent programs: the whole history as one text, which is a program's input.

The text has sections for the system prompt and earlier turns, then the current input; a single user turn without a
system prompt is its text. Programs act on words (``reknit.pipeline.text.neutral``), whoever said them, so what makes
them act is broken in all but the current user's own.

A document of plain text is shown as its text. Claude Code's command line takes the text in an envelope, and the media
of the current input with it; the other programs take a prompt of plain text. A line of text replaces each image and
each other document that is not sent, with a fix. A prompt that is an argument holds no NUL, at which it would end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
)
from reknit.pipeline.options import Structure
from reknit.pipeline.providers.openai.writer.parts import document_as_text
from reknit.pipeline.targets import Encoded, Ending, Setting, in_common_words, row, stub_for
from reknit.pipeline.targets.fitting import is_bare, system_rows, without_own_inside
from reknit.pipeline.text.flatten import (
    BETWEEN,
    CURRENT,
    DOCUMENT,
    IMAGE,
    SO_FAR,
    current_input,
    flat,
    given_system,
    neutralize,
    part_lost,
    said_now,
    sections,
    system_section,
    uncited,
    with_each,
    with_pieces,
)
from reknit.pipeline.text.neutral import Neutralizer

_NUL, _INSTEAD = "\0", "\N{REPLACEMENT CHARACTER}"


class Program(ABC):
    """A program that takes one text; each names what it acts on."""

    name: str
    guard: Neutralizer
    text = True
    # A program shows the model one text, in which a beginning reads like the whole.
    _structure = Structure(cut_text="mark")
    # An input that ends with the assistant asks for nothing.
    tail_rule: str
    tail_rules: frozenset[str] = frozenset()

    def structure(self, setting: Setting) -> Structure:  # noqa: ARG002  it is the same for every model
        """Return the structure that the program takes."""
        return self._structure

    @abstractmethod
    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> ProgramDialect:
        """Get ready for a session."""


class Prompt(Program):
    """A program that takes one prompt; ``holds_nul`` where it comes on standard input, and is no argument."""

    holds_nul = True

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> PromptDialect:
        return PromptDialect(self, setting, system)


class ProgramDialect(ABC):
    """A program's input for one setting. The chunks are sections of text."""

    separator: bytes
    prefix: bytes
    head = b"{}"
    marks_left = 0
    state = None

    def __init__(self, program: Program, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        self._name, self._guard = program.name, program.guard
        book = FixLog(self._name)
        given = given_system(setting.system, self._name, book.fixes)
        self._system = [
            self.system_section(self._guard.piece(piece, book), book)
            for piece in [*given, *system_rows(system, self._name, book.fixes)]
        ]
        self.fixes: list[Fix] = book.fixes

    @property
    def opening(self) -> str:
        """The text before the first section of the history."""
        return BETWEEN.join([SO_FAR, *self._system, ""])

    def system_section(self, piece: TrackedBlock, book: FixLog) -> str:  # noqa: ARG002  most programs take any text
        return system_section(piece)

    def encode(self, message: Message, _state: None) -> Encoded:
        """A turn of the history as its sections; empty where nothing of it can be shown."""
        book = FixLog(self._name)
        message = self.with_documents_as_text(neutralize(self.shown(message, book), self._guard, book), book)
        return self.written(message, book, sections)

    def encode_ending(self, messages: Sequence[Message], _state: None, settled: int, *, final: bool) -> Ending:  # noqa: ARG002  no program has a prefill
        """Write the last turns: all but the final one are history, that one is the current input."""
        if not messages:
            return self.ending_of_nothing()
        parts = [self.encode(message, None) for message in messages[:-1]]
        alone = not (settled or self._system or any(part.data for part in parts))
        return self.ending(parts, messages[-1], FixLog(self._name), alone=alone)

    @abstractmethod
    def ending(self, parts: list[Encoded], given: Message, book: FixLog, *, alone: bool) -> Ending:
        """Write the current input after the other open turns; ``alone`` if nothing precedes it."""

    @abstractmethod
    def ending_of_nothing(self) -> Ending:
        """Write a history without turns, which the rules refuse."""

    @abstractmethod
    def written(self, message: Message, book: FixLog, layout: Callable[[Message], list[str]]) -> Encoded:
        """A message in the sections that the layout makes of it."""

    def shown(self, message: Message, book: FixLog) -> Message:
        """The message with what can be shown of it; the rest is recorded."""
        pieces = []
        for piece in in_common_words(message, book).pieces:
            if isinstance(piece.block, (Thinking, RedactedThinking)):
                book.drop("thinking_dropped", piece)
            elif not self.shows(piece.block):
                book.drop_unknown(piece)
            else:
                pieces.append(piece if is_bare(piece) else self.bared(piece, book))
        return with_pieces(message, pieces)

    def bared(self, piece: TrackedBlock, book: FixLog) -> TrackedBlock:
        """The piece without what the text does not show."""
        return uncited(without_own_inside(piece, book), book)

    def shows(self, block: Block) -> bool:
        """Return True if a block that is not reasoning can be shown in some form."""
        return not isinstance(block, Unknown)

    def with_documents_as_text(self, message: Message, book: FixLog, current: Sequence[TrackedBlock] = ()) -> Message:
        """The message with the text of each document of plain text, also in results, but for the ``current`` pieces.

        Their words are not the user's own, so what acts in them is broken.
        """

        def in_words(part: TrackedBlock) -> TrackedBlock:
            if not isinstance(part.block, Document):
                return part
            words = document_as_text(part, part.block, book)
            return part if words is part else self._guard.piece(words, book)

        return _with_others(message, current, lambda piece: with_each(piece, in_words))


class PromptDialect(ProgramDialect):
    """A prompt, in which a line of text replaces every image and document."""

    separator = BETWEEN.encode()

    def __init__(self, program: Prompt, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        self._holds_nul = program.holds_nul
        super().__init__(program, setting, system)
        self.prefix = self.opening.encode()

    def system_section(self, piece: TrackedBlock, book: FixLog) -> str:
        section = system_section(piece)
        if self._holds_nul or _NUL not in section:
            return section
        book.note_fix("nul_replaced", piece.path)
        return section.replace(_NUL, _INSTEAD)

    def ending(self, parts: list[Encoded], given: Message, book: FixLog, *, alone: bool) -> Ending:
        message = stubbed_if_empty(self.shown(given, book), given, book)
        message = neutralize(message, self._guard, book, message.pieces if alone else said_now(message))
        message = self.with_documents_as_text(message, book)
        last = self.written(message, book, _alone if alone else _current)
        return Ending(parts=[*parts, last], suffix=b"", prefix=b"" if alone else None)

    def ending_of_nothing(self) -> Ending:
        return Ending(parts=(), suffix=b"", prefix=b"")

    def written(self, message: Message, book: FixLog, layout: Callable[[Message], list[str]]) -> Encoded:
        """A message with nothing in it that the prompt cannot hold."""
        pieces = [self._printable(_stubbed(piece, book), book) for piece in message.pieces]
        message = with_pieces(message, pieces)
        return encoded(BETWEEN.join(layout(message)), message, book)

    def _printable(self, piece: TrackedBlock, book: FixLog) -> TrackedBlock:
        """The piece without NULs where none can be held; those in a call's input are escaped."""
        if self._holds_nul:
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


def without_media(message: Message, book: FixLog, current: Sequence[TrackedBlock] = ()) -> Message:
    """The message with a line of text for each image and document, but for the ``current`` pieces."""
    return _with_others(message, current, lambda piece: _stubbed(piece, book))


def _with_others(
    message: Message, current: Sequence[TrackedBlock], change: Callable[[TrackedBlock], TrackedBlock]
) -> Message:
    """The message after a change of each piece that is not a ``current`` one."""
    own = set(map(id, current))
    return with_pieces(message, [piece if id(piece) in own else change(piece) for piece in message.pieces])


def _stubbed(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """The line of text for an image or a document; a result with a record of each of its own."""
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


def _current(message: Message) -> list[str]:
    return with_current(*current_input(message))


def with_current(before: list[str], current: list[TrackedBlock]) -> list[str]:
    return [*before, f"{CURRENT}\n{flat(current)}".rstrip()]


def _alone(message: Message) -> list[str]:
    return [flat(message.pieces)]


def stubbed_if_empty(fitted: Message, given: Message, book: FixLog) -> Message:
    """The message, or a line of text where nothing of the given one can be shown."""
    return fitted if fitted.pieces else structs.replace(fitted, pieces=[stub_for(given, book)])


def encoded(data: str, message: Message, book: FixLog) -> Encoded:
    return Encoded(data=data.encode(), rows=list(map(row, message.pieces)), fixes=book.fixes, dropped=book.dropped)
