"""Blocks in repair, the messages that they end up in, and the record of each block's outcome.

A ``TrackedBlock`` is one block with its place in the input. The repair moves pieces, replaces their blocks and records
that in a ``FixLog``. A ``Message`` is a finished turn of the repaired history. Each input block has exactly one
outcome, the most severe of its changes. The ledger is made from the remaining pieces and the entries of removed ones.

A block may be specific to one provider: an item or part without a canonical form. Its types are listed here with their
properties. Such a block is carried unchanged and written again for its own provider. A call that the client runs is
treated like a function call, and its answer like a result, so both are paired. A block that the provider ran is in the
model's turn, as an unknown block with an issuer. A type that is not listed is treated like the latter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.fixes import FIXES, Fate, Fix, make
from reknit.pipeline.model import (
    Block,
    Own,
    RenamedTurn,
    Role,
    Text,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
    messages_in,
)

Speaker: TypeAlias = Literal["user", "assistant"]

# The repairs of a system message that must not stay one.
_INLINED = frozenset({"system_inlined", "system_block_as_text"})

# The fix for reasoning that the policy leaves out; a target that must also leave out what it led to does it itself.
STRIPPED: Final = "reasoning_stripped"

# From the lightest to the gravest; a block that was both moved and rewritten was moved.
_GRAVITY: dict[str, int] = {"kept": 0, "rewritten": 1, "moved": 2, "flattened": 3, "dropped": 4, "synthesised": 5}


class LedgerEntry(Struct, frozen=True, omit_defaults=True):
    """One line of the ledger: the outcome of an input block, or the origin of an output block.

    ``path`` is the block's place in the input (``""`` for a synthesised one), ``output`` its place in the output
    (``""`` for a dropped one; a text that is its message's whole content is block 0 of it), ``code`` the fix that
    decided its outcome (``""`` for a kept one).
    """

    path: str
    fate: Literal["kept"] | Fate
    output: str = ""
    code: str = ""


class TrackedBlock(Struct, omit_defaults=True, gc=False):
    """One block, its origin (``turn`` is the input message's index), and its changes so far.

    ``system`` marks the text of a system message inside the history; ``whole`` a text that was the whole content of its
    message, as a plain string. ``came_as`` is the tool call's id in the input, once the block has another; ``tool_id``
    returns it in any case. ``synthetic`` marks text in a user turn that an agent program wrote. ``own`` has the
    provider-specific members of the block's message; the first piece of each message carries it.
    """

    block: Block
    turn: int
    path: str
    fate: Literal["kept"] | Fate = "kept"
    code: str = ""
    system: bool = False
    came_as: str | None = None
    synthetic: bool = False
    own: Own | UnsetType = UNSET

    @property
    def tool_id(self) -> str:
        """The id in the input of the call that the block makes, answers or was part of; ``""`` if there is none."""
        return tool_id(self.block) if self.came_as is None else self.came_as

    @property
    def stays_system(self) -> bool:
        """True if the block is part of a system message that stays one."""
        return self.system and self.code not in _INLINED

    @property
    def whole(self) -> bool:
        """True if the block was its message's content, written as a plain string."""
        return is_whole(self.path)

    @property
    def message(self) -> str:
        """The place of the message that the block came in."""
        return ".".join(self.path.split(".", 2)[:2])


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of the repaired history.

    ``changed`` has the input messages in it that lost a block or gave one away, so their text is not verbatim.
    ``results_follow``: the next message begins with more results of the same assistant turn. ``in_flight`` are the ids
    of provider-run calls in it whose results begin a later message.
    """

    role: Role
    pieces: list[TrackedBlock]
    id: str | None = None
    changed: frozenset[int] = frozenset()
    results_follow: bool = False
    in_flight: frozenset[str] = frozenset()


def tool_id(block: Block) -> str:
    """The id of the call that a block makes or answers, ``""`` for other blocks."""
    if isinstance(block, ToolUse):
        return block.id
    return block.tool_use_id if isinstance(block, ToolResult) else ""


def is_foreign(block: Block, provider: str) -> bool:
    """Return True if a block is specific to another provider, by its issuer or its type."""
    if isinstance(block, Unknown) and block.issuer is UNSET:
        return provider != ANTHROPIC and (ANTHROPIC, block.kind) in _BY_KIND
    return _is_from_another(block, provider)


def _is_from_another(block: Block, provider: str) -> bool:
    return isinstance(block, Unknown) and block.issuer is not UNSET and block.issuer.provider != provider


def code_for_unknown(block: Block, target: str = "") -> str:
    """Return the fix for a block of a type that a target cannot hold: another provider's, or an unknown one.

    A cache breakpoint in a block of its own has no content to lose.
    """
    if is_point(block):
        return "cache_point_dropped"
    return "native_dropped" if _is_from_another(block, target) else "unknown_dropped"


def is_whole(path: str) -> bool:
    """Return True if a block with this place in the input was its message's content, written as a plain string."""
    return path.endswith(".content")


def part_of_result(piece: TrackedBlock, part: Any, at: int) -> TrackedBlock:  # noqa: ANN401  a block that a result may hold
    """A part of a result with its place in the input: the content of a tool's row is the result's own."""
    inside = "" if piece.whole else "output." if piece.path.startswith("input.") else "content."
    return TrackedBlock(part, piece.turn, f"{piece.path}.{inside}{at}", came_as=piece.tool_id)


def is_blank(piece: TrackedBlock) -> bool:
    """Return True if a piece is a text that says nothing."""
    return isinstance(piece.block, Text) and not piece.block.text.strip()


def is_item(piece: TrackedBlock) -> bool:
    """Return True if a block came as an item of Responses by itself, and not inside a message."""
    return piece.path.rpartition(".")[0] == "input"


def is_row(piece: TrackedBlock) -> bool:
    """Return True if a piece is a result that came as a message of its own, as its shape writes every result."""
    last = piece.path.rpartition(".")[2]
    return isinstance(piece.block, ToolResult) and (is_item(piece) or not last.isdecimal())


def block_path(turn: Turn, at: int) -> str:
    """The place in the input of a turn's block."""
    return turn.paths[at] if turn.paths is not None else f"messages.{turn.index}.content.{at}"


def message_of(turn: Turn) -> Message:
    """A valid turn as the message it is."""
    pieces: list[TrackedBlock] = []
    for item in messages_in(turn):
        before = len(pieces)
        pieces += [TrackedBlock(block, item.index, block_path(item, at)) for at, block in enumerate(item.blocks)]
        if item.own is not UNSET and len(pieces) > before:
            pieces[before].own = item.own
    if isinstance(turn, RenamedTurn):
        for piece, came_as in zip(pieces, turn.came_as, strict=True):
            piece.came_as = came_as
    return Message("assistant" if turn.role == "assistant" else "user", pieces, turn.id)


class FixLog(Struct, gc=False):
    """The fixes of one unit of work, and the ledger entries of the blocks that it removed.

    ``observed`` are the codes of the repairs that are not made. A caller that asks to ``change`` a block for one gets
    it back unchanged; a caller that removes, moves or adds blocks must ask ``makes`` first.
    """

    target: str = ""
    observed: Collection[str] = ()
    fixes: list[Fix] = []
    dropped: list[LedgerEntry] = []

    def makes(self, code: str) -> bool:
        """Return True if a repair is made, and not only observed."""
        return code not in self.observed

    def note_fix(self, code: str, path: str, detail: str = "", tool_id: str = "") -> None:
        """Record a fix that concerns a whole message, or something that was synthesised."""
        self.fixes.append(make(code, path, target=self.target, detail=detail, tool_id=tool_id))

    def drop_unknown(self, piece: TrackedBlock) -> None:
        """Record that a block is left out because the target has no place for its type."""
        block = piece.block
        kind = block.kind if isinstance(block, Unknown) else type(block).__name__
        self.drop(code_for_unknown(block, self.target), piece, detail=kind)

    def drop(self, code: str, piece: TrackedBlock, detail: str = "") -> None:
        """Record that a block is left out."""
        self._add(code, piece, None, detail)
        self.dropped.append(LedgerEntry(piece.path, "dropped", code=code))

    def change(self, code: str, piece: TrackedBlock, after: Block | None = None, detail: str = "") -> TrackedBlock:
        """Record that a block was moved, or that ``after`` replaces it; return the piece to continue with."""
        if code in self.observed:
            return piece
        self._add(code, piece, after, detail)
        if after is not None:
            piece = structs.replace(piece, block=after, came_as=piece.tool_id)
        # The ledger has one outcome for a block: the most severe one.
        if _GRAVITY[FIXES[code].fate] > _GRAVITY[piece.fate]:
            return structs.replace(piece, fate=FIXES[code].fate, code=code)
        return piece

    def _add(self, code: str, piece: TrackedBlock, after: Block | None, detail: str) -> None:
        before, called = piece.block, piece.tool_id
        fix = make(code, piece.path, before=before, after=after, target=self.target, detail=detail, tool_id=called)
        self.fixes.append(fix)


def is_point(block: Block) -> bool:
    """Return True if a block is Converse's for a cache breakpoint, which belongs to the block before it."""
    return isinstance(block, Unknown) and block.kind == POINT


RESPONSES = "openai-responses"
CHAT = "openai-chat"
# The item that refers to another one, which the provider stores.
REFERENCE = "item_reference"
# The kind of a block for what a system message of Anthropic's says where it has no content.
SETTINGS = "output_config"
# Converse's type of a block for a cache breakpoint.
POINT = "cachePoint"
GEMINI = "gemini"
ANTHROPIC = "anthropic"
CONVERSE = "bedrock-converse"


class NativeType(Struct, frozen=True, kw_only=True):
    """One type of item or part.

    Attributes:
        provider: the provider that has it.
        kind: the provider's name for it.
        turn: the role of its turn.
        opens: the member with the id of the call that it makes, if the client answers that.
        answers: the member with the id of the call that it answers.
        beside: the type that it must be next to, ``""`` if it needs no other.
        bound: only the model that made it can read it.
        elsewhere: its treatment for another provider.
    """

    provider: str
    kind: str
    turn: Literal["user", "assistant", "either", "system"] = "assistant"
    opens: str = ""
    answers: str = ""
    beside: str = ""
    bound: bool = False
    elsewhere: str = "left out"


_LED_TO = "the reasoning that led to it, where both have ids"


def _run(kind: str, beside: str = _LED_TO) -> NativeType:
    """A call that the provider ran itself."""
    return NativeType(provider=RESPONSES, kind=kind, beside=beside)


def _paired(call: str, answer: str, opens: str = "call_id", answers: str = "call_id") -> tuple[NativeType, NativeType]:
    """A call that the client runs, and what the client found."""
    return (
        NativeType(provider=RESPONSES, kind=call, opens=opens, beside=_LED_TO, elsewhere="a function's call"),
        NativeType(
            provider=RESPONSES,
            kind=answer,
            turn="user",
            answers=answers,
            beside="its call, somewhere before",
            elsewhere="a function's result",
        ),
    )


def _ran(kind: str) -> NativeType:
    """A call that Anthropic runs itself."""
    return NativeType(provider=ANTHROPIC, kind=kind, beside="its result, or the end of a turn that continues")


def _found(kind: str) -> NativeType:
    """The result of such a call."""
    return NativeType(provider=ANTHROPIC, kind=kind, answers="tool_use_id", beside="its call, somewhere before")


NATIVE_TYPES: tuple[NativeType, ...] = (
    NativeType(
        provider=RESPONSES,
        kind="reasoning",
        beside="the items that it led to, directly after it",
        bound=True,
    ),
    *_paired("custom_tool_call", "custom_tool_call_output"),
    *_paired("shell_call", "shell_call_output"),
    *_paired("local_shell_call", "local_shell_call_output", answers="id"),
    *_paired("apply_patch_call", "apply_patch_call_output"),
    *_paired("computer_call", "computer_call_output"),
    *_paired("tool_search_call", "tool_search_output"),
    *_paired("mcp_approval_request", "mcp_approval_response", "id", "approval_request_id"),
    _run("web_search_call"),
    _run("file_search_call"),
    _run("code_interpreter_call"),
    _run("image_generation_call"),
    _run("mcp_call"),
    _run("mcp_list_tools", ""),
    _run("program"),
    _run("program_output", "its program"),
    _run("multi_agent_call"),
    _run("multi_agent_call_output", "its call"),
    _run("agent_message", ""),
    _run(REFERENCE, "the provider stores the named item, which may be the call of a later result"),
    NativeType(
        provider=RESPONSES, kind="compaction", turn="user", beside="the summarised items are before it", bound=True
    ),
    NativeType(provider=RESPONSES, kind="compaction_trigger", turn="user"),
    NativeType(provider=RESPONSES, kind="additional_tools", turn="user"),
    NativeType(provider=RESPONSES, kind="configuration_update", turn="user"),
    NativeType(
        provider=CHAT,
        kind="custom",
        opens="id",
        beside="its results, directly after the message",
        elsewhere="a function's call",
    ),
    NativeType(provider=CHAT, kind="input_audio", turn="user"),
    NativeType(provider=CHAT, kind="audio"),
    NativeType(provider=GEMINI, kind="thoughtSignature", beside="the part that it seals", bound=True),
    NativeType(provider=GEMINI, kind="inlineData", turn="either", elsewhere="an image or a document, or left out"),
    NativeType(provider=GEMINI, kind="fileData", turn="either"),
    NativeType(provider=GEMINI, kind="videoMetadata", turn="either", beside="the video, in its part or after it"),
    *(
        NativeType(provider=GEMINI, kind=kind, turn="either", beside="the medium, in its part")
        for kind in (
            "audioMetadata", "documentMetadata", "mediaProcessing", "mediaResolution", "spreadsheetMetadata",
        )
    ),
    NativeType(provider=GEMINI, kind="executableCode", beside="its codeExecutionResult"),
    NativeType(provider=GEMINI, kind="codeExecutionResult", beside="its executableCode"),
    NativeType(provider=GEMINI, kind="toolCall", beside="its toolResponse"),
    NativeType(provider=GEMINI, kind="toolResponse", beside="its toolCall"),
    *(_ran(kind) for kind in ("server_tool_use", "mcp_tool_use")),
    *(
        _found(f"{kind}_tool_result")
        for kind in (
            "advisor", "bash_code_execution", "code_execution", "mcp", "text_editor_code_execution", "tool_search",
            "web_fetch", "web_search",
        )
    ),
    NativeType(provider=ANTHROPIC, kind="compaction", beside="the summarised items are before it"),
    NativeType(provider=ANTHROPIC, kind="fallback", beside="the answers of both models, between them"),
    NativeType(provider=ANTHROPIC, kind="mcp_tool_listing"),
    NativeType(provider=ANTHROPIC, kind="container_upload", turn="user"),
    NativeType(provider=ANTHROPIC, kind="search_result", turn="user"),
    NativeType(provider=ANTHROPIC, kind="tool_addition", turn="system"),
    NativeType(provider=ANTHROPIC, kind="tool_removal", turn="system"),
    NativeType(
        provider=CONVERSE, kind="cachePoint", turn="either", beside="what it ends", elsewhere="a cache breakpoint"
    ),
    NativeType(provider=CONVERSE, kind="citationsContent", elsewhere="text, without its citations"),
    NativeType(provider=CONVERSE, kind="guardContent", turn="user"),
    NativeType(provider=CONVERSE, kind="searchResult", turn="user"),
    NativeType(provider=CONVERSE, kind="toolAddition", turn="system"),
    NativeType(provider=CONVERSE, kind="toolRemoval", turn="system"),
    NativeType(provider=CONVERSE, kind="video", turn="user"),
    NativeType(provider=CONVERSE, kind="audio", turn="user"),
)  # fmt: skip
_TOOL_CHANGES = frozenset(each.kind for each in NATIVE_TYPES if each.turn == "system")


def changes_tools(block: Block) -> bool:
    """Return True if a block changes the tools inside the history, in the form that its provider has for it.

    The session's tools are the head's, so a target that does not take such a block loses the change.
    """
    if not isinstance(block, Unknown) or block.kind not in _TOOL_CHANGES:
        return False
    # Anthropic's blocks name their type, Converse's have one key.
    return block.kind.islower() or bytes(block.raw).startswith(b'{"%b"' % block.kind.encode())


_BY_KIND: Mapping[tuple[str, str], NativeType] = MappingProxyType(
    {(each.provider, each.kind): each for each in NATIVE_TYPES}
)


def native_type(provider: str, kind: str) -> NativeType:
    """Return the properties of a provider's type; an unknown one is the model's and bound to its neighbours."""
    return _BY_KIND.get((provider, kind)) or NativeType(provider=provider, kind=kind, beside="its neighbours")


def is_native(provider: str, kind: str) -> bool:
    """Return True if a provider has a type of items, blocks or parts of its own by this name."""
    return (provider, kind) in _BY_KIND


def answer_to(kind: str, text: str) -> dict[str, object] | None:
    """The members of an answer in words to a client-run call of Responses; None where no words answer it."""
    answers: dict[str, dict[str, object]] = {
        "custom_tool_call": {"type": "custom_tool_call_output", "output": text},
        "local_shell_call": {"type": "local_shell_call_output", "output": text},
        "apply_patch_call": {"type": "apply_patch_call_output", "status": "failed", "output": text},
        "shell_call": {
            "type": "shell_call_output",
            "output": [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}],
        },
        "tool_search_call": {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": []},
        "mcp_approval_request": {"type": "mcp_approval_response", "approve": False, "reason": text},
    }
    return answers.get(kind)


def as_json(members: Mapping[str, object]) -> Raw:
    """Members as the JSON of an object."""
    return Raw(msgspec.json.encode(members))
