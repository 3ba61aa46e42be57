"""Finished turns: what recovery hands on to a session's own log (``record_assistant``).

A turn is finished when nothing can replace it any more. Messages are canonical, Anthropic-style JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from pipeline.streams import fields as read
from pipeline.streams.events import CALLS, REASONING
from pipeline.streams.recovery.message import PLAIN, Block, Message, UserLine

_TOLD_WITHOUT_GROWTH = PLAIN | CALLS | {"choice"}


class FinishedTurn(Struct, frozen=True, kw_only=True):
    """One turn for the log.

    ``id`` is derived from the turn's place in the session and its content, so a redelivery makes the same one.
    ``message`` is ``{"role", "content"}``, with ``"synthetic": true`` where ``synthetic``: the agent program wrote it,
    not the user. ``incomplete``: a part was cut off; a call that was cut has ``"incomplete": true`` and its raw partial
    JSON, as a string, for input.
    """

    id: str
    role: Literal["assistant", "user"]
    message: bytes
    message_id: str | None = None
    model: str | None = None
    synthetic: bool = False
    incomplete: bool = False


def finished_turns(message: Message, first: int, prefix: str, issuer: str) -> list[FinishedTurn]:
    """The turns of a message that is over: its own, where it has blocks that are new, and its users' lines.

    ``first`` is how many turns the session has finished so far; ``issuer`` the provider that goes on reasoning.
    """
    turns: list[FinishedTurn] = []
    fresh = [block for block in message.surviving() if not block.recorded]
    if message.placed:
        fresh.sort(key=_place)
    mark = _issuer(issuer, message.model)
    content = [raw for block in fresh if (raw := block_json(block, mark)) is not None]
    for block in fresh:
        block.recorded = True
    if content:
        turns.append(
            _turn(
                "assistant",
                content,
                first,
                prefix,
                message_id=message.id,
                model=message.model,
                incomplete=not all(block.confirmed for block in fresh),
            )
        )
    withdrawn = {block.tool_id for block in message.blocks if block.withdrawn}
    withdrawn -= {block.tool_id for block in message.surviving()}
    for line in message.users:
        kept = [raw for tool_id, raw in line.results if tool_id not in withdrawn] + line.rest
        if kept:
            turns.append(_turn("user", kept, first + len(turns), prefix, synthetic=line.synthetic))
    message.users = []
    return turns


def user_turns(line: UserLine, first: int, prefix: str) -> list[FinishedTurn]:
    """A user's line that no turn is waiting before."""
    kept = [raw for _, raw in line.results] + line.rest
    return [_turn("user", kept, first, prefix, synthetic=line.synthetic)] if kept else []


def _place(block: Block) -> int:
    return block.index


def _turn(
    role: Literal["assistant", "user"],
    content: list[bytes],
    place: int,
    prefix: str,
    *,
    message_id: str | None = None,
    model: str | None = None,
    synthetic: bool = False,
    incomplete: bool = False,
) -> FinishedTurn:
    message = b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(content))
    digest = hashlib.blake2b(message, digest_size=8).hexdigest()
    if synthetic:
        message = message[:-1] + b',"synthetic":true}'
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
    """A block's JSON: what a complete message held, or what the stream left of it. None where nothing came.

    ``issuer`` is the member that says whose reasoning it is.
    """
    noted = block.noted_members()
    if block.kind == "text" and not block.text():
        return None  # no provider takes a text without words, whatever stands beside it
    if block.raw is not None:
        # What other answers said is shown, and is nothing that the model is told.
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
    """What a block of its source's own type grew by: a call's input, where it has one, or else words."""
    text = block.text()
    if not text or block.raw is None:
        return {}
    started = read.read_object(block.raw)
    if "input" in started or read.text(started, "of") in CALLS:
        return {"input": Raw(text.encode() if block.reads_as_json() else msgspec.json.encode(text))}
    return {"text": Raw(msgspec.json.encode(read.text(started, "text") + text))}


def _with_members(raw: bytes, noted: dict[str, Raw]) -> bytes:
    return msgspec.json.encode(read.read_object(raw) | noted)
