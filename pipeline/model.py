"""Canonical turns and blocks: the one shape in which histories are repaired.

The shape is Anthropic's: the roles user and assistant, content as a list of typed blocks. Structs are frozen and refuse
unknown keys, so a decode either keeps everything or fails. A message whose decode fails is read again, tolerantly, by
``reknit.pipeline.history.readers``, which records every key that the model cannot hold. Tool inputs, sources and other
free-form JSON stay raw bytes: ``1.0`` stays ``1.0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

Role: TypeAlias = Literal["user", "assistant", "system"]


class Issuer(Struct, frozen=True, omit_defaults=True, gc=False):
    """The author of a block: the provider's name and, if known, the model's.

    Signatures, thinking and reasoning are only valid with their issuer.
    """

    provider: str
    model: str | None = None


class Own(Struct, frozen=True, omit_defaults=True, gc=False):
    """Provider-specific members of a block or message, which are written again for that provider.

    ``members`` are unchanged JSON. ``kind`` is the type of a call or result that only this provider has
    (``reknit.pipeline.history.pieces``); for any other it is a function's.
    """

    provider: str
    members: dict[str, Raw] = {}
    kind: str = ""


# The garbage collector need not look at blocks and turns (gc=False): they are frozen trees and never hold a cycle.


class _Block(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="type", kw_only=True, gc=False
):
    """Members of every block: a cache breakpoint (raw), an issuer, and provider-specific members."""

    cache_control: Raw | UnsetType = UNSET
    issuer: Issuer | UnsetType = UNSET
    own: Own | UnsetType = UNSET


class Unknown(Struct, frozen=True, tag_field="type", tag="reknit.unknown", kw_only=True, gc=False):
    """A block of a type that the model does not know, unchanged.

    ``kind`` is its ``type`` (or ``""``), ``raw`` its whole JSON. With an ``issuer`` it is specific to that provider and
    is written again for it. The tag is only used in state: a reader never treats a block as unknown because of this
    tag.
    """

    kind: str
    raw: Raw
    issuer: Issuer | UnsetType = UNSET


class Text(_Block, frozen=True, tag="text", gc=False):
    """Plain text; citations are kept raw.

    ``refusal``: it is the model's refusal, which some providers keep apart. ``structured``: in a result, it is the JSON
    of an object that the tool returned as such, which some providers keep apart too.
    """

    text: str
    citations: Raw | UnsetType = UNSET
    refusal: bool = False
    structured: bool = False


class Image(_Block, frozen=True, tag="image", gc=False):
    """An image; ``source`` is the JSON of base64, url or file sources."""

    source: Raw


class Document(_Block, frozen=True, tag="document", gc=False):
    """A document with its source, and an optional title and context."""

    source: Raw
    title: str | UnsetType | None = UNSET
    context: str | UnsetType | None = UNSET
    citations: Raw | UnsetType = UNSET


class Thinking(_Block, frozen=True, tag="thinking", gc=False):
    """Reasoning text; without a signature no provider takes it back."""

    thinking: str
    signature: str | UnsetType | None = UNSET


class RedactedThinking(_Block, frozen=True, tag="redacted_thinking", gc=False):
    """Reasoning that only its issuer can read."""

    data: str


class ToolUse(_Block, frozen=True, tag="tool_use", gc=False):
    """A tool call. ``input`` is raw JSON; ``incomplete`` marks an input that a stream never finished."""

    id: str
    name: str
    input: Raw
    caller: Raw | UnsetType = UNSET
    incomplete: bool = False


class ToolResult(_Block, frozen=True, tag="tool_result", gc=False):
    """The answer to a tool call: a string, blocks, or nothing at all."""

    tool_use_id: str
    content: str | list[Text | Image | Document | Unknown] | UnsetType = UNSET
    is_error: bool = False


Block: TypeAlias = Text | Image | Document | Thinking | RedactedThinking | ToolUse | ToolResult | Unknown


class Turn(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One input message as a reader returns it.

    ``index`` is the input message's position in its history. ``paths`` names each block's place in the input in the
    provider's notation (``messages.3.content.1``, ``messages.3.tool_calls.0``); None means the usual
    ``messages.{index}.content.{i}``. The structure repair decides about a ``system`` turn: leading ones are moved to
    the system slot, later ones stay in place as marked user text.

    ``root`` is the name of the list that holds the message. In OpenAI's ``input`` a message is an item, and several
    make one turn. ``ids_made`` says that the shape has calls without ids: a call without one has an id made from the
    tool's name (``reknit.pipeline.history.call_ids.made_id``), and a result without one belongs to the first such call
    that waits. ``synthetic`` marks a user turn that an agent program wrote itself, ``incomplete`` an assistant turn
    whose last text a stream never finished. ``own`` has the message's provider-specific members.
    """

    role: Role
    blocks: tuple[Block, ...]
    index: int
    id: str | None = None
    paths: tuple[str, ...] | None = None
    recorded: bool = False
    root: Literal["messages", "input", "contents"] = "messages"
    ids_made: bool = False
    synthetic: bool = False
    incomplete: bool = False
    own: Own | UnsetType = UNSET

    @property
    def place(self) -> str:
        """The message's place in the input."""
        return f"{self.root}.{self.index}"


class JoinedTurn(Turn, frozen=True, kw_only=True, gc=False):
    """Several input messages as one turn, with the blocks of all; each of ``items`` has its own index and members."""

    items: tuple[Turn, ...]


def has_media(turn: Turn) -> bool:
    """Return True if a turn holds an image or a document, in a result or not."""
    block: Any  # looked at by its class, for speed
    for block in turn.blocks:
        kind = type(block)
        if kind is Image or kind is Document:
            return True
        if kind is ToolResult and type(block.content) is list and any(type(part) is not Text for part in block.content):
            return True
    return False


def media_in(turn: Turn) -> Iterator[Image | Document]:
    """Yield the images and documents of a turn, in results or not."""
    for block in turn.blocks:
        parts = block.content if isinstance(block, ToolResult) and isinstance(block.content, list) else (block,)
        for part in parts:
            if isinstance(part, (Image, Document)):
                yield part


def messages_in(turn: Turn) -> tuple[Turn, ...]:
    """Return the input messages of a turn: those that were joined, or itself."""
    return turn.items if isinstance(turn, JoinedTurn) else (turn,)


class RenamedTurn(Turn, frozen=True, kw_only=True, gc=False):
    """A turn whose calls or results got other ids: ``came_as`` has those of the input, None for other blocks."""

    came_as: tuple[str | None, ...]


class Tool(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool that the model may call: name, description, and its input's JSON Schema (raw)."""

    name: str
    description: str | UnsetType = UNSET
    input_schema: Raw
    # A provider's own tool (web search, bash, ...) is kept whole and goes to its issuer only.
    raw: Raw | UnsetType = UNSET


class Conversation(Struct, frozen=True, kw_only=True):
    """A whole history as a reader returns it, with the other members of its document."""

    turns: tuple[Turn, ...]
    system: str | Raw | None = None
    tools: tuple[Tool, ...] = ()
    model: str | None = None
    params: dict[str, Raw] = {}


def on_the_wire(block: Block, provider: str = "") -> Any:  # noqa: ANN401  a block's struct, or JSON
    """Return the value to encode for a block in Anthropic's shape, with the members that only ``provider`` has."""
    if isinstance(block, Unknown):
        return block.raw
    own = block.own
    if block.issuer is not UNSET or own is not UNSET:
        block = structs.replace(block, issuer=UNSET, own=UNSET)
    if isinstance(block, Text) and block.structured:
        block = structs.replace(block, structured=False)
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        block = structs.replace(block, content=[on_the_wire(part, provider) for part in block.content])
    if own is UNSET or own.provider != provider or not own.members:
        return block
    return msgspec.json.decode(msgspec.json.encode(block), type=dict[str, Raw]) | own.members
