"""Claude Code's transcripts. Each line names the one before it, and a block of an answer is a line of its own.

The ids of lines and of the session are made of their content, so the same history is the same file, and a history that
grows keeps the ids of its lines. The session's id is the name of its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from reknit.pipeline.history.pieces import ANTHROPIC
from reknit.pipeline.history.uuids import uuid_of
from reknit.pipeline.history.writers.base import Holds, Known, Members, Writer
from reknit.pipeline.history.writers.program_files import FOLDER, time_of
from reknit.pipeline.model import Block, Issuer, RedactedThinking, Text, Thinking, Turn, on_the_wire
from reknit.pipeline.targets.signatures import issuer_of

VERSION: Final = "2.1.332"
"""The version of Claude Code whose lines are written."""
HOLDS: Final = Holds(
    ids=frozenset({"user", "assistant", "result"}),
    uuids=True,
    system=False,
    maker=ANTHROPIC,
    thinkers=frozenset({ANTHROPIC}),
    thoughts="signed",
    signers=frozenset({ANTHROPIC}),
    issuers="all",
    models="all",
    native=frozenset({ANTHROPIC}),
    cut_calls="",
    objects=True,
    media=frozenset({"user", "result"}),
    titles="some",
    result_titles=True,
)


class _Said(Struct):
    """A line before it has a place: its type, its own members, its message, and its id where the history has one."""

    type: str
    message: Members
    uuid: str | None = None
    is_meta: bool = False


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    named = [model for turn in turns for block in turn.blocks if (model := _model(block, None))]
    model = known.model or (named[-1] if named else None)
    said = [each for number, turn in enumerate(turns) for each in _lines(turn, number, model)]
    if not said:
        return []
    session = uuid_of(msgspec.json.encode([each.message for each in said]))
    parent: str | None = None
    lines: list[Members] = []
    for number, each in enumerate(said):
        uuid = each.uuid or uuid_of(f"{parent}:".encode() + msgspec.json.encode(each.message))
        lines.append(
            {
                "parentUuid": parent,
                "isSidechain": False,
                "userType": "external",
                "cwd": FOLDER,
                "sessionId": session,
                "version": VERSION,
                "gitBranch": "",
                "type": each.type,
                "message": each.message,
                **({"isMeta": True} if each.is_meta else {}),
                "uuid": uuid,
                "timestamp": time_of(number),
            }
        )
        parent = uuid
    return lines


def _lines(turn: Turn, number: int, model: str | None) -> Iterator[_Said]:
    if turn.role != "assistant":
        alone = turn.blocks[0] if len(turn.blocks) == 1 else None
        content: Any = [on_the_wire(block) for block in turn.blocks]
        if isinstance(alone, Text) and alone == Text(text=alone.text):
            content = alone.text
        yield _Said("user", {"role": "user", "content": content}, turn.id, turn.synthetic)
        return
    named = turn.id or f"msg_{uuid_of(f'{number}:'.encode() + _encoded(turn)).replace('-', '')[:24]}"
    for block in turn.blocks:
        yield _Said("assistant", _answer(named, _model(block, model), block))


def _encoded(turn: Turn) -> bytes:
    return msgspec.json.encode([on_the_wire(block) for block in turn.blocks])


def _model(block: Block, model: str | None) -> str | None:
    """Return the model of a line: reasoning names its own, or none where it is not known."""
    if isinstance(block, (Thinking, RedactedThinking)):
        return block.issuer.model if isinstance(block.issuer, Issuer) else None
    return model if issuer_of(model) in ("", ANTHROPIC) else None


def _answer(named: str, model: str | None, block: Block) -> Members:
    usage = {"input_tokens": 0, "output_tokens": 0}
    return {
        **({} if model is None else {"model": model}),
        "id": named,
        "type": "message",
        "role": "assistant",
        "content": [on_the_wire(block)],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


WRITER: Final = Writer(
    name="claude-code",
    source="claude-code",
    forms="[transcripts](transcripts.md) (`.jsonl`)",
    loads="`claude --resume`",
    holds=HOLDS,
    write=_write,
    lines=True,
    tried=VERSION,
)
