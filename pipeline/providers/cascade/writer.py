"""Requests for a planner that takes text only: Windsurf's Cascade, and models reached through it.

A body is ``{"model", "system", "messages": [{"role", "content": TEXT}], …}``. The system slot holds the authoritative
preamble, the caller's environment first, then the system prompt. A call is a ``<tool_call>`` line of the assistant's, a
result a ``<tool_result tool_call_id="…">`` of the user's, before the user's words. The latest user turn without results
has the one-line fallback before it. Calls and results are wrapped so that neither a tool's output nor the words of any
party can be taken for either. Request parameters that other APIs share have Anthropic's names; the party that forwards
the body decides about them.

The fallback belongs to the latest user turn only. To avoid removing it from settled bytes, a settled user turn is held
until the assistant's answer is settled too: both are one chunk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock
from reknit.pipeline.model import Document, Image, RedactedThinking, Text, Thinking, Tool, ToolResult, ToolUse, Unknown
from reknit.pipeline.options import HeadOptions
from reknit.pipeline.providers.openai.writer.parts import ServedParts, fitted_document
from reknit.pipeline.targets import Encoded, Ending, Row, Setting, in_common_words, row, stub_for
from reknit.pipeline.targets.fitting import BlockAdapter
from reknit.pipeline.targets.head import CHOICES, COMMON, HeadWriter, before_list
from reknit.pipeline.text.environment import WORKING_DIRECTORY, environment_facts, environment_lines, nearest_phrase
from reknit.pipeline.text.flatten import IMAGE, given_system
from reknit.pipeline.text.jsontext import read_tagged
from reknit.pipeline.text.neutral import Neutralizer, is_own
from reknit.pipeline.text.preamble import (
    AVAILABLE,
    AVAILABLE_NOW,
    ENVIRONMENT_HEADING,
    FUNCTIONS_HEADING,
    tool_fallback,
    tool_preamble,
)
from reknit.pipeline.text.redaction import Redactor

NAME: Final = "cascade"
_BETWEEN: Final = "\n\n"
_PASSED: Final = COMMON | {"metadata", "stream", "user"}
_HEAD: Final = HeadOptions(
    target=NAME,
    elsewhere=frozenset({"cache_control", "messages", "model", "system", "tool_choice", "tools"}),
    choices=CHOICES,
)

_encode = msgspec.json.Encoder().encode


class CascadeHead(Struct, frozen=True):
    """A request without its messages, except for the environment, which the messages may contain.

    Attributes:
        keys: model and parameters.
        tools: those that can be called in text.
        choice: the tool choice, in any shape.
        prompt: the caller's own system prompt.
        line: the fallback for the user's turn, ``""`` without tools.
        fixes: the repairs.
    """

    keys: Mapping[str, Any]
    tools: tuple[Tool, ...]
    choice: Any
    prompt: str
    line: str
    fixes: list[Fix]

    def written(self, environment: str) -> bytes:
        """The head as a JSON object, with the lines of an environment."""
        system = "\n\n".join(filter(None, [tool_preamble(self.tools, self.choice, environment), self.prompt]))
        model = {key: self.keys[key] for key in ("model",) if key in self.keys}
        return _encode(model | ({"system": system} if system else {}) | dict(self.keys))


def _prepare_head(setting: Setting, system: Sequence[TrackedBlock]) -> CascadeHead:
    writer = HeadWriter(_HEAD, setting)
    params = writer.read_params()
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    keys |= writer.placed(params, params.each_of(_PASSED))
    tools = []
    for each in writer.declared_tools():
        writer.note_unread(each, "cache_control")
        tools.append(each.tool)
    choice = writer.choice(params, tools=True) if tools else None
    words = [*given_system(setting.system, NAME, writer.fixes), *writer.system_rows(system)]
    prompt = "\n\n".join(piece.block.text for piece in words if isinstance(piece.block, Text))
    # Where no tool may be called, the user's turn must not show how to.
    line = "" if choice is not None and choice.kind == "none" else tool_fallback(tools)
    given = None if choice is None else msgspec.json.decode(params.values["tool_choice"])
    return CascadeHead(keys=keys, tools=tuple(tools), choice=given, prompt=prompt, line=line, fixes=writer.fixes)


_ERROR: Final = "[Tool error]"
# The beginnings of the lines that this module writes, outside of the wrappers, which are neutralized in another way.
# The repair's own text for a cut call is an assistant's, and would be neutralized when the turn is read again.
_GUARD: Final = Neutralizer(
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
# The form of a result without content.
_NOTHING: Final = '""'


def _write_turn(message: Message, book: FixLog) -> tuple[str, list[Row]]:
    """Return a turn's text and the origin of its blocks; a turn without any content that can be shown is a stub."""
    fitting = _TextOnly(book=book)
    for piece in in_common_words(message, book).pieces:
        if isinstance(piece.block, (Thinking, RedactedThinking)):
            book.drop("thinking_dropped", piece)
        else:
            # A call is one line, and the user's words are the user's; no other line may begin like one of this
            # module's.
            own = isinstance(piece.block, ToolUse) or (message.role == "user" and is_own(piece))
            fitting.add_piece(piece if own else _GUARD.piece(piece, book))
    pieces = fitting.out or [stub_for(message, book)]
    pieces = _guarded(pieces, book) if message.role == "user" else [_said(piece, book) for piece in pieces]
    return "\n".join(map(_shown, pieces)), list(map(row, pieces))


def _said(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """Return the assistant's text, in which nothing can be taken for a result, nor for a call that was not made.

    In a turn that may have been flattened before, whole and well-formed lines of calls are its calls.
    """
    block = piece.block
    if not isinstance(block, Text) or not _MARKER.search(block.text):
        return piece
    lines = block.text.split("\n")
    text = "\n".join(line if piece.whole and _is_call(line) else _broken(line) for line in lines)
    return piece if text == block.text else book.change("wrapper_broken", piece, structs.replace(block, text=text))


class _TextOnly(BlockAdapter, kw_only=True, eq=False):
    def name(self, name: str) -> str:
        return name

    def image(self, piece: TrackedBlock, image: Image) -> TrackedBlock:
        del image
        return self.book.change("image_stubbed", piece, Text(text=IMAGE))

    def document(self, piece: TrackedBlock, document: Document) -> TrackedBlock:
        fitted = fitted_document(piece, document, ServedParts(), self.book)
        return _GUARD.piece(fitted, self.book) if fitted.code == "document_as_text" else fitted

    def unknown(self, piece: TrackedBlock, unknown: Unknown, inside: ToolResult | None) -> None:
        del piece, unknown, inside

    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:
        del part, result
        return ""


def _guarded(pieces: list[TrackedBlock], book: FixLog) -> list[TrackedBlock]:
    """Return a user turn in which only the writer's own tags can be read as tags.

    Tags in results, and in words that share a turn with them, are neutralized. So are those of words that begin like a
    result without being one, or like instructions on tools. Other mentions of tags by the user are not a tool's output
    and stay.
    """
    if not any(isinstance(piece.block, ToolResult) for piece in pieces):
        said = "\n".join(map(_shown, pieces))
        if _is_wrapped(said) or not (_passes_for_result(said) or _instructs(said)):
            return pieces
    return [_without_tags(piece, book) for piece in pieces]


def _without_tags(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    block = piece.block
    clean = block
    match block:
        case Text(text=text):
            clean = structs.replace(block, text=_broken(text))
        case ToolResult(content=str() as text):
            clean = structs.replace(block, content=_broken(text))
        case ToolResult(content=list() as parts):
            texts = [structs.replace(part, text=_broken(part.text)) for part in parts if isinstance(part, Text)]
            clean = structs.replace(block, content=texts)
        case _:
            pass
    return piece if clean == block else book.change("wrapper_broken", piece, clean)


def _shown(piece: TrackedBlock) -> str:
    match piece.block:
        case Text(text=text):
            return text
        case ToolUse(name=name, input=arguments):
            return _call_line(name, arguments)
        case ToolResult() as result:
            return f'<tool_result tool_call_id="{result.tool_use_id}">\n{_output(result)}\n{_CLOSING}'
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
_ESCAPED: Final = r"\\u003c"  # for re.sub: a ``<`` in JSON
# Line ends that JSON strings may hold raw: the text after one would be at the beginning of a line.
_LINE_ENDS: Final = re.compile(r"[\x85\u2028\u2029]")
_OPENING: Final = re.compile(r'<tool_result tool_call_id="[A-Za-z0-9_.:-]{1,128}">')
_CLOSING: Final = "</tool_result>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
# Instructions on tools that a user's turn must not contain.
_OVERRIDING: Final = re.compile(
    r"^[ \t]*(?:#{1,6} |parameters:)|parameters schema:|```|ignore (?:any earlier|previous instructions)"
    r"|for this request only|\[tool-calling context",
    re.IGNORECASE | re.MULTILINE,
)
_BEGINNING: Final = re.compile(r"\s*(?=<tool_result)", re.IGNORECASE)


def _call_line(name: str, arguments: Raw) -> str:
    """A call on one line; inside its JSON no tag can be read, for ``<`` is written as JSON may write it."""
    compact = msgspec.json.format(bytes(arguments), indent=-1).decode()
    inner = f'{{"name":{msgspec.json.encode(name).decode()},"arguments":{compact}}}'
    if not inner.isascii():
        inner = _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", inner)
    return f"{_CALL}{_MARKER.sub(_ESCAPED, inner)}{_CALL_END}"


def _broken(text: str) -> str:
    r"""The text with a backslash in every tag of the protocol (``<\tool_call>``, ``<\/tool_result>``)."""
    return _MARKER.sub(r"<\\", text)


def _is_call(line: str) -> bool:
    inner = line.removeprefix(_CALL).removesuffix(_CALL_END)
    whole = len(inner) == len(line) - len(_CALL) - len(_CALL_END)
    return whole and not _MARKER.search(inner) and read_tagged(inner) is not None


def _passes_for_result(text: str) -> bool:
    """Return True if a turn begins like a result, so that the model continues its work."""
    return _BEGINNING.match(text) is not None


def _instructs(text: str) -> bool:
    """Return True if a turn begins with instructions on calls in a form or place that makes models refuse.

    The writer's own fallback is neither; histories of other programs hold older ones.
    """
    first_part, _, rest = text.partition("\n\n")
    if '<tool_call>{"name"' not in first_part or "<tool_result" not in first_part:
        return False
    return _OVERRIDING.search(first_part) is not None or _passes_for_result(rest)


def _is_wrapped(text: str) -> bool:
    """Return True if a text is well-formed results and words without a tag: a turn that was flattened before."""
    at = 0
    while beginning := _BEGINNING.match(text, at):
        opening = _OPENING.match(text, beginning.end())
        closing = text.find(_CLOSING, opening.end()) if opening else -1
        if opening is None or closing < 0 or _MARKER.search(text, opening.end(), closing):
            return False
        at = closing + len(_CLOSING)
    return at > 0 and not _MARKER.search(text, at)


class CascadeProgress(Struct, frozen=True, array_like=True):
    """The state after the turns so far.

    Attributes:
        held: the text of a user turn that has not been written yet.
        facts: the extracted environment. Once a directory is among them they never change, because the head of a
            request must not change with every turn.
        missed: a phrase that looked like an environment before there was one, and its place.
    """

    held: str | None = None
    facts: dict[str, str] = {}
    missed: tuple[str, str] = ("", "")


class CascadeDialect:
    separator = b","
    marks_left = 0

    def __init__(self, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        self._head = _prepare_head(setting, system)
        self._redactor = Redactor()
        self.fixes: list[Fix] = self._head.fixes
        self.state = self._with_facts(self._head.prompt, "system", CascadeProgress())
        self._lines = environment_lines(self.state.facts)
        self.head = self._head.written(self._lines)
        self.prefix = before_list(self.head, "messages")
        self._latest = (self._lines, self.head)

    def encode(self, message: Message, state: CascadeProgress) -> Encoded:
        """Write a turn: an assistant's together with the user's before it, a user's not yet."""
        book = FixLog(NAME)
        text, rows = _write_turn(message, book)
        written = [] if state.held is None else [_written("user", state.held)]
        if message.role == "user":
            state = structs.replace(self._listened(message, state), held=text)
        else:
            written.append(_written("assistant", text))
            state = structs.replace(state, held=None)
        return Encoded(data=b",".join(written), state=state, rows=rows, fixes=book.fixes, dropped=book.dropped)

    def encode_ending(
        self, messages: Sequence[Message], state: CascadeProgress, settled: int, *, final: bool
    ) -> Ending:
        """Write the open turns, with the fallback on the latest one of the user's, be it a settled one."""
        del settled, final
        latest = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
        parts: list[Encoded] = []
        for at, message in enumerate(messages):
            parts.append(self.encode(message, self._announced(state) if at == latest + 1 else state))
            state = parts[-1].state
        if latest == len(messages) - 1:
            state = self._announced(state)
        data = b"" if state.held is None else _written("user", state.held)
        parts.append(Encoded(data=data, fixes=self._unheard(state)))
        lines = environment_lines(state.facts)
        if lines == self._lines:
            return Ending(parts=parts, suffix=b"]}")
        # The user's words have the directory: the head is not the prepared one, and promises no prefix.
        head = self._head_with(lines)
        return Ending(parts=parts, suffix=b"]}", prefix=before_list(head, "messages"), head=head, reset="environment")

    def _announced(self, state: CascadeProgress) -> CascadeProgress:
        """The held turn with the fallback before it, unless it is results: those the model takes up by itself."""
        if state.held is None or not self._head.line or _passes_for_result(state.held):
            return state
        return structs.replace(state, held=self._head.line + _BETWEEN + state.held)

    # The environment.

    def _listened(self, message: Message, state: CascadeProgress) -> CascadeProgress:
        """Return the facts that the user's words add; a result that became text is not the user's."""
        said = [piece for piece in message.pieces if isinstance(piece.block, Text) and piece.fate != "flattened"]
        text = "\n".join(piece.block.text for piece in said if isinstance(piece.block, Text))
        return self._with_facts(text, said[0].path, state) if said else state

    def _with_facts(self, text: str, path: str, state: CascadeProgress) -> CascadeProgress:
        if not self._head.tools or not text or WORKING_DIRECTORY in state.facts:
            return state
        found = environment_facts(text, self._redactor)
        # The first value counts, and comes first.
        facts = state.facts | found | state.facts
        missed = state.missed
        if WORKING_DIRECTORY not in found and not missed[0]:
            missed = (nearest_phrase(text) or next(iter(found), ""), path)
        return structs.replace(state, facts=facts, missed=missed)

    def _unheard(self, state: CascadeProgress) -> list[Fix]:
        """The record that an environment seems to be there and was not understood."""
        phrase, path = state.missed
        if WORKING_DIRECTORY in state.facts or not phrase:
            return []
        return [make("environment_missed", path, target=NAME, detail=phrase)]

    def _head_with(self, lines: str) -> bytes:
        """The head for another environment than the system prompt's; it hardly ever changes again."""
        if self._latest[0] != lines:
            self._latest = (lines, self._head.written(lines))
        return self._latest[1]


def _written(role: str, text: str) -> bytes:
    return _encode({"role": role, "content": text})


class Cascade:
    name = NAME
    text = False
    tail_rule = "CAS-07"
    tail_rules = frozenset({"CAS-03", "CAS-07", "CAS-10", "CAS-11"})

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> CascadeDialect:
        return CascadeDialect(setting, system)
