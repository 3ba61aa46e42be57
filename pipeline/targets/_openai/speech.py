"""One turn's blocks, taken one by one and sorted into what a chat message can hold.

Text of a result goes with the call, media go to the user's message behind all results: ``Image URLs are only allowed
for messages with role 'user'`` (OAI-10). These APIs have no field for a failed call either, so the text of an error
begins with ``[Tool error]``; what Reknit itself writes for a result that is missing says so by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct, structs

from pipeline.history.pieces import Book, Piece
from pipeline.history.results import INTERRUPTED
from pipeline.model import Document, Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Unknown
from pipeline.targets._openai.media import Parts, Shown, show_document, show_image
from pipeline.targets._openai.parameters import LONGEST_NAME
from pipeline.targets._openai.rows import Answer, Call, call
from pipeline.targets.base import is_issued_by
from pipeline.targets.fitting import bare, touched
from pipeline.targets.names import legal_name
from pipeline.text.flatten import shown

ERROR: Final = "[Tool error]"
# What stands in a result for a medium that had to move.
MOVED: Final = "[Shown in the next user message]"


class SentResult(Struct, frozen=True):
    """A result as it is sent: its piece, its texts, and the media that go to the user's message."""

    piece: Piece
    texts: list[str]
    media: list[Shown]


def show_result(piece: Piece, result: ToolResult, parts: Parts, book: Book) -> SentResult:
    """Split a result into text and media."""
    texts: list[str] = []
    media: list[Shown] = []
    content = result.content
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        for at, part in enumerate(content):
            inner = bare(Piece(part, piece.turn, _inner_path(piece, at), came_as=piece.tool_id), book)
            if isinstance(part, Text):
                texts.append(part.text)
            elif isinstance(part, Unknown):
                book.change("unknown_dropped", piece, detail=f"content.{at}: {part.kind}")
                piece = touched(piece, "unknown_dropped")
            else:
                shown = _medium(inner, part, parts, book)
                if shown.is_text:
                    piece = touched(piece, shown.piece.code)
                    texts.append(_text_of(shown))
                else:
                    book.change("result_media_moved", piece, detail=f"content.{at}")
                    piece = touched(piece, "result_media_moved")
                    media.append(structs.replace(shown, piece=_moved(shown.piece)))
                    texts.append(MOVED)
    if result.is_error and content != INTERRUPTED:
        texts = [f"{ERROR} {texts[0]}".rstrip(), *texts[1:]] if texts else [ERROR]
    return SentResult(piece, texts, media)


def content_of(texts: list[str], parts: Parts) -> str | list[Any]:
    """One text is a string, several are parts; a result that is empty is an empty string."""
    if len(texts) > 1:
        return [parts.text(text) for text in texts]
    return texts[0] if texts else ""


def _medium(inner: Piece, part: Image | Document, parts: Parts, book: Book) -> Shown:
    if isinstance(part, Image):
        return show_image(inner, part, parts, book)
    return show_document(inner, part, parts, book)


def _text_of(shown: Shown) -> str:
    block = shown.piece.block
    assert isinstance(block, Text)  # noqa: S101  that is what is_text says
    return block.text


def _inner_path(piece: Piece, at: int) -> str:
    """Where a result's part stands in the input; the content of a tool's row is the result's own."""
    return f"{piece.path}.{at}" if piece.whole else f"{piece.path}.content.{at}"


def _moved(piece: Piece) -> Piece:
    return structs.replace(piece, fate="moved", code="result_media_moved")


RESULT: Final = "[Tool result]"


class Voice(Struct, frozen=True, kw_only=True):
    """How a target says things.

    ``providers`` are the issuers whose readable reasoning goes back (none where the model takes none), ``passed`` the
    unknown blocks of a user's that are parts as they are; ``plain`` writes calls and results as text.
    ``refusals``: a refusal stands in a field of its own.
    """

    target: str
    parts: Parts
    call_id: Callable[[str], str]
    model: str | None = None
    providers: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    plain: bool = False
    refusals: bool = False


def renamed(piece: Piece, use: ToolUse, voice: Voice, book: Book) -> tuple[Piece, str, str]:
    """A call with the id and the name that the target takes."""
    call_id, name = voice.call_id(use.id), legal_name(use.name, LONGEST_NAME)
    if call_id != use.id:
        use = structs.replace(use, id=call_id)
        piece = book.change("id_rewritten", piece, use, detail=call_id)
    if name != use.name:
        piece = book.change("tool_name_rewritten", piece, structs.replace(use, name=name), detail=name)
    return piece, call_id, name


def answered(piece: Piece, result: ToolResult, voice: Voice, book: Book) -> tuple[Piece, str]:
    """A result with the id that its call has."""
    call_id = voice.call_id(result.tool_use_id)
    if call_id != result.tool_use_id:
        rewritten = structs.replace(result, tool_use_id=call_id)
        piece = book.change("id_rewritten", piece, rewritten, detail=call_id)
    return piece, call_id


class AssistantTurn:
    """What the assistant says: its texts, its reasoning and its calls, and ``out``, the pieces that are sent."""

    def __init__(self, voice: Voice, book: Book) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[Call] = []
        self.out: list[Piece] = []
        self._voice = voice
        self._book = book

    def add(self, piece: Piece) -> None:
        """Take the next block."""
        piece = bare(piece, self._book, refusals=self._voice.refusals)
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
            case Unknown():
                self._book.drop("unknown_dropped", piece, detail=block.kind)
            case _:
                # The repair gives media to the user; whatever else there will be is not lost without a word.
                self._book.drop("unknown_dropped", piece, detail=type(block).__name__)

    def say(self, piece: Piece) -> None:
        """Take a text."""
        assert isinstance(piece.block, Text)  # noqa: S101  the caller knows
        self.texts.append(piece.block.text)
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
        piece, call_id, name = renamed(piece, use, self._voice, self._book)
        self.calls.append(call(call_id, name, use.input))
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


class UserTurn:
    """What the user says: tool messages, and the parts of the user message behind them.

    ``alone`` is the text of a user message that is nothing else. ``answering`` and ``said`` are the pieces of both.
    """

    def __init__(self, voice: Voice, book: Book) -> None:
        self.answers: list[Answer] = []
        self.parts: list[Any] = []
        self.alone: str | None = None
        self.answering: list[Piece] = []
        self.said: list[Piece] = []
        self._starts: list[int] = []
        self._voice = voice
        self._book = book

    def add(self, piece: Piece) -> None:
        """Take the next block; results come before everything else."""
        piece = bare(piece, self._book)
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
            case Unknown() if block.kind in self._voice.passed:
                self._put(piece, [block.raw])
            case Unknown():
                self._book.drop("unknown_dropped", piece, detail=block.kind)
            case _:
                # The repair leaves no reasoning with the user.
                self._book.drop("thinking_dropped", piece)

    def say(self, piece: Piece) -> None:
        """Take a text."""
        assert isinstance(piece.block, Text)  # noqa: S101  the caller knows
        text = piece.block.text
        self._put(piece, [self._voice.parts.text(text)], text)

    def place_of(self, at: int, content: str) -> str:
        """Where the piece ``said[at]`` stands, in a message whose content is at ``content``."""
        return content if self.alone is not None else f"{content}.{self._starts[at]}"

    def _put(self, piece: Piece, parts: list[Any], text: str | None = None) -> None:
        self._starts.append(len(self.parts))
        self.alone = None if self.parts else text
        self.parts += parts
        self.said.append(piece)

    def _show(self, medium: Shown) -> None:
        block = medium.piece.block
        self._put(medium.piece, medium.parts, block.text if medium.is_text and isinstance(block, Text) else None)

    def _result(self, piece: Piece, result: ToolResult) -> None:
        sent = show_result(piece, result, self._voice.parts, self._book)
        if self._voice.plain:
            self._result_as_text(sent.piece, sent.texts)
        else:
            piece, call_id = answered(sent.piece, result, self._voice, self._book)
            self.answers.append(Answer(call_id, content_of(sent.texts, self._voice.parts)))
            self.answering.append(piece)
        for medium in sent.media:
            self._show(medium)

    def _result_as_text(self, piece: Piece, texts: list[str]) -> None:
        failed = bool(texts) and texts[0].startswith(ERROR)
        text = "\n".join(texts if failed else [RESULT, *texts])
        self.say(self._book.change("calls_as_text", piece, Text(text=text)))
