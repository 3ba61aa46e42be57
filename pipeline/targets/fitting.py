"""Adapts one message's blocks to the members that a provider has.

The result is still canonical, but holds nothing that the target cannot express, so the target only has to write it.
Names, media and results are repaired. Members of a block that only some providers have (provider-specific ones,
citations, callers, cache breakpoints) are removed if the target has none.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, StructMeta, UnsetType, structs

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import CHAT, RESPONSES, FixLog, TrackedBlock, code_for_unknown, part_of_result
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.model import Document, Image, Own, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Unknown
from reknit.pipeline.text.flatten import with_each

_NOTHING: Final = frozenset({b"null", b"[]"})
# Provider-specific members that another provider does not need: storage details, and values that are expressed in
# another way.
_SILENT: Final = frozenset({"id", "status", "role", "content", "logprobs", "index"})
_WITH_DEVELOPERS: Final = frozenset({CHAT, RESPONSES})
_ALL_FIT: Final[Mapping[int, str]] = MappingProxyType({})
# The members that are content, or that adapters and writers look at wherever they are.
_UNUSUAL: Final[Mapping[type, Callable[[Any], bool]]] = MappingProxyType(
    {
        Text: unusual(Text, "issuer", "structured"),
        ToolUse: unusual(ToolUse, "issuer", "incomplete"),
        ToolResult: unusual(ToolResult, "issuer", "content", "is_error"),
        Thinking: unusual(Thinking, "issuer", "signature"),
        RedactedThinking: unusual(RedactedThinking, "issuer"),
        Image: unusual(Image, "issuer"),
        Document: unusual(Document, "issuer", "title", "context", "citations"),
    }
)


class _AbstractStruct(StructMeta, ABCMeta):
    """Structs whose classes may have abstract methods."""


class BlockAdapter(Struct, metaclass=_AbstractStruct, kw_only=True, eq=False):
    """Adapts one message: ``add_piece`` takes its pieces; ``out`` has the pieces to write.

    ``dropped`` are the input messages that have lost a block, ``media`` the parts of results that must follow them. A
    subclass defines what its provider takes: each of its methods returns the piece to continue with, or None to remove
    it.

    The results of one assistant turn may be in several messages. Providers refuse a medium between two of them, so
    while ``results_follow``, media are kept in ``held``, and the adapter of the next message takes them.
    """

    marks: ClassVar[bool] = True
    """Whether the provider takes cache breakpoints anywhere, so that dropping one is a fix."""

    left_behind: ClassVar[tuple[Text, ...]] = ()
    """The text in a result for a medium that had to move. If there is one, the result keeps a stub too."""

    book: FixLog
    out: list[TrackedBlock] = []
    dropped: set[int] = set()
    media: list[TrackedBlock] = []
    results_follow: bool = False
    held: list[TrackedBlock] = []

    @property
    def media_at_once(self) -> bool:
        """True if media of a result follow it directly instead of all results."""
        return False

    @abstractmethod
    def name(self, name: str) -> str:
        """A tool's name as the provider takes it."""

    @abstractmethod
    def image(self, piece: TrackedBlock, image: Image) -> TrackedBlock | None:
        """Return an image that the provider takes, or its replacement."""

    @abstractmethod
    def document(self, piece: TrackedBlock, document: Document) -> TrackedBlock | None:
        """Return a document that the provider takes, or its replacement."""

    @abstractmethod
    def unknown(self, piece: TrackedBlock, unknown: Unknown, inside: ToolResult | None) -> TrackedBlock | None:
        """A block of another type as the provider takes it, at its place ``inside`` a result or a message."""

    @abstractmethod
    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:
        """Return the fix that moves a part of a result after the results; ``""`` if it may stay."""

    def bared(self, piece: TrackedBlock) -> TrackedBlock:
        """Return a block, also of a result, without members that the provider has no field for."""
        return bare(piece, self.book, marks=self.marks, empty=True)

    def text(self, piece: TrackedBlock, text: Text) -> TrackedBlock:  # noqa: ARG002  most take any text
        return piece

    def reasoning(self, piece: TrackedBlock, reasoning: Thinking | RedactedThinking) -> TrackedBlock | None:  # noqa: ARG002  decided before
        return piece

    def call(self, piece: TrackedBlock, use: ToolUse) -> TrackedBlock:
        name = self.name(use.name)
        if name == use.name:
            return piece
        return self.book.change("tool_name_rewritten", piece, structs.replace(use, name=name))

    def fit_message(self, pieces: Sequence[TrackedBlock], unfit: Mapping[int, str] = _ALL_FIT) -> list[TrackedBlock]:
        """All pieces of a message, fitted; those at the places in ``unfit`` go, by the fix of that code."""
        for at, piece in enumerate(pieces):
            if unfit and at in unfit and self.book.makes(unfit[at]):
                self.book.drop(unfit[at], piece)
                self.dropped.add(piece.turn)
            else:
                self.add_piece(piece)
        self.finish_message()
        return self.out

    def add_piece(self, piece: TrackedBlock) -> None:
        fitted = self.fit_piece(piece)
        if fitted is not None:
            self.out.append(fitted)
        if self.media and self.media_at_once:
            self.out += self.media
            self.media = []

    def fit_piece(self, piece: TrackedBlock) -> TrackedBlock | None:
        if not is_bare(piece):
            piece = self.bared(piece)
        match piece.block:
            case Text() as text:
                return self.text(piece, text)
            case ToolUse() as use:
                return self.call(piece, use)
            case ToolResult() as result:
                return self.result(piece, result)
            case Thinking() | RedactedThinking() as reasoning:
                return self.reasoning(piece, reasoning)
        fitted = self._shown(piece, None)
        if fitted is None:
            self.book.drop_unknown(piece)
            # A breakpoint that goes takes nothing from its message: reasoning in it may stay.
            if code_for_unknown(piece.block) != "cache_point_dropped":
                self.dropped.add(piece.turn)
        return fitted

    def finish_message(self) -> None:
        """Put the media of results after the last result, those of earlier messages first."""
        media = [*self.held, *self.media]
        if self.results_follow:
            self.held = media
        elif media:
            self.held = []
            results = (place for place, piece in enumerate(self.out) if isinstance(piece.block, ToolResult))
            at = 1 + max(results, default=-1)
            self.out[at:at] = media

    def _shown(self, piece: TrackedBlock, inside: ToolResult | None) -> TrackedBlock | None:
        match piece.block:
            case Image() as image:
                return self.image(piece, image)
            case Document() as document:
                return self.document(piece, document)
            case Unknown() as unknown:
                return self.unknown(piece, unknown, inside)
            case _:
                return piece

    def result(self, piece: TrackedBlock, result: ToolResult) -> TrackedBlock:
        """A result with the parts that may stay in it; ``media`` gets those that have to move."""
        if not isinstance(result.content, list):
            return piece
        content: list[Any] = []
        for at, part in enumerate(result.content):
            inner = self.bared(part_of_result(piece, part, at))
            code = "" if isinstance(inner.block, Text) else self.moves(part, result)  # type: ignore[arg-type]  # no text
            code = code if self.book.makes(code) else ""
            shown = self._shown(inner, None if code else result)
            if shown is None:
                kind = part.kind if isinstance(part, Unknown) else ""
                piece = self._touched(piece, code_for_unknown(part, self.book.target), f"content.{at}: {kind}")
            elif code and not (self.left_behind and isinstance(shown.block, Text)):
                # Wherever it goes, the fix that its own change made names it as a part of the result.
                self.media.append(structs.replace(shown, fate="moved", code=code))
                piece = self._touched(piece, code, f"content.{at}")
                content += self.left_behind
            else:
                content.append(shown.block)
                if shown.fate != "kept":
                    piece = touched(piece, shown.code)
        if content == result.content:
            return piece
        return structs.replace(piece, block=structs.replace(result, content=content))

    def _touched(self, piece: TrackedBlock, code: str, detail: str) -> TrackedBlock:
        """Record that a part of a result was removed; the result itself stays."""
        self.book.change(code, piece, detail=detail)
        return touched(piece, code)


def is_bare(piece: TrackedBlock) -> bool:
    """True if a piece has nothing that a provider may lack a field for, as most have not; the parts of a result too."""
    block = piece.block
    is_unusual = _UNUSUAL.get(type(block))
    if is_unusual is None or piece.own is not UNSET or is_unusual(block):
        return False
    return type(block) is not ToolResult or type(block.content) is not list


def bare(
    piece: TrackedBlock,
    book: FixLog,
    *,
    refusals: bool = False,
    marks: bool = False,
    empty: bool = False,
    owners: Collection[str] = (),
    message_owners: Collection[str] | None = None,
) -> TrackedBlock:
    """Return the piece without members that only Anthropic or another provider has a field for, each with its fix.

    Args:
        piece: a block of a message, or one inside a result.
        book: receives the fixes.
        refusals: the target separates a refusal from the model's other output.
        marks: dropping a cache breakpoint is a fix.
        empty: dropping empty citations and callers (``null``, ``[]``) is one too; otherwise the writer ignores them.
        owners: the providers whose specific members the target writes again.
        message_owners: those of them whose members of a message it writes, if these differ.
    """
    block = piece.block
    if isinstance(block, Unknown) or not (piece.own is block.own is block.cache_control is UNSET):
        piece = without_mark(without_own(piece, book, owners, message_owners=message_owners), book if marks else None)
        block = piece.block
    if isinstance(block, Text) and block.refusal and not refusals:
        piece = book.change("refusal_as_text", piece, structs.replace(block, refusal=False))
        block = piece.block
    if isinstance(block, Text) and block.citations is not UNSET:
        lost, code = block.citations, "citations_dropped"
        without: Text | ToolUse = structs.replace(block, citations=UNSET)
    elif isinstance(block, ToolUse) and block.caller is not UNSET:
        lost, code = block.caller, "caller_dropped"
        without = structs.replace(block, caller=UNSET)
    else:
        return piece
    if bytes(lost) in _NOTHING and not empty:
        return piece
    return book.change(code, piece, without, detail=bytes(lost).decode())


def without_own(
    piece: TrackedBlock, book: FixLog, owners: Collection[str] = (), *, message_owners: Collection[str] | None = None
) -> TrackedBlock:
    """The piece without the members of its block and message that only a provider other than the ``owners`` has.

    ``message_owners`` are the owners of the message's members, where these differ.
    """
    own, block = piece.own, piece.block
    known = owners if message_owners is None else message_owners
    if own is not UNSET and own.provider not in known:
        piece = structs.replace(_lost_members(piece, own, piece.message, book), own=_shared(own, known))
    if isinstance(block, Unknown) or block.own is UNSET or block.own.provider in owners:
        return piece
    own, without = block.own, structs.replace(block, own=UNSET)
    if isinstance(block, (Thinking, RedactedThinking)):
        return structs.replace(piece, block=without)
    if own.kind:
        return book.change("tool_as_function", piece, without, detail=own.kind)
    return structs.replace(_lost_members(piece, own, piece.path, book), block=without)


def only_members(piece: TrackedBlock, taken: Collection[str], book: FixLog) -> TrackedBlock:
    """The piece without those members of its block that only one provider has, except the ``taken`` ones."""
    block = piece.block
    if isinstance(block, Unknown) or block.own is UNSET or block.own.members.keys() <= set(taken):
        return piece
    kept, lost = _parted(block.own, taken)
    piece = _lost_members(piece, lost, piece.path, book)
    return structs.replace(piece, block=structs.replace(block, own=kept))


def only_message_members(piece: TrackedBlock, taken: Collection[str], book: FixLog) -> TrackedBlock:
    """The piece without those members of its message that only one provider has, except the ``taken`` ones."""
    if piece.own is UNSET or piece.own.members.keys() <= set(taken):
        return piece
    kept, lost = _parted(piece.own, taken)
    return structs.replace(_lost_members(piece, lost, piece.message, book), own=kept)


def _parted(own: Own, taken: Collection[str]) -> tuple[Own | UnsetType, Own]:
    """Return the ``taken`` members, and the others."""
    kept = {name: value for name, value in own.members.items() if name in taken}
    lost = {name: value for name, value in own.members.items() if name not in taken}
    return structs.replace(own, members=kept) if kept else UNSET, structs.replace(own, members=lost)


def _shared(own: Own, owners: Collection[str]) -> Own | UnsetType:
    """Return a message's members that its owners share: both of OpenAI's APIs have developers, under the same name."""
    if "role" in own.members and own.provider in _WITH_DEVELOPERS and not _WITH_DEVELOPERS.isdisjoint(owners):
        return Own(own.provider, {"role": own.members["role"]})
    return UNSET


def without_own_inside(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """Return the piece, and the parts of a result, without members of other providers."""
    return with_each(without_own(piece, book), lambda part: without_own(part, book))


def _lost_members(piece: TrackedBlock, own: Own, path: str, book: FixLog) -> TrackedBlock:
    for name in own.members:
        if name == "name" and isinstance(piece.block, ToolResult):
            continue  # a tool's name is its call's
        if name == "annotations":
            piece = book.change("citations_dropped", piece, detail=bytes(own.members[name]).decode())
        elif name not in _SILENT:
            book.note_fix("field_dropped", f"{path}.{name}", name)
    return piece


def system_rows(
    rows: Sequence[TrackedBlock], target: str, fixes: list[Fix], owners: Collection[str] = ()
) -> list[TrackedBlock]:
    """Return the texts of leading system messages without members of other providers."""
    book = FixLog(target)
    bare_rows = [without_own(piece, book, owners) for piece in rows]
    fixes += book.fixes
    return bare_rows


def touched(piece: TrackedBlock, code: str) -> TrackedBlock:
    """Return a result with a changed or removed part; a more severe outcome stays."""
    return structs.replace(piece, fate="rewritten", code=code) if piece.fate == "kept" else piece


# Cache breakpoints. A breakpoint is an instruction to its provider's cache and not part of a block's content. If a
# provider has none (it caches automatically, or takes a text), all are always dropped, so that is a property of the
# target and not a fix. Anthropic sets one in a field of a block, Converse as a block after it. Both take a limited
# number in one request, those on the head and the newest ones, and dropping one because of that is a fix.

# `A maximum of 4 blocks with cache_control may be provided.` (ANT-28)
MOST_MARKS: Final = 4

_KEY: Final = b'"cache_control"'


class _CacheMark(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Point(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    type: Literal["default"]
    ttl: Literal["5m", "1h"] | None = None


class _PointBlock(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    cache_point: _Point


_mark = msgspec.json.Decoder(_CacheMark | None)
_point = msgspec.json.Decoder(_PointBlock)
_encode = msgspec.json.Encoder().encode


def is_mark(mark: Raw) -> bool:
    """Return True if this is a cache breakpoint as Anthropic takes them."""
    try:
        _mark.decode(mark)
    except msgspec.DecodeError:
        return False
    return True


def point_of(mark: Raw) -> Raw | None:
    found = decoded(_mark, mark)
    return None if found is None else Raw(_encode(_PointBlock(_Point("default", found.ttl))))


def mark_of(point: Raw) -> Raw | None:
    found = decoded(_point, point)
    return None if found is None else Raw(_encode(_CacheMark("ephemeral", found.cache_point.ttl)))


def without_mark(piece: TrackedBlock, book: FixLog | None) -> TrackedBlock:
    block = piece.block
    if isinstance(block, Unknown) or block.cache_control is UNSET:
        return piece
    bare = structs.replace(block, cache_control=UNSET)
    if book is None:
        return structs.replace(piece, block=bare)
    return book.change("cache_mark_dropped", piece, bare)


def unmarked(blocks: list[Any]) -> tuple[list[Any], int]:
    """The blocks without their cache breakpoints, inner ones included, and how many those were."""
    bare, count = [], 0
    for block in blocks:
        plain, marks = _unmarked(block)
        bare.append(plain)
        count += marks
    return (bare if count else blocks), count


def newest_marks(blocks: list[Any], most: int) -> list[Any]:
    """The blocks with at most the last ``most`` of their breakpoints."""
    kept = []
    for block in reversed(blocks):
        plain, marks = _unmarked(block)
        kept.append(block if marks <= most else plain)
        most -= min(marks, most)
    return kept[::-1]


def _unmarked(block: Any) -> tuple[Any, int]:  # noqa: ANN401  a block
    if isinstance(block, Unknown):
        raw, count = raw_unmarked(block.raw)
        return (block if raw is block.raw else structs.replace(block, raw=raw)), count
    count = 0
    if block.cache_control is not UNSET:
        count += bytes(block.cache_control) != b"null"
        block = structs.replace(block, cache_control=UNSET)
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        content, marks = unmarked(list(block.content))
        if marks:
            block = structs.replace(block, content=content)
            count += marks
    return block, count


def raw_unmarked(block: Raw) -> tuple[Raw, int]:
    """A block's JSON without its own cache breakpoint, and whether it had one (0 or 1)."""
    if _KEY not in bytes(block):
        return block, 0
    keys = msgspec.json.decode(block, type=dict[str, Raw])
    mark = keys.pop("cache_control", None)
    if mark is None:
        return block, 0
    return Raw(msgspec.json.encode(keys)), int(bytes(mark) != b"null")
