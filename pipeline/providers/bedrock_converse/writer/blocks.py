"""One message's blocks, made into what Converse takes."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

import msgspec
from msgspec import UNSET, Raw, field, structs

from reknit.pipeline.history.pieces import POINT, TrackedBlock, is_point
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    Unknown,
)
from reknit.pipeline.providers.bedrock_converse.wire import (
    FORMATS,
    is_empty_error,
)
from reknit.pipeline.providers.bedrock_converse.writer.fitness import (
    NAME,
    SYSTEM_BLOCKS,
    name_of,
    named,
    own_member,
)
from reknit.pipeline.targets import legal_name
from reknit.pipeline.targets.fitting import BlockAdapter, bare, point_of, without_mark
from reknit.pipeline.targets.limits import CONVERSE
from reknit.pipeline.targets.media import MEDIA_TYPES as IMAGE_TYPES
from reknit.pipeline.targets.media import fit_document, fit_image

# Characters outside of the documented ones of a document's name, and the underscore, which was recorded as accepted.
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9 ()\[\]_-]+")
_SPACES: Final = re.compile(r"\s+")
_LONGEST_TITLE: Final = 180  # less than the service's 200: a number may follow

# An error result must say something (BED-14).
EMPTY_ERROR: Final = "(no output)"


def tool_name(name: str) -> str:
    """A tool's name of 1 to 64 letters, digits, ``_`` and ``-`` (BED-12)."""
    return legal_name(name, 64)


_OWN: Final = frozenset({NAME})


class ConverseBlockAdapter(BlockAdapter, kw_only=True, eq=False):
    """``before`` are the names of the documents so far, ``added`` the message's; they are unique in a request (BED-20).

    ``taken`` are all of them, once one is searched. ``numbers`` has the last number that distinguishes each repeated
    name, from which the search continues. ``points`` are the places of the cache breakpoints that are set: of blocks
    that are one, and of those that get one as a separate block after them. ``system``: it is a system message.
    """

    model: str
    before: tuple[str, ...]
    numbers: dict[str, int]
    points: Container[str]
    system: bool
    added: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def add_piece(self, piece: TrackedBlock) -> None:
        """Take the next piece, and set its breakpoint after it."""
        if is_point(piece.block) and piece.path not in self.points and self.book.makes("cache_point_dropped"):
            self.book.drop("cache_point_dropped", piece)
            return
        point = point_after(piece.block) if piece.path in self.points else None
        if point is None:
            super().add_piece(piece)
            return
        super().add_piece(without_mark(piece, None))
        place = f"{piece.path}.cache_control"
        self.out.append(TrackedBlock(Unknown(kind=POINT, raw=point), piece.turn, place, came_as=piece.tool_id))

    def bared(self, piece: TrackedBlock) -> TrackedBlock:
        return bare(piece, self.book, marks=True, empty=True, owners=_OWN)

    def name(self, name: str) -> str:
        return tool_name(name)

    def image(self, piece: TrackedBlock, image: Image) -> TrackedBlock:
        return fit_image(piece, image, self.book, taken=IMAGE_TYPES, limits=CONVERSE)

    def document(self, piece: TrackedBlock, document: Document) -> TrackedBlock:
        """A document of a known format, under a name of its own."""
        piece = fit_document(piece, document, self.book, taken=FORMATS.__contains__)
        if not isinstance(piece.block, Document):
            return piece
        if document.citations is not UNSET and not _is_switch(document.citations):
            bare = structs.replace(piece.block, citations=UNSET)
            piece = self.book.change("citations_dropped", piece, bare, bytes(document.citations).decode())
        name = document.title or ""
        title = self._title(name)
        if title == document.title:
            return piece
        return self.book.change("document_renamed", piece, structs.replace(piece.block, title=title), name)

    def unknown(self, piece: TrackedBlock, unknown: Unknown, inside: ToolResult | None) -> TrackedBlock | None:
        """Converse's own members that the canonical form has no block for."""
        if not own_member(unknown, inner=inside is not None, model=self.model):
            return None
        if unknown.kind in SYSTEM_BLOCKS and not self.system:
            return None
        if unknown.kind != "document":
            return piece
        name = name_of(unknown)
        title = self._title(name)
        if title == name:
            return piece
        return self.book.change("document_renamed", piece, named(unknown, title), name)

    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:
        """Error results are text only, as Claude has it; Nova takes no documents in results (BED-25).

        A breakpoint inside a result has no place after it either: it is left out.
        """
        if is_point(part):
            return ""
        if result.is_error:
            return "error_media_moved"
        return "result_media_moved" if is_document(part) and "nova" in self.model else ""

    def finish_message(self) -> None:
        """Fill error results without text, once their media are out."""
        super().finish_message()
        for at, piece in enumerate(self.out):
            if is_empty_error(piece.block):
                filled = structs.replace(piece.block, content=EMPTY_ERROR)
                self.out[at] = self.book.change("error_filled", piece, filled)

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of the documents up to the end of the message."""
        return (*self.before, *self.added) if self.added else self.before

    def _title(self, title: str) -> str:
        legal = _SPACES.sub(" ", _ILLEGAL.sub("-", title)).strip()
        if len(legal) > 200:
            legal = legal[:_LONGEST_TITLE].strip()
        legal = legal or "document"
        self.taken = self.taken or set(self.before)
        number = self.numbers.get(legal, 1)
        name = legal
        while name in self.taken:
            number += 1
            name = f"{legal[:_LONGEST_TITLE].strip()} ({number})"
        if number > 1:
            self.numbers = self.numbers | {legal: number}
        self.taken.add(name)
        self.added.append(name)
        return name


def point_after(block: Block) -> Raw | None:
    """Return Converse's form of a block's cache breakpoint; none after reasoning, nor after a text that says nothing.

    Nova takes blank texts. With a breakpoint after it, one is no longer all of its message, so the next reading of the
    request would drop it.
    """
    if isinstance(block, (Unknown, Thinking, RedactedThinking)) or block.cache_control is UNSET:
        return None
    if isinstance(block, Text) and not block.text.strip():
        return None
    return point_of(block.cache_control)


def is_document(block: Block) -> bool:
    return isinstance(block, Document) or (isinstance(block, Unknown) and block.kind == "document")


class _Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool


_SWITCH: Final = msgspec.json.Decoder(_Switch)


def _is_switch(citations: Raw) -> bool:
    return decoded(_SWITCH, citations) is not None
