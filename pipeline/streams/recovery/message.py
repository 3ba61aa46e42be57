"""The current message as recovery remembers it: its blocks, what was streamed of each, and what is confirmed.

All of it is state that is saved with every batch, so it holds one message and nothing of those before it.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.streams.events import CALLS, TEXTS, BlockNoted, BlockStarted, UserMessage, WholeBlock
from reknit.pipeline.streams.fields import in_order, is_json
from reknit.topics.items import Doubt, Usage

# The text of the Claude CLI up to 2.0 in a complete message in place of a blank text.
_NO_CONTENT = "(no content)"
# Code points up to which pieces of a text are kept unchanged.
_LONG_PART = 1024
# Kinds whose items have the whole content; an item of any other kind ends with its block's whole JSON.
PLAIN = TEXTS | {"tool_use", "redacted_thinking"}


class Rest(Struct, frozen=True):
    """Content of a confirmed block that was missing on the screen."""

    text: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    raw: Raw | UnsetType = UNSET


class Block(Struct, kw_only=True, omit_defaults=True):
    """One block of the current message, which is one item.

    ``index`` is its place in the stream, -1 for a promoted one. ``parts`` are the pieces of its text or of its input's
    JSON, ``length`` their length in code points. ``raw`` is its JSON: for an unknown type, as it started; otherwise
    from the complete message that confirmed it. ``members`` and ``lists`` are its noted members. ``likeness`` is that
    of a confirmed block that may be repeated.
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
    # Confirmed, but the program was interrupted in the middle of it.
    cut: bool = False
    # Thinking without any text: it has no item yet, and gets none if only its signature follows.
    unseen: bool = False
    answered: bool = False
    recorded: bool = False
    doubtful: Doubt = ""
    raw: bytes | None = None
    members: dict[str, bytes] = {}
    lists: dict[str, list[bytes]] = {}
    likeness: bytes = b""
    # Members that were noted for the item only.
    asides: dict[str, bytes] = {}
    # The whole text by the word of the block's stop, where that is not what streamed, and how much had streamed then.
    given: str | None = None
    given_at: int = 0

    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def is_cut(self) -> bool:
        """Return True if its end never came."""
        return self.cut or not self.confirmed

    def is_blank(self) -> bool:
        """Return True if it is a text or a thinking block without visible content."""
        text = self.text() if self.kind in TEXTS else "-"
        return not text or text.isspace()

    def awaits_confirmation(self) -> bool:
        """Return True if it streamed and no complete message has held it yet."""
        return self.index >= 0 and not self.confirmed

    def reads_as_whole(self, *, cut: bool) -> bool:
        """True if what streamed can be the whole block: a call's input must be JSON, or nothing if nothing was cut."""
        if self.kind not in CALLS:
            return True
        return self.reads_as_json() if self.final_text() else not cut

    def reads_as_json(self) -> bool:
        return is_json(self.final_text())

    def confirm_with(self, whole: WholeBlock) -> Rest:
        """Take the complete block's word; return what the stream did not deliver of it."""
        streamed = self.text()
        self.confirmed = True
        # Of a confirmed block only the text is needed later, to compare a result with it.
        self.parts = [whole.text] if whole.kind == "text" else []
        if whole.kind in TEXTS:
            # Some settings leave the thinking out of complete messages; then what was streamed is all there is.
            missing = whole.kind == "thinking" and not whole.text
            return Rest() if missing or whole.text == streamed else Rest(text=whole.text)
        if whole.kind in CALLS:
            return Rest(input=UNSET if _same_json(streamed, whole.input) else whole.input)
        return Rest(raw=whole.raw)

    def append(self, content: str) -> None:
        parts, before = self.parts, self.length
        parts.append(content)
        self.length = before + len(content)
        # All parts are saved with every batch, and what takes the time there is how many they are.
        if before // _LONG_PART < self.length // _LONG_PART:
            first = len(parts) - 1
            while first and len(parts[first - 1]) < _LONG_PART:
                first -= 1
            parts[first:] = ["".join(parts[first:])]

    def note_whole_text(self, text: str) -> None:
        """Take the whole text from the block's stop, where something of it was lost."""
        self.given, self.given_at = (None, 0) if text == self.text() else (text, self.length)

    def final_text(self) -> str:
        """Return the final text: that of its stop if it differs from the streamed one, and text after it."""
        return self.text() if self.given is None else self.given + self.text()[self.given_at :]

    def settle_text(self) -> str | UnsetType:
        """Take the final text for the block's; returned where it is not what streamed."""
        if self.given is None:
            return UNSET
        text = self.final_text()
        self.parts, self.given = [text], None
        return text

    def note_member(self, event: BlockNoted) -> None:
        if event.aside:
            self._note_aside(event)
        elif event.appends:
            self.lists.setdefault(event.name, []).append(bytes(event.value))
        else:
            self.members[event.name] = bytes(event.value)

    def _note_aside(self, event: BlockNoted) -> None:
        value = bytes(event.value)
        if event.appends:
            before = self.asides.get(event.name, b"[]")[:-1]
            value = b"%b%b%b]" % (before, b"," if len(before) > 1 else b"", value)
        self.asides[event.name] = value

    def extras(self) -> dict[str, Raw]:
        return self.noted_members() | {name: Raw(value) for name, value in self.asides.items()}

    def noted_members(self) -> dict[str, Raw]:
        """Return the members besides the text in the history, as JSON."""
        if not (self.members or self.lists):
            return {}  # nearly always
        members = {name: Raw(value) for name, value in self.members.items()}
        return members | {name: Raw(b"[%b]" % b",".join(values)) for name, values in self.lists.items()}

    def repeats(self, event: BlockStarted, *, whole: bool) -> bool:
        """Return True if an event that starts a block in this one's place can only repeat this one's start.

        ``whole``: complete messages will follow, so one place is one block, however far it got.
        """
        over = (self.stopped or self.confirmed) and not whole
        return not over and self.kind == event.kind and self.tool_id == event.tool_id


class ShownBlock(Struct, array_like=True):
    """A text or a call that a run left on the screen, with a digest of a text."""

    item_id: str
    tool_id: str | None
    said: bytes
    doubtful: Doubt = ""
    incomplete: bool = False
    answered: bool = False

    @classmethod
    def of(cls, block: Block) -> ShownBlock:
        said = digest_of_text(block.text()) if block.kind == "text" else b""
        incomplete = block.cut or not block.confirmed
        return cls(block.item_id, block.tool_id, said, block.doubtful, incomplete, block.answered)

    def is_open(self) -> bool:
        """Return True if its item may be completed once more."""
        return self.incomplete or bool(self.doubtful)


def digest_of_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()


def _same_json(streamed: str, whole: Raw | UnsetType) -> bool:
    if whole is UNSET:
        return True
    try:
        return bool(msgspec.json.decode(streamed) == msgspec.json.decode(whole))
    except (msgspec.DecodeError, RecursionError):
        return False


def likeness(whole: WholeBlock) -> bytes:
    """A digest of what a block says, the same whenever it is said again: a call's id is not in it."""
    said = whole.raw if whole.opaque or whole.kind == "redacted_thinking" else whole.text.encode("utf-8", "replace")
    if whole.kind in CALLS:
        said = b"" if whole.input is UNSET else in_order(whole.input)
    head = f"{whole.kind} {whole.name} ".encode("utf-8", "replace")
    return hashlib.blake2b(head + bytes(said), digest_size=8).digest()


class UserLine(Struct, array_like=True):
    """A user's line that waits for the turn before it: tool results by call id, and raw blocks; as bytes of JSON."""

    results: list[tuple[str, bytes]]
    rest: list[bytes]
    synthetic: bool

    def only_results(self) -> UserLine:
        return UserLine(self.results, [], self.synthetic)

    @classmethod
    def of(cls, event: UserMessage) -> UserLine:
        results = [(result.tool_id, bytes(result.block)) for result in event.results]
        return cls(results, [bytes(raw) for raw in event.rest], event.synthetic)


class Message(Struct, kw_only=True, omit_defaults=True):
    """The current message. ``attempt`` says that it streamed; ``over`` that nothing can replace it any more.

    ``cut``: its stop reason says that the output ended before its end. ``failed`` is the error that cut it;
    ``retried`` says that its request was made again. ``former`` is the attempt in whose place this message came, while
    its blocks may still be said again. ``placed``: its blocks' indexes are their order. ``said`` is what attempts that
    were cut said before it and keep: the likeness of each block, and its item.
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
    retried: bool = False
    former: Message | None = None
    placed: bool = False
    said: list[tuple[bytes, str]] = []
    # Its run was killed before its stop, after which alone the program has it in its history.
    unkept: bool = False

    def is_open(self) -> bool:
        """Return True if it streamed, and no stop has followed."""
        return self.attempt and self.reason is None

    def surviving(self) -> list[Block]:
        return [block for block in self.blocks if not block.withdrawn]

    def add_block(self, block: Block) -> None:
        if block.index >= 0:
            self.places[block.index] = len(self.blocks)
        self.blocks.append(block)

    def block_at(self, index: int) -> Block | None:
        place = self.places.get(index)
        return None if place is None else self.blocks[place]

    def call_answered_by(self, tool_id: str) -> Block | None:
        """The call that a result with this id answers: the first that has none yet, or else the last."""
        calls = [block for block in self.surviving() if block.tool_id == tool_id]
        return next((call for call in calls if not call.answered), calls[-1] if calls else None)

    def is_answered_with(self, tool_ids: set[str]) -> bool:
        """Return True if the message has calls, and with these results every one of them has its answer."""
        calls = [block for block in self.surviving() if block.kind == "tool_use"]
        return bool(calls) and all(call.answered or call.tool_id in tool_ids for call in calls)

    def is_confirmed(self) -> bool:
        """Return True if complete messages held all that ever streamed of it and says something."""
        return all((block.confirmed and not block.cut) or block.is_blank() for block in self.blocks)

    def confirmed_calls(self) -> list[Block]:
        return [block for block in self.surviving() if block.kind == "tool_use" and block.confirmed]

    def turn_of(self, line: UserLine) -> Message:
        """The message that a user's line follows: this one, or the one before it whose calls it answers."""
        answered = {tool_id for tool_id, _ in line.results}
        called = set() if self.former is None else {block.tool_id for block in self.former.blocks}
        is_former = answered and answered <= called - {block.tool_id for block in self.blocks}
        return self.former if is_former and self.former is not None else self

    def block_said_before(self, likeness: bytes) -> Block | None:
        """The block of the attempt before that a block like this one says again."""
        blocks = [] if self.former is None else self.former.surviving()
        return next((block for block in blocks if block.likeness == likeness), None)

    def take_said(self, likeness: bytes) -> str:
        """The item of an attempt that was cut, which a block like this one repeats; each is repeated once."""
        found = next((one for one in self.said if one[0] == likeness), None)
        if found is None:
            return ""
        self.said.remove(found)
        return found[1]

    def streamed_block(self, whole: WholeBlock) -> Block | None:
        """Return the streamed block that a complete message now confirms; None if it never streamed.

        A call is identified by its id, and a block by its place if the complete message has places. Otherwise a whole
        block belongs to the block that equals it, or that it continues. A blank text is a prefix of everything, so it
        identifies nothing: some versions omit it from their complete messages, others replace it. If a delta was lost
        in the middle, only the place identifies the block.
        """
        if whole.index is not None:
            here = self.block_at(whole.index)
            return here if here is not None and here.kind == whole.kind and not here.withdrawn else None
        open_ = [block for block in self.surviving() if block.kind == whole.kind and block.awaits_confirmation()]
        if whole.tool_id is not None:
            return next((block for block in open_ if block.tool_id == whole.tool_id), None)
        equal = next((block for block in open_ if block.text() == whole.text), None)
        if equal is not None:
            return equal
        if whole.kind == "text":
            blank = next((block for block in open_ if block.is_blank()), None)
            if blank is not None and whole.text == _NO_CONTENT:
                return blank
            open_ = [block for block in open_ if not block.is_blank()]
        here = self._at_its_place(open_)
        fitting = [block for block in open_ if block.length and whole.text.startswith(block.text())]
        if fitting:
            return here if here in fitting else fitting[0]
        # Some settings leave the thinking out of complete messages.
        return open_[0] if here is None and open_ and whole.kind == "thinking" and not whole.text else here

    def _at_its_place(self, open_: list[Block]) -> Block | None:
        """Return the block at the place of the next whole one, if blank texts are left out."""
        waiting = [block for block in self.surviving() if block.kind == "text" and block.awaits_confirmation()]
        blank = [block.index for block in waiting if block.is_blank()]
        passed = {block.index: sum(index < block.index for index in blank) for block in open_}
        return next((block for block in open_ if block.index - passed[block.index] == self.confirmed), None)
