"""One turn's blocks, taken one by one and sorted into what a chat message can hold.

Text of a result goes with the call, media go to the user's message behind all results: ``Image URLs are only allowed
for messages with role 'user'`` (OAI-10). These APIs have no field for a failed call either, so the text of an error
begins with ``[Tool error]``; what Reknit itself writes for a result that is missing says so by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.history.clean import SYSTEM_MARK
from pipeline.history.native import CHAT, RESPONSES
from pipeline.history.pieces import Book, Piece, code_for_unknown, part_of_result
from pipeline.history.results import INTERRUPTED
from pipeline.model import Document, Image, Own, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Unknown
from pipeline.targets._openai.media import Parts, Shown, show_document, show_image
from pipeline.targets._openai.parameters import LONGEST_NAME
from pipeline.targets._openai.rows import call, custom_call
from pipeline.targets.base import Row, is_issued_by
from pipeline.targets.fitting import bare, touched
from pipeline.targets.names import legal_name
from pipeline.text.flatten import shown

ERROR: Final = "[Tool error]"
# What stands in a result for a medium that had to move.
MOVED: Final = "[Shown in the next user message]"


# Whose images say at what detail they are shown, in the same words.
_DETAILED: Final = frozenset({CHAT, RESPONSES})


class Voice(Struct, frozen=True, kw_only=True):
    """How a target says things.

    ``providers`` are the issuers whose readable reasoning goes back (none where the model takes none), ``passed`` the
    unknown blocks of a user's that are parts as they are; ``plain`` writes calls and results as text.
    ``refusals``: a refusal stands in a field of its own. ``owners`` are the providers whose own is written again;
    ``shows_results``: results hold media.
    """

    target: str
    parts: Parts
    call_id: Callable[[str], str]
    model: str | None = None
    providers: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    plain: bool = False
    refusals: bool = False
    owners: frozenset[str] = frozenset()
    shows_results: bool = False


class SentResult(Struct, frozen=True):
    """A result as it is sent: its piece, its parts, and the media that go to the user's message."""

    piece: Piece
    parts: list[Text | Shown]
    media: list[Shown]

    @property
    def texts(self) -> list[str]:
        """What of it is text."""
        return [part.text for part in self.parts if isinstance(part, Text)]


def show_result(piece: Piece, result: ToolResult, voice: Voice, book: Book) -> SentResult:
    """Split a result into what it may hold and media that have to move."""
    sent: list[Text | Shown] = []
    media: list[Shown] = []
    content = result.content
    if isinstance(content, str):
        sent.append(Text(text=content))
    elif isinstance(content, list):
        for at, part in enumerate(content):
            inner = part_of_result(piece, part, at)
            inner = bare(inner, book, owners=voice.owners | _DETAILED if isinstance(part, Image) else voice.owners)
            if isinstance(inner.block, Text):
                sent.append(inner.block)
            elif isinstance(part, Unknown):
                code = code_for_unknown(part)
                book.change(code, piece, detail=f"content.{at}: {part.kind}")
                piece = touched(piece, code)
            else:
                shown = _medium(inner, voice, book)
                if shown.is_text:
                    piece = touched(piece, shown.piece.code)
                    sent.append(_text_of(shown))
                elif voice.shows_results:
                    sent.append(shown)
                    piece = touched(piece, shown.piece.code) if shown.piece.code else piece
                else:
                    book.change("result_media_moved", piece, detail=f"content.{at}")
                    piece = touched(piece, "result_media_moved")
                    media.append(structs.replace(shown, piece=_moved(shown.piece)))
                    sent.append(Text(text=MOVED))
    if result.is_error and content != INTERRUPTED:
        first = sent[0] if sent and isinstance(sent[0], Text) else None
        error = Text(text=f"{ERROR} {first.text}".rstrip() if first else ERROR)
        sent = [error, *(sent[1:] if first else sent)]
    return SentResult(piece, sent, media)


def content_of(content: Sequence[Text | Shown], parts: Parts) -> str | list[Any]:
    """One text is a string, several and media are parts; a result that is empty is an empty string."""
    if len(content) == 1 and isinstance(content[0], Text):
        return content[0].text
    return [shown for part in content for shown in _parts_of(part, parts)] or ""


def _parts_of(part: Text | Shown, parts: Parts) -> list[Any]:
    return [parts.text(part)] if isinstance(part, Text) else part.parts


def _medium(inner: Piece, voice: Voice, book: Book) -> Shown:
    if isinstance(inner.block, Image):
        return show_image(inner, inner.block, voice.parts, book)
    assert isinstance(inner.block, Document)  # noqa: S101  a result holds nothing else
    return show_document(inner, inner.block, voice.parts, book)


def _text_of(shown: Shown) -> Text:
    block = shown.piece.block
    assert isinstance(block, Text)  # noqa: S101  that is what is_text says
    return block


def _moved(piece: Piece) -> Piece:
    return structs.replace(piece, fate="moved", code="result_media_moved")


RESULT: Final = "[Tool result]"


def renamed(piece: Piece, use: ToolUse, voice: Voice, book: Book) -> tuple[Piece, ToolUse]:
    """A call with the id and the name that the target takes."""
    call_id, name = voice.call_id(use.id), legal_name(use.name, LONGEST_NAME)
    if call_id != use.id:
        use = structs.replace(use, id=call_id)
        piece = book.change("id_rewritten", piece, use, detail=call_id)
    if name != use.name:
        use = structs.replace(use, name=name)
        piece = book.change("tool_name_rewritten", piece, use, detail=name)
    return piece, use


def answered(piece: Piece, result: ToolResult, voice: Voice, book: Book) -> tuple[Piece, str]:
    """A result with the id that its call has."""
    call_id = voice.call_id(result.tool_use_id)
    if call_id != result.tool_use_id:
        rewritten = structs.replace(result, tool_use_id=call_id)
        piece = book.change("id_rewritten", piece, rewritten, detail=call_id)
    return piece, call_id


class AssistantTurn:
    """What the assistant says: its texts, its reasoning and its calls, and ``out``, the pieces that are sent.

    ``beside`` is what its message has beside all that.
    """

    def __init__(self, voice: Voice, book: Book) -> None:
        self.texts: list[Text] = []
        self.refusals: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.out: list[Piece] = []
        self.beside: dict[str, Raw] = {}
        self._voice = voice
        self._book = book

    def add_piece(self, piece: Piece) -> None:
        piece = bare(piece, self._book, refusals=self._voice.refusals, owners=self._voice.owners)
        self.beside |= own_members(piece.own)
        block = piece.block
        match block:
            case Text(refusal=True, text=text):
                self.refusals.append(text)
                self.out.append(piece)
            case Text():
                self.say(piece)
            case ToolUse():
                self._call(piece, block)
            case Thinking():
                self._think(piece, block)
            case RedactedThinking():
                self._book.drop("thinking_foreign", piece)
            case _:
                # The repair gives media to the user; whatever else there will be is not lost without a word.
                self._book.drop_unknown(piece)

    def say(self, piece: Piece) -> None:
        assert isinstance(piece.block, Text)  # noqa: S101  the caller knows
        self.texts.append(piece.block)
        self.out.append(piece)

    def serialise(self) -> None:
        """Record that all calls but the first follow in messages of their own."""
        calls = [at for at, piece in enumerate(self.out) if isinstance(piece.block, ToolUse)]
        for at in calls[1:]:
            self.out[at] = self._book.change("calls_serialised", self.out[at])

    def _call(self, piece: Piece, use: ToolUse) -> None:
        if self._voice.plain:
            self.say(self._book.change("calls_as_text", piece, Text(text=shown(piece))))
            return
        piece, use = renamed(piece, use, self._voice, self._book)
        is_custom = use.own is not UNSET and use.own.kind == "custom"
        self.calls.append((custom_call if is_custom else call)(use.id, use.name, use.input))
        self.out.append(piece)

    def _think(self, piece: Piece, block: Thinking) -> None:
        if not is_issued_by(block, self._voice.providers, self._voice.model):
            self._book.drop("thinking_foreign", piece)
        elif not block.thinking.strip():
            self._book.drop("thinking_empty", piece)
        else:
            if self.out:
                piece = self._book.change("reasoning_joined", piece)
            self.reasoning.append(block.thinking)
            self.out.append(piece)


class Said:
    """What the user says in one message: its parts, the pieces that they are of, and what stands beside.

    ``alone`` is the text of a message that is nothing else.
    """

    def __init__(self, beside: dict[str, Raw]) -> None:
        self.parts: list[Any] = []
        self.pieces: list[Piece] = []
        self.alone: Text | None = None
        self.beside = beside
        self._starts: list[int] = []

    def put(self, piece: Piece, parts: list[Any], text: Text | None = None) -> None:
        """Add a piece, which is shown as ``parts``; ``text`` where it is one."""
        self._starts.append(len(self.parts))
        self.alone = None if self.parts else text
        self.parts += parts
        self.pieces.append(piece)

    @property
    def content(self) -> str | list[Any]:
        return self.parts if self.alone is None or self.alone.own is not UNSET else self.alone.text

    def rows(self, place: str) -> list[Row]:
        """Where the pieces stand in a message whose content is at ``place``."""
        is_text = isinstance(self.content, str)
        return [
            (piece.path, piece.fate, piece.code, place if is_text else f"{place}.{start}")
            for piece, start in zip(self.pieces, self._starts, strict=True)
        ]


class UserTurn:
    """What the user says: results, and messages behind them.

    ``answers`` has for each result the piece, the id of its call and its content; ``said`` the messages, and what
    stands between them as it came.
    """

    def __init__(self, voice: Voice, book: Book) -> None:
        self.answers: list[tuple[Piece, str, str | list[Any]]] = []
        self.said: list[Said | Piece] = []
        self._voice = voice
        self._book = book
        self._turn = -1

    def add_piece(self, piece: Piece) -> None:
        """Add the next block; results come before everything else."""
        owners = self._voice.owners | _DETAILED if isinstance(piece.block, Image) else self._voice.owners
        piece = bare(piece, self._book, owners=owners)
        block = piece.block
        match block:
            case Text():
                self.say(piece)
            case ToolResult():
                self._result(piece, block)
            case Image():
                self._show(show_image(piece, block, self._voice.parts, self._book))
            case Document():
                self._show(show_document(piece, block, self._voice.parts, self._book))
            case Unknown() if is_native_item(block, self._voice.owners):
                self.said.append(piece)
            case Unknown() if block.kind in self._voice.passed:
                self._message_of(piece).put(piece, [block.raw])
            case Unknown():
                self._book.drop_unknown(piece)
            case _:
                # The repair leaves no reasoning with the user.
                self._book.drop("thinking_dropped", piece)

    def say(self, piece: Piece) -> None:
        block = piece.block
        assert isinstance(block, Text)  # noqa: S101  the caller knows
        self._message_of(piece).put(piece, [self._voice.parts.text(block)], block)

    def _message_of(self, piece: Piece) -> Said:
        """The message that a piece goes to: a new one where it has something of its own beside it."""
        last = self.said[-1] if self.said else None
        beside = {} if isinstance(piece.block, ToolResult) else own_members(piece.own)
        if not isinstance(last, Said) or beside or (last.beside and piece.turn != self._turn):
            last = Said(beside)
            self.said.append(last)
        self._turn = piece.turn
        return last

    def _show(self, medium: Shown) -> None:
        block = medium.piece.block
        text = block if medium.is_text and isinstance(block, Text) else None
        self._message_of(medium.piece).put(medium.piece, medium.parts, text)

    def _result(self, piece: Piece, result: ToolResult) -> None:
        sent = show_result(piece, result, self._voice, self._book)
        if self._voice.plain:
            self._result_as_text(sent.piece, sent.texts)
        else:
            piece, call_id = answered(sent.piece, result, self._voice, self._book)
            self.answers.append((piece, call_id, content_of(sent.parts, self._voice.parts)))
        for medium in sent.media:
            self._show(medium)

    def _result_as_text(self, piece: Piece, texts: list[str]) -> None:
        failed = bool(texts) and texts[0].startswith(ERROR)
        text = "\n".join(texts if failed else [RESULT, *texts])
        self.say(self._book.change("calls_as_text", piece, Text(text=text)))


def own_members(own: Own | UnsetType) -> dict[str, Raw]:
    """What is its provider's own beside a block or a message."""
    return {} if own is UNSET else own.members


def is_native_item(block: Unknown, owners: Collection[str]) -> bool:
    """Whether a block is an item of its own, of one of the ``owners``."""
    return block.issuer is not UNSET and block.issuer.provider in owners and block.issuer.provider == RESPONSES


def system_messages(
    prompt: str, system: Sequence[Piece], voice: Voice, *, joined: bool, takes: Collection[str]
) -> list[dict[str, Any]]:
    """The messages of a leading system prompt: one for it, and one for each that came.

    ``joined`` makes one of them all; ``takes`` are the system's roles that the model has.
    """
    if joined or not takes:
        rows = (piece.block.text for piece in system if isinstance(piece.block, Text))
        text = "\n\n".join(each for each in (prompt, *rows) if each)
        return [_as_system(text, takes)] if text else []
    turns: dict[int, list[Piece]] = {}
    for piece in system:
        turns.setdefault(piece.turn, []).append(piece)
    rest = [system_message(pieces, voice, takes) for pieces in turns.values()]
    return [_as_system(prompt, takes), *rest] if prompt else rest


def _as_system(text: str, takes: Collection[str]) -> dict[str, Any]:
    return {"role": "system", "content": text} if takes else {"role": "user", "content": SYSTEM_MARK + text}


def system_message(pieces: Sequence[Piece], voice: Voice, takes: Collection[str]) -> dict[str, Any]:
    """A message of the system's, with what is its own; the developer is the system where the model has none."""
    texts = [piece.block for piece in pieces if isinstance(piece.block, Text)]
    if not takes:
        return _as_system("\n\n".join(text.text for text in texts), takes)
    beside: dict[str, Raw] = {}
    for piece in pieces:
        beside |= own_members(piece.own) if piece.own is not UNSET and piece.own.provider in voice.owners else {}
    role = "developer" if beside.pop("role", None) is not None and "developer" in takes else "system"
    return {"role": role, "content": content_of(texts, voice.parts), **beside}
