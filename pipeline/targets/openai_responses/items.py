"""The items that are written, their parts, and which reasoning may go back.

Reasoning comes as an item of type ``reasoning``, which the canonical form keeps whole, or as thinking of this issuer
with the encrypted content for a signature. Encrypted content is bound to its model (RSP-07), and reasoning stands
before what it led to (RSP-03): a turn that lost something keeps none of it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.history.pieces import Message, Piece
from pipeline.model import Block, RedactedThinking, Text, Thinking, ToolUse, Unknown
from pipeline.targets.base import is_issued_by


class User(Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the user's."""

    content: str | list[Any]
    role: str = "user"


class Assistant(Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the assistant's."""

    content: str | list[Any]
    role: str = "assistant"


class FunctionCall(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call; its arguments are JSON text."""

    call_id: str
    name: str
    arguments: str


class FunctionOutput(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """A call's result."""

    call_id: str
    output: str | list[Any]


class Reasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning that only the provider can read, with the summary that it gave."""

    summary: list[Any]
    encrypted_content: str


class Summary(Struct, frozen=True, tag_field="type", tag="summary_text"):
    """A part of a summary."""

    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of the assistant's."""

    text: str


class Refusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    """A refusal of the assistant's."""

    refusal: str


class Tool(Struct, frozen=True, tag_field="type", tag="function", omit_defaults=True):
    """A function; without ``strict`` the API would take its schema for a strict one."""

    name: str
    parameters: Raw
    strict: Raw
    description: str | UnsetType = UNSET


class _InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class _InputImage(Struct, frozen=True, tag_field="type", tag="input_image", omit_defaults=True):
    image_url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET


class _InputFile(Struct, frozen=True, tag_field="type", tag="input_file", omit_defaults=True):
    filename: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET


class ResponsesParts:
    """The parts of a user's message."""

    def text(self, text: str) -> Any:  # noqa: ANN401  a part, ready to encode
        """Plain text."""
        return _InputText(text)

    def image(self, url: str) -> Any:  # noqa: ANN401  a part
        """An image by its URL, or as a data URL."""
        return _InputImage(image_url=url)

    def uploaded_image(self, file_id: str) -> Any:  # noqa: ANN401  a part
        """An image that was uploaded before."""
        return _InputImage(file_id=file_id)

    def file(self, name: str, url: str) -> Any:  # noqa: ANN401  a part
        """A document as a data URL."""
        return _InputFile(filename=name, file_data=url)

    def uploaded_file(self, file_id: str) -> Any:  # noqa: ANN401  a part
        """A document that was uploaded before."""
        return _InputFile(file_id=file_id)

    def linked_file(self, url: str) -> Any:  # noqa: ANN401  a part
        """A document that lies elsewhere."""
        return _InputFile(file_url=url)


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
    if not is_issued_by(block, _OWN, model):
        return "thinking_foreign"
    if isinstance(block, Thinking):
        return "" if block.signature else "thinking_unsigned"
    return "" if isinstance(block, RedactedThinking) and block.data else "thinking_unsigned"


def _read(block: Unknown) -> _Item:
    try:
        return msgspec.json.decode(block.raw, type=_Item)
    except msgspec.DecodeError:
        return _Item()
