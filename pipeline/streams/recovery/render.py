"""Renders blocks: as items on a screen, and as finished turns in a session's own log.

Some blocks have no item. A turn is finished when nothing can replace it any more; it is written to the log
(``record_assistant``) as canonical, Anthropic-style JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypedDict

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.events import CALLS, REASONING, BlockStarted, UserMessage, WholeBlock, WholeMessage
from reknit.pipeline.streams.recovery.message import PLAIN, Block, Message, Rest, UserLine
from reknit.topics.items import (
    INTERRUPTED,
    Doubt,
    Item,
    ItemCompleted,
    ItemRetracted,
    ItemStarted,
    Origin,
    TurnDelta,
    TurnStop,
)


class _ToolName(TypedDict, total=False):
    name: str
    tool_server: str
    tool_source: str


def tool_name(name: str) -> _ToolName:
    """A tool's name in its parts: ``mcp__server__tool`` is a tool of an MCP server."""
    parts = name.split("__", 2)
    if len(parts) == 3 and parts[0] == "mcp" and parts[1] and parts[2]:
        return {"name": parts[2], "tool_server": parts[1], "tool_source": "mcp"}
    return {"name": name}


def streamed_start(item_id: str, event: BlockStarted) -> ItemStarted:
    kind = event.kind or "unknown"
    if not event.name:
        return ItemStarted(item_id=item_id, item_type=kind, raw=event.raw, doubtful=event.doubtful)
    return ItemStarted(item_id=item_id, item_type=kind, raw=event.raw, doubtful=event.doubtful, **tool_name(event.name))


def whole_items(
    item_id: str,
    whole: WholeBlock,
    *,
    origin: Origin = "stream",
    parent: str | None = None,
    sidechain: bool = False,
    repeats: str = "",
    doubtful: Doubt = "",
) -> list[Item]:
    raw = whole.raw if whole.opaque or whole.kind == "redacted_thinking" else UNSET
    started = ItemStarted(
        item_id=item_id,
        item_type=whole.kind,
        origin=origin,
        text=whole.text,
        input=whole.input,
        raw=raw,
        parent_tool_use_id=parent,
        is_sidechain=sidechain,
        repeats=repeats,
        **tool_name(whole.name),
    )
    text = whole.text or UNSET
    own = UNSET if whole.kind in PLAIN else whole.raw
    done = ItemCompleted(
        item_id=item_id,
        origin=origin,
        text=text,
        input=whole.input,
        raw=own,
        doubtful=doubtful,
        extras=whole.extras,
    )
    return [started, done]


def confirmed(block: Block, whole: WholeBlock, rest: Rest) -> ItemCompleted:
    """A streamed block is complete, with what its stream did not deliver."""
    raw = rest.raw if block.kind in PLAIN else whole.raw
    return ItemCompleted(
        item_id=block.item_id,
        text=rest.text,
        input=rest.input,
        raw=raw,
        doubtful=block.doubtful,
        extras=whole.extras,
    )


def confirmed_by_stop(block: Block, given: str | UnsetType) -> ItemCompleted:
    """A streamed block is complete, where its source never sends complete messages; ``given`` is what its stop said."""
    extras = block.extras() or UNSET
    if block.kind in CALLS and isinstance(given, str):
        return ItemCompleted(item_id=block.item_id, input=Raw(given.encode()), doubtful=block.doubtful, extras=extras)
    whole = None if block.kind in PLAIN else shown_json(block)
    raw = UNSET if whole is None else Raw(whole)
    return ItemCompleted(item_id=block.item_id, text=given, raw=raw, doubtful=block.doubtful, extras=extras)


def left_incomplete(block: Block, given: str | UnsetType, reason: str) -> ItemCompleted:
    """A streamed block ends unconfirmed. A call repeats its raw JSON, so that no consumer has to join its deltas."""
    return ItemCompleted(
        item_id=block.item_id,
        text=given,
        partial_input=block.text() if block.kind in CALLS else UNSET,
        incomplete=True,
        reason=reason,
        doubtful=block.doubtful,
        extras=block.extras() or UNSET,
    )


def retracted(block: Block, reason: str) -> ItemRetracted:
    return ItemRetracted(item_id=block.item_id, reason=reason)


def interrupted(block: Block) -> ItemCompleted:
    """A block that a complete message held is incomplete: its program was interrupted in the middle of it."""
    return ItemCompleted(item_id=block.item_id, incomplete=True, reason=INTERRUPTED, doubtful=block.doubtful)


def unkept(block: Block) -> ItemCompleted:
    """A block of a complete message is doubtful: its program may not have it in its history."""
    return ItemCompleted(
        item_id=block.item_id, incomplete=block.cut, reason=INTERRUPTED if block.cut else "", doubtful="kept"
    )


def proven(block: Block) -> ItemCompleted:
    """A doubtful block is proven: its program's own history has it."""
    return ItemCompleted(item_id=block.item_id, incomplete=block.cut, reason=INTERRUPTED if block.cut else "")


def turn_delta(event: WholeMessage) -> TurnDelta:
    """The turn's values in a complete message."""
    return TurnDelta(model=event.model, usage=event.usage, uuid=event.uuid, extras=event.extras)


def turn_stop(message: Message, *, incomplete: bool, by_stop: bool) -> TurnStop:
    """An attempt's turn has ended. If no complete message reports on the turn, its stop does.

    An empty reason means that the end was reported without one.
    """
    if not by_stop:
        return TurnStop(incomplete=incomplete)
    return TurnStop(
        incomplete=incomplete,
        model=message.model,
        stop_reason=message.reason or None,
        usage=UNSET if message.usage is None else message.usage,
        extras={name: Raw(value) for name, value in message.details.items()} or UNSET,
    )


def subagent_stop(event: WholeMessage) -> TurnStop:
    return TurnStop(
        model=event.model,
        usage=event.usage,
        parent_tool_use_id=event.parent,
        is_sidechain=event.sidechain,
        uuid=event.uuid,
        extras=event.extras,
    )


def user_message(item_id: str, event: UserMessage) -> ItemStarted:
    """A user's words, in addition to tool results in the same line."""
    return ItemStarted(
        item_id=item_id,
        item_type="user_message",
        content=Raw(msgspec.json.encode(event.rest)),
        parent_tool_use_id=event.parent,
        is_sidechain=event.sidechain,
        is_synthetic=event.synthetic,
        is_replay=event.replay,
        uuid=event.uuid,
        extras=UNSET if event.results else event.extras,
    )


def promoted_block(item_id: str, whole: WholeBlock, raw: bytes | None) -> Block:
    """A promoted block as the current message remembers it."""
    return Block(
        item_id=item_id,
        kind=whole.kind,
        tool_id=whole.tool_id,
        name=whole.name,
        index=-1 if whole.index is None else whole.index,
        parts=[whole.text] if whole.kind == "text" else [],
        confirmed=True,
        raw=raw,
    )


# Thinking without text has no item until text arrives, and a block that is only a signature never gets one: a provider
# encrypts its reasoning, and some send nothing else of it. It is written to the log, because the provider requires it
# back; on a screen it would be an empty box. For agent programs, which send everything twice, the items are those that
# the program shows.


def is_unspoken(whole: WholeBlock) -> bool:
    return whole.kind == "thinking" and not whole.text and whole.extras is UNSET


def uncover(block: Block) -> list[Item]:
    """Start the item of a block that has none, for now it has something to show."""
    if not block.unseen:
        return []
    block.unseen = False
    return [streamed_start(block.item_id, BlockStarted(index=block.index, kind=block.kind))]


def uncover_growing(message: Message) -> list[Item]:
    """Start the newest block's item, if text may still follow: items are in the order of their blocks.

    If the blocks have places, the order of items does not matter.
    """
    newest = message.blocks[-1] if message.blocks and not message.placed else None
    if newest is None or newest.stopped or newest.confirmed or newest.withdrawn:
        return []
    return uncover(newest)


def uncover_settled(block: Block) -> list[Item]:
    """Start the item of a block that ends and has more than a signature."""
    return uncover(block) if block.unseen and (block.given or block.extras()) else []


_TOLD_WITHOUT_GROWTH = PLAIN | CALLS | {"choice"}


class FinishedTurn(Struct, frozen=True, kw_only=True):
    """One turn for the log.

    ``id`` is derived from the turn's place in the session and its content, so a redelivery makes the same one.
    ``resets``: this is no turn. The program has begun a new conversation, to which no turn before it belongs.
    ``message`` is ``{"role", "content"}``, with ``"synthetic": true`` where ``synthetic``: the agent program wrote it,
    not the user. ``incomplete``: a part was cut off. A call that was cut has ``"incomplete": true`` and its raw partial
    JSON, as a string, for input; a message whose last text was cut has ``"incomplete": true``.
    """

    id: str
    role: Literal["assistant", "user"]
    message: bytes
    message_id: str | None = None
    model: str | None = None
    synthetic: bool = False
    incomplete: bool = False
    resets: bool = False


def reset_of_turns(place: int, prefix: str) -> FinishedTurn:
    """The end of a conversation, in its place among the turns."""
    return FinishedTurn(id=f"{prefix}-reset-{place}", role="user", message=b"", resets=True)


def finished_turns(message: Message, first: int, prefix: str, issuer: str) -> list[FinishedTurn]:
    """Return the turns of a finished message: its own, if it has new blocks, and its users' lines.

    ``first`` is the number of turns that the session has finished so far; ``issuer`` the provider that continues the
    reasoning.
    """
    turns: list[FinishedTurn] = []
    fresh = [] if message.unkept else [block for block in message.surviving() if not block.recorded]
    if message.placed:
        fresh.sort(key=_place)
    mark = _issuer(issuer, message.model)
    content = [raw for block in fresh if (raw := block_json(block, mark)) is not None]
    for block in fresh:
        block.recorded = True
    if content:
        turns.append(
            finished_turn(
                "assistant",
                content,
                first,
                prefix,
                message_id=message.id,
                model=message.model,
                incomplete=any(block.is_cut() for block in fresh),
                cut_text=any(block.kind == "text" and block.is_cut() and not block.is_blank() for block in fresh),
            )
        )
    # A result of a call that was taken back answers nothing, unless the call was made again under its id.
    withdrawn = {block.tool_id for block in message.blocks if block.withdrawn}
    withdrawn -= {block.tool_id for block in message.surviving()}
    if message.unkept:  # the log has a call and its result, or neither
        withdrawn |= {block.tool_id for block in message.blocks}
    for line in message.users:
        kept = [raw for tool_id, raw in line.results if tool_id not in withdrawn] + line.rest
        if kept:
            turns.append(finished_turn("user", kept, first + len(turns), prefix, synthetic=line.synthetic))
    # Content that a transcript may still prove is kept with the results of its calls.
    message.users = [line.only_results() for line in message.users if line.results] if message.unkept else []
    return turns


def user_turns(line: UserLine, first: int, prefix: str) -> list[FinishedTurn]:
    kept = [raw for _, raw in line.results] + line.rest
    return [finished_turn("user", kept, first, prefix, synthetic=line.synthetic)] if kept else []


def _place(block: Block) -> int:
    return block.index


def finished_turn(
    role: Literal["assistant", "user"],
    content: list[bytes],
    place: int,
    prefix: str,
    *,
    message_id: str | None = None,
    model: str | None = None,
    synthetic: bool = False,
    incomplete: bool = False,
    cut_text: bool = False,
) -> FinishedTurn:
    message = b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(content))
    digest = hashlib.blake2b(message, digest_size=8).hexdigest()
    # The log has the marks; a digest without them makes the id that the turn had before there were any.
    if synthetic:
        message = message[:-1] + b',"synthetic":true}'
    if cut_text:
        message = message[:-1] + b',"incomplete":true}'
    return FinishedTurn(
        id=f"{prefix}-turn-{place}-{digest}",
        role=role,
        message=message,
        message_id=message_id,
        model=model,
        synthetic=synthetic,
        incomplete=incomplete,
    )


def _issuer(provider: str, model: str | None) -> dict[str, dict[str, str]]:
    """The member that says whose reasoning a block is."""
    if not provider:
        return {}
    return {"issuer": {"provider": provider} | ({"model": model} if model else {})}


def block_json(block: Block, issuer: Mapping[str, object] = MappingProxyType({})) -> bytes | None:
    """Return a block's JSON: from a complete message, or from the stream. None if it has no content.

    ``issuer`` is the member that names the author of the reasoning.
    """
    noted = block.noted_members()
    if block.kind == "text" and not block.text():
        return None  # no provider accepts a text without words, whatever its other members
    if block.raw is not None:
        # Text of other answers is shown, and is not part of the model's history.
        grown = _grown(block) | noted if block.kind not in _TOLD_WITHOUT_GROWTH else noted
        if block.kind in REASONING and issuer and b'"issuer"' not in block.raw:
            grown = grown | {name: Raw(msgspec.json.encode(value)) for name, value in issuer.items()}
        return _with_members(block.raw, grown) if grown else block.raw
    text = block.text()
    if block.kind in CALLS:
        call = {"type": block.kind, "id": block.tool_id or block.item_id, "name": block.name}
        if block.confirmed:
            return msgspec.json.encode(call | {"input": Raw(text.encode() or b"{}")} | noted)
        return msgspec.json.encode(call | {"input": text, "incomplete": True} | noted)
    if block.kind == "redacted_thinking":
        return msgspec.json.encode({"type": block.kind} | noted | dict(issuer)) if noted else None
    if block.kind == "thinking":
        if not (text or block.signature):
            return None
        # Without its signature no provider takes it back; the history says so when it drops it.
        signed = {"signature": block.signature} if block.signature else {}
        return msgspec.json.encode({"type": "thinking", "thinking": text} | signed | noted | dict(issuer))
    return msgspec.json.encode({"type": "text", "text": text} | noted) if block.kind == "text" and text else None


def shown_json(block: Block) -> bytes | None:
    """The JSON of a block of its source's own type as its item ends with it: with all that streamed."""
    if block.kind == "choice" and block.raw is not None:
        return _with_members(block.raw, _grown(block) | block.extras())
    return block_json(block)


def _grown(block: Block) -> dict[str, Raw]:
    """Return the grown content of a block of its source's own type: a call's input, or else text."""
    text = block.text()
    if not text or block.raw is None:
        return {}
    started = read.read_object(block.raw)
    if "input" in started or read.text(started, "of") in CALLS:
        return {"input": Raw(text.encode() if block.reads_as_json() else msgspec.json.encode(text))}
    return {"text": Raw(msgspec.json.encode(read.text(started, "text") + text))}


def _with_members(raw: bytes, noted: dict[str, Raw]) -> bytes:
    return msgspec.json.encode(read.read_object(raw) | noted)
