"""One turn's blocks as OpenAI's two APIs take them: first fitted, then sorted into messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType, structs

from reknit.pipeline.history.clean import SYSTEM_MARK
from reknit.pipeline.history.pieces import CHAT, RESPONSES, FixLog, Message, TrackedBlock
from reknit.pipeline.history.placeholders import INTERRUPTED
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)
from reknit.pipeline.options import MessageOptions, Parts
from reknit.pipeline.providers.openai.writer.parameters import tool_name
from reknit.pipeline.providers.openai.writer.parts import (
    document_parts,
    encode,
    fitted_document,
    fitted_image,
    image_part,
    own_members,
)
from reknit.pipeline.targets import Encoded, Ending, ListDialect, Row, is_issued_by, row
from reknit.pipeline.targets.fitting import BlockAdapter, bare, is_bare, only_members
from reknit.pipeline.targets.limits import NO_LIMITS
from reknit.pipeline.targets.media import MEDIA_TYPES, image_stays
from reknit.pipeline.text.flatten import shown

ERROR: Final = "[Tool error]"
RESULT: Final = "[Tool result]"
# The kinds of calls of a client's tools, which have a name.
_NAMED: Final = frozenset({"", "custom", "custom_tool_call"})

# The APIs whose parts have members of the same names, with the same meaning.
_ALIKE: Final = frozenset({CHAT, RESPONSES})
_NONE: Final = frozenset[str]()


JSON_NOTE: Final = "Answer with a JSON object."


class OpenAIDialect(ListDialect):
    """A dialect whose system messages precede the first message, in its list.

    Attributes:
        system: the system messages.
        json_system: the same with a request for JSON; None unless the answer must be a JSON object by the setting of a
            provider that does not require the word in a message, and no system message has it.
    """

    system: list[dict[str, Any]]
    json_system: list[dict[str, Any]] | None = None
    state: Any

    def opening(self, message: Message, book: FixLog) -> list[dict[str, Any]]:
        """The system messages before the first message."""
        if self.json_system is None or _has_json(message) or not book.makes("json_word_added"):
            return self.system
        book.note_fix("json_word_added", "system", JSON_NOTE)
        return self.json_system

    def encode_ending(self, messages: Sequence[Message], state: Any, settled: int, *, final: bool) -> Ending:  # noqa: ANN401, ARG002  the API's own; its bodies do not depend on it
        """The open messages; those of the system stay where there is nothing else."""
        parts = self.encode_open(messages, state, final=final)
        state = parts[-1].state if parts else state
        if not state.count and self.system:
            state = structs.replace(self.state, count=len(self.system))
            parts.append(Encoded(data=b",".join(map(encode, self.system)), state=state))
        return Ending(parts=parts, suffix=b"]}", last=state.count - 1)


def _has_json(message: Message) -> bool:
    return any(isinstance(piece.block, Text) and has_json(piece.block.text) for piece in message.pieces)


def has_json(text: str) -> bool:
    """Return True if a text has the word JSON."""
    return "json" in text.lower()


def reasoning_fault(reasoning: Thinking | RedactedThinking, options: MessageOptions) -> str:
    """Return the code of the fix that drops reasoning of the assistant's; ``""`` if the model takes it."""
    if isinstance(reasoning, RedactedThinking):
        return "thinking_foreign"
    if not (options.any_reasoning or is_issued_by(reasoning, options.reasoning_issuers, options.model)):
        return "thinking_foreign"
    return "" if reasoning.thinking.strip() else "thinking_empty"


class OpenAIBlockAdapter(BlockAdapter, kw_only=True, eq=False):
    """The blocks of one turn, for either API.

    The text of a result stays with the call; media go to the user's message after all results: ``Image URLs are only
    allowed for messages with role 'user'`` (OAI-10). There is no field for a failed call either, so the text of an
    error begins with ``[Tool error]``; Reknit's own placeholder for a missing result states it already.
    """

    left_behind = (Text(text="[Shown in the next user message]"),)

    options: MessageOptions
    speaks: bool
    """Whether it is the assistant's turn."""

    @property
    def media_at_once(self) -> bool:
        """If results are text, nothing marks their end."""
        return self.options.calls_as_text

    def bared(self, piece: TrackedBlock) -> TrackedBlock:
        options, block = self.options, piece.block
        owners = options.owners
        if isinstance(block, (Text, Image, Document)) and block.own is not UNSET and block.own.provider in _ALIKE:
            piece = only_members(piece, options.parts.members.get(type(block), _NONE), self.book)
            owners = owners | _ALIKE
        return bare(
            piece,
            self.book,
            refusals=options.refusal_field and self.speaks,
            owners=owners,
            message_owners=options.owners,
        )

    def name(self, name: str) -> str:
        return tool_name(name)

    def image(self, piece: TrackedBlock, image: Image) -> TrackedBlock | None:
        """An image in what the user says; the repair leaves none with the assistant."""
        if self.speaks:
            return None
        return fitted_image(piece, image, self.options.parts, self.book, takes=self.options.images)

    def document(self, piece: TrackedBlock, document: Document) -> TrackedBlock | None:
        return None if self.speaks else fitted_document(piece, document, self.options.parts, self.book)

    def unknown(self, piece: TrackedBlock, unknown: Unknown, inside: ToolResult | None) -> TrackedBlock | None:
        if inside is not None:
            return None
        if self.speaks:
            return piece if is_speech(unknown, self.options.owners) else None
        return (
            piece if is_native_item(unknown, self.options.owners) or unknown.kind in self.options.user_blocks else None
        )

    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:  # noqa: ARG002  of every result
        return "" if isinstance(part, Unknown) or self.options.result_media else "result_media_moved"

    def reasoning(self, piece: TrackedBlock, reasoning: Thinking | RedactedThinking) -> TrackedBlock | None:
        """Readable reasoning goes back to its issuer: as a part, or in one field of the message, wherever it stood."""
        # The repair leaves none with the user.
        code = reasoning_fault(reasoning, self.options) if self.speaks else "thinking_dropped"
        if not code:
            is_moved = bool(self.out) and not self.options.reasoning_parts
            return self.book.change("reasoning_joined", piece) if is_moved else piece
        self.book.drop(code, piece)
        return None

    def call(self, piece: TrackedBlock, use: ToolUse) -> TrackedBlock:
        """A call under the id and the name that the target takes, unless it is one of the provider's own tools."""
        if self.options.calls_as_text:
            return self.book.change("calls_as_text", piece, Text(text=shown(piece)))
        if use.own is not UNSET and use.own.kind not in _NAMED:
            return piece
        call_id, name = self.options.call_id(use.id), self.name(use.name)
        if call_id != use.id:
            use = structs.replace(use, id=call_id)
            piece = self.book.change("id_rewritten", piece, use, detail=call_id)
        if name != use.name:
            use = structs.replace(use, name=name)
            piece = self.book.change("tool_name_rewritten", piece, use, detail=name)
        return piece

    def result(self, piece: TrackedBlock, result: ToolResult) -> TrackedBlock:
        """A result with the id that its call has, and words for an error; as text where there are no results."""
        fitted = super().result(piece, result)
        content: str | Sequence[Block] | UnsetType = UNSET
        if isinstance(fitted.block, ToolResult):
            content = fitted.block.content
        if result.is_error and result.content != INTERRUPTED:
            content = _as_error(content)
        # The fix's content before is the unchanged result.
        piece = fitted if fitted.block is result else structs.replace(fitted, block=result)
        if self.options.calls_as_text:
            texts = [block.text for block in _as_blocks(content) if isinstance(block, Text)]
            failed = bool(texts) and texts[0].startswith(ERROR)
            words = "\n".join(texts if failed else [RESULT, *texts])
            return self.book.change("calls_as_text", piece, Text(text=words))
        call_id = self.options.call_id(result.tool_use_id)
        if call_id != result.tool_use_id:
            rewritten = structs.replace(result, tool_use_id=call_id)
            piece = self.book.change("id_rewritten", piece, rewritten, detail=call_id)
        elif content == result.content:
            return piece
        return structs.replace(piece, block=structs.replace(result, tool_use_id=call_id, content=content))


def _as_error(content: str | Sequence[Block] | UnsetType) -> list[Block]:
    """A failed call's content: its first text begins with the word for it."""
    blocks = _as_blocks(content)
    first = blocks[0] if blocks and isinstance(blocks[0], Text) else None
    error = structs.replace(first, text=f"{ERROR} {first.text}".rstrip()) if first else Text(text=ERROR)
    return [error, *(blocks[1:] if first else blocks)]


def _as_blocks(content: str | Sequence[Block] | UnsetType) -> list[Block]:
    return [Text(text=content)] if isinstance(content, str) else list(content or ())


def result_content(result: ToolResult, parts: Parts) -> str | list[Any]:
    content = result.content
    return content if isinstance(content, str) else content_of(content or (), parts)


def content_of(blocks: Sequence[Block], parts: Parts) -> str | list[Any]:
    """One text is a string unless it has members of its own; several and media are parts, nothing is ``""``."""
    only = blocks[0] if len(blocks) == 1 else None
    if isinstance(only, Text) and only.own is UNSET:
        return only.text
    return [part for block in blocks for part in parts_of(block, parts)] or ""


def has_parts(turn: Turn) -> bool:
    """Return True if the content of a plain turn's message is parts: several texts, or images."""
    kinds = [type(block) for block in turn.blocks]
    return kinds.count(Text) > 1 or Image in kinds


def parts_of(block: Block, parts: Parts) -> list[Any]:
    match block:
        case Text():
            return [parts.text(block)]
        case Image():
            return [image_part(block, parts)]
        case Document():
            return document_parts(block, parts)
        case Thinking(thinking=text):
            return [parts.thinking(text)]
        case Unknown(raw=raw):
            return [raw]
        case other:
            raise TypeError(f"not a part: {type(other).__name__}")


# The members of blocks that are content, and breakpoints, which no request has. An error is neither: its text begins
# with a word for it.
_UNUSUAL: Final[Mapping[type, Callable[[Any], bool]]] = MappingProxyType(
    {
        Text: unusual(Text, "cache_control"),
        ToolUse: unusual(ToolUse, "cache_control"),
        ToolResult: unusual(ToolResult, "cache_control", "content"),
        Image: unusual(Image, "cache_control"),
    }
)


def stays(turn: Turn, options: MessageOptions) -> bool:
    """Return True if a turn of a valid run is written as it is, breakpoints aside; several messages may not be."""
    return type(turn) is Turn and turn.own is UNSET and all(_stays(block, options) for block in turn.blocks)


def _stays(block: Block, options: MessageOptions) -> bool:
    is_unusual = _UNUSUAL.get(type(block))
    if is_unusual is None or is_unusual(block):
        return False
    if isinstance(block, Image):
        return options.images and image_stays(block, MEDIA_TYPES, NO_LIMITS)
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        return all(type(part) is Text and _stays(part, options) for part in block.content)
    return True


class Said:
    """The content of one user message: its parts, their pieces, and its other members."""

    def __init__(self, other_members: dict[str, Raw]) -> None:
        self.parts: list[Any] = []
        self.pieces: list[TrackedBlock] = []
        self.other_members = other_members
        self._starts: list[int] = []

    def add_piece(self, piece: TrackedBlock, parts: Parts) -> None:
        self._starts.append(len(self.parts))
        self.parts += parts_of(piece.block, parts)
        self.pieces.append(piece)

    @property
    def content(self) -> str | list[Any]:
        only = self.pieces[0].block if len(self.parts) == 1 else None
        return only.text if isinstance(only, Text) and only.own is UNSET else self.parts

    def rows(self, place: str) -> list[Row]:
        is_text = isinstance(self.content, str)
        return [
            row(piece, place if is_text else f"{place}.{start}")
            for piece, start in zip(self.pieces, self._starts, strict=True)
        ]


def said_by_user(pieces: Sequence[TrackedBlock], options: MessageOptions) -> list[Said | TrackedBlock]:
    """Return the messages of a user's fitted pieces, results excepted, with the unchanged items between them.

    A piece with provider-specific members begins a new message.
    """
    said: list[Said | TrackedBlock] = []
    turn = -1
    for piece in pieces:
        if isinstance(piece.block, Unknown) and is_native_item(piece.block, options.owners):
            said.append(piece)
            continue
        last = said[-1] if said else None
        other_members = own_members(piece.own)
        if not isinstance(last, Said) or other_members or (last.other_members and piece.turn != turn):
            last = Said(other_members)
            said.append(last)
        last.add_piece(piece, options.parts)
        turn = piece.turn
    return said


def is_native_item(block: Unknown, owners: Collection[str]) -> bool:
    return block.issuer is not UNSET and block.issuer.provider in owners and block.issuer.provider == RESPONSES


def is_speech(block: Block, owners: Collection[str]) -> bool:
    """Return True if a block is speech of the assistant's that the provider keeps, and all that its message says."""
    if not isinstance(block, Unknown) or block.issuer is UNSET:
        return False
    return block.issuer.provider == CHAT and CHAT in owners and block.kind == "audio"


def system_messages(
    prompt: str, system: Sequence[TrackedBlock], options: MessageOptions, *, joined: bool, takes: Collection[str]
) -> list[dict[str, Any]]:
    """The messages of a leading system prompt: one for it, and one for each that came.

    ``joined`` makes one of them all; ``takes`` are the system's roles that the model has.
    """
    if joined or not takes:
        rows = (piece.block.text for piece in system if isinstance(piece.block, Text))
        text = "\n\n".join(each for each in (prompt, *rows) if each)
        return [_as_system(text, takes)] if text else []
    turns: dict[int, list[TrackedBlock]] = {}
    for piece in system:
        turns.setdefault(piece.turn, []).append(piece)
    rest = [system_message(pieces, options, takes) for pieces in turns.values()]
    return [_as_system(prompt, takes), *rest] if prompt else rest


def _as_system(text: str, takes: Collection[str]) -> dict[str, Any]:
    return {"role": "system", "content": text} if takes else {"role": "user", "content": SYSTEM_MARK + text}


def fitted_system(pieces: Sequence[TrackedBlock], options: MessageOptions, book: FixLog) -> list[TrackedBlock]:
    """The pieces of the system's messages with nothing that the API has no place for."""
    if all(map(is_bare, pieces)) and all(isinstance(piece.block, Text) for piece in pieces):
        return [*pieces]
    return OpenAIBlockAdapter(book=book, options=options, speaks=False).fit_message(pieces)


def system_message(pieces: Sequence[TrackedBlock], options: MessageOptions, takes: Collection[str]) -> dict[str, Any]:
    """A message of the system's, with what is its own; the developer is the system where the model has none."""
    if not takes:
        return _as_system("\n\n".join(piece.block.text for piece in pieces if isinstance(piece.block, Text)), takes)
    other_members: dict[str, Raw] = {}
    for piece in pieces:
        other_members |= own_members(piece.own)
    role = "developer" if other_members.pop("role", None) is not None and "developer" in takes else "system"
    return {"role": role, "content": content_of([piece.block for piece in pieces], options.parts), **other_members}
