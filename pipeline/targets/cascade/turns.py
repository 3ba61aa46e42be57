"""One turn as one text: the blocks that can be shown, one below the other, calls and results as text among them.

Calls and results are wrapped so that neither a tool's output, nor anybody's words, pass for either.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw, structs

from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import (
    Document,
    Image,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
)
from pipeline.targets import Row, row, stub_for
from pipeline.targets._openai.parts import ServedParts, fitted_document
from pipeline.targets.fitting import Fitting, in_common_words
from pipeline.text.flatten import IMAGE
from pipeline.text.jsontext import read_tagged
from pipeline.text.neutral import Guard, is_own
from pipeline.text.preamble import AVAILABLE, AVAILABLE_NOW, ENVIRONMENT_HEADING, FUNCTIONS_HEADING

_ERROR: Final = "[Tool error]"
# The beginnings of the lines that we write, outside of the wrappers, which are broken otherwise. The repair's own text
# for a cut call is an assistant's, and would be broken when the turn is read again.
_GUARD: Final = Guard(
    (
        ENVIRONMENT_HEADING,
        FUNCTIONS_HEADING,
        AVAILABLE,
        AVAILABLE_NOW,
        "[Tool error",
        "[Tool result",
        "[System message",
        "[image attachment",
        "[Document:",
        "[Document]",
    ),
)
# What stands for a result without content.
_NOTHING: Final = '""'


def write_turn(message: Message, book: Book) -> tuple[str, list[Row]]:
    """A turn's text and where its blocks come from; a turn of which nothing can be shown is a stub."""
    fitting = _TextOnly(book=book)
    for piece in in_common_words(message, book).pieces:
        if isinstance(piece.block, (Thinking, RedactedThinking)):
            book.drop("thinking_dropped", piece)
        else:
            fitting.add_piece(_quiet(piece, message.role, book))
    pieces = fitting.out or [stub_for(message, book)]
    pieces = _guarded(pieces, book) if message.role == "user" else [_said(piece, book) for piece in pieces]
    text = "\n".join(map(_shown, pieces))
    return text, list(map(row, pieces))


def _quiet(piece: Piece, role: str, book: Book) -> Piece:
    """A block in which no line begins like one of ours; a call is one line, and what the user says is the user's."""
    own = isinstance(piece.block, ToolUse) or (role == "user" and is_own(piece))
    return piece if own else _GUARD.piece(piece, book)


def _said(piece: Piece, book: Book) -> Piece:
    """What the assistant says, so that nothing in it passes for a result, nor for a call that was not made."""
    block = piece.block
    if not isinstance(block, Text):
        return piece
    text = broken_speech(block.text, flattened=piece.whole)
    return piece if text == block.text else book.change("wrapper_broken", piece, structs.replace(block, text=text))


class _TextOnly(Fitting, kw_only=True, eq=False):
    def name(self, name: str) -> str:
        return name

    def image(self, piece: Piece, image: Image) -> Piece:
        del image
        return self.book.change("image_stubbed", piece, Text(text=IMAGE))

    def document(self, piece: Piece, document: Document) -> Piece:
        return fitted_document(piece, document, ServedParts(), self.book)

    def unknown(self, piece: Piece, unknown: Unknown, inside: ToolResult | None) -> None:
        del piece, unknown, inside

    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:
        del part, result
        return ""


def _guarded(pieces: list[Piece], book: Book) -> list[Piece]:
    """A user's turn in which only our own tags can be read as such.

    Tags in results, and in words that share a turn with them, are broken. So are those of words that begin like a
    result without being one, or like instructions on tools. What else the user says of tags is nobody's output and
    stays.
    """
    if not any(isinstance(piece.block, ToolResult) for piece in pieces):
        said = "\n".join(map(_shown, pieces))
        if is_wrapped(said) or not (passes_for_result(said) or instructs(said)):
            return pieces
    return [_without_tags(piece, book) for piece in pieces]


def _without_tags(piece: Piece, book: Book) -> Piece:
    block = piece.block
    clean = block
    match block:
        case Text(text=text):
            clean = structs.replace(block, text=broken(text))
        case ToolResult(content=str() as text):
            clean = structs.replace(block, content=broken(text))
        case ToolResult(content=list() as parts):
            texts = [structs.replace(part, text=broken(part.text)) for part in parts if isinstance(part, Text)]
            clean = structs.replace(block, content=texts)
        case _:
            pass
    return piece if clean == block else book.change("wrapper_broken", piece, clean)


def _shown(piece: Piece) -> str:
    match piece.block:
        case Text(text=text):
            return text
        case ToolUse(name=name, input=arguments):
            return call_line(name, arguments)
        case ToolResult() as result:
            return wrapped(result.tool_use_id, _output(result))
        case _:
            raise AssertionError(piece.block)  # the fitting lets nothing else through


def _output(result: ToolResult) -> str:
    content = result.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content if isinstance(part, Text))
    if not isinstance(content, str):
        return _ERROR if result.is_error else _NOTHING
    return f"{_ERROR} {content}".rstrip() if result.is_error else content


# Where a tag of the protocol, or of a model family's own, begins.
_MARKER: Final = re.compile(r"<(?=/?tool_(?:call|result)|\|tool_)", re.IGNORECASE)
_ESCAPED: Final = r"\\u003c"  # for re.sub: what JSON reads as ``<``
# Ends of lines that JSON may hold as they are: what follows one in a string would stand at the beginning of a line.
_LINE_ENDS: Final = re.compile(r"[\x85\u2028\u2029]")
_OPENING: Final = re.compile(r'<tool_result tool_call_id="[A-Za-z0-9_.:-]{1,128}">')
_CLOSING: Final = "</tool_result>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
# What a user's turn must not say of tools.
_OVERRIDING: Final = re.compile(
    r"^[ \t]*(?:#{1,6} |parameters:)|parameters schema:|```|ignore (?:any earlier|previous instructions)"
    r"|for this request only|\[tool-calling context",
    re.IGNORECASE | re.MULTILINE,
)
_BEGINNING: Final = re.compile(r"\s*(?=<tool_result)", re.IGNORECASE)


def call_line(name: str, arguments: Raw) -> str:
    """A call on one line; inside its JSON no tag can be read, for ``<`` is written as JSON may write it."""
    inner = f'{{"name":{msgspec.json.encode(name).decode()},"arguments":{_compact(arguments)}}}'
    if not inner.isascii():
        inner = _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", inner)
    return f"{_CALL}{_MARKER.sub(_ESCAPED, inner)}{_CALL_END}"


def wrapped(call_id: str, output: str) -> str:
    return f'<tool_result tool_call_id="{call_id}">\n{output}\n{_CLOSING}'


def broken(text: str) -> str:
    r"""The text with a backslash in every tag of the protocol (``<\tool_call>``, ``<\/tool_result>``)."""
    return _MARKER.sub(r"<\\", text)


def broken_speech(text: str, *, flattened: bool) -> str:
    """What the assistant says, without tags that nobody but us may write.

    In a turn that may have been ``flattened`` before, lines that are calls, whole and well-formed, are its calls.
    """
    if not _MARKER.search(text):
        return text
    if not flattened:
        return broken(text)
    return "\n".join(line if _is_call(line) else broken(line) for line in text.split("\n"))


def _is_call(line: str) -> bool:
    inner = line.removeprefix(_CALL).removesuffix(_CALL_END)
    whole = len(inner) == len(line) - len(_CALL) - len(_CALL_END)
    return whole and not _MARKER.search(inner) and read_tagged(inner) is not None


def passes_for_result(text: str) -> bool:
    """Whether a turn begins like a result, so that the model goes on where it was."""
    return _BEGINNING.match(text) is not None


def instructs(text: str) -> bool:
    """Whether a turn begins by telling how to call tools in a way, or in a place, that makes models refuse.

    Our own fallback is neither; histories of other programs hold older ones.
    """
    told, _, rest = text.partition("\n\n")
    if '<tool_call>{"name"' not in told or "<tool_result" not in told:
        return False
    return _OVERRIDING.search(told) is not None or passes_for_result(rest)


def is_wrapped(text: str) -> bool:
    """Whether a text is well-formed results and, behind them, words without a tag: a turn that was flattened before."""
    at = 0
    while beginning := _BEGINNING.match(text, at):
        opening = _OPENING.match(text, beginning.end())
        closing = text.find(_CLOSING, opening.end()) if opening else -1
        if opening is None or closing < 0 or _MARKER.search(text, opening.end(), closing):
            return False
        at = closing + len(_CLOSING)
    return at > 0 and not _MARKER.search(text, at)


def _compact(arguments: Raw) -> str:
    return msgspec.json.format(bytes(arguments), indent=-1).decode()
