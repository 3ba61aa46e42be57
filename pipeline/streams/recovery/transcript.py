"""Compares a program's own transcript with its stream: blocks that the transcript does not hold are withdrawn.

After a retry, the Gemini CLI continues its output without a notice, and its transcript holds the attempt that it took.
The transcript's lines arrive as events of the same run, before, between or after the stream's, and have a meaning only
together: a later line withdraws an earlier one. So they are read into a chat, and at the end of the transcript, or of
the run, the two are compared. A block that both hold stays; a text that differs gets the transcript's words; a block
that only one of them holds is withdrawn, or promoted. Calls are identified by their ids. Texts are identified by their
position between the calls, the later before the earlier, because the last attempt is the one that was taken.

If a session is resumed, a transcript holds many runs: this run's part begins when its first line was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.fields import Notes
from reknit.pipeline.model import Block, Text, ToolResult, ToolUse, Unknown
from reknit.pipeline.providers.gemini_cli.reader import Chat, Message, turns_of
from reknit.pipeline.streams.events import WholeBlock
from reknit.pipeline.streams.framing import Tail, whole_lines
from reknit.pipeline.streams.recovery.memory import Ids
from reknit.pipeline.streams.recovery.message import ShownBlock, digest_of_text
from reknit.pipeline.streams.recovery.render import FinishedTurn, finished_turn, whole_items
from reknit.topics.items import AgentError, Doubt, Item, ItemCompleted, ItemResult, ItemRetracted

_Placed: TypeAlias = tuple[Block, str]
_UNREADABLE: Final = "the transcript cannot be read in full"


class HeldBlock(Struct):
    """A text or a call that a transcript holds. ``final``: it ends an answer whose end is unknown."""

    block: Text | ToolUse
    final: bool

    @property
    def said(self) -> bytes:
        return digest_of_text(self.block.text) if isinstance(self.block, Text) else b""

    @property
    def doubtful(self) -> Doubt:
        return "end" if self.final else ""


class Transcript(Struct):
    """The state of a run's transcript, and of the blocks that it is compared with.

    ``began`` is when the run's first line was written, by the program's clock, and ``session`` the name in it;
    ``before`` is the session of the previous transcript, and ``until`` how far that was read. ``expected``: turns for
    the log wait for it; ``released`` are those of runs that have ended. ``over``: the run has ended. ``read``: a line
    of it was read.
    """

    run: str | None = None
    began: str = ""
    before: str = ""
    until: str = ""
    session: str = ""
    expected: bool = False
    over: bool = True
    read: bool = False
    released: list[FinishedTurn] = []
    tail: Tail = msgspec.field(default_factory=Tail)
    chat: Chat = msgspec.field(default_factory=Chat)

    def begin_run(self, run: str | None) -> None:
        fresh = Transcript(run=run, before=self.before, until=self.until, over=False, released=self.released)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))

    def note_run(self, began: str, session: str) -> None:
        self.began, self.session = self.began or began, self.session or session

    def feed(self, data: bytes, *, framed: bool) -> None:
        """Take lines, or with ``framed`` bytes that may end inside one."""
        if framed:
            data, _ = self.tail.push(data, whole_lines)
        elif self.tail.size:
            self._read(self.tail.flush())
        self._read(data)

    def flush(self) -> None:
        self._read(self.tail.flush())

    def _read(self, data: bytes) -> None:
        for line in data.split(b"\n") if data else ():
            self.chat.read_line(line)
            self.read = self.read or (not line.isspace() and bool(line))

    def holds_turns(self) -> bool:
        return self.expected and not self.over

    def compare(self, shown: Sequence[ShownBlock], ids: Ids) -> tuple[list[Item], list[FinishedTurn] | None]:
        """Return the transcript's changes to the screen, and the run's turns from it, if it is this run's.

        A transcript of another session, or one that cannot be read in full, changes nothing, and none of it is kept.
        """
        messages = self.chat.messages()
        fault, placed = self._fault(), []
        try:
            placed = [
                (message, role, blocks)
                for message, line in messages
                if not fault and self._is_of_run(message)
                for role, blocks in turns_of(message, line, messages, Notes())
            ]
        except (InputError, RecursionError):
            fault = _UNREADABLE
        if fault:
            self._forget()
            return [AgentError(message=fault, code="transcript", seq=ids.next_number())], None
        held = [block for message, role, blocks in placed if role == "assistant" for block in _held(message, blocks)]
        results = {
            block.tool_use_id: block for _, _, blocks in placed for block, _ in blocks if isinstance(block, ToolResult)
        }
        items = _changes(shown, held, results, ids)
        turns = list(_turns(placed, ids))
        ids.turns += len(turns)
        self.before = self.chat.session_id
        self.until = max((message.timestamp for message, _ in messages), default="")
        self._forget()
        return items, turns

    def _fault(self) -> str:
        """Why nothing can be made of it; ``""`` where all is well."""
        if self.session and self.chat.session_id and self.session != self.chat.session_id:
            return "the transcript is of another session"
        return _UNREADABLE if self.chat.begun or "unreadable" in self.chat.skipped else ""

    def _is_of_run(self, message: Message) -> bool:
        """True if a message was written in this run; where no line of the run's says when it began, since the last."""
        if not message.timestamp or self.began:
            return not message.timestamp or message.timestamp >= self.began
        return self.before != self.chat.session_id or message.timestamp > self.until

    def _forget(self) -> None:
        self.expected = self.read = False
        self.chat = Chat()


def _held(message: Message, blocks: Sequence[_Placed]) -> Iterator[HeldBlock]:
    """The texts and calls of an answer; thoughts never streamed, and are for the log alone."""
    for block, _ in blocks:
        if isinstance(block, (Text, ToolUse)):
            yield HeldBlock(block, isinstance(block, Text) and not message.tool_calls)


def _changes(
    shown: Sequence[ShownBlock], held: Sequence[HeldBlock], results: dict[str, ToolResult], ids: Ids
) -> list[Item]:
    pairs = _pairs(shown, held)
    kept = {block: held[at] for at, block in pairs.items()}
    items: list[Item] = [
        ItemRetracted(item_id=block.item_id, reason="transcript")
        for number, block in enumerate(shown)
        if number not in kept
    ]
    for at, whole in enumerate(held):
        block = shown[pairs[at]] if at in pairs else None
        items += _promoted(whole, ids) if block is None else _as_held(block, whole)
        use = whole.block
        answered = block is not None and block.answered
        if isinstance(use, ToolUse) and not answered and (result := results.get(use.id)) is not None:
            items.append(_result(ids.of_call(use.id), result))
    return items


def _pairs(shown: Sequence[ShownBlock], held: Sequence[HeldBlock]) -> dict[int, int]:
    """Which block on the screen each held block is, by their numbers."""
    pairs: dict[int, int] = {}
    calls = {block.tool_id: number for number, block in enumerate(shown) if block.tool_id is not None}
    for at, whole in enumerate(held):
        if isinstance(whole.block, ToolUse):
            number = calls.pop(whole.block.id, None)
            if number is not None:
                pairs[at] = number
    # Calls in the same order in both separate the texts.
    low, begins = -1, 0
    for at, number in [*pairs.items(), (len(held), len(shown))]:
        if number > low:
            pairs |= _text_pairs(shown, range(low + 1, number), held, range(begins, at))
            low, begins = number, at + 1
    return pairs


def _text_pairs(shown: Sequence[ShownBlock], places: range, held: Sequence[HeldBlock], texts: range) -> dict[int, int]:
    """The pairs among the texts between two calls, from the last to the first."""
    pairs: dict[int, int] = {}
    free = [number for number in places if shown[number].tool_id is None]
    wanted = [at for at in texts if isinstance(held[at].block, Text)]
    for at in reversed(wanted):
        equal = next((number for number in reversed(free) if shown[number].said == held[at].said), None)
        if equal is not None:
            pairs[at] = equal
            free = [number for number in free if number < equal]
        elif free and len(free) >= len(wanted) - len(pairs) and shown[free[-1]].is_open():
            pairs[at] = free.pop()
    return pairs


def _as_held(block: ShownBlock, whole: HeldBlock) -> list[Item]:
    """A block on the screen, completed as the transcript has it."""
    changed = block.said != whole.said and isinstance(whole.block, Text)
    if not (changed or block.incomplete or block.doubtful != whole.doubtful):
        return []
    text = whole.block.text if changed and isinstance(whole.block, Text) else msgspec.UNSET
    return [ItemCompleted(item_id=block.item_id, text=text, doubtful=whole.doubtful)]


def _promoted(whole: HeldBlock, ids: Ids) -> list[Item]:
    block, raw = whole.block, Raw(msgspec.json.encode(whole.block))
    if isinstance(block, ToolUse):
        call = WholeBlock(kind="tool_use", raw=raw, tool_id=block.id, name=block.name, input=block.input)
        return whole_items(ids.for_call(block.id), call, origin="promoted")
    text = WholeBlock(kind="text", raw=raw, text=block.text)
    return whole_items(ids.for_promoted(), text, origin="promoted", doubtful=whole.doubtful)


def _result(item_id: str, result: ToolResult) -> ItemResult:
    parts: Sequence[Block] = result.content if isinstance(result.content, list) else [Text(text=result.content or "")]
    content = Raw(msgspec.json.encode([_json(part) for part in parts]))
    return ItemResult(item_id=item_id, content=content, is_error=result.is_error)


def _turns(placed: Sequence[tuple[Message, str, list[_Placed]]], ids: Ids) -> Iterator[FinishedTurn]:
    """Return the run's turns for the log, without the user's prompt: the log has it, and the program wrote others."""
    prompted, number = False, ids.turns
    for message, role, blocks in placed:
        words = role == "user" and not all(isinstance(block, ToolResult) for block, _ in blocks)
        if words and not prompted:
            prompted = True
            continue
        content = [bytes(_json(block)) for block, _ in blocks]
        mine = role == "assistant"
        yield finished_turn(
            "assistant" if mine else "user",
            content,
            number,
            ids.prefix,
            message_id=message.id if mine else None,
            model=message.model if mine else None,
            synthetic=words,
        )
        number += 1


def _json(block: Block) -> Raw:
    return block.raw if isinstance(block, Unknown) else Raw(msgspec.json.encode(block))
