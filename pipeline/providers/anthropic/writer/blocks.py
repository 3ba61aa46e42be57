"""One message's blocks for the Messages API: which ones may be sent back, and their form.

The API's own blocks may, and reasoning (ANT-17 to ANT-23). A thinking block is sent back exactly as its issuer signed
it or not at all, and a turn keeps all of its reasoning or none: ``thinking blocks in the latest assistant message
cannot be modified``. Blank blocks and blocks of other issuers do not count as part of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.history.pieces import ANTHROPIC, POINT, SETTINGS, Message, TrackedBlock, code_for_unknown, is_point
from reknit.pipeline.history.served import EARLIER, RESULTS, unpaired
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.targets import is_issued_by
from reknit.pipeline.targets.bound import NOT_VOID, Void, is_void
from reknit.pipeline.targets.fitting import BlockAdapter, is_mark, mark_of, without_own
from reknit.pipeline.targets.limits import CLAUDE
from reknit.pipeline.targets.media import (
    MEDIA_TYPES,
    Facts,
    inspect,
    source_fault,
    stubbed_image,
    with_own_type,
    with_source,
)
from reknit.pipeline.targets.signatures import UNKNOWN, has_foreign_signature, may_cross, wants_back

# Calls that the provider runs itself: a turn that ends in one is paused, and any model continues it.
PAUSING: Final = frozenset({"server_tool_use", "mcp_tool_use"})
# Blocks of a system message inside the history other than text (recorded), and the settings of one without content.
SYSTEM_BLOCKS: Final = frozenset({"tool_addition", "tool_removal", SETTINGS})
# The types beyond the model's own that the API takes, by role.
_TAKEN: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "assistant": PAUSING | RESULTS | {"compaction", "fallback", "mcp_tool_listing"},
        "user": frozenset({"container_upload", "search_result"}),
        # Inside the history, for models that take such messages at all.
        "system": SYSTEM_BLOCKS,
    }
)


def untaken(message: Message, opened: Collection[str], *, paused: bool) -> dict[int, str]:
    """Return the pieces of a message that the API does not take, each with its fix code.

    ``opened`` are the provider-run calls that earlier messages left open (`left_open`). ``paused`` says that the
    message is the last one and the model continues it: its own calls may still be open.
    """
    unknown = [at for at, piece in enumerate(message.pieces) if isinstance(piece.block, Unknown)]
    if not unknown:
        return {}
    taken = _TAKEN[message.role]
    # A breakpoint of Converse's is no block here, and gets its place later.
    codes = {
        at: code_for_unknown(message.pieces[at].block)
        for at in unknown
        if _kind(message.pieces[at]) not in taken | {POINT}
    }
    if message.role == "assistant":
        codes |= dict.fromkeys(_halves(message, opened, paused=paused), "server_tool_unpaired")
    return codes


def _halves(message: Message, opened: Collection[str], *, paused: bool) -> set[int]:
    """Provider-run calls without their result, and results without their call (ANT-17)."""
    calls, orphans = unpaired(message.pieces, opened, PAUSING)
    if paused:
        return {at for at in orphans if _kind(message.pieces[at]) in RESULTS}
    return orphans | {at for call, at in calls.items() if at != EARLIER and call not in message.in_flight}


def settings_in(block: Block) -> Raw | None:
    """The members of a system message without content, which a block represents; None for any other block."""
    return block.raw if isinstance(block, Unknown) and block.kind == SETTINGS else None


def left_open(message: Message, opened: Collection[str]) -> tuple[str, ...]:
    """The ids of the provider-run calls whose results come in a later message."""
    calls, _ = unpaired(message.pieces, opened, PAUSING)
    return tuple(call for call, at in calls.items() if at == EARLIER or call in message.in_flight)


def _kind(piece: TrackedBlock) -> str:
    return piece.block.kind if isinstance(piece.block, Unknown) else ""


# From 4.7 on models write signed thinking blocks without text, and take them back (recorded).
_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_EMPTY_SINCE: Final = (4, 7)
# They refuse a tool loop that does not begin with thinking (ANT-23); later ones are documented to switch it off.
_LOOPS_THINK: Final = ((3, 7), (4, 0))
_OTHER_TYPES: Final = ((3, 0), (3, 5))


def unfit_reasoning(
    message: Message,
    model: str | None,
    observed: Collection[str] = (),
    endpoint: Endpoint = UNKNOWN,
    void: Void = NOT_VOID,
    *,
    unsigned: bool = False,
) -> dict[int, str]:
    """Return the pieces of a message that cannot be sent back to an endpoint, each with its fix code.

    Pieces that only an ``observed`` repair would leave out stay. ``void`` are the messages whose reasoning was issued
    after something that has changed. ``unsigned``: the endpoint wants reasoning back that is not signed.
    """
    pieces = message.pieces
    reasoning = [at for at, piece in enumerate(pieces) if isinstance(piece.block, (Thinking, RedactedThinking))]
    if not reasoning:
        return {}
    unfit = {
        at: code
        for at in reasoning
        if not (unsigned and _is_wanted(pieces[at].block, endpoint))
        and (code := _fault_in(pieces[at], message, model, endpoint, void))
        and code not in observed
    }
    last = len(pieces) - 1 if "thinking_trailing" not in observed else -1
    # A breakpoint ends with the block before it.
    while last >= 0 and (last in unfit or last in reasoning or _kind(pieces[last]) == POINT):
        if last in reasoning:
            unfit.setdefault(last, "thinking_trailing")
        last -= 1
    broken = {pieces[at].turn for at in unfit} if "thinking_of_changed_turn" not in observed else ()
    for at in reasoning:
        if pieces[at].turn in broken and not (unsigned and _is_wanted(pieces[at].block, endpoint)):
            unfit.setdefault(at, "thinking_of_changed_turn")
    return unfit


def _is_wanted(block: Block, endpoint: Endpoint) -> bool:
    """Return True if a block is readable reasoning without a signature that an endpoint wants back as it is."""
    if not isinstance(block, Thinking) or block.signature or not block.thinking.strip():
        return False
    return wants_back(block.issuer if isinstance(block.issuer, Issuer) else None, endpoint)


def _fault_in(piece: TrackedBlock, message: Message, model: str | None, endpoint: Endpoint, void: Void) -> str:
    if not isinstance(piece.block, (Thinking, RedactedThinking)):
        return ""
    voided = bool(void) and is_void(void, piece.turn)
    changed = "thinking_of_changed_turn" if piece.turn in message.changed else ""
    return _reasoning_fault(piece.block, model, endpoint, voided=voided) or changed


def _reasoning_fault(
    block: Thinking | RedactedThinking, model: str | None, endpoint: Endpoint, *, voided: bool = False
) -> str:
    """Return the code of the fix for reasoning that cannot be sent back, or ""; ``voided``: its turn is void."""
    if isinstance(block.issuer, Issuer) and not is_issued_by(block, _OWN, model):
        known = block.issuer.provider == ANTHROPIC
        if not (known and may_cross(block.issuer, endpoint, version_of(model))):
            return "thinking_foreign"
    if has_foreign_signature(block, endpoint) or voided:
        return "reasoning_foreign"
    if isinstance(block, RedactedThinking):
        if not block.data:
            return "thinking_unsigned"
    else:
        if block.signature is UNSET or not block.signature:
            return "thinking_unsigned"
        if not block.thinking.strip() and not _takes_empty(model):
            return "thinking_empty"
    return ""


def version_of(model: str | None) -> tuple[int, int] | None:
    found = _VERSION.search(model or "")
    return (int(found[1]), int(found[2] or 0)) if found else None


def _takes_empty(model: str | None) -> bool:
    version = version_of(model)
    return version is not None and version >= _EMPTY_SINCE


def takes_other_type(model: str | None) -> bool:
    """True if a model takes an image of another type than the one declared, of those that it knows (recorded)."""
    return version_of(model) in _OTHER_TYPES


def refuses_bare_loop(model: str | None) -> bool:
    """Return True if a model is known, or unknown but may be one, to want thinking before the calls of a tool loop."""
    version = version_of(model)
    return version is None or version in _LOOPS_THINK


# Block types beyond the model's own that the API takes inside a tool's result.
_TAKEN_IN_RESULTS: Final = frozenset({"browser_state", "search_result", "tool_reference"})

# Those of them that may be next to an error result, which holds text only.
_TAKEN_IN_ERRORS: Final = frozenset({"search_result"})


class _Citation(Struct, gc=False):
    type: str = ""


_citations = msgspec.json.Decoder(list[_Citation] | None)


def _are_citations(citations: Raw) -> bool:
    """Return True if these are citations of this API's; Perplexity's, for one, are addresses."""
    try:
        found = _citations.decode(citations)
    except msgspec.DecodeError:
        return False
    return all(one.type.endswith("_location") for one in found or ())


_OWN: Final = frozenset({ANTHROPIC})


class AnthropicBlockAdapter(BlockAdapter, kw_only=True, eq=False):
    """Adapts blocks for the Messages API. ``images`` is the number of earlier images.

    ``large``: one of them is large (ANT-30b). Both are updated.
    ``tool_name`` converts a tool's name; ``other_type`` says that the model takes an image of another type than
    declared.
    """

    tool_name: Callable[[str], str]
    images: int
    large: bool
    other_type: bool

    def add_piece(self, piece: TrackedBlock) -> None:
        if isinstance(piece.block, Unknown) and is_point(piece.block):
            self._set_mark(piece, piece.block)
        else:
            super().add_piece(piece)

    def _set_mark(self, point: TrackedBlock, block: Unknown) -> None:
        """Put a breakpoint in a block of its own on the block before it, which is its position."""
        mark, before = mark_of(block.raw), self.out[-1] if self.out else None
        if mark is None or before is None or isinstance(before.block, (Thinking, RedactedThinking, Unknown)):
            self.book.drop("cache_point_dropped", point)
            return
        self.out[-1] = structs.replace(before, block=structs.replace(before.block, cache_control=mark))
        self.book.drop("cache_point_joined", point)

    def bared(self, piece: TrackedBlock) -> TrackedBlock:
        """Return the piece without other providers' members and without a refused cache breakpoint."""
        piece = without_own(piece, self.book, _OWN, message_owners=_OWN if piece.stays_system else ())
        block = piece.block
        if isinstance(block, Unknown) or block.cache_control is UNSET or is_mark(block.cache_control):
            return piece
        return self.book.change("cache_mark_dropped", piece, structs.replace(block, cache_control=UNSET))

    def name(self, name: str) -> str:
        return self.tool_name(name)

    def text(self, piece: TrackedBlock, text: Text) -> TrackedBlock:
        """Return a text without other providers' members."""
        if text.refusal:
            text = structs.replace(text, refusal=False)
            piece = self.book.change("refusal_as_text", piece, text)
        if text.citations is not UNSET and not _are_citations(text.citations):
            lost = bytes(text.citations).decode()
            return self.book.change("citations_dropped", piece, structs.replace(text, citations=UNSET), detail=lost)
        return piece

    def reasoning(self, piece: TrackedBlock, reasoning: Thinking | RedactedThinking) -> TrackedBlock:
        """Reasoning takes no cache breakpoint (ANT-29)."""
        if reasoning.cache_control is UNSET:
            return piece
        return self.book.change("cache_control_dropped", piece, structs.replace(reasoning, cache_control=UNSET))

    def result(self, piece: TrackedBlock, result: ToolResult) -> TrackedBlock:
        """Return a result; one whose content is removed gets no content, which differs from an empty list."""
        fitted = super().result(piece, result)
        emptied = isinstance(fitted.block, ToolResult) and fitted.block.content == [] != result.content
        return structs.replace(fitted, block=structs.replace(result, content=UNSET)) if emptied else fitted

    def unknown(self, piece: TrackedBlock, unknown: Unknown, inside: ToolResult | None) -> TrackedBlock | None:
        """Blocks outside of a result were selected before (``untaken``)."""
        return piece if inside is None or unknown.kind in _taken_in(inside) else None

    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:
        """An error result is text only (ANT-16); what no result may hold goes, wherever it is."""
        stays = not result.is_error or (isinstance(part, Unknown) and part.kind not in _taken_in(result))
        return "" if stays else "error_media_moved"

    def document(self, piece: TrackedBlock, document: Document) -> TrackedBlock:  # noqa: ARG002  the piece holds it
        return with_source(piece, self.book)

    def image(self, piece: TrackedBlock, image: Image) -> TrackedBlock:
        facts = inspect(image.source)
        if facts is None:
            return with_source(piece, self.book)
        fault = _image_fault(facts, self.images, large=self.large)
        if fault:
            return stubbed_image(piece, self.book, fault, mark=image.cache_control)
        self.images += 1
        self.large = self.large or facts.longest_side > CLAUDE.many_side
        if self.other_type and facts.declared in MEDIA_TYPES:
            return piece
        return with_own_type(piece, image, facts, self.book)


def _taken_in(result: ToolResult) -> frozenset[str]:
    """Return the types beyond the model's own that may be in a result, or next to one that is an error."""
    return _TAKEN_IN_ERRORS if result.is_error else _TAKEN_IN_RESULTS


def _image_fault(facts: Facts, images: int, *, large: bool) -> str:
    """Return why the API would refuse an image after so many others, one of them ``large``; ``""`` if it takes it."""
    fault = facts.fault(MEDIA_TYPES.__contains__, CLAUDE)
    if not fault and images >= CLAUDE.many and (large or facts.longest_side > CLAUDE.many_side):
        return f"a side over {CLAUDE.many_side} pixels in a request of more than {CLAUDE.many} images"
    return fault


def as_it_is(
    turn: Turn, images: int, model: str | None, endpoint: Endpoint, void: Void = NOT_VOID, *, large: bool
) -> tuple[int, bool] | None:
    """Return the count of images after a valid turn, and whether one is large, if an endpoint takes it unchanged.

    None if it is not, or if that needs a closer check.
    """
    if turn.own is not UNSET or (void and is_void(void, turn.index)):
        return None
    block: Any  # looked at by its class, for speed
    for block in turn.blocks:
        if not stays(block):
            return None
        parts: Sequence[Block] = ()
        kind = type(block)
        if kind is Thinking or kind is RedactedThinking:
            if _reasoning_fault(block, model, endpoint):
                return None
        elif kind is ToolResult:
            parts = block.content if type(block.content) is list else ()
        elif kind is Image or kind is Document:
            parts = (block,)
        for part in parts:
            if type(part) is Image and (facts := inspect(part.source)) is not None:
                if facts.media_type != facts.declared or _image_fault(facts, images, large=large):
                    return None
                images, large = images + 1, large or facts.longest_side > CLAUDE.many_side
            elif isinstance(part, (Image, Document)) and source_fault(part):
                return None
    # Reasoning cannot end a turn.
    return None if kind is Thinking or kind is RedactedThinking else (images, large)


def without_issuers(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks of a turn that stays as it is, without the issuers of reasoning, which no request has."""
    if not any(_has_issuer(block) for block in blocks):
        return blocks
    return tuple(structs.replace(block, issuer=UNSET) if _has_issuer(block) else block for block in blocks)


def _has_issuer(block: Block) -> bool:
    return isinstance(block, (Thinking, RedactedThinking)) and block.issuer is not UNSET


# The members that are content, or that are looked at by themselves.
_UNUSUAL: Final[Mapping[type, Callable[[Any], bool]]] = MappingProxyType(
    {
        Text: unusual(Text, "citations"),
        ToolUse: unusual(ToolUse, "caller", "incomplete"),
        ToolResult: unusual(ToolResult, "content", "is_error"),
        Thinking: unusual(Thinking, "issuer", "signature"),
        RedactedThinking: unusual(RedactedThinking, "issuer"),
        Image: unusual(Image),
        Document: unusual(Document, "title", "context", "citations"),
    }
)


def stays(block: Any) -> bool:  # noqa: ANN401  a block that the model knows; looked at by its class, for speed
    """Return True if a block, media and reasoning excepted, has no content or member that the API does not take."""
    kind = type(block)
    if _UNUSUAL[kind](block):
        return False
    if kind is Text:
        return block.citations is UNSET or _are_citations(block.citations)
    if kind is ToolResult and type(block.content) is list:
        return all(stays(part) and not (block.is_error and type(part) is not Text) for part in block.content)
    return True
