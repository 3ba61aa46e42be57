"""Anthropic's Messages API: the canonical shape, less what the API refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.fixes import make
from reknit.pipeline.history.exchanges import is_reasoning
from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock, is_whole
from reknit.pipeline.model import (
    Block,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    on_the_wire,
)
from reknit.pipeline.options import Structure
from reknit.pipeline.providers.anthropic.writer.blocks import (
    PAUSING,
    SYSTEM_BLOCKS,
    AnthropicBlockAdapter,
    as_it_is,
    left_open,
    refuses_bare_loop,
    settings_in,
    stays,
    takes_other_type,
    unfit_reasoning,
    untaken,
    version_of,
    without_issuers,
)
from reknit.pipeline.providers.anthropic.writer.lifetimes import shortened_message
from reknit.pipeline.providers.anthropic.writer.parameters import thinking_of, tool_name, write_head
from reknit.pipeline.providers.anthropic.writer.searches import added_tools, known_tools, with_known_references
from reknit.pipeline.targets import (
    Encoded,
    Ending,
    ListDialect,
    Setting,
    first_given,
    in_common_words,
    row,
    stub_for,
    without_trailing_space,
)
from reknit.pipeline.targets.bound import void_of
from reknit.pipeline.targets.fitting import MOST_MARKS, is_mark, newest_marks, unmarked
from reknit.pipeline.targets.head import before_list
from reknit.pipeline.targets.signatures import endpoint_of, judged_as, takes_unsigned
from reknit.pipeline.targets.valid_run import EncodedRun, RunMessages

NAME: Final = "anthropic"


# Since which version a request may begin with the assistant (recorded on 4.5 and 4.6; refused in 2024), may not end
# with it (4.6 is contested, so it counts as refusing), and may have system messages inside (recorded on 4.8 and 5).
_ASSISTANT_FIRST_SINCE: Final = (4, 5)
NO_PREFILL_SINCE: Final = (4, 6)
_SYSTEM_INSIDE_SINCE: Final = (4, 8)


def is_thinking(setting: Setting) -> bool:
    return _is_on(bytes(setting.params.get("thinking", b"null")))


def _is_on(thinking: bytes) -> bool:
    return thinking != b"null" and b'"disabled"' not in thinking


class AnthropicProgress(Struct, frozen=True, array_like=True):
    """The number of images so far, whether one is large (ANT-30b), and the open tool loop."""

    images: int = 0
    large: bool = False
    # The ids of provider-run calls whose results are still to come.
    opened: tuple[str, ...] = ()
    # The answer with which the tool loop at the end began: whether it begins with thinking, or has lost it to a repair.
    loop: Literal["", "thinks", "bare", "lost"] = ""
    # Whether the last user turn held results, so that the loop continues.
    answered: bool = False
    # Media of results that more results follow; none once all messages of an exchange are written.
    held: list[TrackedBlock] = []
    # The names of the tools that messages have added.
    added: tuple[str, ...] = ()


class _Wire(Struct, frozen=True, gc=False):
    role: str
    content: Sequence[Any] | str


_encode = msgspec.json.Encoder().encode


class AnthropicDialect(ListDialect):
    def __init__(self, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        self.model = setting.model
        self._observed = setting.observed
        self._endpoint = endpoint_of(setting, NAME)
        self._void = setting.void_at(self._endpoint)
        self._takes_unsigned = takes_unsigned(setting, NAME)
        self.judged_as = judged_as(setting, NAME)
        thinking = thinking_of(setting)
        self._thinks = _is_on(thinking)
        # Adaptive thinking asks for none in a tool loop (recorded).
        self._thinks_first = b'"enabled"' in thinking
        self.state = AnthropicProgress()
        head = write_head(setting, system)
        self.head = head.data
        self.fixes = head.fixes
        self.marks_left = MOST_MARKS - head.marks
        self._short = head.short
        self.prefix = head.before("messages")
        self._names: dict[str, str] = {}
        self._tools = known_tools(setting)

    def encode_message(self, message: Message, state: AnthropicProgress, *, final: bool) -> Encoded:
        """Write one message; where nothing speaks against it, as it is."""
        if final or state.held:
            return self._project(message, state, prefill=final)
        blocks: list[Block] = []
        marks = 0
        for piece in message.pieces:
            block = self._plain(piece)
            if block is None:
                return self._project(message, state)
            marks += block is not piece.block
            blocks.append(block)
        if marks > self.marks_left:
            return self._project(message, state)
        marked = _encode(_Wire(message.role, [piece.block for piece in message.pieces])) if marks else b""
        rows = list(map(row, message.pieces))
        if self._thinks_first:
            state = _loop_after(state, message.role, blocks, lost=bool(message.changed))
        data = _encode(_Wire(message.role, _content(message.pieces, blocks)))
        return Encoded(data=data, marked=marked, marks=marks, state=state, rows=rows)

    def encode_valid_run(self, run: RunMessages, part: range, state: AnthropicProgress) -> EncodedRun | None:
        """Write the messages of a valid run as they are, if their tools' names can stay."""
        if any(self.name(name) != name for name in run.names):
            return None
        turns, void = run.turns, void_of(self._void, NAME)
        messages: list[_Wire] = []
        for at in part:
            turn = turns[at]
            blocks = turn.blocks
            if at in run.special:
                next_turn = as_it_is(turn, state.images, self.model, self._endpoint, void, large=state.large)
                if next_turn is None:
                    break
                state = structs.replace(state, images=next_turn[0], large=next_turn[1])
                blocks = without_issuers(blocks)
            content = blocks if turn.paths is None or len(blocks) > 1 else _as_given(blocks, turn.paths[0])
            messages.append(_Wire(turn.role, content))
        if not messages:
            return None
        if self._thinks_first:
            for turn in turns[part.start : part.start + len(messages)]:
                state = _loop_after(state, turn.role, turn.blocks, lost=False)
        return EncodedRun(data=_encode(messages)[1:-1], state=state, end=part.start + len(messages))

    def encode_ending(
        self, messages: Sequence[Message], state: AnthropicProgress, settled: int, *, final: bool
    ) -> Ending:
        """Write the open messages; an answer that the model continues must not end in whitespace (ANT-24)."""
        del settled
        parts = self.encode_open(messages, state, final=final)
        next_turn = parts[-1].state if parts else state
        if not self._must_not_think(messages, next_turn):
            return Ending(parts=self._with_newest_marks(messages, parts), suffix=b"]}")
        if messages[-1].role == "assistant":
            before = parts[-2].state if len(parts) > 1 else state
            parts[-1] = self._project(messages[-1], before, prefill=True, thinks=False)
        head = msgspec.json.decode(self.head, type=dict[str, Raw])
        fix = make("thinking_disabled", "params.thinking", before=head.pop("thinking"), target=NAME)
        parts = [*self._with_newest_marks(messages, parts), Encoded(data=b"", state=next_turn, fixes=[fix])]
        bare = _encode(head)
        return Ending(parts=parts, suffix=b"]}", prefix=before_list(bare, "messages"), head=bare, reset=fix.code)

    def _must_not_think(self, messages: Sequence[Message], state: AnthropicProgress) -> bool:
        """Return True if the model continues a tool loop whose first answer lacks its required thinking."""
        if "thinking_disabled" in self._observed:
            return False
        if not self._thinks_first or not messages or not (state.answered or messages[-1].role == "assistant"):
            return False
        return state.loop == "lost" or (state.loop == "bare" and refuses_bare_loop(self.model))

    def _with_newest_marks(self, messages: Sequence[Message], parts: list[Encoded]) -> list[Encoded]:
        """The open messages with as many of their breakpoints as there is room for, the newest ones (ANT-28)."""
        room = self.marks_left
        for at in reversed(range(len(parts))):
            part = parts[at]
            if part.marks > room:
                path, called = first_given(part.rows, messages[at])
                dropped = make("cache_control_dropped", path, target=NAME, tool_id=called)
                parts[at] = structs.replace(part, marked=b"", marks=0, fixes=[*part.fixes, dropped])
                room = 0  # none that is older than one that went
            else:
                room -= part.marks
        return self._in_order(messages, parts)

    def _in_order(self, messages: Sequence[Message], parts: list[Encoded]) -> list[Encoded]:
        """The open messages without breakpoints of an hour after one of five minutes (ANT-28b)."""
        if "cache_ttl_shortened" in self._observed:
            return parts
        short = self._short
        for at, part in enumerate(parts):
            if not part.marks:
                continue
            marked, changed, short = shortened_message(part.marked, short=short)
            if changed:
                path, called = first_given(part.rows, messages[at])
                fix = make("cache_ttl_shortened", path, target=NAME, tool_id=called)
                parts[at] = structs.replace(part, marked=marked, fixes=[*part.fixes, fix])
        return parts

    def name(self, name: str) -> str:
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = tool_name(name)
        return found

    def _plain(self, piece: TrackedBlock) -> Block | None:
        """Return the block without its cache breakpoint, if it is written as it is; otherwise None."""
        # Asked of every block of every turn, so by class: nothing derives from these.
        block: Any = piece.block
        kind = type(block)
        if piece.own is not UNSET or not (kind is Text or kind is ToolUse or kind is ToolResult):
            return None
        if block.cache_control is not UNSET:
            # The API takes null, which is no breakpoint and stays.
            if bytes(block.cache_control) == b"null" or not is_mark(block.cache_control):
                return None
            block = structs.replace(block, cache_control=UNSET)
        if kind is ToolUse and self.name(block.name) != block.name:
            return None
        if kind is ToolResult and type(block.content) is list and not all(type(part) is Text for part in block.content):
            return None
        if not stays(block):
            return None
        plain: Block = block
        return plain

    def _project(
        self, came: Message, state: AnthropicProgress, *, prefill: bool = False, thinks: bool | None = None
    ) -> Encoded:
        book = FixLog(NAME, self._observed)
        message = with_known_references(in_common_words(came, book), self._tools.plus(state.added), book)
        message = _taken(message, book, state.opened, paused=prefill)
        opened = left_open(message, state.opened) if message.role == "assistant" else state.opened
        unfit = unfit_reasoning(
            message,
            self.model,
            self._observed,
            self._endpoint,
            void_of(self._void, NAME),
            unsigned=self._takes_unsigned,
        )
        if prefill and not (self._thinks if thinks is None else thinks):
            # An answer that the model continues holds no reasoning, unless thinking is enabled (ANT-23b).
            reasoning = (at for at, piece in enumerate(message.pieces) if is_reasoning(piece))
            unfit = dict.fromkeys(reasoning, "thinking_dropped") | unfit
        other_type = takes_other_type(self.model)
        work = AnthropicBlockAdapter(
            book=book,
            tool_name=self.name,
            images=state.images,
            large=state.large,
            other_type=other_type,
            results_follow=message.results_follow,
            held=state.held,
        )
        work.fit_message(message.pieces, unfit)
        if prefill:
            work.out = without_trailing_space(work.out, book)
        if not work.out:
            work.out.append(stub_for(came, book))
        rows = list(map(row, work.out))
        blocks: list[Block] = [piece.block for piece in work.out]
        added = tuple(dict.fromkeys((*state.added, *added_tools(blocks))))
        next_turn = structs.replace(
            state, images=work.images, large=work.large, opened=opened, held=work.held, added=added
        )
        if self._thinks_first:
            shown = [piece.block for piece in work.out]
            next_turn = _loop_after(next_turn, message.role, shown, lost=bool(message.changed or unfit))
        bare, marks = unmarked(blocks)
        if marks > self.marks_left:
            blocks = newest_marks(blocks, self.marks_left)
            path, called = first_given(rows, came)
            book.note_fix("cache_control_dropped", path, tool_id=called)
            marks = self.marks_left
        return Encoded(
            data=_written(message.role, work.out, bare),
            marked=_written(message.role, work.out, blocks, marked=True) if marks else b"",
            marks=marks,
            state=next_turn,
            rows=rows,
            fixes=book.fixes,
            dropped=book.dropped,
        )


def _loop_after(state: AnthropicProgress, role: str, blocks: Sequence[Block], *, lost: bool) -> AnthropicProgress:
    """Return the state of the tool loop after a message of these blocks; ``lost`` is a repair."""
    first = blocks[0] if blocks else None
    if role == "user":
        # User messages in a row are one turn to the provider: it continues the loop if any of them has a result.
        return structs.replace(state, answered=state.answered or isinstance(first, ToolResult))
    if role != "assistant":
        return state
    if state.answered and state.loop:
        return structs.replace(state, answered=False)
    if isinstance(first, (Thinking, RedactedThinking)):
        return structs.replace(state, answered=False, loop="thinks")
    return structs.replace(state, answered=False, loop="lost" if lost else "bare")


def _written(role: str, pieces: Sequence[TrackedBlock], blocks: Sequence[Block], *, marked: bool = False) -> bytes:
    """A message of fitted pieces, whose ``blocks`` are with or without breakpoints, with its own members."""
    written = [on_the_wire(block, NAME) for block in blocks if settings_in(block) is None]
    content = written if marked else _content(pieces, written)
    members: dict[str, Raw] = {}
    for piece in pieces:
        if piece.own is not UNSET:
            members |= piece.own.members
        if (settings := settings_in(piece.block)) is not None:
            members |= msgspec.json.decode(settings, type=dict[str, Raw])
    if not members:
        return _encode(_Wire(role, content))
    return _encode({"role": role, **({"content": content} if written else {}), **members})


def _content(pieces: Sequence[TrackedBlock], blocks: Sequence[Any]) -> Sequence[Any] | str:
    """A message's content: a text that came as its message's whole content stays a string."""
    if len(pieces) == 1 and pieces[0].whole and isinstance(blocks[0], Text) and blocks[0].citations is UNSET:
        return blocks[0].text
    return blocks


def _as_given(blocks: tuple[Block, ...], path: str) -> tuple[Block, ...] | str:
    """The same of a valid turn of one block, which has this place in the input."""
    block = blocks[0]
    return block.text if type(block) is Text and is_whole(path) else blocks


def _taken(message: Message, book: FixLog, opened: Sequence[str], *, paused: bool) -> Message:
    """The message without the blocks that this API has no place for; a turn that loses one is changed."""
    codes = {at: code for at, code in untaken(message, opened, paused=paused).items() if book.makes(code)}
    if not codes:
        return message
    for at, code in sorted(codes.items()):
        piece = message.pieces[at]
        book.drop(code, piece, detail=piece.block.kind if isinstance(piece.block, Unknown) else "")
    return msgspec.structs.replace(
        message,
        pieces=[piece for at, piece in enumerate(message.pieces) if at not in codes],
        changed=message.changed | {message.pieces[at].turn for at in codes},
    )


class Anthropic:
    name = NAME
    text = False
    tail_rule = "ANT-25"
    tail_rules = frozenset({"ANT-01", "ANT-20", "ANT-23", "ANT-23b", "ANT-24", "ANT-25"})

    def structure(self, setting: Setting) -> Structure:
        """Return the structure of accepted recorded requests, by the model's version; the newest for later ones."""
        version = version_of(setting.model)
        prefill = version is not None and version < NO_PREFILL_SINCE and not _is_on(thinking_of(setting))
        system = version is not None and version >= _SYSTEM_INSIDE_SINCE
        return Structure(
            assistant_first=version is not None and version >= _ASSISTANT_FIRST_SINCE,
            assistant_last="text" if prefill else "never",
            paused_by=PAUSING,
            own=NAME,
            neighbours=frozenset({"user", "assistant"}),
            calls_apart=True,
            ids_again=True,
            system_inside=system,
            system_blocks=SYSTEM_BLOCKS if system else frozenset(),
            prefix_bound=setting.is_prefix_bound(endpoint_of(setting, NAME)),
        )

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> AnthropicDialect:
        return AnthropicDialect(setting, system)
