"""The current message as recovery remembers it: its blocks, what was streamed of each, and what is confirmed.

All of it is state that is saved with every batch, so it holds one message and nothing of those before it.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.streams.events import BlockNoted, BlockStarted, UserMessage, WholeBlock
from topics.items import Usage

TEXTS = frozenset({"text", "thinking"})
CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
# Kinds whose items tell all there is of them; an item of any other kind ends with its block's whole JSON.
PLAIN = TEXTS | {"tool_use", "redacted_thinking"}


class Block(Struct, kw_only=True):
    """One block of the current message, which is one item.

    ``index`` is its place in the stream, -1 for a promoted one. ``parts`` are the pieces of its text or of its input's
    JSON, ``length`` their length in code points. ``raw`` is its JSON: of an unknown type, as it started; else, once a
    complete message has confirmed it. ``members`` and ``lists`` are what was noted beside its text.
    """

    item_id: str
    kind: str
    index: int = -1
    tool_id: str | None = None
    name: str = ""
    parts: list[str] = []
    length: int = 0
    signature: str = ""
    stopped: bool = False
    abandoned: bool = False
    confirmed: bool = False
    withdrawn: bool = False
    # Completed as incomplete, because its message was closed.
    left: bool = False
    # Thinking of which no word has come: it has no item yet, and gets none if its signature is all there is.
    unseen: bool = False
    answered: bool = False
    recorded: bool = False
    raw: bytes | None = None
    members: dict[str, bytes] = {}
    lists: dict[str, list[bytes]] = {}

    def text(self) -> str:
        """What was streamed, or confirmed, so far."""
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def awaits_confirmation(self) -> bool:
        """Whether it streamed and no complete message has held it yet."""
        return self.index >= 0 and not self.confirmed

    def reads_as_whole(self, *, cut: bool) -> bool:
        """Whether what streamed can be the whole block: a call's input must be JSON, or nothing if nothing was cut."""
        if self.kind not in CALLS:
            return True
        return self.reads_as_json() if self.text() else not cut

    def reads_as_json(self) -> bool:
        """Whether what streamed is a JSON value."""
        try:
            msgspec.json.decode(self.text())
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def append(self, content: str) -> None:
        """Take a delta."""
        self.parts.append(content)
        self.length += len(content)

    def note(self, event: BlockNoted) -> None:
        """Take a member that stands beside the text."""
        if event.appends:
            self.lists.setdefault(event.name, []).append(bytes(event.value))
        else:
            self.members[event.name] = bytes(event.value)

    def noted(self) -> dict[str, Raw]:
        """What stands beside the text, as JSON members."""
        if not (self.members or self.lists):
            return {}  # nearly always
        members = {name: Raw(value) for name, value in self.members.items()}
        return members | {name: Raw(b"[%b]" % b",".join(values)) for name, values in self.lists.items()}

    def repeats(self, event: BlockStarted) -> bool:
        """Whether an event that starts a block in this one's place can only be the start of this one, once more."""
        return not (self.stopped or self.confirmed) and self.kind == event.kind and self.tool_id == event.tool_id


class UserLine(Struct, array_like=True):
    """A user's line that waits for the turn before it: tool results by call id, and raw blocks; as bytes of JSON."""

    results: list[tuple[str, bytes]]
    rest: list[bytes]
    synthetic: bool

    @classmethod
    def of(cls, event: UserMessage) -> UserLine:
        """What is kept of the event."""
        results = [(result.tool_id, bytes(result.block)) for result in event.results]
        return cls(results, [bytes(raw) for raw in event.rest], event.synthetic)


class Message(Struct, kw_only=True):
    """The current message. ``attempt`` says that it streamed; ``over`` that nothing can replace it any more.

    ``cut``: its stop reason says that the output ended before its end. ``failed`` is the error that cut it.
    """

    id: str | None
    model: str | None
    attempt: bool
    reason: str | None = None
    cut: bool = False
    failed: str = ""
    usage: Usage | None = None
    details: dict[str, bytes] = {}
    stopped: bool = False
    over: bool = False
    # How many blocks its complete messages have held so far.
    confirmed: int = 0
    blocks: list[Block] = []
    # The newest block at each place in the stream, by its number in `blocks`.
    places: dict[int, int] = {}
    users: list[UserLine] = []

    def surviving(self) -> list[Block]:
        """The blocks that are on the screen."""
        return [block for block in self.blocks if not block.withdrawn]

    def add(self, block: Block) -> None:
        """Take a new block."""
        if block.index >= 0:
            self.places[block.index] = len(self.blocks)
        self.blocks.append(block)

    def block(self, index: int) -> Block | None:
        """The newest block at this place in the stream."""
        place = self.places.get(index)
        return None if place is None else self.blocks[place]

    def call(self, tool_id: str) -> Block | None:
        """The call that a result with this id answers: the first that has none yet, or else the last."""
        calls = [block for block in self.surviving() if block.tool_id == tool_id]
        return next((call for call in calls if not call.answered), calls[-1] if calls else None)

    def is_answered_with(self, tool_ids: set[str]) -> bool:
        """Whether the message has calls, and with these results every one of them has its answer."""
        calls = [block for block in self.surviving() if block.kind == "tool_use"]
        return bool(calls) and all(call.answered or call.tool_id in tool_ids for call in calls)

    def streamed(self, whole: WholeBlock) -> Block | None:
        """The streamed block that a complete message now confirms; None if it never streamed.

        A call is known by its id. Other blocks stand in a complete message in the order of the stream, and what was
        streamed is the beginning of the whole. Where a delta was lost in the middle, only the place is left to go by.
        A complete message that tells each block's place leaves nothing to guess.
        """
        if whole.index is not None:
            here = self.block(whole.index)
            return here if here is not None and here.kind == whole.kind and not here.withdrawn else None
        open_ = [block for block in self.surviving() if block.kind == whole.kind and block.awaits_confirmation()]
        if whole.tool_id is not None:
            return next((block for block in open_ if block.tool_id == whole.tool_id), None)
        here = next((block for block in open_ if block.index == self.confirmed), None)
        fitting = [block for block in open_ if whole.text.startswith(block.text())]
        if here in fitting:
            return here
        # A block of which nothing came fits anything, so it says less than the place does.
        started = next((block for block in fitting if block.length), None)
        return started or here or (fitting[0] if fitting else None)


class Rest(Struct, frozen=True):
    """What a confirmed block was still missing on the screen."""

    text: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    raw: Raw | UnsetType = UNSET


def confirm(block: Block, whole: WholeBlock) -> Rest:
    """Take the complete block's word; return what the stream did not deliver of it."""
    streamed = block.text()
    block.confirmed = True
    # Of a confirmed block only the text is needed later, to compare a result with it.
    block.parts = [whole.text] if whole.kind == "text" else []
    if whole.kind in TEXTS:
        # Some settings leave the thinking out of complete messages; then what was streamed is all there is.
        missing = whole.kind == "thinking" and not whole.text
        return Rest() if missing or whole.text == streamed else Rest(text=whole.text)
    if whole.kind in CALLS:
        return Rest(input=UNSET if _same_json(streamed, whole.input) else whole.input)
    return Rest(raw=whole.raw)


def _same_json(streamed: str, whole: Raw | UnsetType) -> bool:
    if whole is UNSET:
        return True
    try:
        return bool(msgspec.json.decode(streamed) == msgspec.json.decode(whole))
    except (msgspec.DecodeError, RecursionError):
        return False
