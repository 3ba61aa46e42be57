"""Codex's rollouts: the thread in the first line, and a line for each item of Responses.

Codex leaves out a line that it cannot read and reports nothing, so a rollout has only items and parts that it knows.
The id of the thread is made of the content; the name of the file ends in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from reknit.pipeline.history.pieces import RESPONSES
from reknit.pipeline.history.uuids import uuid_of
from reknit.pipeline.history.writers.base import Holds, Known, Members, Writer
from reknit.pipeline.history.writers.program_files import FOLDER, time_of
from reknit.pipeline.history.writers.response_items import input_part, items_of, output_part
from reknit.pipeline.model import Block, RedactedThinking, Role, Text, Thinking, Turn
from reknit.pipeline.targets.signatures import issuer_of

VERSION: Final = "0.171.0"
"""The version of Codex whose lines are written."""
# The types of items in 0.171.0; it sends no others.
_TYPES: Final = frozenset(
    {
        "agent_message",
        "compaction",
        "compaction_trigger",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "image_generation_call",
        "local_shell_call",
        "reasoning",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
HOLDS: Final = Holds(
    items=True,
    thinkers=frozenset({RESPONSES}),
    thoughts="items",
    signers=frozenset({RESPONSES}),
    issuers="all",
    reasoning_items="all",
    native=frozenset({RESPONSES}),
    own_types=_TYPES,
    own=frozenset({RESPONSES}),
    errors="",
    media=frozenset({"user", "result"}),
    documents=False,
    # The program replaces images at an address by a text (0.171.0).
    sources=frozenset({"base64"}),
    result_sources=frozenset({"base64"}),
    typed=False,
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    payloads = [(kind, payload) for turn in turns for kind, payload in _payloads(turn)]
    if not payloads:
        return []
    if known.model is not None and issuer_of(known.model) in ("", "openai"):
        payloads.insert(0, ("turn_context", _context(known.model)))
    meta = {"cwd": FOLDER, "originator": "reknit", "cli_version": VERSION, "source": "cli"}
    thread = {"id": uuid_of(msgspec.json.encode(payloads)), "timestamp": time_of(0)}
    return [
        {"timestamp": time_of(number), "type": kind, "payload": payload}
        for number, (kind, payload) in enumerate([("session_meta", thread | meta), *payloads])
    ]


def _context(model: str) -> Members:
    """Return the setting of a thread: of what a history does not say, the one that allows least."""
    return {
        "cwd": FOLDER,
        "approval_policy": "on-request",
        "sandbox_policy": {"type": "read-only"},
        "model": model,
        "summary": "auto",
    }


def _payloads(turn: Turn) -> Iterator[tuple[str, Members]]:
    for item in items_of(turn, _message, _reasoning):
        if turn.synthetic and item["type"] == "message":
            item |= {"internal_chat_message_metadata_passthrough": _HARNESS}
        yield "response_item", item


_HARNESS: Final = {"content_item_metadata": [{"provenance": {"type": "harness", "hook": False}}]}


def _message(role: Role, blocks: Sequence[Block], own: Mapping[str, Raw]) -> Members:
    if role == "assistant":
        content = [output_part(block) for block in blocks if isinstance(block, Text)]
        return {"type": "message", "role": role, "content": content, **own}
    parts: list[Any] = [input_part(block) for block in blocks]
    return {"type": "message", "role": "developer" if role == "system" else role, "content": parts, **own}


def _reasoning(block: Thinking | RedactedThinking) -> Members:
    assert block.own is not UNSET  # noqa: S101  other reasoning was left out
    return {"type": block.own.kind, **block.own.members}


WRITER: Final = Writer(
    name="codex-rollout",
    alias="codex",
    source="codex-rollout",
    forms="[rollouts](transcripts.md) (`.jsonl`)",
    loads="`codex resume`",
    holds=HOLDS,
    write=_write,
    lines=True,
    tried=VERSION,
)
