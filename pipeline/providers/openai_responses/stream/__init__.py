"""OpenAI's Responses API to common events.

Events carry their place (``output_index`` and the part's number), and whole items and the whole response repeat what
was streamed, so blocks are proved by those; nothing is guessed from order. Item ids are not to be trusted: gateways
make up another for each event (GitHub Copilot), and so they do for the response. An event that was seen before, by its
``sequence_number`` and its content, is a redelivery.
"""

from __future__ import annotations

from typing import Any, Final, get_args
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.providers.openai_responses.stream import wire
from reknit.pipeline.providers.openai_responses.stream.items import ResponsesDecoderState, is_over
from reknit.pipeline.providers.openai_responses.stream.wire import place, read_item
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.decoder import PayloadDecoder, SavedLines, SeenLines, failure
from reknit.pipeline.streams.events import (
    BlockDelta,
    BlockNoted,
    Event,
    Extras,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    UsageKnown,
    WholeBlock,
    WholeMessage,
)
from reknit.pipeline.streams.fields import Fields, integer
from reknit.pipeline.streams.framing.repair import check_strings

_PIECES: Final = frozenset(get_args(wire.Piece))
# The first events of a response.
_HEADS: Final = frozenset({wire.Created, wire.InProgress, wire.Queued})
_ENDINGS: Final = {str(kind.__struct_config__.tag): kind for kind in get_args(wire.Ending)}
# Words of whole responses for an output that ended before its end.
_CUT: Final = frozenset({"incomplete", "cancelled"})
# The two events that report the same failure.
_OTHER: Final = {"error": "failed", "failed": "error"}


class _Saved(Struct, array_like=True):
    state: ResponsesDecoderState
    seen: SavedLines


class OpenAiResponses(PayloadDecoder[ResponsesDecoderState]):
    def __init__(self) -> None:
        super().__init__(ResponsesDecoderState)
        self._seen = SeenLines()
        self._restored = False

    def payload(self, payload: bytes) -> list[Event]:
        event: Any  # `kind` below distinguishes the events, which mypy does not follow
        try:
            event = wire.decode(payload)
        except msgspec.ValidationError:
            return self._take_other_event(payload)
        kind = type(event)
        if kind in wire.HOLD_JSON:
            check_strings(payload)
        number = event.sequence_number
        if number is not None and self._is_known(number, payload, event.obfuscation):
            return []
        if kind is wire.TextDelta:
            # Nearly every event is one of these, and continues the previous one.
            at = place(event.output_index, event.content_index)
            if at == self.state.growing and not self.state.over:
                return [BlockDelta(at, "text_delta", event.delta)]
        if kind in _PIECES:
            return self.state.piece(event) if self._is_on() else [*self._begin_if_missing(), *self.state.piece(event)]
        before = self.state
        events = self._take_event(event, payload)
        if self.state is not before and kind in _HEADS:
            # Each response has its own numbers, and this is its first event.
            marks, _ = self._seen.window()
            self._seen.enter(self.state.id or f"#{crc32(payload)}", None, b"")
            self._restored = False
            if number is not None and not self._seen.window()[0].packed:
                self._seen.window()[0].add_mark(marks.packed[-1])
        return events

    def _is_known(self, number: int, payload: bytes, padding: str | None = None) -> bool:
        """Return True if an event was seen before, by its number and its content; if not, it is known from now on.

        ``padding`` hides its length, and is another one whenever the event is sent.
        """
        seen, before = self._seen.window()
        mark = (number & 0xFFFF_FFFF) << 32
        if padding is None:
            mark |= crc32(payload)
        elif self._restored and mark | crc32(payload) in seen.known:
            return True  # as 0.1.0 wrote it down
        else:
            start = payload.rfind(b'"obfuscation"')
            mark |= crc32(payload[:start])
            if start < len(payload) >> 1:  # it is last, unless another program rewrote the event
                mark ^= crc32(payload[payload.find(b'"', start + 13) + len(padding) :])
        if mark in seen.known or (mark in before.known and not self._goes_on(mark, payload)):
            return True
        seen.known.add(mark)  # Marks.add_mark, without the call
        seen.packed.append(mark)
        return False

    def _goes_on(self, mark: int, payload: bytes) -> bool:
        """Return True if an event that the response before had just like this one is the next one of this response.

        Then its number follows the last one. Its item, where it names one, is of this response, whose beginning came.
        """
        numbers = self._seen.window()[0].packed
        if not numbers or mark >> 32 != (numbers[-1] >> 32) + 1:
            return False
        event = wire.decode_other(payload)
        if not event.item_id or event.type == "response.output_item.added":
            return True
        return bool(self.state.id) and event.item_id in self.state.begun

    def odd(self, fields: Fields) -> list[Event]:
        """Return the events of a whole answer, an error, the end of a response, or an unknown event."""
        number = integer(fields, "sequence_number")
        if number is not None and self._is_known(number, msgspec.json.encode(fields)):
            return []
        if wire.is_answer(fields):
            return self._take_answer(fields)
        response = read.members(fields, "response")
        ending = _ENDINGS.get(read.text(fields, "type"))
        if ending is not None and response is not None:
            return self._take_event(ending(response=wire.response_of(response)), msgspec.json.encode(fields))
        return [event for event in super().odd(fields) if type(event) is not Failed or self._is_news(event, "error")]

    def release_held(self) -> list[Event]:
        """The next run has its own numbers. Return pieces without a whole item unchanged."""
        self._seen = SeenLines()
        return self.state.release_held()

    def save(self) -> bytes:
        return msgspec.msgpack.encode(_Saved(self.state, self._seen.save()))

    def load(self, saved: bytes) -> None:
        found = msgspec.msgpack.decode(saved, type=_Saved)
        self.state, self._seen, self._restored = found.state, SeenLines.load(found.seen), True

    def _take_event(self, event: wire.Frame, payload: bytes) -> list[Event]:
        match event:
            case wire.Created():
                return self._begin_response(event.response)
            case wire.InProgress() | wire.Queued():
                return self._take_sign_of_life(event)
            case wire.Completed() | wire.Incomplete():
                cut = type(event) is wire.Incomplete
                extra = wire.siblings_of_output(wire.members_of_response(payload))
                return self._end_response(event.response, "incomplete" if cut else "completed", cut=cut, extra=extra)
            case wire.Failed():
                return self._fail_response(event.response)
            case wire.ItemDone():
                return self._finish_item(event)
        # The whole response has said it all, and once more is no news.
        return [] if self.state.over else [*self._begin_if_missing(), *self.state.done(event)]

    # -- a response ---------------------------------------------------------------------------------------------

    def _take_sign_of_life(self, event: wire.InProgress | wire.Queued) -> list[Event]:
        """A sign of life, which is the first one where the response's beginning was lost."""
        state = self.state
        known = state.id is not None and (not state.over or state.id == event.response.id)
        return [] if known else self._begin_response(event.response)

    def _begin_response(self, response: wire.Response) -> list[Event]:
        self.state = ResponsesDecoderState(id=response.id or "", model=response.model or None)
        return [MessageStarted(response.id or None, response.model or None, placed=True)]

    def _is_on(self) -> bool:
        return self.state.id is not None and not self.state.over

    def _begin_if_missing(self) -> list[Event]:
        """The events that must come before the next piece of a response: none, or its beginning, which was lost."""
        return [] if self._is_on() else self._begin_response(wire.Response())

    def _take_answer(self, fields: Fields) -> list[Event]:
        """A response that did not stream, or one that is asked for again and again until it is there."""
        response, state = wire.response_of(fields), self.state
        first: list[Event] = []
        if self._is_on() and response.id and state.id and state.id != response.id:
            first = self._begin_response(response)
        match response.status:
            case "failed":
                return [*first, *self._fail_response(response)]
            case "queued" | "in_progress":
                first += self._take_sign_of_life(wire.InProgress(response=response))
                return [*first, *self._take_output(response, only_over=True)]
            case None:
                return self._answer_without_status(response)
            case status:
                extra = wire.siblings_of_output(fields)
                return [*first, *self._end_response(response, status, cut=status in _CUT, extra=extra)]

    def _answer_without_status(self, response: wire.Response) -> list[Event]:
        """Return the events of a whole answer without a status: a message that never streamed."""
        self.state = ResponsesDecoderState(id=response.id or "", model=response.model or None, over=True)
        blocks = [block for at, raw in enumerate(response.output or ()) for block in self.state.whole(raw, at)[0]]
        tokens = UNSET if response.usage is None else wire.usage(response.usage)
        return [WholeMessage(message_id=response.id, blocks=tuple(blocks), model=response.model, usage=tokens)]

    def _end_response(self, response: wire.Response, status: str, *, cut: bool, extra: Extras) -> list[Event]:
        if self.state.over and response.id and self.state.id == response.id:
            return []
        events = [] if self._is_on() else self._begin_response(response)
        state = self.state
        events += self._take_output(response)
        if response.output:
            state.homeless = []
        events += state.release_held()
        if not cut:
            events += state.stops(response)
        tokens = None if response.usage is None else wire.usage(response.usage)
        model = None if state.model else response.model or None
        if tokens is not None or model is not None:
            events.append(UsageKnown(tokens, model))
        details = response.incomplete_details
        reason = (details and details.reason) or status
        state.over, state.id = True, response.id or state.id
        return [*events, MessageDelta(reason, cut=cut, details=extra), MessageStopped()]

    def _take_output(self, response: wire.Response, *, only_over: bool = False) -> list[Event]:
        """The items of a whole response; with ``only_over``, of one that is not whole, and some of its items are."""
        events: list[Event] = []
        blocks: list[WholeBlock] = []
        for at, raw in enumerate(response.output or ()):
            if at in self.state.whole_items:
                continue
            if only_over and not is_over(item := read_item(raw)):
                rest = self.state.take_unfinished_item(item, raw, at)
            else:
                found, rest = self.state.whole(raw, at)
                blocks += found
            if rest:
                events += [*_message(blocks), *rest]
                blocks = []
        return [*events, *_message(blocks, response.model or None)]

    def _fail_response(self, response: wire.Response) -> list[Event]:
        if self.state.over and response.id and self.state.id == response.id:
            return []
        events = self._begin_response(response) if response.output and not self._is_on() else []
        events += [*self._take_output(response, only_over=True), *self.state.release_held()]
        if self._is_on():
            if response.usage is not None:
                events.append(UsageKnown(wire.usage(response.usage)))
            self.state.over = True
            self.state.id = response.id or self.state.id
        if not response.error and self.state.failure is not None:
            return events  # an event of its own has said why
        failed = failure({"error": Raw(msgspec.json.encode(response.error or {}))}) or Failed("the response failed")
        return [*events, failed] if self._is_news(failed, "failed") else events

    def _is_news(self, failed: Failed, by: str) -> bool:
        """Return True if a failure is new: it is reported by an event of its own, and by the response that failed."""
        before, self.state.failure = self.state.failure, f"{by}:{failed.message}"
        return before != f"{_OTHER[by]}:{failed.message}"

    # -- its items ----------------------------------------------------------------------------------------------

    def _finish_item(self, event: wire.ItemDone) -> list[Event]:
        item = read_item(event.item)
        output_index = self.state.begun.get(item.id or "") if event.output_index is None else event.output_index
        first = self._begin_if_missing()
        if output_index is None:
            self.state.homeless.append(bytes(event.item))  # the whole response has it again, in its place
            return first
        blocks, partial = self.state.whole(event.item, output_index)
        if not blocks:
            return [*first, *partial]
        self.state.whole_items.append(output_index)
        return [*first, *partial, *_message(blocks)]

    def _take_other_event(self, payload: bytes) -> list[Event]:
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
        if silent or (number is not None and self._is_known(number, payload, event.obfuscation)):
            return []
        kind, output_index = event.type.removeprefix("response."), event.output_index or 0
        at = place(output_index, event.content_index or 0)
        events = [*self._begin_if_missing(), BlockDelta(at, kind, "", raw=Raw(payload).copy())]
        member = wire.WHOLE_MEMBERS.get(event.type)
        if member is not None and output_index in self.state.begun.values():
            value = getattr(event, member)
            events += [] if value is UNSET else [BlockNoted(at, member, value.copy())]
        elif event.annotation is not UNSET and (event.content_index or 0) in self.state.parts.get(output_index, ()):
            events.append(BlockNoted(at, "annotations", event.annotation.copy(), appends=True, aside=True))
        return events


def _message(blocks: list[WholeBlock], model: str | None = None) -> list[Event]:
    return [WholeMessage(message_id=None, blocks=tuple(blocks), model=model)] if blocks else []
