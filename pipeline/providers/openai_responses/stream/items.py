"""Output items of the Responses API as blocks: while they stream, and whole.

An item is one block, except a message, which is one for each of its parts. In the history reasoning is thinking whose
signature is the encrypted content, and a custom tool's text is an object of one member, as in
``history.readers.openai_responses``. Items of the provider's own tools stay unchanged.

Deltas are passed on unchanged. A ``.done`` repeats a whole piece: if a delta was lost, the block ends with that. A
whole item ends its blocks.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.history.call_ids import derived_id
from reknit.pipeline.history.readers.fields import EMPTY_OBJECT, arguments_object
from reknit.pipeline.providers.openai_responses.reader import ISSUER
from reknit.pipeline.providers.openai_responses.stream import wire
from reknit.pipeline.providers.openai_responses.stream.wire import (
    MOST_PARTS,
    READ,
    REFUSAL,
    TEXT_PARTS,
    Item,
    place,
    read_item,
    read_part,
)
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.decoder import whole_call
from reknit.pipeline.streams.events import (
    CANONICAL,
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Event,
    WholeBlock,
    WholeMessage,
    own_block,
)

_WholePart: TypeAlias = wire.PartDone | wire.TextDone | wire.RefusalDone
_Part: TypeAlias = wire.PartAdded | wire.TextDelta | wire.RefusalDelta | _WholePart

# The JSON before a custom tool's text in its call's input.
BEFORE_TEXT: Final = '{"input":"'
TRUE: Final = Raw(b"true")
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
# Members that are in the block, or add nothing to it; the others are the item's extras.
_OF_MESSAGE: Final = frozenset({"type", "id", "status", "role", "content"})
_OF_PART: Final = frozenset({"type", "text", "refusal"})
_OF_REASONING: Final = frozenset({"type", "status", "encrypted_content", "summary", "content"})
_OF_CALL: Final = frozenset({"type", "status", "call_id", "name", "arguments", "input"})


class ResponsesDecoderState(Struct):
    """The response that streams.

    ``id`` is None before the first, ``over`` says that it ended. ``begun`` are the places of items that have begun, by
    item id; ``parts`` the numbers of the parts that streamed, by their message's place; ``growing`` is the block of the
    last of them, and ``thought`` the last part of reasoning: its item's place, its kind and its number. ``written``
    counts the characters of each call's input. ``thoughts`` are the whole parts of reasoning that is not whole yet, by
    its place and their kind. ``held`` is the input of calls whose beginning is missing, with their names; ``homeless``
    are whole items without a place, ``whole_items`` the places of all others. ``failure`` is the reported error, after
    the kind of its event.
    """

    id: str | None = None
    model: str | None = None
    over: bool = False
    begun: dict[str, int] = {}
    parts: dict[int, list[int]] = {}
    growing: int = -1
    thought: tuple[int, str, int] | None = None
    written: dict[int, int] = {}
    thoughts: dict[int, dict[str, list[str]]] = {}
    held: dict[int, str] = {}
    homeless: list[bytes] = []
    whole_items: list[int] = []
    failure: str | None = None

    def piece(self, event: wire.Piece) -> list[Event]:
        at = event.output_index
        match event:
            case wire.ItemAdded():
                return self._start_item(read_item(event.item), event.item, at)
            case wire.PartAdded():
                if event.part.type == "reasoning_text":
                    return []
                return self._start_part(event, event.part.type)
            case wire.TextDelta() | wire.RefusalDelta():
                first = self._start_part(event, REFUSAL if type(event) is wire.RefusalDelta else "text")
                return [*first, BlockDelta(self.growing, "text_delta", event.delta)]
            case wire.SummaryDelta():
                return self._reasoning((at, "summary", event.summary_index), event.delta)
            case wire.ReasoningDelta():
                return self._reasoning((at, "content", event.content_index), event.delta)
            case wire.ArgumentsDelta():
                return self._input(at, event.delta)
            case wire.InputDelta():
                return self._input(at, read.escaped(event.delta), BEFORE_TEXT)

    def done(self, event: wire.Whole) -> list[Event]:
        """Return the events of a whole piece: its lost deltas are replaced when its block ends."""
        at = event.output_index
        match event:
            case wire.PartDone():
                part = read_part(event.part)
                if part.type == "reasoning_text":
                    return []
                if part.words is not None:
                    events = self._finish_part(event, part.type, part.words)
                    siblings = siblings_of_part(event.part).items()
                    return [*events, *(BlockNoted(self.growing, name, raw, aside=True) for name, raw in siblings)]
                block = whole_part(event.part, self._part(event), {})
                return [WholeMessage(message_id=None, blocks=(block,))]
            case wire.TextDone():
                return self._finish_part(event, "text", event.text)
            case wire.RefusalDone():
                return self._finish_part(event, REFUSAL, event.refusal)
            case wire.SummaryDone():
                return self._thought((at, "summary", event.summary_index), event.text)
            case wire.ReasoningDone():
                return self._thought((at, "content", event.content_index), event.text)
            case wire.ArgumentsDone():
                return self._whole_input(at, event.arguments)
            case wire.InputDone():
                return self._whole_input(at, f'{BEFORE_TEXT}{read.escaped(event.input)}"}}')

    def take_unfinished_item(self, item: Item, raw: Raw, at: int) -> list[Event]:
        events = [] if at in self.begun.values() else self._start_item(item, raw, at)
        for index, text in full_texts(item, at, self.parts.get(at, [])):
            if item.type == "message" and index % MOST_PARTS not in self.parts.get(at, []):
                self.parts.setdefault(at, []).append(index % MOST_PARTS)
                events.append(BlockStarted(index=index, kind="text"))
            events.append(BlockStopped(index, text=text, cut=True))
        return events

    def stops(self, response: wire.Response) -> list[Event]:
        """Return the stops of blocks without a whole item: the response is whole, and so are they."""
        in_output = range(len(response.output or ()))
        items = [place(at) for at in self.begun.values() if at not in in_output]
        parts = [place(at, number) for at, numbers in self.parts.items() if at not in in_output for number in numbers]
        return [BlockStopped(index) for index in dict.fromkeys([*items, *parts])]

    def release_held(self) -> list[Event]:
        """Return the held pieces of an item that never became whole, and whole items without a place."""
        events: list[Event] = []
        for at, text in self.held.items():
            events += [BlockStarted(index=place(at), kind="tool_use"), BlockDelta(place(at), "input_json_delta", text)]
        after = max([-1, *self.begun.values(), *self.parts, *self.held]) + 1
        for at, raw in enumerate(self.homeless, after):
            blocks, partial = self.whole(Raw(raw), at)
            events += partial
            if blocks:
                events.append(WholeMessage(message_id=None, blocks=tuple(blocks)))
        self.held, self.homeless = {}, []
        return events

    def whole(self, raw: Raw, output_index: int) -> tuple[list[WholeBlock], list[Event]]:
        """A whole item as blocks; or, of a call that ended before its end, what did not stream of it."""
        item = read_item(raw)
        self.thoughts.pop(output_index, None)
        blocks = whole(item, raw, output_index, self.model, self.parts.get(output_index, []))
        if blocks or item.type == "message":
            self.held.pop(output_index, None)
            return blocks, []
        beginning = [] if output_index in self.begun.values() else self._start_item(item, raw, output_index)
        rest = partial_call(item)[self.written.get(output_index, 0) :]
        return [], [*beginning, *self._input(output_index, rest), *self.take_unfinished_item(item, raw, output_index)]

    def _start_item(self, item: Item, raw: Raw, output_index: int) -> list[Event]:
        is_named = item.id and item.id not in self.begun
        self.begun[item.id if item.id and is_named else str(output_index)] = output_index
        events = started(item, raw, output_index)
        held = self.held.pop(output_index, None)
        if held is None or not events:
            return events
        opening = len(BEFORE_TEXT) if item.type == "custom_tool_call" else 0
        self.written[output_index] = len(held) - opening
        return [events[0], BlockDelta(place(output_index), "input_json_delta", held)]

    def _input(self, output_index: int, text: str, opening: str = "") -> list[Event]:
        """More of a call's input. That of a call whose beginning is missing waits for its name and id."""
        count = self.written.get(output_index, 0)
        if not count and output_index not in self.begun.values():
            self.held[output_index] = self.held.get(output_index, opening) + text
            return []
        self.written[output_index] = count + len(text)
        return [BlockDelta(place(output_index), "input_json_delta", text)]

    def _whole_input(self, output_index: int, text: str) -> list[Event]:
        if output_index not in self.begun.values():
            self.held[output_index] = text
            return []
        return [BlockStopped(place(output_index), text=text)]

    def _part(self, event: _Part) -> int:
        """The block of a message's part, which is remembered by its number."""
        numbers = self.parts.setdefault(event.output_index, [])
        if event.content_index not in numbers:
            numbers.append(event.content_index)
        self.growing = place(event.output_index, event.content_index)
        return self.growing

    def _start_part(self, event: _Part, kind: str) -> list[Event]:
        is_new = event.content_index not in self.parts.get(event.output_index, ())
        at = self._part(event)
        if not is_new:
            return []
        start = BlockStarted(index=at, kind="text" if kind in TEXT_PARTS else kind)
        return [start, BlockNoted(at, REFUSAL, TRUE)] if kind == REFUSAL else [start]

    def _finish_part(self, event: _WholePart, kind: str, words: str) -> list[Event]:
        events = self._start_part(event, kind)
        return [*events, BlockStopped(self.growing, text=words)]

    def _reasoning(self, part: tuple[int, str, int], delta: str) -> list[Event]:
        """Append to an item's reasoning; a blank line separates its parts."""
        if part == self.thought:
            return [BlockDelta(place(part[0]), "thinking_delta", delta)]
        before = self.thought
        gap = "\n\n" if before is not None and before[0] == part[0] else ""
        return [*self._start_thought(part), BlockDelta(place(part[0]), "thinking_delta", gap + delta)]

    def _start_thought(self, part: tuple[int, str, int]) -> list[Event]:
        """The beginning of the item that a part of reasoning is of, if it has not begun."""
        self.thought = part
        if part[0] in self.begun.values():
            return []
        self.begun[str(part[0])] = part[0]
        return [BlockStarted(index=place(part[0]), kind="thinking")]

    def _thought(self, part: tuple[int, str, int], text: str) -> list[Event]:
        """A whole part of reasoning. With all those before it, it says how the reasoning reads so far."""
        at, kind, number = part
        start = self._start_thought(part)
        parts = self.thoughts.setdefault(at, {}).setdefault(kind, [])
        if number != len(parts):
            return start
        parts.append(text)
        so_far = "\n\n".join(text for texts in self.thoughts[at].values() for text in texts)
        return [*start, BlockStopped(place(at), text=so_far)]


# Items.


def started(item: Item, raw: Raw, output_index: int) -> list[Event]:
    """The events of an item that begins. A message begins with its parts."""
    at = place(output_index)
    if item.type == "message":
        return []
    if item.type == "reasoning":
        return [BlockStarted(index=at, kind="thinking")]
    if item.type in _CALLS:
        name = item.name or ""
        call = BlockStarted(index=at, kind="tool_use", tool_id=item.call_id or derived_id(name), name=name)
        # Arguments may be in the beginning already, and are repeated in deltas: they are read from those.
        opening = [BlockDelta(at, "input_json_delta", BEFORE_TEXT)] if item.type == "custom_tool_call" else []
        return [call, *opening]
    own = _own(item.type, raw, at)
    return [BlockStarted(index=at, kind=own.kind, raw=own.raw)]


def whole(item: Item, raw: Raw, output_index: int, model: str | None, streamed: list[int]) -> list[WholeBlock]:
    """The blocks of a whole item; none for a call that ended before its end, which nothing makes whole.

    ``streamed`` are the numbers that a message's parts had when they streamed.
    """
    at = place(output_index)
    if item.type == "message":
        parts = item.content or []
        numbers = _numbers(len(parts), streamed)
        about = _others(raw, _OF_MESSAGE)
        return [
            whole_part(part, place(output_index, number), about) for part, number in zip(parts, numbers, strict=True)
        ]
    if item.type == "reasoning":
        return [_reasoning(item, raw, at, model)]
    if item.type in _CALLS:
        given = _input(item)
        return [] if given is None else [_call(item, raw, given, at)]
    return [_own(item.type, raw, at)]


def is_over(item: Item) -> bool:
    """True if an item of a response that failed is whole all the same; what the provider's own tools do says so."""
    return item.status in (None, "completed") or item.type not in READ


def full_texts(item: Item, output_index: int, streamed: list[int]) -> list[tuple[int, str]]:
    """Return the content of an item that is incomplete, as the places of its blocks and their texts."""
    if item.type in _CALLS:
        before = BEFORE_TEXT if item.type == "custom_tool_call" else ""
        return [(place(output_index), before + partial_call(item))]
    if item.type == "reasoning":
        return [(place(output_index), _thoughts(item))]
    parts = [read_part(raw).words for raw in item.content or ()]
    numbers = _numbers(len(parts), streamed)
    return [(place(output_index, number), words) for number, words in zip(numbers, parts, strict=True) if words]


def _numbers(count: int, streamed: list[int]) -> list[int]:
    """The numbers of a message's parts.

    Bedrock's count parts over all items while they stream, and not in the whole item: there only the order is left.
    """
    if all(number < count for number in streamed):
        return list(range(count))
    unused = (number for number in range(MOST_PARTS) if number not in streamed)
    return [*streamed, *(next(unused) for _ in range(count - len(streamed)))][:count]


def partial_call(item: Item) -> str:
    """Return the input of an incomplete call, as raw JSON after its beginning."""
    if item.type == "custom_tool_call":
        return read.escaped(item.input) if isinstance(item.input, str) else ""
    return item.arguments or ""


def _others(raw: Raw, known: frozenset[str]) -> dict[str, Raw]:
    """Members that have no place in the canonical form, for whoever looks at the items."""
    found = read.read_object(raw)
    return {} if known.issuperset(found) else read.telling(found, known)


def whole_part(raw: Raw, at: int, about: dict[str, Raw]) -> WholeBlock:
    """Return a whole part of a message; ``about`` are the message's members next to its parts."""
    part = read_part(raw)
    words = part.words
    if words is None:
        return _own(part.type, raw, at)
    about = about | siblings_of_part(raw)
    block: dict[str, object] = {"type": "text", "text": words}
    if part.type == REFUSAL:
        block[REFUSAL] = about[REFUSAL] = TRUE
    return WholeBlock(kind="text", raw=Raw(msgspec.json.encode(block)), index=at, text=words, extras=about or UNSET)


def siblings_of_part(raw: Raw) -> dict[str, Raw]:
    """Return the members of a text part besides its words, such as annotations."""
    return _others(raw, _OF_PART)


def _own(kind: str, raw: Raw, at: int) -> WholeBlock:
    """Return a block that only its provider understands, unchanged, if it can be identified."""
    members = read.members({"it": raw}, "it")
    if members is None or not kind or kind in CANONICAL:
        kind, raw = own_block(kind if members is not None else "", {"it": raw} if members is None else members)
    return WholeBlock(kind=kind, raw=raw.copy(), index=at, opaque=True)


def _thoughts(item: Item) -> str:
    parts = map(read_part, [*(item.summary or ()), *(item.content or ())])
    return "\n\n".join(part.text for part in parts if part.text)


def _reasoning(item: Item, raw: Raw, at: int, model: str | None) -> WholeBlock:
    text = _thoughts(item)
    issuer: dict[str, Any] = {"issuer": {"provider": ISSUER.provider} | ({"model": model} if model else {})}
    sealed = item.encrypted_content
    if sealed and not text:
        block: dict[str, Any] = {"type": "redacted_thinking", "data": sealed}
    else:
        block = {"type": "thinking", "thinking": text} | ({"signature": sealed} if sealed else {})
    # Without words there is nothing to show, and so no item that could have extras.
    extras = _others(raw, _OF_REASONING) if text else {}
    own = Raw(msgspec.json.encode(block | issuer))
    return WholeBlock(kind="thinking", raw=own, index=at, text=text, extras=extras or UNSET)


def _call(item: Item, raw: Raw, given: Raw, at: int) -> WholeBlock:
    name = item.name or ""
    call_id = item.call_id or derived_id(name)
    return whole_call(call_id, name, given, index=at, extras=_others(raw, _OF_CALL) or UNSET)


def _input(item: Item) -> Raw | None:
    if item.status == "incomplete":
        return None
    if item.type == "custom_tool_call":
        return Raw(msgspec.json.encode({"input": item.input})) if isinstance(item.input, str) else None
    arguments = item.arguments or ""
    return arguments_object(arguments) if arguments.strip() else EMPTY_OBJECT
