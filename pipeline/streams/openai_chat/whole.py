"""A chat's answer that came whole, as the blocks of a complete message.

Its message grows in one piece, as a stream's does, so that both are read by the same rules; what is whole in the end is
promoted. What is not (a call whose arguments break off) stays a stream that ended, and so do the other choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.streams.events import BlockDelta, BlockNoted, BlockStarted, BlockStopped, Event, WholeBlock
from pipeline.streams.fields import Fields


class _Grown(Struct):
    """A block out of its events."""

    started: BlockStarted
    events: list[Event]
    words: list[str] = []
    signature: str = ""
    members: Fields = {}
    lists: dict[str, list[Raw]] = {}
    stopped: bool = False


def promoted(events: Sequence[Event], issuer: dict[str, str]) -> tuple[list[WholeBlock], list[Event]]:
    """The whole blocks in the events of a message's stream, and the events of all others, both in order.

    ``issuer`` is who goes on with the reasoning.
    """
    grown: dict[int, _Grown] = {}
    for event in events:
        if isinstance(event, BlockStarted):
            grown[event.index] = _Grown(event, [event])
        elif isinstance(event, BlockDelta | BlockNoted | BlockStopped):
            _take(grown[event.index], event)
    blocks: list[WholeBlock] = []
    rest: list[Event] = []
    for block in grown.values():
        whole = _whole(block, issuer) if block.stopped else None
        if whole is None:
            rest += block.events
        else:
            blocks.append(whole)
    return blocks, rest


def _take(block: _Grown, event: BlockDelta | BlockNoted | BlockStopped) -> None:
    block.events.append(event)
    match event:
        case BlockStopped():
            block.stopped = True
        case BlockDelta(kind="signature_delta", content=signature):
            block.signature += signature
        case BlockDelta(content=content):
            block.words.append(content)
        case BlockNoted(name=name, value=value, appends=True):
            block.lists.setdefault(name, []).append(value)
        case BlockNoted(name=name, value=value):
            block.members[name] = value


def _whole(block: _Grown, issuer: dict[str, str]) -> WholeBlock | None:
    started, text = block.started, "".join(block.words)
    members = block.members | {name: Raw(msgspec.json.encode(values)) for name, values in block.lists.items()}
    extras = members or UNSET
    index, kind = started.index, started.kind
    if kind == "text":
        raw = Raw(msgspec.json.encode({"type": kind, "text": text} | members))
        return WholeBlock(kind=kind, raw=raw, index=index, text=text, extras=extras)
    if kind == "thinking" and text:
        signed = {"signature": block.signature} if block.signature else {}
        raw = Raw(msgspec.json.encode({"type": kind, "thinking": text} | signed | members | {"issuer": issuer}))
        return WholeBlock(kind=kind, raw=raw, index=index, text=text, extras=extras)
    if kind == "redacted_thinking":
        raw = Raw(msgspec.json.encode({"type": kind} | members | {"issuer": issuer}))
        return WholeBlock(kind=kind, raw=raw, index=index, extras=extras)
    if kind == "tool_use" and _is_json(text):
        given = Raw(text.encode())
        raw = Raw(msgspec.json.encode({"type": kind, "id": started.tool_id, "name": started.name, "input": given}))
        return WholeBlock(kind=kind, raw=raw, index=index, tool_id=started.tool_id, name=started.name, input=given)
    if started.raw is UNSET or kind == "choice":
        return None
    own = msgspec.json.decode(started.raw, type=dict[str, Raw]) | members
    return WholeBlock(kind=kind, raw=Raw(msgspec.json.encode(own)), index=index, extras=extras, opaque=True)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
