"""Events of the Anthropic Messages API as typed structs: one decode an event.

The Claude CLI passes them on, each in a line of its own. Content blocks are decoded apart: a block that is more than
its type needs (citations, a caller, a type that is not known) is read member by member.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import astuple

from pipeline.streams.events import BlockDelta
from pipeline.streams.fields import Counted, Index
from topics.items import Usage


class Counts(Counted, gc=False):
    """Token counts as far as an event has them. Each event's counts are of the whole message."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None

    def updated(self, newer: Counts) -> Counts:
        """These, with what a later event has of them in its place."""
        return Counts(*[was if now is None else now for was, now in zip(astuple(self), astuple(newer), strict=True)])

    def usage(self) -> Usage:
        return Usage(
            self.input_tokens or 0,
            self.output_tokens or 0,
            self.cache_creation_input_tokens or 0,
            self.cache_read_input_tokens or 0,
        )


class TextDelta(Struct, tag_field="type", tag="text_delta", gc=False):
    kind: ClassVar[str] = "text_delta"
    content: str = field(default="", name="text")
    # Only thinking was seen under another name; the rest have the field so that one expression reads all four.
    text: ClassVar[str] = ""


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta", gc=False):
    kind: ClassVar[str] = "thinking_delta"
    content: str = field(default="", name="thinking")
    text: str = ""


class InputDelta(Struct, tag_field="type", tag="input_json_delta", gc=False):
    kind: ClassVar[str] = "input_json_delta"
    content: str = field(default="", name="partial_json")
    text: ClassVar[str] = ""


class SignatureDelta(Struct, tag_field="type", tag="signature_delta", gc=False):
    kind: ClassVar[str] = "signature_delta"
    content: str = field(default="", name="signature")
    text: ClassVar[str] = ""


class Delta(Struct, tag_field="type", tag="content_block_delta", gc=False):
    """Nearly every event is one of these."""

    index: Index
    delta: TextDelta | ThinkingDelta | InputDelta | SignatureDelta


class BlockStart(Struct, tag_field="type", tag="content_block_start", gc=False):
    index: Index
    content_block: Raw


class BlockStop(Struct, tag_field="type", tag="content_block_stop", gc=False):
    index: Index


class _Started(Struct, gc=False):
    id: str | None = None
    model: str | None = None
    content: list[Raw] = []
    stop_reason: str | None = None
    usage: Counts | None = None


class MessageStart(Struct, tag_field="type", tag="message_start", gc=False):
    """A message begins. The answer to a server tool's own calls has all of its content here, and its stop reason."""

    message: _Started


class MessageChange(Struct, tag_field="type", tag="message_delta", gc=False):
    """The stop reason and final token counts. ``delta`` says more about a stop, ``context_management`` of edits."""

    delta: dict[str, Raw]
    usage: Counts | None = None
    context_management: Raw | UnsetType = UNSET


class MessageStop(Struct, tag_field="type", tag="message_stop", gc=False):
    """A message's stream stops."""


class Ping(Struct, tag_field="type", tag="ping", gc=False):
    """Keeps the connection alive."""


class WholeAnswer(Struct, tag_field="type", tag="message", gc=False):
    """A message that was not streamed at all."""

    content: list[Raw]
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: Counts | None = None


class TextStart(Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    """A text begins; nearly always it is empty."""

    text: str = ""
    citations: None = None


class ThinkingStart(Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True, gc=False):
    thinking: str = ""
    signature: str = ""


class CallStart(Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True, gc=False):
    """A call begins. Its input follows in deltas, and is empty here."""

    id: str
    name: str = ""
    input: dict[str, Raw] = {}


Streamed: TypeAlias = Delta | BlockStart | BlockStop | MessageStart | MessageChange | MessageStop
Event: TypeAlias = Streamed | Ping | WholeAnswer

_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
decode = _event.decode
decode_start = msgspec.json.Decoder(TextStart | ThinkingStart | CallStart).decode


def joined_deltas(deltas: list[Delta], message_id: str | None = None) -> list[BlockDelta]:
    """Neighbouring deltas of one message as events, those of one block as one; there is at least one.

    It is what ``decoder.joined`` does with events, done before there are any: an event for each delta would cost more
    than to decode it.
    """
    index, newest = deltas[0].index, deltas[0].delta
    if len(deltas) == 1:
        return [BlockDelta(index, newest.kind, newest.content or newest.text, message_id)]
    found: list[BlockDelta] = []
    contents: list[str] = []
    for event in deltas:
        delta = event.delta
        if type(delta) is not type(newest) or event.index != index:
            found.append(BlockDelta(index, newest.kind, "".join(contents), message_id, UNSET, len(contents)))
            index, newest, contents = event.index, delta, []
        contents.append(delta.content or delta.text)
    found.append(BlockDelta(index, newest.kind, "".join(contents), message_id, UNSET, len(contents)))
    return found
