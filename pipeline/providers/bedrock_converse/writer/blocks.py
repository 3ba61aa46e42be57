"""One message's blocks for Converse: first adapted, then written.

Turns of text, calls, and results of text are written in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, field, structs

from reknit.pipeline.history.pieces import TrackedBlock
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.model import (
    Block,
    Document,
    Endpoint,
    Image,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)
from reknit.pipeline.providers.bedrock_converse.reader import MEDIA_TYPES
from reknit.pipeline.providers.bedrock_converse.writer.fitness import (
    NAME,
    SYSTEM_BLOCKS,
    name_of,
    named,
    own_member,
    reasoning_stays,
)
from reknit.pipeline.targets import RunMessages, legal_name
from reknit.pipeline.targets.fitting import POINT, BlockAdapter, bare, point_of, without_mark
from reknit.pipeline.targets.limits import CONVERSE
from reknit.pipeline.targets.media import MEDIA_TYPES as IMAGE_TYPES
from reknit.pipeline.targets.media import fit_document, fit_image, inline

_FORMATS: Final[Mapping[str, str]] = MappingProxyType({media_type: name for name, media_type in MEDIA_TYPES.items()})
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
    name, from which the search continues. ``points`` are the indexes of blocks whose cache breakpoint is set, as a
    separate block after them. ``system``: it is a system message.
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
        return fit_image(piece, image, self.book, taken=lambda kind: kind in IMAGE_TYPES, limits=CONVERSE)

    def document(self, piece: TrackedBlock, document: Document) -> TrackedBlock:
        """A document of a known format, under a name of its own."""
        piece = fit_document(piece, document, self.book, taken=_FORMATS.__contains__)
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
        """Error results are text only, as Claude has it; Nova takes no documents in results (BED-25)."""
        if result.is_error:
            return "error_media_moved"
        return "result_media_moved" if is_document(part) and "nova" in self.model else ""

    def finish_message(self) -> None:
        """Fill error results without text, once their media are out."""
        super().finish_message()
        for at, piece in enumerate(self.out):
            result = piece.block
            if isinstance(result, ToolResult) and result.is_error and not _parts(result):
                filled = structs.replace(result, content=EMPTY_ERROR)
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
    """Return Converse's form of a block's cache breakpoint; none after reasoning."""
    if isinstance(block, (Unknown, Thinking, RedactedThinking)) or block.cache_control is UNSET:
        return None
    return point_of(block.cache_control)


def is_document(block: Block) -> bool:
    return isinstance(block, Document) or (isinstance(block, Unknown) and block.kind == "document")


def written(block: Block) -> Any:  # noqa: ANN401  JSON
    match block:
        case Text(text=text):
            return {"text": text}
        case ToolUse():
            return {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.input}}
        case ToolResult():
            status = "error" if block.is_error else "success"
            return {"toolResult": {"toolUseId": block.tool_use_id, "content": _parts(block), "status": status}}
        case Image():
            data = _source(block)
            own = {} if block.own is UNSET else block.own.members
            return {"image": {"format": data.media_type.removeprefix("image/"), "source": {"bytes": data.data}, **own}}
        case Document():
            return {"document": _document(block)}
        case Thinking():
            signed = {"signature": block.signature} if block.signature else {}
            return {"reasoningContent": {"reasoningText": {"text": block.thinking, **signed}}}
        case RedactedThinking(data=data):
            return {"reasoningContent": {"redactedContent": data}}
        case Unknown(raw=raw):
            return raw


def _parts(result: ToolResult) -> list[Any]:
    if isinstance(result.content, str):
        return [{"text": result.content}] if result.content.strip() else []
    return [_structured(part) or written(part) for part in result.content or ()]


def _structured(part: Block) -> dict[str, Raw] | None:
    """Return Converse's form of a part that a tool returned as an object; None for other parts."""
    if not isinstance(part, Text) or not part.structured:
        return None
    data = part.text.encode("utf-8", "replace")
    try:
        msgspec.json.decode(data, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None
    return {"json": Raw(data)}


def _document(document: Document) -> dict[str, Any]:
    data = _source(document)
    extras = {"context": document.context, "citations": document.citations}
    return {
        **({"name": document.title} if document.title else {}),
        "format": _FORMATS[data.media_type],
        "source": {"bytes": data.data},
    } | {key: value for key, value in extras.items() if value is not UNSET and value is not None}


def _source(block: Image | Document) -> Any:  # noqa: ANN401  what was fitted has such a source
    return inline(block.source)


class _Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool


_SWITCH: Final = msgspec.json.Decoder(_Switch)


def _is_switch(citations: Raw) -> bool:
    return decoded(_SWITCH, citations) is not None


class _Said(Struct, frozen=True, gc=False):
    text: str


class _Use(Struct, frozen=True, gc=False, rename="camel"):
    tool_use_id: str
    name: str
    input: Raw


class _Called(Struct, frozen=True, gc=False, rename="camel"):
    tool_use: _Use


class _Result(Struct, frozen=True, gc=False, rename="camel"):
    tool_use_id: str
    content: list[_Said]
    status: str


class _Answered(Struct, frozen=True, gc=False, rename="camel"):
    tool_result: _Result


_Member: TypeAlias = _Said | _Called | _Answered


class _Message(Struct, frozen=True, gc=False):
    role: str
    content: Sequence[_Member | dict[str, Any] | None]


_encode = msgspec.json.Encoder().encode


def written_as_they_are(run: RunMessages, start: int, model: str, endpoint: Endpoint) -> tuple[bytes, int]:
    """The messages of a valid run, from ``start`` on, that stay as they are, joined by commas; and their number."""
    messages: list[_Message] = []
    for at in range(start, len(run.turns)):
        turn = run.turns[at]
        if at in run.special and not (_says_nothing_more(turn) and reasoning_stays(turn, model, endpoint)):
            break
        content = [_member(block) for block in turn.blocks]
        if None in content:
            break
        messages.append(_Message(turn.role, content))
    return _encode(messages)[1:-1], len(messages)


# The members that Converse has no place for, in blocks that are written as they are. The exempt ones are content.
_UNUSUAL: Final[Mapping[type, Callable[[Any], bool]]] = MappingProxyType(
    {
        Text: unusual(Text, "issuer"),
        ToolUse: unusual(ToolUse, "issuer", "incomplete"),
        ToolResult: unusual(ToolResult, "issuer", "content", "is_error"),
        Thinking: unusual(Thinking, "issuer", "signature"),
        RedactedThinking: unusual(RedactedThinking, "issuer"),
    }
)


def _says_nothing_more(turn: Turn) -> bool:
    """Return True if a turn's texts, calls and results have no members that Converse does not have."""
    if turn.own is not UNSET:
        return False
    for block in turn.blocks:
        parts = block.content if isinstance(block, ToolResult) and type(block.content) is list else ()
        for part in (block, *parts):
            is_unusual = _UNUSUAL.get(type(part))
            if is_unusual is None or is_unusual(part):
                return False
    return True


def _member(block: Block) -> _Member | dict[str, Any] | None:
    """A block that is written as it is; None for one that may not be."""
    kind = type(block)
    if kind is Text:
        return _Said(block.text)  # type: ignore[union-attr]  # see kind
    if kind is ToolUse:
        return _Called(_Use(block.id, block.name, block.input))  # type: ignore[union-attr]  # see kind
    if isinstance(block, ToolResult):
        parts = _texts(block.content)
        if parts is None or (block.is_error and not parts):
            return None
        return _Answered(_Result(block.tool_use_id, parts, "error" if block.is_error else "success"))
    if isinstance(block, (Thinking, RedactedThinking)):
        block_json: dict[str, Any] = written(block)
        return block_json
    return None


def _texts(content: object) -> list[_Said] | None:
    """A result's text, or its texts; None where it has anything else."""
    if type(content) is str:
        return [_Said(content)] if content and not content.isspace() else []
    if type(content) is not list:
        return None
    parts = []
    for part in content:
        if type(part) is not Text:
            return None
        parts.append(_Said(part.text))
    return parts
