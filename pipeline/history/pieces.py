"""Blocks on their way through the repair, the messages they end up in, and the record of what became of each.

A ``Piece`` is one block with its place in the input. The repair moves pieces about, puts changed blocks into them and
says so in a ``Book``; a ``Message`` is a finished turn of the repaired history. Each input block has exactly one fate,
the gravest of what happened to it, and the ledger is made from the pieces that are left and the entries of those gone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, structs

from pipeline.fixes import FIXES, Fate, Fix, make
from pipeline.history.native import ANTHROPIC, is_listed
from pipeline.model import Block, Own, Role, Text, ToolResult, ToolUse, Turn, Unknown

Speaker: TypeAlias = Literal["user", "assistant"]

# What a system message becomes where it may not stay one.
_INLINED = frozenset({"system_inlined", "system_block_as_text"})

# The fix for reasoning that the policy leaves out; a target that must also leave out what it led to does it itself.
STRIPPED: Final = "reasoning_stripped"

# From the lightest to the gravest; a block that was both moved and rewritten was moved.
_GRAVITY: dict[str, int] = {"kept": 0, "rewritten": 1, "moved": 2, "flattened": 3, "dropped": 4, "synthesised": 5}


class LedgerEntry(Struct, frozen=True, omit_defaults=True):
    """One line of the ledger: what became of an input block, or where an output block comes from.

    ``path`` is the block's place in the input (``""`` for what was synthesised), ``output`` its place in the output
    (``""`` for what was dropped; a text that is its message's whole content is block 0 of it), ``code`` the fix that
    decided its fate (``""`` for what was kept).
    """

    path: str
    fate: Literal["kept"] | Fate
    output: str = ""
    code: str = ""


class Piece(Struct, omit_defaults=True, gc=False):
    """One block, where it came from (``turn`` is the input message's index), and what has happened to it so far.

    ``system`` marks the text of a system message that stands inside the history; ``whole`` a text that was the whole
    content of its message, as a plain string. ``came_as`` is the tool call's id in the input, once the block says it no
    longer; ``tool_id`` tells it at any time. ``synthetic`` marks words in the user's turn that an agent program wrote.
    ``own`` is what the block's message has beside its content; the first piece of each message carries it.
    """

    block: Block
    turn: int
    path: str
    fate: Literal["kept"] | Fate = "kept"
    code: str = ""
    system: bool = False
    came_as: str | None = None
    synthetic: bool = False
    own: Own | UnsetType = UNSET

    @property
    def tool_id(self) -> str:
        """The id in the input of the call that the block makes, answers or was part of; ``""`` where there is none."""
        return tool_id(self.block) if self.came_as is None else self.came_as

    @property
    def stays_system(self) -> bool:
        """Whether the block is part of a system message that stays one."""
        return self.system and self.code not in _INLINED

    @property
    def whole(self) -> bool:
        """Whether the block was its message's content, written as a plain string."""
        return is_whole(self.path)

    @property
    def message(self) -> str:
        """The place of the message that the block came in."""
        return ".".join(self.path.split(".", 2)[:2])


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of the repaired history.

    ``changed`` holds the input messages in it that lost a block or gave one away: what they say is no longer verbatim.
    """

    role: Role
    pieces: list[Piece]
    id: str | None = None
    changed: frozenset[int] = frozenset()


def tool_id(block: Block) -> str:
    """The id of the call that a block makes or answers, ``""`` for other blocks."""
    if isinstance(block, ToolUse):
        return block.id
    return block.tool_use_id if isinstance(block, ToolResult) else ""


def is_breakpoint(block: Block) -> bool:
    """Whether a block is nothing but an order to a cache, which ends with the block before it."""
    return isinstance(block, Unknown) and block.kind == "cachePoint"


def is_foreign(block: Block, provider: str) -> bool:
    """Whether a block is what only a provider other than this one has: who issued it, or whose type it is."""
    if isinstance(block, Unknown) and block.issuer is UNSET:
        return provider != ANTHROPIC and is_listed(ANTHROPIC, block.kind)
    return _is_from_another(block, provider)


def _is_from_another(block: Block, provider: str) -> bool:
    return isinstance(block, Unknown) and block.issuer is not UNSET and block.issuer.provider != provider


def code_for_unknown(block: Block, target: str = "") -> str:
    """The fix for a block of a type that a target has no place for: another provider's own, or nobody's.

    A cache breakpoint that is a block by itself says nothing that could be lost.
    """
    if is_breakpoint(block):
        return "cache_point_dropped"
    return "native_dropped" if _is_from_another(block, target) else "unknown_dropped"


def is_whole(path: str) -> bool:
    """Whether a block with this place in the input was its message's content, written as a plain string."""
    return path.endswith(".content")


def part_of_result(piece: Piece, part: Any, at: int) -> Piece:  # noqa: ANN401  a block that a result may hold
    """A part of a result with its place in the input: the content of a tool's row is the result's own."""
    inside = "" if piece.whole else "output." if piece.path.startswith("input.") else "content."
    return Piece(part, piece.turn, f"{piece.path}.{inside}{at}", came_as=piece.tool_id)


def is_blank(piece: Piece) -> bool:
    """Whether a piece is a text that says nothing."""
    return isinstance(piece.block, Text) and not piece.block.text.strip()


def is_row(piece: Piece) -> bool:
    """Whether a piece is a result that came as a message of its own, as its shape writes every result."""
    inside, _, last = piece.path.rpartition(".")
    return isinstance(piece.block, ToolResult) and (inside == "input" or not last.isdecimal())


def block_path(turn: Turn, at: int) -> str:
    """The place in the input of a turn's block."""
    return turn.paths[at] if turn.paths is not None else f"messages.{turn.index}.content.{at}"


def message_of(turn: Turn) -> Message:
    """A healthy turn as the message it is."""
    pieces = [Piece(block, turn.index, block_path(turn, at)) for at, block in enumerate(turn.blocks)]
    if turn.own is not UNSET and pieces:
        pieces[0].own = turn.own
    return Message("assistant" if turn.role == "assistant" else "user", pieces, turn.id)


class Book(Struct, gc=False):
    """The fixes of one stretch of work, and the ledger's entries of what did not survive it.

    ``observed`` are the codes of the mends that are not made: whoever asks to ``change`` a block for one gets it back
    as it came; who leaves blocks out, moves or adds them asks ``makes`` before.
    """

    target: str = ""
    observed: Collection[str] = ()
    fixes: list[Fix] = []
    gone: list[LedgerEntry] = []

    def makes(self, code: str) -> bool:
        """Whether a mend is made, and not only observed."""
        return code not in self.observed

    def note_fix(self, code: str, path: str, detail: str = "", tool_id: str = "") -> None:
        """Record a fix that concerns a whole message, or something that was synthesised."""
        self.fixes.append(make(code, path, target=self.target, detail=detail, tool_id=tool_id))

    def drop_unknown(self, piece: Piece) -> None:
        """Record that a block is left out because the target has no place for its type."""
        block = piece.block
        kind = block.kind if isinstance(block, Unknown) else type(block).__name__
        self.drop(code_for_unknown(block, self.target), piece, detail=kind)

    def drop(self, code: str, piece: Piece, detail: str = "") -> None:
        """Record that a block is left out."""
        self._add(code, piece, None, detail)
        self.gone.append(LedgerEntry(piece.path, "dropped", code=code))

    def change(self, code: str, piece: Piece, after: Block | None = None, detail: str = "") -> Piece:
        """Record that a block was moved, or that ``after`` takes its place; the piece to go on with."""
        if code in self.observed:
            return piece
        self._add(code, piece, after, detail)
        if after is not None:
            piece = structs.replace(piece, block=after, came_as=piece.tool_id)
        # The ledger has one fate for a block: of all that happened to it, the gravest.
        if _GRAVITY[FIXES[code].fate] > _GRAVITY[piece.fate]:
            return structs.replace(piece, fate=FIXES[code].fate, code=code)
        return piece

    def _add(self, code: str, piece: Piece, after: Block | None, detail: str) -> None:
        before, called = piece.block, piece.tool_id
        fix = make(code, piece.path, before=before, after=after, target=self.target, detail=detail, tool_id=called)
        self.fixes.append(fix)
