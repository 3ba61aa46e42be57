"""OpenAI's Responses API to common events.

Events carry their place (``output_index`` and the part's number), and whole items and the whole response repeat what
was streamed, so blocks are proved by those; nothing is guessed from order. Item ids are not to be trusted: gateways
make up another for each event (GitHub Copilot), and so they do for the response. An event that was seen before, by its
``sequence_number`` and its content, is a redelivery.
"""

from __future__ import annotations

from typing import ClassVar
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from pipeline.history.readers.openai_responses import ISSUER
from pipeline.streams import openai_responses_wire as wire
from pipeline.streams.decoder import PayloadDecoder, failure
from pipeline.streams.events import (
    BlockDelta,
    BlockStarted,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    UsageKnown,
    WholeBlock,
    WholeMessage,
)
from pipeline.streams.fields import Fields, integer
from pipeline.streams.openai_responses_items import (
    TEXT_PARTS,
    Item,
    escaped,
    partial_call,
    read_item,
    started,
    whole,
)
from pipeline.streams.openai_responses_wire import place
from pipeline.streams.redelivery import SavedLines, SeenLines
from pipeline.streams.salvage import check_strings


class ResponsesState(Struct):
    """The response that streams.

    ``id`` is None before the first, ``over`` says that it ended. ``begun`` are the places of items that have begun, by
    item id; ``parts`` the numbers of the parts that streamed, by their message's place; ``growing`` is the block of the
    last of them, and ``thought`` the last stretch of reasoning: its item's place, its kind and its number. ``written``
    counts the characters of each call's input.
    """

    id: str | None = None
    model: str | None = None
    over: bool = False
    begun: dict[str, int] = {}
    parts: dict[int, list[int]] = {}
    growing: int = -1
    thought: tuple[int, str, int] | None = None
    written: dict[int, int] = {}


class _Saved(Struct, array_like=True):
    state: ResponsesState
    seen: SavedLines


class OpenAiResponses(PayloadDecoder[ResponsesState]):
    """The source ``openai-responses``."""

    prefix: ClassVar[str] = "resp"
    issuer: ClassVar[str] = ISSUER.provider

    def __init__(self) -> None:
        super().__init__(ResponsesState)
        self._seen = SeenLines()

    def payload(self, payload: bytes) -> list[Event]:
        """One event."""
        try:
            event = wire.decode(payload)
        except msgspec.ValidationError:
            return self._other(payload)
        if type(event) is not wire.TextDelta:
            check_strings(payload)
        number = event.sequence_number
        if number is not None and self._is_known(number, payload):
            return []
        if type(event) is wire.TextDelta:
            # Nearly every event is one of these, and goes on where the last one was.
            at = place(event.output_index, event.content_index)
            if at == self.state.growing and not self.state.over:
                return [BlockDelta(at, "text_delta", event.delta)]
        if type(event) is wire.Created:
            self._seen.enter(event.response.id, None, b"")
            if number is not None:
                self._is_known(number, payload)
        return self._take(event)

    def _is_known(self, number: int, payload: bytes) -> bool:
        """Whether an event was seen before, by its number and its content; if not, it is known from now on."""
        seen, before = self._seen.window()
        mark = (number & 0xFFFF_FFFF) << 32 | crc32(payload)
        if mark in seen.known or mark in before.known:
            return True
        seen.known.add(mark)  # Marks.add, without the call
        seen.packed.append(mark)
        return False

    def odd(self, fields: Fields) -> list[Event]:
        """An error, or what nobody understands."""
        number = integer(fields, "sequence_number")
        if number is not None and self._is_known(number, msgspec.json.encode(fields)):
            return []
        return super().odd(fields)

    def finish(self) -> list[Event]:
        """The next run numbers its events anew."""
        self._seen = SeenLines()
        return []

    def save(self) -> bytes:
        """The state as bytes."""
        return msgspec.msgpack.encode(_Saved(self.state, self._seen.save()))

    def load(self, saved: bytes) -> None:
        """Take the state that ``save`` gave."""
        found = msgspec.msgpack.decode(saved, type=_Saved)
        self.state, self._seen = found.state, SeenLines.load(found.seen)

    def _take(self, event: wire.AnyEvent) -> list[Event]:
        match event:
            case wire.Created():
                return self._begin(event.response)
            case wire.InProgress() | wire.Queued():
                return self._wait(event)
            case wire.Completed() | wire.Incomplete():
                return self._end_response(event)
            case wire.Failed():
                return self._fail(event)
            case wire.ItemDone():
                return self._finish_item(event)
        return [*self._go_on(), *self._piece(event)]

    def _piece(self, event: wire.Piece) -> list[Event]:
        """The events of a piece of the response that streams."""
        at = event.output_index
        match event:
            case wire.ItemAdded():
                return self._start(read_item(event.item), event.item, at)
            case wire.PartAdded():
                if event.part.type == "reasoning_text":
                    return []
                kind = "text" if event.part.type in TEXT_PARTS else event.part.type
                return [BlockStarted(index=self._part(event), kind=kind)]
            case wire.TextDelta() | wire.RefusalDelta():
                return [BlockDelta(self._part(event), "text_delta", event.delta)]
            case wire.SummaryDelta():
                return self._reasoning((at, "summary", event.summary_index), event.delta)
            case wire.ReasoningDelta():
                return self._reasoning((at, "content", event.content_index), event.delta)
            case wire.ArgumentsDelta():
                return [self._input(at, event.delta)]
            case wire.InputDelta():
                return [self._input(at, escaped(event.delta))]

    # -- a response ---------------------------------------------------------------------------------------------

    def _wait(self, event: wire.InProgress | wire.Queued) -> list[Event]:
        """A sign of life, which is the first one where the response's beginning was lost."""
        state = self.state
        known = state.id is not None and (not state.over or state.id == event.response.id)
        return [] if known else self._begin(event.response)

    def _begin(self, response: wire.Response) -> list[Event]:
        self.state = ResponsesState(id=response.id or "", model=response.model or None)
        return [MessageStarted(response.id or None, response.model or None)]

    def _go_on(self) -> list[Event]:
        """The events that must come before the next piece of a response: none, or its beginning, which was lost."""
        return [] if self.state.id is not None and not self.state.over else self._begin(wire.Response())

    def _end_response(self, event: wire.Completed | wire.Incomplete) -> list[Event]:
        response, state = event.response, self.state
        if state.over and response.id and state.id == response.id:
            return []
        events = [] if state.id is not None and not state.over else self._begin(response)
        blocks: list[WholeBlock] = []
        for output_index, raw in enumerate(response.output or ()):
            found, partial = self._whole(raw, output_index)
            blocks += found
            events += partial
        if blocks:
            events.append(WholeMessage(message_id=None, blocks=tuple(blocks), model=response.model or None))
        if response.usage is not None:
            events.append(UsageKnown(wire.usage(response.usage)))
        cut = type(event) is wire.Incomplete
        details = response.incomplete_details
        reason = (details and details.reason) or ("incomplete" if cut else "completed")
        self.state.over = True
        self.state.id = response.id or self.state.id
        return [*events, MessageDelta(reason, cut=cut), MessageStopped()]

    def _fail(self, event: wire.Failed) -> list[Event]:
        error = event.response.error or {}
        found = failure({"error": Raw(msgspec.json.encode(error))})
        self.state.over = self.state.id is not None
        return [found or Failed("the response failed")]

    # -- its items ----------------------------------------------------------------------------------------------

    def _finish_item(self, event: wire.ItemDone) -> list[Event]:
        item = read_item(event.item)
        output_index = self.state.begun.get(item.id or "") if event.output_index is None else event.output_index
        if output_index is None:
            return []  # the whole response has it again, in its place
        first = self._go_on()
        blocks, partial = self._whole(event.item, output_index)
        if not blocks:
            return [*first, *partial]
        return [*first, *partial, WholeMessage(message_id=None, blocks=tuple(blocks))]

    def _whole(self, raw: Raw, output_index: int) -> tuple[list[WholeBlock], list[Event]]:
        """A whole item as blocks; or, of a call that is not whole, what did not stream of it."""
        item = read_item(raw)
        blocks = whole(item, raw, output_index, self.state.model, self.state.parts.get(output_index, []))
        if blocks or item.type == "message":
            return blocks, []
        beginning = [] if output_index in self.state.begun.values() else self._start(item, raw, output_index)
        rest = partial_call(item)[self.state.written.get(output_index, 0) :]
        return [], [*beginning, self._input(output_index, rest)]

    def _start(self, item: Item, raw: Raw, output_index: int) -> list[Event]:
        self.state.begun[item.id or str(output_index)] = output_index
        return started(item, raw, output_index)

    def _input(self, output_index: int, text: str) -> BlockDelta:
        self.state.written[output_index] = self.state.written.get(output_index, 0) + len(text)
        return BlockDelta(place(output_index), "input_json_delta", text)

    def _part(self, event: wire.PartAdded | wire.TextDelta | wire.RefusalDelta) -> int:
        """The block of a message's part, which is remembered by its number."""
        numbers = self.state.parts.setdefault(event.output_index, [])
        if event.content_index not in numbers:
            numbers.append(event.content_index)
        self.state.growing = place(event.output_index, event.content_index)
        return self.state.growing

    def _reasoning(self, part: tuple[int, str, int], delta: str) -> list[Event]:
        """More of an item's reasoning; a blank line stands between its parts."""
        before, self.state.thought = self.state.thought, part
        gap = "\n\n" if before is not None and before != part and before[0] == part[0] else ""
        return [BlockDelta(place(part[0]), "thinking_delta", gap + delta)]

    def _other(self, payload: bytes) -> list[Event]:
        """An event that says nothing of its own, or one about an item that only its provider understands.

        Raises:
            msgspec.ValidationError: neither; the base sees to it.
        """
        check_strings(payload)
        event = wire.decode_other(payload)
        silent = event.type in wire.SILENT
        about = event.type.startswith("response.") and event.output_index is not None and event.type not in wire.NAMES
        if not silent and not about:
            raise msgspec.ValidationError(event.type)
        number = event.sequence_number
        if silent or (number is not None and self._is_known(number, payload)):
            return []
        at = place(event.output_index or 0, event.content_index or 0)
        kind = event.type.removeprefix("response.")
        return [*self._go_on(), BlockDelta(at, kind, "", raw=Raw(payload).copy())]
