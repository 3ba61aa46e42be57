"""Common events: the form of every provider's stream that the recovery machine reads.

The terms are Anthropic's, as in the canonical model: a message has blocks, and a block has a type and is streamed in
deltas. A source's decoder makes these events, does not decide what was lost, and joins adjacent deltas. If an event
names its message (``message_id``), an event of a finished message can be distinguished from a current one; None means
that only the order distinguishes them. Sources whose chunks do not mark the start and end of a block (Gemini, chats)
write their blocks with a ``BlockWriter``.

``counted_as`` is the name under which the diagnosis of a run counts an event; deltas of known kinds count by their
kind.

Events never form reference cycles, so the garbage collector need not track them (``gc=False``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.model import Block
from reknit.pipeline.streams.fields import Fields
from reknit.topics.items import AgentUnrecognized, Doubt, Item, TurnResult, Usage

Extras: TypeAlias = dict[str, Raw] | UnsetType

# Kinds of blocks: text, reasoning, and calls, some of which the provider runs itself.
TEXTS: Final = frozenset({"text", "thinking"})
REASONING: Final = frozenset({"thinking", "redacted_thinking"})
CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
# Kinds of deltas that are known, each with the kind of block that it is of.
BLOCK_OF_DELTA: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "tool_use",
    "signature_delta": "thinking",
}


class MessageStarted(Struct, frozen=True, gc=False):
    """An attempt at a message begins to stream.

    ``placed`` says that its blocks' indexes are their order in the answer, whatever order they start in.
    """

    counted_as: ClassVar[str] = "message_started"
    message_id: str | None
    model: str | None = None
    placed: bool = False


class BlockStarted(Struct, frozen=True, kw_only=True, gc=False):
    """A block of the attempt begins. ``raw`` is the whole block, if its type is unknown.

    ``doubtful`` states what cannot be known of it (``reknit.topics.items``).
    """

    counted_as: ClassVar[str] = "block_started"
    index: int
    kind: str
    message_id: str | None = None
    tool_id: str | None = None
    name: str = ""
    text: str = ""
    raw: Raw | UnsetType = UNSET
    doubtful: Doubt = ""


class BlockDelta(Struct, frozen=True, gc=False):
    """More of a block: ``kind`` is ``text_delta``, ``thinking_delta``, ``input_json_delta``, ``signature_delta``.

    A delta of any other kind has its whole JSON in ``raw`` and no content. ``count`` is how many deltas were joined.
    """

    counted_as: ClassVar[str] = "other_delta"
    index: int
    kind: str
    content: str
    message_id: str | None = None
    raw: Raw | UnsetType = UNSET
    count: int = 1


class BlockNoted(Struct, frozen=True, gc=False):
    """A member of the block's canonical form besides its text, such as its citations.

    With ``appends`` the member is a list and ``value`` its next element; otherwise ``value`` replaces the earlier
    value. With ``aside`` the canonical form has no such member: it is in the item's extras, and not in the history.
    """

    counted_as: ClassVar[str] = "block_noted"
    index: int
    name: str
    value: Raw
    appends: bool = False
    message_id: str | None = None
    aside: bool = False


class BlockStopped(Struct, frozen=True, gc=False):
    """A block's stream has stopped, which proves nothing about its content.

    ``text`` is the whole text, or the whole input's JSON, if the source repeats it. With ``cut`` the content is
    incomplete, and this does not count as a stop. ``doubtful`` states what cannot be known of the block.
    """

    counted_as: ClassVar[str] = "block_stopped"
    index: int
    message_id: str | None = None
    text: str | None = None
    cut: bool = False
    doubtful: Doubt = ""


class MessageDelta(Struct, frozen=True, gc=False):
    """The message's stop reason. None means that the attempt was cut.

    ``cut`` says that the output is incomplete, for example because of a token limit. ``details`` has other values that
    the source reports with it.
    """

    counted_as: ClassVar[str] = "message_delta"
    stop_reason: str | None
    message_id: str | None = None
    cut: bool = False
    details: Extras = UNSET


class UsageKnown(Struct, frozen=True, gc=False):
    """The tokens of the whole message so far, or the model that continues it; the last one counts."""

    counted_as: ClassVar[str] = "usage"
    usage: Usage | None
    model: str | None = None
    message_id: str | None = None


class MessageStopped(Struct, frozen=True, gc=False):
    """The attempt's stream has stopped. Blocks from ``abandoned_from`` on are known to be given up."""

    counted_as: ClassVar[str] = "message_stopped"
    message_id: str | None = None
    abandoned_from: int | None = None


class WholeBlock(Struct, frozen=True, kw_only=True, gc=False):
    """A block as a complete message holds it; ``raw`` is its whole JSON, ``opaque`` that its type is unknown.

    ``index`` is its place in the stream, if the complete message has it.
    """

    kind: str
    raw: Raw
    index: int | None = None
    text: str = ""
    tool_id: str | None = None
    name: str = ""
    input: Raw | UnsetType = UNSET
    extras: Extras = UNSET
    opaque: bool = False


class WholeMessage(Struct, frozen=True, kw_only=True, gc=False):
    """A complete message or a part of one: the blocks in it are confirmed. With ``parent``, a sub-agent's.

    ``interrupted``: the program was interrupted in the middle of the last of these blocks.
    """

    counted_as: ClassVar[str] = "complete_message"
    message_id: str | None
    blocks: tuple[WholeBlock, ...]
    model: str | None = None
    usage: Usage | UnsetType = UNSET
    uuid: str | None = None
    parent: str | None = None
    sidechain: bool = False
    interrupted: bool = False
    extras: Extras = UNSET


class ToolResult(Struct, frozen=True, kw_only=True, gc=False):
    """A tool's answer. ``content`` is a list of blocks; ``block`` is the block's whole JSON."""

    tool_id: str
    content: Raw
    block: Raw
    is_error: bool = False


class UserMessage(Struct, frozen=True, kw_only=True, gc=False):
    """A user's line: tool results, and its other blocks (``rest``, raw).

    ``interrupts``: the program reports that it was interrupted, which some versions report in no other way.
    """

    counted_as: ClassVar[str] = "user_message"
    results: tuple[ToolResult, ...] = ()
    rest: tuple[Raw, ...] = ()
    tool_result: Raw | UnsetType = UNSET
    uuid: str | None = None
    parent: str | None = None
    sidechain: bool = False
    synthetic: bool = False
    interrupts: bool = False
    replay: bool = False
    extras: Extras = UNSET


class Notice(Struct, frozen=True, kw_only=True, gc=False):
    """The agent program's own words about an error; never the model's."""

    counted_as: ClassVar[str] = "error"
    message: str
    code: str = ""
    parent: str | None = None


class Retried(Struct, frozen=True, gc=False):
    """The request is made again: the attempt, if one is open, was cut."""

    counted_as: ClassVar[str] = "retry"
    message: str


class Failed(Struct, frozen=True, gc=False):
    """The provider reports an error: the attempt, if one is open, was cut."""

    counted_as: ClassVar[str] = "error"
    message: str
    code: str = ""


class Rewritten(Struct, frozen=True, gc=False):
    """The decoder changed a block's text, or removed text next to it (-1: next to no block), this many times.

    ``code`` is of the fix catalogue. ``before`` and ``after`` are digests; ``detail`` holds nothing of the content.
    ``path`` is set for a change that the provider made to the request: the place in it.
    """

    counted_as: ClassVar[str] = "rewritten"
    index: int
    code: str
    before: str = ""
    after: str = ""
    detail: str = ""
    times: int = 1
    path: str = ""


class RunResult(Struct, frozen=True, gc=False):
    """A run's answer has ended. ``begun`` names the messages that streamed in it, if the source reports them.

    ``repeated``: its text is on the screen already, in an item other than a text of the model.
    """

    counted_as: ClassVar[str] = "result"
    item: TurnResult
    begun: tuple[str, ...] | None = None
    repeated: bool = False


class RunEnded(Struct, frozen=True, gc=False):
    counted_as: ClassVar[str] = "end"
    reason: str


class Aside(Struct, frozen=True, gc=False):
    """Something that goes to the reader as it is and touches no message."""

    counted_as: ClassVar[str] = "aside"
    item: Item


StreamedEvent: TypeAlias = (
    BlockStarted | BlockDelta | BlockNoted | BlockStopped | MessageDelta | UsageKnown | MessageStopped
)
Event: TypeAlias = (
    StreamedEvent
    | MessageStarted
    | WholeMessage
    | UserMessage
    | Notice
    | Retried
    | Failed
    | Rewritten
    | RunResult
    | RunEnded
    | Aside
)


# At most this much of a line that is not JSON is passed on.
MOST_TEXT = 65_536


def unrecognized(reason: str, *, event: dict[str, Raw] | None = None, line: bytes | None = None) -> Aside:
    """Return the event for unknown input: a JSON object by its members, or a line that is not one."""
    if event is not None:
        raw = Raw(msgspec.json.encode(event))
        return Aside(AgentUnrecognized(reason=reason, event=raw))
    line = line or b""
    text = line[:MOST_TEXT].decode("utf-8", "replace")
    return Aside(AgentUnrecognized(reason=reason, text=text, size=len(line) if len(line) > MOST_TEXT else 0))


# Blocks as events: how they begin, grow and end, and those that the canonical form does not have.

CANONICAL: Final = frozenset(str(block.__struct_config__.tag) for block in get_args(Block))


class Answer(Struct):
    """One answer of a message as it grows: its number, and the kind and the block of the words that grow now.

    The first answer is the message's own. With no kind (``""``) nothing grows. This is saved; a source adds to it what
    else it has to remember.
    """

    number: int = 0
    kind: str = ""
    block: int = -1


A = TypeVar("A", bound=Answer)


class BlockWriter(Generic[A]):
    """Writes the output of one answer as events of its blocks.

    One text or reasoning block is open at a time, and ends where another kind begins. Blocks of other kinds are
    independent of it; each has its index. ``next_index`` counts the blocks of the message.
    """

    __slots__ = ("_next_index", "answer", "events")

    def __init__(self, answer: A, next_index: Callable[[], int]) -> None:
        self.answer = answer
        self.events: list[Event] = []
        self._next_index = next_index

    def open_words(self, kind: str, shown_as: str) -> int:
        """End the words that are open and begin others, of a kind of the source's that is shown as text or thinking."""
        self.end_words()
        self.answer.kind = kind
        self.answer.block = self.begin_block(shown_as)
        return self.answer.block

    def end_words(self) -> None:
        if self.answer.kind:
            self.end_block(self.answer.block)
            self.answer.kind = ""

    def begin_block(
        self, kind: str, *, tool_id: str | None = None, name: str = "", raw: Raw | UnsetType = UNSET
    ) -> int:
        index = self._next_index()
        started = BlockStarted(index=index, kind=kind, tool_id=tool_id, name=name, raw=raw)
        self.events.append(other_answer(self.answer.number, started) if self.answer.number else started)
        return index

    def begin_own_block(self, kind: str, members: Fields) -> int:
        kind, raw = own_block(kind, members)
        return self.begin_block(kind, raw=raw)

    def add_delta(self, index: int, kind: str, content: str) -> None:
        """More of a block; ``kind`` is that of the delta."""
        self.events.append(BlockDelta(index, kind, content))

    def add_raw_delta(self, index: int, kind: str, raw: Raw) -> None:
        self.events.append(BlockDelta(index, kind, "", raw=raw))

    def note_member(self, index: int, name: str, value: Raw, *, appends: bool = False, aside: bool = False) -> None:
        """Note a member of a block's canonical form besides its text; see ``BlockNoted``."""
        self.events.append(BlockNoted(index, name, value, appends=appends, aside=aside))

    def end_block(self, index: int) -> None:
        self.events.append(BlockStopped(index))


def own_block(kind: str, members: Fields) -> tuple[str, Raw]:
    """Return the type and the JSON of a block without a canonical form: its members, including its type.

    A block that is named like a canonical one but could not be read as one must not be taken for one later: its type is
    ``unknown``, and it is in the member ``came``.
    """
    if not kind or kind in CANONICAL:
        return "unknown", Raw(msgspec.json.encode({"type": "unknown", "came": members}))
    return kind, Raw(msgspec.json.encode({"type": kind} | members))


def other_answer(number: int, started: BlockStarted) -> BlockStarted:
    """Return the block of an answer other than the first (a chat's choice, a candidate of Gemini's).

    It is shown as it grows, and its type keeps it out of the model's history. A block of the source's own type is in
    the member ``block``.
    """
    about: dict[str, object] = {"type": "choice", "choice": number, "of": started.kind}
    if started.tool_id is not None:
        about |= {"id": started.tool_id, "name": started.name}
    if started.raw is not UNSET:
        about["block"] = started.raw
    return BlockStarted(index=started.index, kind="choice", name=started.name, raw=Raw(msgspec.json.encode(about)))
