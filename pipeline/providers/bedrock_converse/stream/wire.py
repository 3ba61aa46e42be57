"""Events of Bedrock's ConverseStream as typed structs, and what comes in one piece as blocks.

One decode an event, which is an object with one member, whose name says what it is; names are the service's own. In one
piece come answers that were not streamed, and the service's own blocks, put together from their deltas.
"""

from __future__ import annotations

import binascii
from functools import reduce
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.events import WholeBlock
from reknit.pipeline.streams.fields import Counted, Fields, Index
from reknit.topics.items import Usage


class Reasoning(Struct, gc=False):
    """A piece of reasoning: words, their signature, or base64 that only the service can read."""

    text: str | None = None
    signature: str | None = None
    redacted: str | None = msgspec.field(default=None, name="redactedContent")


class _Input(Struct, gc=False):
    input: str = ""


class Piece(Struct, rename="camel", gc=False):
    """The addition of a delta to its block: one of these, or a value that is read member by member."""

    text: str | None = None
    reasoning_content: Reasoning | None = None
    tool_use: _Input | None = None


class Delta(Struct, gc=False):
    delta: Piece
    index: Index = msgspec.field(default=0, name="contentBlockIndex")


class Start(Struct, gc=False):
    """A block begins; texts and reasoning have no start."""

    start: dict[str, Raw]
    index: Index = msgspec.field(default=0, name="contentBlockIndex")


class BlockStop(Struct, gc=False):
    index: Index = msgspec.field(default=0, name="contentBlockIndex")


class MessageStart(Struct, gc=False):
    role: str = ""


class MessageStop(Struct, rename="camel", gc=False):
    """The stop reason. Token counts follow, as a rule."""

    stop_reason: str
    additional_model_response_fields: Raw | UnsetType = UNSET


class Counts(Counted, rename="camel", gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None

    def usage(self) -> Usage:
        return Usage(
            input_tokens=self.input_tokens or 0,
            output_tokens=self.output_tokens or 0,
            cache_creation_input_tokens=self.cache_write_input_tokens or 0,
            cache_read_input_tokens=self.cache_read_input_tokens or 0,
        )


class Metadata(Struct, gc=False):
    """Data about the whole message; ``trace`` is the trace of a guardrail."""

    usage: Counts | None = None
    trace: Raw | UnsetType = UNSET


class StreamEvent(Struct, rename="camel", gc=False):
    """One event: one of these is there. ``output`` is that of an answer that was not streamed."""

    content_block_delta: Delta | None = None
    content_block_start: Start | None = None
    content_block_stop: BlockStop | None = None
    message_start: MessageStart | None = None
    message_stop: MessageStop | None = None
    metadata: Metadata | None = None
    output: Raw | UnsetType = UNSET


class ToolStart(Struct, gc=False):
    """A call begins; ``type`` says so where the service runs the tool itself."""

    id: str = msgspec.field(default="", name="toolUseId")
    name: str = ""
    type: str = ""


class _Message(Struct, gc=False):
    content: list[Raw]


class _Output(Struct, gc=False):
    message: _Message


class WholeAnswer(Struct, rename="camel", gc=False):
    """The answer of ``Converse``."""

    output: _Output
    stop_reason: str | None = None
    usage: Counts | None = None
    trace: Raw | UnsetType = UNSET
    additional_model_response_fields: Raw | UnsetType = UNSET


decode = msgspec.json.Decoder(StreamEvent).decode
decode_tool = msgspec.json.Decoder(ToolStart).decode
decode_answer = msgspec.json.Decoder(WholeAnswer).decode
# Members of a call that its block has; others become extras.
_CALL: Final = frozenset({"toolUseId", "name", "input", "type"})
_string = msgspec.json.Decoder(str)
_list = msgspec.json.Decoder(list[Raw])


def whole_blocks(content: list[Raw]) -> tuple[WholeBlock, ...]:
    """The blocks of an answer: one for each member, as Converse names blocks by their only one."""
    found: list[WholeBlock] = []
    for raw in content:
        block = read.members({"block": raw}, "block")
        named = {name: value for name, value in (block or {}).items() if name != "type"}
        if not named:
            found.append(WholeBlock(kind="unknown", raw=read.own(raw), opaque=True))
        found += [_block(name, value) for name, value in named.items()]
    return tuple(msgspec.structs.replace(block, index=at) for at, block in enumerate(found))


def _block(name: str, value: Raw) -> WholeBlock:
    members = read.members({name: value}, name) or {}
    if name == "text":
        return _text(read.text({name: value}, name))
    if name == "citationsContent":
        parts = [read.members({"part": part}, "part") or {} for part in read.elements(members, "content") or ()]
        return _text("".join(read.text(part, "text") for part in parts), read.raw(members, "citations"))
    known = None
    if name == "toolUse":
        known = _call(members, value)
    elif name == "reasoningContent":
        known = _reasoning(members)
    opaque = Raw(msgspec.json.encode({name: value}))
    return known or WholeBlock(kind=name, raw=opaque, opaque=True)


def _text(words: str, citations: Raw | UnsetType = UNSET) -> WholeBlock:
    extras = UNSET if citations is UNSET else {"citations": citations}
    raw = msgspec.json.encode({"type": "text", "text": words} | (extras or {}))
    return WholeBlock(kind="text", raw=Raw(raw), text=words, extras=extras)


def _call(members: Fields, value: Raw) -> WholeBlock | None:
    try:
        call = decode_tool(value)
    except msgspec.DecodeError:
        return None
    kind = "server_tool_use" if call.type == "server_tool_use" else "tool_use"
    given, extras = read.raw(members, "input"), read.others(members, _CALL)
    inner = {"type": kind, "id": call.id, "name": call.name, "input": Raw(b"{}") if given is UNSET else given}
    raw = Raw(msgspec.json.encode(inner | (extras or {})))
    return WholeBlock(kind=kind, raw=raw, tool_id=call.id or None, name=call.name, input=given, extras=extras)


def _reasoning(members: Fields) -> WholeBlock | None:
    """Reasoning; None where there is neither any nor a signature of it."""
    sealed, inner = read.text(members, "redactedContent"), read.members(members, "reasoningText") or {}
    if sealed:
        raw = {"type": "redacted_thinking", "data": sealed}
        return WholeBlock(kind="redacted_thinking", raw=Raw(msgspec.json.encode(raw)))
    words, signature = read.text(inner, "text"), read.text(inner, "signature")
    if not (words or signature):
        return None
    raw = {"type": "thinking", "thinking": words} | ({"signature": signature} if signature else {})
    return WholeBlock(kind="thinking", raw=Raw(msgspec.json.encode(raw)), text=words)


def put_together(kind: str, pieces: list[bytes]) -> Raw:
    """Return a block of the service's own from its start and its deltas: the result of a service's tool, an image.

    A tool's result has its content in its deltas, or in pieces of a list. In other blocks, objects are continued member
    by member, lists and strings at their end, and bytes, each piece with its own encoding, at their end.
    """
    if kind != "toolResult":
        return Raw(reduce(_joined, pieces))
    start, *content = pieces
    members = read.members({"start": Raw(start)}, "start") or {}
    return Raw(msgspec.json.encode(members | {"content": Raw(b"[%b]" % b",".join(content))}))


def _joined(old: bytes, new: bytes, name: str = "") -> bytes:
    try:
        before, after = read.read_object(old), read.read_object(new)
    except msgspec.DecodeError:
        return _joined_ends(old, new, name)
    both = {key: Raw(_joined(bytes(before[key]), bytes(after[key]), key)) for key in before.keys() & after.keys()}
    return msgspec.json.encode(before | after | both)


def _joined_ends(old: bytes, new: bytes, name: str) -> bytes:
    try:
        return msgspec.json.encode(_list.decode(old) + _list.decode(new))
    except msgspec.DecodeError:
        pass
    try:
        before, after = _string.decode(old), _string.decode(new)
    except msgspec.DecodeError:
        return new
    try:
        data = binascii.a2b_base64(before) + binascii.a2b_base64(after) if name == "bytes" else None
    except ValueError:
        data = None
    return msgspec.json.encode(before + after if data is None else data)
