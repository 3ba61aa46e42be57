"""Canonical turns and blocks: the one shape in which histories are repaired.

The shape is Anthropic's: the roles user and assistant, content as a list of typed blocks. Structs are frozen and refuse
unknown keys, so a decode either keeps everything or fails. A message whose decode fails is read again, tolerantly, by
``reknit.pipeline.history.readers``, which records every key that the model cannot hold. Tool inputs, sources and other
free-form JSON stay raw bytes: ``1.0`` stays ``1.0``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

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
    tool's name (``reknit.pipeline.history.calls.made_id``), and a result without one belongs to the first such call
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


class Tool(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool that the model may call: name, description, and its input's JSON Schema (raw)."""

    name: str
    description: str | UnsetType = UNSET
    input_schema: Raw
    # A provider's own tool (web search, bash, ...) is kept whole and goes to its issuer only.
    raw: Raw | UnsetType = UNSET


RepairMode: TypeAlias = Literal["on", "observe"]
Platform: TypeAlias = Literal["", "anthropic", "azure", "bedrock", "deepseek", "glm", "minimax", "moonshot", "vertex"]
IssuerName: TypeAlias = Literal["", "anthropic", "deepseek", "glm", "google", "minimax", "moonshot", "openai"]
KeptReasoning: TypeAlias = Literal["keep", "same_issuer", "strip"]


class Endpoint(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The endpoint of a target's requests. An empty member is unknown."""

    platform: Annotated[
        Platform, Meta(description="The service that runs the model, or one that answers in its place.")
    ] = ""
    issuer: Annotated[
        IssuerName, Meta(description="Whose reasoning the model reads; empty: derived from the model's name.")
    ] = ""


class Policy(Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Choices of repair (DESIGN section 3)."""

    tail: Annotated[
        Literal["auto", "continue", "prefill", "keep", "reject"],
        Meta(
            description="A history that ends with the assistant: a short user turn follows (`continue`), the model "
            "continues the words (`prefill`), they stay for a next user turn (`keep`), no request is made"
            " (`reject`), or the model's default (`auto`)."
        ),
    ] = "auto"
    missing_result: Annotated[
        Literal["synthesise", "drop"],
        Meta(description="A call without a result: it gets an error as its result, or is left out."),
    ] = "synthesise"
    orphan_result: Annotated[
        Literal["drop", "text"], Meta(description="A result without its call: it is left out, or stays as text.")
    ] = "drop"
    late_result: Annotated[
        Literal["replace", "turn", "drop"],
        Meta(
            description="Another real result of a call that has one: until an assistant turn follows the first, it "
            "replaces it, and after that it becomes a user turn (`replace`), it always becomes a user turn (`turn`),"
            " or it is left out (`drop`)."
        ),
    ] = "replace"
    incomplete_call: Annotated[
        Literal["drop", "text"], Meta(description="A call that was cut off: it is left out, or stays as text.")
    ] = "drop"
    cut_text: Annotated[
        Literal["auto", "keep", "mark", "drop"],
        Meta(
            description="A text that was cut off: it stays as it is (`keep`), a line after it says so (`mark`), it is "
            "left out (`drop`), or `mark` for targets that take one text and `keep` for others (`auto`)."
        ),
    ] = "auto"
    media: Annotated[
        Literal["stub", "shrink", "reject"],
        Meta(
            description="Media beyond a limit of the target: the oldest become lines of text, in steps (`stub`), "
            "images are scaled down before (`shrink`), or the request is rejected, or sent as it is (`reject`)."
        ),
    ] = "stub"
    fit: Annotated[
        Literal["off"] | Annotated[int, Meta(ge=1)],
        Meta(
            description="The most tokens of a request, by an estimate: a longer history is cut to half of it, by whole "
            "exchanges, oldest first. `off`: no history is cut."
        ),
    ] = "off"
    summary: Annotated[
        str, Meta(description="A text that requests have at the place of a cut; empty: none is inserted.")
    ] = ""
    reasoning: Annotated[
        KeptReasoning,
        Meta(
            description="Reasoning that its target can express: it stays (`keep`), it goes where the endpoint is known "
            "to refuse its signature (`same_issuer`), or it goes (`strip`)."
        ),
    ] = "same_issuer"
    strip_tools: Annotated[bool, Meta(description="Whether calls and results are left out.")] = False
    record_assistant: Annotated[
        bool, Meta(description="Whether what a stream says is appended to the session's log.")
    ] = False
    open_exchanges: Annotated[
        int, Meta(description="How many of the last exchanges may still wait for a real result before they settle.")
    ] = 8
    expires_after: Annotated[
        int,
        Meta(
            ge=0,
            description="Seconds without a record of the session's own in `agent.turns` after which it is over and "
            "its state is freed; longer than any answer takes. 0: never.",
        ),
    ] = 0
    mend: Annotated[
        dict[str, RepairMode | dict[str, RepairMode]],
        Meta(
            description="Single mends by the code of their fix, or by target and code: each is made (`on`), or only "
            "recorded (`observe`) as long as the target takes the request without it."
        ),
    ] = {}
    endpoints: Annotated[
        dict[str, Endpoint],
        Meta(
            description="Where requests go, by target: the `platform`, and the `issuer` of the reasoning that its "
            "model reads. They decide which signatures of reasoning are foreign."
        ),
    ] = {}

    def observed(self, target: str) -> frozenset[str]:
        """Return the codes of repairs that are only observed for a target; its own entries take precedence."""
        if not self.mend:
            return frozenset()
        of_all = {code: how for code, how in self.mend.items() if isinstance(how, str)}
        its_own = self.mend.get(target)
        chosen = of_all | its_own if isinstance(its_own, dict) else of_all
        return frozenset(code for code, how in chosen.items() if how == "observe")


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one tenant in one partition; null is unlimited."""

    sessions: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Sessions of one tenant in one partition at most.")
    ] = None
    bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Bytes of the records that they are made of at most, in one partition."),
    ] = None


class Limits(Limit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of every tenant, and exceptions by tenant."""

    separator: Annotated[
        str, Meta(min_length=1, description="The part of a session's id before the first separator is its tenant.")
    ] = "/"
    tenants: Annotated[
        dict[str, Limit], Meta(description="Tenants with limits of their own: `{acme = {sessions = 100}}`.")
    ] = {}


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
