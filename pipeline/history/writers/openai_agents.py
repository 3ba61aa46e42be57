"""Session items of the OpenAI Agents SDK: items of Responses, with reasoning of other models in ``provider_data``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET, Raw

from reknit.pipeline.history.pieces import RESPONSES
from reknit.pipeline.history.writers.base import EVERY, LITELLM_NAMES, Holds, Known, Members, Writer
from reknit.pipeline.history.writers.response_items import input_part, items_of, output_part
from reknit.pipeline.model import Block, Issuer, RedactedThinking, Role, Text, Thinking, Turn

_FAKE: Final = "__fake_id__"
HOLDS: Final = Holds(
    items=True,
    signers=EVERY,
    issuers="all",
    models="plain",
    reasoning_items="all",
    native=frozenset({RESPONSES}),
    own=frozenset({RESPONSES}),
    refusals=True,
    errors="",
    media=frozenset({"user", "result"}),
    titles="all",
    result_titles=True,
    typed=False,
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    del known
    return [item for turn in turns for item in items_of(turn, _message, _reasoning)]


def _message(role: Role, blocks: Sequence[Block], own: Mapping[str, Raw]) -> Members:
    if role != "assistant":
        texts = [input_part(block) for block in blocks]
        alone = blocks[0].text if len(blocks) == 1 and isinstance(blocks[0], Text) else None
        kind = {"type": "message"} if own else {}
        return {**kind, "role": role, "content": texts if alone is None else alone, **own}
    content = [output_part(block) for block in blocks if isinstance(block, Text)]
    # The SDK knows an answer by its id, and writes this one for models that have none.
    return {"id": _FAKE, "status": "completed", **own, "type": "message", "role": "assistant", "content": content}


def _reasoning(block: Thinking | RedactedThinking) -> Members:
    if block.own is not UNSET:
        return {"type": block.own.kind, **block.own.members}
    issuer = block.issuer
    data: Members = {}
    if isinstance(issuer, Issuer):
        data["model"] = f"{LITELLM_NAMES.get(issuer.provider, issuer.provider)}/{issuer.model or ''}"
    if isinstance(block, RedactedThinking):
        data["thinking_blocks"] = [{"type": "redacted_thinking", "data": block.data}]
        return {"type": "reasoning", "id": _FAKE, "summary": [], "provider_data": data}
    if block.signature:
        given = {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
        data["thinking_blocks"] = [given]
    text = {"type": "reasoning_text", "text": block.thinking}
    return {"type": "reasoning", "id": _FAKE, "summary": [], "content": [text], "provider_data": data}


WRITER: Final = Writer(
    name="openai-agents",
    source="openai-agents",
    forms="session items",
    loads="`Session.add_items`",
    holds=HOLDS,
    write=_write,
)
