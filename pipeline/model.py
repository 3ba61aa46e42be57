"""Canonical turns and blocks: the one shape in which histories are mended.

The shape is Anthropic's: roles user and assistant, content a list of typed blocks. Structs are frozen and refuse
unknown keys, so that a decode either keeps everything or fails; what fails is read a second time, tolerantly, by
``reknit.pipeline.history.readers``, which names every key that the model has no place for. Tool inputs, sources and
other free-form JSON stay raw bytes: ``1.0`` stays ``1.0``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

Role: TypeAlias = Literal["user", "assistant", "system"]


class Issuer(Struct, frozen=True, omit_defaults=True, gc=False):
    """Who wrote a block: the provider's name and, where known, the model's.

    Signatures, thinking and reasoning are only valid with their issuer.
    """

    provider: str
    model: str | None = None


class Own(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a provider has beside the canonical form of a block or message, to be written again for that provider.

    ``members`` are as they were written. ``kind`` is the type of a call or result that only this provider has
    (``reknit.pipeline.history.pieces``); for any other it is a function's.
    """

    provider: str
    members: dict[str, Raw] = {}
    kind: str = ""


# The garbage collector need not look at blocks and turns (gc=False): they are frozen trees and never hold a cycle.


class _Block(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="type", kw_only=True, gc=False
):
    """What every block has: a cache breakpoint (kept raw), an issuer, and what is its provider's own."""

    cache_control: Raw | UnsetType = UNSET
    issuer: Issuer | UnsetType = UNSET
    own: Own | UnsetType = UNSET


class Unknown(Struct, frozen=True, tag_field="type", tag="reknit.unknown", kw_only=True, gc=False):
    """A block of a type that the model does not know, as it came.

    ``kind`` is the type it names (or ``""``), ``raw`` its whole JSON. With an ``issuer`` it is that provider's own, and
    is written again for it. The tag serves our own state only: a reader never takes a block for unknown because it
    says so.
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
    """One message as a reader made it of one input message.

    ``index`` is the input message's position in its history. ``paths`` names each block's place in the input in the
    provider's notation (``messages.3.content.1``, ``messages.3.tool_calls.0``); None means the usual
    ``messages.{index}.content.{i}``. A ``system`` turn is decided upon by the structure repair: leading ones go to the
    system slot, later ones stay in place as marked user text.

    ``root`` is the name of the list that the message stands in. In OpenAI's ``input`` it is an item, of which several
    make one turn. ``ids_made`` says that the shape has calls without ids: those without have one that was made from the
    tool's name (``reknit.pipeline.history.calls.made_id``) and belongs to the first such call that waits. ``synthetic``
    marks a user's turn that an agent program wrote itself, ``incomplete`` an assistant's whose last text a stream never
    finished. ``own`` is what the message has beside its content.
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
        """Where the message stands in the input."""
        return f"{self.root}.{self.index}"


class Tool(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool that the model may call: name, description, and its input's JSON Schema (raw)."""

    name: str
    description: str | UnsetType = UNSET
    input_schema: Raw
    # A provider's own tool (web search, bash, ...) is kept whole and goes to its issuer only.
    raw: Raw | UnsetType = UNSET


Mend: TypeAlias = Literal["on", "observe"]


class Policy(Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """How histories are mended where there is a choice (DESIGN section 3)."""

    tail: Annotated[
        Literal["auto", "continue", "prefill", "keep", "reject"],
        Meta(
            description="A history that ends with the assistant: a short user turn follows (`continue`), the model "
            "goes on with the words (`prefill`), they stay for a next user turn (`keep`), no request is made "
            "(`reject`), or what the model takes (`auto`)."
        ),
    ] = "auto"
    missing_result: Annotated[
        Literal["synthesise", "drop"],
        Meta(description="A call without a result: it gets an error as its result, or is left out."),
    ] = "synthesise"
    orphan_result: Annotated[
        Literal["drop", "text"], Meta(description="A result without its call: it is left out, or stays as text.")
    ] = "drop"
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
    reasoning: Annotated[
        Literal["keep", "strip"],
        Meta(description="The model's own reasoning: where its issuer reads it, it stays or goes."),
    ] = "keep"
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
        dict[str, Mend | dict[str, Mend]],
        Meta(
            description="Single mends by the code of their fix, or by target and code: each is made (`on`), or only "
            "recorded (`observe`) as long as the target takes the request without it."
        ),
    ] = {}

    def observed(self, target: str) -> frozenset[str]:
        """The codes of the mends that are only observed in requests for a target; what is said of it alone wins."""
        if not self.mend:
            return frozenset()
        of_all = {code: how for code, how in self.mend.items() if isinstance(how, str)}
        its_own = self.mend.get(target)
        chosen = of_all | its_own if isinstance(its_own, dict) else of_all
        return frozenset(code for code, how in chosen.items() if how == "observe")


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may have in one partition; none where it is null."""

    sessions: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Sessions of one tenant in one partition at most.")
    ] = None
    bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Bytes of the records that they are made of at most, in one partition."),
    ] = None


class Limits(Limit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every tenant may have, and those that may have something else."""

    separator: Annotated[
        str, Meta(min_length=1, description="What stands before the first one in a session's id is its tenant.")
    ] = "/"
    tenants: Annotated[
        dict[str, Limit], Meta(description="Tenants with limits of their own: `{acme = {sessions = 100}}`.")
    ] = {}


class Structure(Struct, frozen=True, kw_only=True):
    """What a history may be like for a model family that a target writes for; what it may not be like is mended.

    Attributes:
        assistant_first: it may begin with the assistant.
        leads: where the assistant speaks first and may not, a turn of the user's is put before it.
        assistant_last: it may end with the assistant: with anything that it said, or with text only.
        paused_by: types of blocks behind which any model goes on with its own turn.
        neighbours: the roles of which two messages may follow each other.
        calls_apart: so may an assistant's message with calls and one without text, before the results.
        assistant_media: an assistant's message may hold images and documents.
        flat: the assistant's blocks are items of a flat list: text may stand behind a call, a blank one beside it.
        unanswered: a turn's calls may be without any result.
        blank: the roles of which a message may be nothing but texts that say nothing.
        blank_results: a result may hold such texts.
        ids_again: a call may have the id of one in an earlier turn.
        system_inside: system messages of text may stand behind others.
        system_blocks: the types of blocks that such a message may hold; one that holds any may always stay.
        system_media: such messages, and those at the beginning, may hold images and documents.
        reasoning_alone: an assistant's message may be nothing but reasoning.
        calls_elsewhere: a result may answer a call that stands with the provider: any result, or one behind a
            reference to an item.
        own: the provider whose own items and parts it may hold; a message of others' alone is left out.
        cut_text: what becomes of a text that was cut off, where the policy leaves that to the target.
        observed: the codes of the mends that are not made, because a policy only observes them.
    """

    assistant_first: bool = False
    leads: bool = False
    assistant_last: Literal["never", "text", "always"] = "never"
    paused_by: frozenset[str] = frozenset()
    neighbours: frozenset[Role] = frozenset()
    calls_apart: bool = False
    assistant_media: bool = False
    flat: bool = False
    unanswered: bool = False
    blank: frozenset[Role] = frozenset()
    blank_results: bool = False
    ids_again: bool = False
    system_inside: bool = False
    system_blocks: frozenset[str] = frozenset()
    system_media: bool = False
    reasoning_alone: bool = False
    calls_elsewhere: Literal["never", "referred", "always"] = "never"
    own: str = ""
    cut_text: Literal["keep", "mark", "drop"] = "keep"
    observed: frozenset[str] = frozenset()


STRICT = Structure()


class Conversation(Struct, frozen=True, kw_only=True):
    """A whole history as a reader found it, with what stands beside the messages."""

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
