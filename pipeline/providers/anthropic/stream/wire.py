"""Events and complete messages of the Anthropic Messages API as typed structs: one decode an event.

The Claude CLI passes them on, each in a line of its own. Content blocks are decoded apart: a block that is more than
its type needs (citations, a caller, a type that is not known) is read member by member, and so is a message that is not
plain.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import astuple

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.events import CALLS, REASONING, TEXTS, BlockDelta, WholeBlock
from reknit.pipeline.streams.fields import Counted, Fields, Index
from reknit.topics.items import Usage


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
    input_transformations: Raw | UnsetType = UNSET


class MessageStart(Struct, tag_field="type", tag="message_start", gc=False):
    """A message begins. The answer to a server tool's own calls has all of its content here, and its stop reason."""

    message: _Started


class MessageChange(Struct, tag_field="type", tag="message_delta", gc=False):
    """The stop reason and final token counts. ``delta`` says more about a stop, ``context_management`` of edits.

    After a fallback to another model it has the transformations for that one.
    """

    delta: dict[str, Raw]
    usage: Counts | None = None
    context_management: Raw | UnsetType = UNSET
    input_transformations: Raw | UnsetType = UNSET


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
    input_transformations: Raw | UnsetType = UNSET


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


class Message(Struct, gc=False):
    """The members of a message that are read: its content as raw blocks, and members that may be empty."""

    content: list[Raw] = []
    id: str | None = None
    model: str | None = None
    usage: Counts | None = None


class _Text(Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    text: str = ""


class _Thinking(Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True, gc=False):
    thinking: str = ""
    text: str = ""
    signature: Raw | UnsetType = UNSET


class _Call(Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True, gc=False):
    id: Annotated[str, Meta(min_length=1)]
    name: str = ""
    input: Raw | UnsetType = UNSET


_message = msgspec.json.Decoder(Message)
_plain_block: msgspec.json.Decoder[_Text | _Thinking | _Call] = msgspec.json.Decoder(_Text | _Thinking | _Call)

# Types of blocks, calls apart, that have a place of their own in items.
WORDS: Final = TEXTS | REASONING

# The members of a block that have a place of their own in items; others are extras.
_BLOCK: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "thinking": frozenset({"type", "thinking", "text", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    **dict.fromkeys(CALLS, frozenset({"type", "id", "name", "input"})),
}


def read_message(fields: Fields) -> Message | None:
    """The member ``message`` of a line; None where it is not an object, or its content is not content."""
    try:
        return _message.decode(fields["message"])
    except (KeyError, msgspec.DecodeError):
        message = read.members(fields, "message")
    content = None if message is None else _content(message)
    if message is None or content is None:
        return None
    return Message(
        content, read.text(message, "id"), read.text(message, "model"), read.counts(message, "usage", Counts)
    )


def _content(message: Fields) -> list[Raw] | None:
    """A message's content as raw blocks; a string is one text block, null none."""
    content = message.get("content")
    if content is None or bytes(content) == b"null":
        return []
    if bytes(content).startswith(b'"'):
        return [text_block(content)]
    return read.elements(message, "content")


def text_block(string: Raw) -> Raw:
    return Raw(b'{"type":"text","text":' + bytes(string) + b"}")


def whole_block(raw: Raw) -> WholeBlock:
    """Return a content block of a complete message. One that is not an object, or of an unknown type, stays opaque."""
    try:
        plain = _plain_block.decode(raw)
    except msgspec.DecodeError:
        return _unusual_block(raw)
    raw = read.own(raw)
    if isinstance(plain, _Text):
        return WholeBlock(kind="text", raw=raw, text=plain.text)
    if isinstance(plain, _Thinking):
        return WholeBlock(kind="thinking", raw=raw, text=plain.thinking or plain.text)
    return WholeBlock(kind="tool_use", raw=raw, tool_id=plain.id, name=plain.name, input=read.given(plain.input))


def _unusual_block(raw: Raw) -> WholeBlock:
    block = read.members({"block": raw}, "block") or {}
    kind = read.text(block, "type")
    raw = read.own(raw)
    if kind in WORDS:
        keys = ("thinking", "text") if kind == "thinking" else ("text",)
        return WholeBlock(kind=kind, raw=raw, text=read.text(block, *keys), extras=read.others(block, _BLOCK[kind]))
    tool_id = read.text(block, "id")
    if kind in CALLS and tool_id:
        return WholeBlock(
            kind=kind,
            raw=raw,
            tool_id=tool_id,
            name=read.text(block, "name"),
            input=read.raw(block, "input"),
            extras=read.others(block, _BLOCK[kind]),
        )
    return WholeBlock(kind=kind or "unknown", raw=raw, opaque=True)


def usage(fields: Fields, name: str) -> Usage | UnsetType:
    found = read.counts(fields, name, Counts)
    return UNSET if found is None else found.usage()
