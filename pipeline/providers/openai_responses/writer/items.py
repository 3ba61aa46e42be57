"""The written items, their parts, and which reasoning and ids may be sent back.

Reasoning is an item of type ``reasoning``, which the canonical form keeps whole, or thinking of this issuer with the
encrypted content for a signature. Encrypted content is bound to its model (RSP-07), and reasoning precedes the items
that it led to (RSP-03): a turn that lost a block keeps none of it. An id names an object that the provider stores, so
it is sent back only with the reasoning of its response (RSP-04), and once (RSP-05).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.pieces import (
    REFERENCE,
    RESPONSES,
    FixLog,
    Message,
    TrackedBlock,
    answer_to,
    code_for_unknown,
    is_item,
    native_type,
)
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Own,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
)
from reknit.pipeline.options import NO_EXTRAS, Parts
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.providers.openai.writer import is_native_item
from reknit.pipeline.providers.openai.writer.parts import UNNAMED, own_members
from reknit.pipeline.targets import is_issued_by
from reknit.pipeline.targets.signatures import is_foreign


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function", omit_defaults=True):
    """A function; without ``strict`` the API would take its schema for a strict one."""

    name: str
    parameters: Raw
    strict: Raw
    description: str | UnsetType = UNSET


class ResponsesParts(Parts):
    members = MappingProxyType(
        {
            Text: frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"}),
            Image: frozenset({"detail", "prompt_cache_breakpoint"}),
            Document: frozenset({"detail", "prompt_cache_breakpoint"}),
        }
    )

    def text(self, text: Text) -> Any:  # noqa: ANN401  a part, ready to encode
        return {"type": "input_text", "text": text.text, **own_members(text.own)}

    def image(self, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        return {"type": "input_image", "image_url": url, **extras}

    def uploaded_image(self, file_id: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        return {"type": "input_image", "file_id": file_id, **extras}

    def takes(self, media_type: str) -> bool:
        """Whatever is neither seen nor heard (RSP-17)."""
        return not media_type.startswith(("audio/", "image/", "video/"))

    def file(self, name: str, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        return {"type": "input_file", "filename": name or UNNAMED, "file_data": url, **extras}

    def uploaded_file(self, file_id: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        return {"type": "input_file", "file_id": file_id, **extras}

    def linked_file(self, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        return {"type": "input_file", "file_url": url, **extras}


OWN: Final = frozenset({RESPONSES})
# How the provider's ids of items begin (RSP-09).
_PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs"}
)


def message_item(role: str, content: str | list[Any], other_members: Mapping[str, Any]) -> dict[str, Any]:
    """A message. One with an id is the provider's own, which has parts."""
    return {"type": "message", "content": content, "role": role, **other_members}


def output_part(text: Text) -> dict[str, Any]:
    if text.refusal:
        return {"type": "refusal", "refusal": text.text}
    return {"type": "output_text", "text": text.text, **own_members(text.own)}


def call_item(use: ToolUse) -> dict[str, Any]:
    """A call: a function's, of a tool that takes free text, or as the provider has it."""
    own = use.own
    other_members = own_members(own)
    kind = "" if own is UNSET else own.kind
    if kind == "custom_tool_call":
        return {"type": kind, "call_id": use.id, "name": use.name, **msgspec.json.decode(use.input), **other_members}
    if kind:
        return {"type": kind, native_type(RESPONSES, kind).opens: use.id, **other_members}
    arguments = bytes(use.input).decode().strip()
    return {"type": "function_call", "call_id": use.id, "name": use.name, "arguments": arguments, **other_members}


def result_item(piece: TrackedBlock, result: ToolResult, content: str | list[Any], asked: str) -> dict[str, Any]:
    """A result as the type of item that it came as; else as the answer to a call of the type ``asked``.

    A function's output answers a function's call (``asked`` is ``""``), and any call whose own type of output has no
    place for what the result says.
    """
    own, call_id = result.own, result.tool_use_id
    kind = "" if own is UNSET else own.kind
    if kind and kind != "custom_tool_call_output":
        return {"type": kind, native_type(RESPONSES, kind).answers: call_id, **own_members(own)}
    # An item of its own came as a function's output. An approval is not one: a function's output would answer nothing.
    came_as_output = is_item(piece) and asked != "mcp_approval_request"
    answer = None if kind or came_as_output else _answer_in_words(asked, content, said=piece.fate != "synthesised")
    if answer is not None:
        name = native_type(RESPONSES, str(answer["type"])).answers
        return {"type": answer["type"], name: call_id, **answer, **own_members(own)}
    return {"type": kind or "function_call_output", "call_id": call_id, "output": content, **own_members(own)}


def _answer_in_words(asked: str, content: str | list[Any], *, said: bool) -> dict[str, object] | None:
    """The members of an answer with this content to a call of a type; None where its type of output loses some of it.

    Args:
        asked: the type of the call, ``""`` for a function's.
        content: a text, or parts.
        said: a tool returned the content, so that all of it must be in the answer.
    """
    if asked == "custom_tool_call":
        # Its output holds parts, as a function's does.
        return {"type": "custom_tool_call_output", "output": content}
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "input_text" for part in content):
            return None
        content = "\n".join(part["text"] for part in content)
    return None if said and content and asked == "tool_search_call" else answer_to(asked, content)


def reasoning_item(block: Block) -> dict[str, Any]:
    if isinstance(block, Unknown):
        item = _read(block)
        return {"type": "reasoning", "summary": item.summary, "encrypted_content": item.encrypted_content or ""}
    assert isinstance(block, (Thinking, RedactedThinking))  # noqa: S101  nothing else is reasoning
    if block.own is not UNSET:
        return {"type": "reasoning", "summary": [], **block.own.members}
    if isinstance(block, RedactedThinking):
        return {"type": "reasoning", "summary": [], "encrypted_content": block.data}
    summary = [{"type": "summary_text", "text": block.thinking}] if block.thinking else []
    return {"type": "reasoning", "summary": summary, "encrypted_content": block.signature or ""}


def fits_prefix(kind: str, name: str) -> bool:
    """Return True if an item of a type may have an id."""
    return name.startswith(_PREFIXES.get(kind, ""))


class _Identified(Struct, frozen=True):
    id: Any = None


# The types of items whose id is that of another one, or is needed by another one.
NAMED_BY_ANOTHER: Final = frozenset({"mcp_approval_request", "local_shell_call_output"})


class _Item(Struct, frozen=True):
    encrypted_content: str | None = None
    summary: list[Any] = []


# Recorded accepted; other models are reported to refuse it (RSP-03).
_TRAILING: Final = re.compile(r"(?:^|/)o3-mini(?![a-z])")
_ITEM: Final = msgspec.json.Decoder(_Item)


def takes_trailing(model: str | None) -> bool:
    """Return True if a model takes reasoning before what the user says; before a result, none does."""
    return model is not None and _TRAILING.search(model.lower()) is not None


def unfit_reasoning(
    message: Message, model: str | None, endpoint: Endpoint, *, stored: bool, final: bool
) -> dict[int, str]:
    """Return the pieces of an assistant message that cannot be sent back, each with its fix code.

    Args:
        message: the message.
        model: the model of the request.
        endpoint: where the request goes.
        stored: the provider keeps items, so an id represents reasoning too.
        final: nothing follows the message.
    """
    pieces = message.pieces
    trails = takes_trailing(model) and not (final or any(isinstance(piece.block, ToolUse) for piece in pieces))
    unfit: dict[int, str] = {}
    broken = set(message.changed)
    last, reasons = -1, False
    for at, piece in enumerate(pieces):
        if isinstance(piece.block, (Text, ToolUse)):
            last = at
        elif is_reasoning_block(piece.block):
            code = piece.code or reasoning_fault(piece.block, model, endpoint, stored=stored)
            if code:
                unfit[at] = code
            else:
                reasons = True
        elif isinstance(piece.block, Unknown) and is_native_item(piece.block, OWN):
            last = at
        else:
            unfit[at] = code_for_unknown(piece.block)
            broken.add(piece.turn)
    next_kept = pieces[-1]  # the next piece that stays
    for at in range(len(pieces) - 1, -1, -1) if reasons else ():
        if at in unfit:
            continue
        block = pieces[at].block
        if is_reasoning_block(block):
            if at > last and not trails:
                unfit[at] = "thinking_trailing" if last >= 0 else "reasoning_alone"
            elif pieces[at].turn in broken:
                unfit[at] = "thinking_of_changed_turn"
            elif stored and item_id(block) and not _seal(block) and is_plain_message(next_kept):
                unfit[at] = "thinking_unsigned"
        if at not in unfit:
            next_kept = pieces[at]
    return unfit


def led_to(pieces: Sequence[TrackedBlock], at: int, unfit: Container[int]) -> TrackedBlock | None:
    """The piece that follows some reasoning without those that are ``unfit``; None where a user's turn does."""
    return next((pieces[next_kept] for next_kept in range(at + 1, len(pieces)) if next_kept not in unfit), None)


def is_reasoning_block(block: Block) -> bool:
    return isinstance(block, (Thinking, RedactedThinking)) or (isinstance(block, Unknown) and block.kind == "reasoning")


def is_own_reasoning(block: Block) -> bool:
    """Return True if reasoning came from this API, of whichever model, so that what it led to did too."""
    return is_reasoning_block(block) and (isinstance(block, Unknown) or is_issued_by(block, OWN, None))


def is_plain_message(piece: TrackedBlock | None) -> bool:
    return piece is not None and isinstance(piece.block, Text) and "id" not in own_members(piece.own)


def without_repeated_ids(pieces: list[TrackedBlock], ids: Collection[str], book: FixLog) -> list[TrackedBlock]:
    """Return an assistant's pieces with each message's id once, without references to items that are there.

    ``ids`` are those of the items before. Reasoning must not lead to a message without an id, or to nothing, so this
    comes before the reasoning is judged.
    """
    if not any(piece.own is not UNSET or isinstance(piece.block, Unknown) for piece in pieces):
        return pieces
    seen: set[str] = set()
    kept: list[TrackedBlock] = []
    for piece in pieces:
        name = _id_of(piece)
        is_repeated = bool(name) and (name in seen or name in ids)
        if is_repeated and _is_reference(piece.block) and book.makes("item_repeated"):
            book.drop("item_repeated", piece, detail=name)
        elif is_repeated and isinstance(piece.own, Own) and book.makes("item_id_dropped"):
            others = {member: value for member, value in piece.own.members.items() if member != "id"}
            own = structs.replace(piece.own, members=others) if others else UNSET
            kept.append(structs.replace(book.change("item_id_dropped", piece, detail=name), own=own))
        else:
            seen.add(name)
            kept.append(piece)
    return kept


def _is_reference(block: Block) -> bool:
    return isinstance(block, Unknown) and block.kind == REFERENCE


def _id_of(piece: TrackedBlock) -> str:
    """Return the id of the item that a piece begins; ``""`` without one."""
    block = piece.block
    if isinstance(block, Unknown):
        return native_id(block)
    given = own_members(piece.own if isinstance(block, Text) else block.own).get("id")
    return "" if given is None else msgspec.json.decode(given, type=str)


def native_id(block: Unknown) -> str:
    """Return the id of an item that is written unchanged; ``""`` without one, and where it is that of another item."""
    if not is_native_item(block, OWN) or block.kind in NAMED_BY_ANOTHER:
        return ""
    name = msgspec.json.decode(block.raw, type=_Identified).id
    return name if isinstance(name, str) else ""


def item_id(block: Block) -> bool:
    return not isinstance(block, Unknown) and "id" in own_members(block.own)


def reasoning_fault(block: Block, model: str | None, endpoint: Endpoint, *, stored: bool) -> str:
    """Return the code of the fix that drops reasoning; ``""`` if it may be sent back."""
    if not isinstance(block, Unknown) and not is_issued_by(block, OWN, model):
        return "thinking_foreign"
    if is_foreign(_seal(block), endpoint):
        return "reasoning_foreign"
    return "" if _seal(block) or (stored and item_id(block)) else "thinking_unsigned"


def _seal(block: Block) -> str:
    """The encrypted content of reasoning, ``""`` where it has none."""
    match block:
        case Unknown():
            return _read(block).encrypted_content or ""
        case RedactedThinking():
            return block.data
        case Thinking():
            return block.signature or ""
    return ""


def _read(block: Unknown) -> _Item:
    return decoded(_ITEM, block.raw) or _Item()
