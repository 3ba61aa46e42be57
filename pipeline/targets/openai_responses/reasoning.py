"""Which reasoning may go back to the Responses API, and how.

It comes as an item of type ``reasoning``, which the canonical form keeps whole, or as thinking of this issuer with the
encrypted content for a signature. Encrypted content is bound to its model (RSP-07), and reasoning stands before what
it led to (RSP-03): a turn that lost something keeps none of it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from pipeline.history.pieces import Message, Piece
from pipeline.model import Block, RedactedThinking, Text, Thinking, ToolUse, Unknown
from pipeline.targets._openai.reasoning import is_from
from pipeline.targets.openai_responses.items import Reasoning, Summary

KIND: Final = "reasoning"
_OWN: Final = frozenset({"openai-responses"})


class _Item(Struct, frozen=True):
    encrypted_content: str | None = None
    summary: list[Any] = []


def unfit_reasoning(message: Message, model: str | None) -> dict[int, str]:
    """The pieces of an assistant's message that cannot go back, each with the code of the fix that says why."""
    pieces = message.pieces
    unfit: dict[int, str] = {}
    kept: list[int] = []
    broken = set(message.changed)
    for at, piece in enumerate(pieces):
        if _is_reasoning(piece.block):
            code = _fault(piece, model)
            if code:
                unfit[at] = code
            else:
                kept.append(at)
        elif not isinstance(piece.block, (Text, ToolUse)):
            unfit[at] = "unknown_dropped"
            broken.add(piece.turn)
    last = max((at for at, piece in enumerate(pieces) if isinstance(piece.block, (Text, ToolUse))), default=-1)
    for at in kept:
        if at > last:
            unfit[at] = "thinking_trailing"
        elif pieces[at].turn in broken:
            unfit[at] = "thinking_of_changed_turn"
    return unfit


def reasoning_item(block: Block) -> Reasoning:
    """Reasoning as the item that it was; without its id, which names what the provider keeps."""
    if isinstance(block, Unknown):
        item = _read(block)
        return Reasoning(item.summary, item.encrypted_content or "")
    if isinstance(block, RedactedThinking):
        return Reasoning([], block.data)
    assert isinstance(block, Thinking)  # noqa: S101  nothing else is reasoning
    return Reasoning([Summary(block.thinking)] if block.thinking else [], block.signature or "")


def _is_reasoning(block: Block) -> bool:
    return isinstance(block, (Thinking, RedactedThinking)) or (isinstance(block, Unknown) and block.kind == KIND)


def _fault(piece: Piece, model: str | None) -> str:
    block = piece.block
    if isinstance(block, Unknown):
        return "" if _read(block).encrypted_content else "thinking_unsigned"
    if not is_from(piece, _OWN, model):
        return "thinking_foreign"
    if isinstance(block, Thinking):
        return "" if block.signature else "thinking_unsigned"
    return "" if isinstance(block, RedactedThinking) and block.data else "thinking_unsigned"


def _read(block: Unknown) -> _Item:
    try:
        return msgspec.json.decode(block.raw, type=_Item)
    except msgspec.DecodeError:
        return _Item()
