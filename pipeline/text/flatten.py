"""Blocks and turns as plain text, for targets that take one text instead of messages."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.clean import SYSTEM_MARK
from reknit.pipeline.history.late import is_late
from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock, code_for_unknown, part_of_result
from reknit.pipeline.model import Document, Image, Text, ToolResult, ToolUse, Unknown
from reknit.pipeline.text.jsontext import spaced
from reknit.pipeline.text.neutral import Neutralizer, is_own

SO_FAR: Final = "## Conversation so far"
CURRENT: Final = "## Current input"
BETWEEN: Final = "\n\n"
IMAGE: Final = "[image attachment]"
DOCUMENT: Final = "[document attachment]"
# The beginnings of lines that this module writes, and of those that the repair writes into texts. Except for the
# current user's own words, no text may begin a line like one of them.
LINES: Final = (
    SO_FAR,
    CURRENT,
    "### System",
    "### User",
    "### Assistant",
    "### Tool result",
    "### Program",
    "[Tool call",
    "[Tool result",
    "[Tool error",
    "[Incomplete tool call",
    "[System message",
    IMAGE.removesuffix("]"),
    DOCUMENT.removesuffix("]"),
    "[Document:",
    "[Document]",
)


_NO_CITATIONS: Final = (b"null", b"[]")
_MARKS: Final[Mapping[type, str]] = MappingProxyType({Image: IMAGE, Document: DOCUMENT})


def sections(message: Message) -> list[str]:
    """A turn of the history: its sections, each under its header."""
    return [text for run in runs(message) if (text := _headed(message, run))]


def runs(message: Message) -> list[list[TrackedBlock]]:
    """Split a turn into parts that each have a header.

    A system message inside the history is a part, and so are results in a message of their own: the user's words after
    them are a separate turn. Results and words of one input message stay together. Text that an agent program wrote in
    the user's place is a separate part, because the user did not write it, and so are late results, with the results
    before them.
    """
    parts: list[list[TrackedBlock]] = []
    late = any(map(is_late, message.pieces))
    spoken = next((piece.turn for piece in message.pieces if not (late or _is_of_tool(piece))), None)
    part_of: tuple[bool, bool, bool] | None = None
    for piece in message.pieces:
        is_result = _is_of_tool(piece)
        kind = (piece.system, is_result and piece.turn != spoken, piece.synthetic and not is_result)
        if kind != part_of or piece.system:
            parts.append([])
        parts[-1].append(piece)
        part_of = kind
    return parts


def current_input(message: Message) -> tuple[list[str], list[TrackedBlock]]:
    """Return the sections of the final turn before the current input, and the pieces of the current input.

    The user's last words are the current input, also where late results follow them; without words, the results are, or
    the system message. Late results with media are in it too, because the sections only have marks for media.
    """
    before, current = _parted_now(runs(message))
    return sections(structs.replace(message, pieces=before)) if before else [], current


def said_now(message: Message) -> list[TrackedBlock]:
    """The pieces of a final turn that are the current input."""
    return _parted_now(runs(message))[1]


def neutralize(message: Message, guard: Neutralizer, book: FixLog, current: Sequence[TrackedBlock] = ()) -> Message:
    """The message with whatever acts in its words broken, but for the user's own among the ``current`` pieces."""
    own = {id(piece) for piece in current if is_own(piece)}
    pieces = [piece if id(piece) in own else guard.piece(piece, book) for piece in message.pieces]
    return with_pieces(message, pieces)


def with_pieces(message: Message, pieces: list[TrackedBlock]) -> Message:
    """The message with other pieces; itself where they are the same, as they mostly are."""
    return message if pieces == message.pieces else structs.replace(message, pieces=pieces)


def _parted_now(parts: Sequence[Sequence[TrackedBlock]]) -> tuple[list[TrackedBlock], list[TrackedBlock]]:
    """Return the pieces of a final turn's parts before the current input, and those of the current input."""
    said = [at for at in reversed(range(len(parts))) if not parts[at][0].system]
    last = next((at for at in said if not is_late(parts[at][-1])), said[0] if said else len(parts) - 1)
    before, current = list[TrackedBlock](), list[TrackedBlock]()
    for at, part in enumerate(parts):
        shows_media = any(is_late(piece) and not isinstance(piece.block, Text) for piece in part)
        (current if at == last or shows_media else before).extend(part)
    return before, current


def _is_of_tool(piece: TrackedBlock) -> bool:
    return isinstance(piece.block, ToolResult) or is_late(piece)


class PromptText(Struct, frozen=True):
    """One text of a system prompt.

    ``text`` is ``""`` for a blank one. ``keys`` are those of its block, unchanged, and ``at`` its index; a prompt that
    is one string has neither.
    """

    text: str
    keys: Mapping[str, Raw]
    at: int = 0


def prompt_texts(
    system: str | Raw | None,
    target: str,
    fixes: list[Fix],
    own: Container[frozenset[str]] = (),
    *,
    keeps_blanks: bool = False,
) -> Iterator[PromptText]:
    """Return the texts of a document's system prompt, with a fix for each block that is not a text.

    A block whose keys are in ``own`` is the target's, and has no text; neither has a blank one, which a target may
    write unchanged.
    """
    if system is None:
        return
    if isinstance(system, str):
        if not system.strip():
            fixes.append(make("blank_dropped", "system", before=system, target=target))
        yield PromptText("" if not system.strip() else system, {})
        return
    for at, keys in enumerate(msgspec.json.decode(system, type=list[dict[str, Raw]])):
        text = _said(keys)
        if frozenset(keys) in own:
            yield PromptText("", keys, at)
        elif text is not None and not text.strip():
            if not keeps_blanks or bytes(keys["text"]) == b"null":
                fixes.append(make("blank_dropped", f"system.{at}", before=keys, target=target))
            yield PromptText("", keys, at)
        elif text is None:
            fixes.append(make("param_dropped", f"system.{at}", before=keys, target=target, detail="system"))
        else:
            if bytes(keys["text"])[:1] != b'"':
                fixes.append(make("content_as_text", f"system.{at}.text", before=keys["text"], target=target))
            yield PromptText(text, keys, at)


def _said(keys: Mapping[str, Raw]) -> str | None:
    """Return the text of a system prompt's block: that of null is empty; None for a block without text."""
    if "text" not in keys or bytes(keys.get("type", b'"text"')) != b'"text"':
        return None
    value = msgspec.json.decode(keys["text"])
    if isinstance(value, str):
        return value
    return "" if value is None else bytes(keys["text"]).decode()


def given_system(system: str | Raw | None, target: str, fixes: list[Fix]) -> list[TrackedBlock]:
    texts = [given.text for given in prompt_texts(system, target, fixes) if given.text]
    return [TrackedBlock(Text(text=text), -1, "system", system=True) for text in texts]


def system_section(piece: TrackedBlock) -> str:
    return f"### System\n{flat([piece])}"


def flat(pieces: Sequence[TrackedBlock]) -> str:
    """Return blocks as text, one below the other; blocks that cannot be shown are left out.

    A content that was one plain string keeps its outer whitespace.
    """
    if len(pieces) == 1 and isinstance(pieces[0].block, Text) and pieces[0].whole:
        return pieces[0].block.text
    return "\n".join(filter(None, map(shown, pieces))).strip()


def shown(piece: TrackedBlock) -> str:
    """One block as text: calls and results in brackets, place holders for media, nothing for the rest."""
    match piece.block:
        case Text(text=text):
            return text
        case Image() | Document() as medium:
            return _MARKS[type(medium)]
        case ToolUse(name=name, input=value):
            return f"[Tool call: {name}({spaced(value)})]"
        case ToolResult() as result:
            tag = "[Tool error]" if result.is_error else "[Tool result]"
            body = _body(result)
            return f"{tag} {body}" if body else tag
        case _:
            return ""


def is_shown(piece: TrackedBlock) -> bool:
    return isinstance(piece.block, (Text, Image, Document, ToolUse, ToolResult))


def with_each(piece: TrackedBlock, change: Callable[[TrackedBlock], TrackedBlock]) -> TrackedBlock:
    """The piece after a change; a result with its parts after the change of each."""
    result = piece.block
    if not isinstance(result, ToolResult):
        return change(piece)
    if not isinstance(result.content, list):
        return piece
    parts = [change(part_of_result(piece, part, at)) for at, part in enumerate(result.content)]
    code = next((part.code for part in parts if part.code), "")
    if not code:
        return piece
    shown: list[Any] = [part.block for part in parts]
    piece = structs.replace(piece, block=structs.replace(result, content=shown))
    return structs.replace(piece, fate="rewritten", code=code) if piece.fate == "kept" else piece


def uncited(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """The piece without citations, for which plain text has no place."""

    def without(part: TrackedBlock) -> TrackedBlock:
        block = part.block
        if not isinstance(block, Text) or block.citations is UNSET or bytes(block.citations) in _NO_CITATIONS:
            return part
        cited = bytes(block.citations).decode()
        return book.change("citations_dropped", part, structs.replace(block, citations=UNSET), cited)

    return with_each(piece, without)


def part_lost(piece: TrackedBlock, at: int, part: Document | Unknown, book: FixLog) -> TrackedBlock:
    """Record that a part of a result is absent from the text; the result itself stays."""
    kind = part.kind if isinstance(part, Unknown) else "document"
    code = code_for_unknown(part, book.target)
    changed = book.change(code, piece, detail=f"content.{at}: {kind}")
    if piece.fate != "kept":
        return structs.replace(changed, fate=piece.fate, code=piece.code)
    return structs.replace(changed, fate="rewritten", code=code)


def _body(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    if not isinstance(result.content, list):
        return ""
    lines = [part.text if isinstance(part, Text) else _MARKS.get(type(part), "") for part in result.content]
    return "\n".join(line for line in lines if line).strip()


def _headed(message: Message, pieces: list[TrackedBlock]) -> str:
    if pieces[0].system:
        return _system(pieces[0])
    text = flat(pieces)
    if not text:
        return ""
    if message.role == "assistant":
        return f"### Assistant\n{text}"
    if all(map(_is_of_tool, pieces)):
        return f"### Tool result\n{text}"
    return f"### Program\n{text}" if pieces[0].synthetic else f"### User\n{text}"


def _system(piece: TrackedBlock) -> str:
    assert isinstance(piece.block, Text)  # noqa: S101  system messages inside a history are text
    return f"### System\n{piece.block.text.removeprefix(SYSTEM_MARK)}"
