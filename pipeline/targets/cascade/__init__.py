"""A planner that takes text only (Windsurf's Cascade, and models reached through it): tools emulated in text.

A body is ``{"model", "system", "messages": [{"role", "content": TEXT}], …}``. The system slot holds the authoritative
preamble, the caller's environment first, then the system prompt; a call is a ``<tool_call>`` line of the assistant's,
a result a ``<tool_result tool_call_id="…">`` of the user's, in front of what the user says. The latest turn of the
user's that is no result has the one-line fallback before it. Request parameters that other APIs share go under
Anthropic's names; whoever passes the body on decides about them.

The fallback belongs to the latest turn of the user's and to no other. So that it never has to be taken back from
settled bytes, a settled user turn is held until the assistant's answer is settled too: both are one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Text, Tool
from pipeline.targets import Encoded, Ending, Setting
from pipeline.targets.cascade.turns import passes_for_result, write_turn
from pipeline.targets.head import CHOICES, COMMON, Declared, HeadShape, HeadWriter, before_list
from pipeline.text.flatten import given_system
from pipeline.text.preamble import (
    WORKING_DIRECTORY,
    environment_facts,
    environment_lines,
    nearest_phrase,
    tool_fallback,
    tool_preamble,
)
from pipeline.text.redaction import Redactor

NAME: Final = "cascade"
_BETWEEN: Final = "\n\n"
_PASSED: Final = COMMON | {"metadata", "stream", "user"}
_SHAPE: Final = HeadShape(
    target=NAME,
    elsewhere=frozenset({"cache_control", "messages", "model", "system", "tool_choice", "tools"}),
    choices=CHOICES,
)

_encode = msgspec.json.Encoder().encode


class CascadeHead(Struct, frozen=True):
    """A request without its messages, but for the environment, which the messages may have to tell.

    Attributes:
        keys: model and parameters.
        tools: those that can be called in text.
        choice: the tool choice, in any shape.
        prompt: the caller's own system prompt.
        line: the fallback for the user's turn, ``""`` where there is nothing to call.
        fixes: what was mended.
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


def prepare_head(setting: Setting, system: Sequence[Piece]) -> CascadeHead:
    writer = HeadWriter(_SHAPE, setting)
    params = writer.read_params()
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    keys |= writer.placed(params, params.each_of(_PASSED))
    tools = tuple(_told(each, writer) for each in writer.declared_tools())
    choice = writer.choice(params, tools=True) if tools else None
    words = [*given_system(setting.system, NAME, writer.fixes), *writer.system_rows(system)]
    prompt = "\n\n".join(piece.block.text for piece in words if isinstance(piece.block, Text))
    # Where no tool may be called, the user's turn must not show how to.
    line = "" if choice is not None and choice.kind == "none" else tool_fallback(tools)
    given = None if choice is None else msgspec.json.decode(params.values["tool_choice"])
    return CascadeHead(keys=keys, tools=tools, choice=given, prompt=prompt, line=line, fixes=writer.fixes)


def _told(tool: Declared, writer: HeadWriter) -> Tool:
    writer.note_unread(tool, "cache_control")
    return tool.tool


class CascadeProgress(Struct, frozen=True, array_like=True):
    """What the turns so far leave behind.

    Attributes:
        held: the text of a user's turn that has not been written yet.
        facts: what was lifted of the environment. Once a directory is among them they stay as they are, for the
            head of a request must not change with every turn.
        missed: a phrase that looked like an environment before there was one, and where it stands.
    """

    held: str | None = None
    facts: dict[str, str] = {}
    missed: tuple[str, str] = ("", "")


class _Row(Struct, frozen=True):
    role: str
    content: str


class CascadeDialect:
    separator = b","
    marks_left = 0

    def __init__(self, setting: Setting, system: Sequence[Piece]) -> None:
        self._head = prepare_head(setting, system)
        self._redactor = Redactor()
        self.fixes: list[Fix] = self._head.fixes
        self.state = self._heard(self._head.prompt, "system", CascadeProgress())
        self._lines = environment_lines(self.state.facts)
        self.head = self._head.written(self._lines)
        self.prefix = before_list(self.head, "messages")
        self._latest = (self._lines, self.head)

    def encode(self, message: Message, state: CascadeProgress) -> Encoded:
        """Write a turn: an assistant's together with the user's before it, a user's not yet."""
        book = Book(NAME)
        text, rows = write_turn(message, book)
        written = [] if state.held is None else [_written("user", state.held)]
        if message.role == "user":
            state = structs.replace(self._listened(message, state), held=text)
        else:
            written.append(_written("assistant", text))
            state = structs.replace(state, held=None)
        return Encoded(data=b",".join(written), state=state, rows=rows, fixes=book.fixes, gone=book.gone)

    def encode_ending(
        self,
        messages: Sequence[Message],
        state: CascadeProgress,
        settled: int,
        *,
        final: bool,
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
        # The directory is the user's to tell: the head is not the one that was prepared, and promises no prefix.
        head = self._head_with(lines)
        return Ending(parts=parts, suffix=b"]}", prefix=before_list(head, "messages"), head=head)

    def _announced(self, state: CascadeProgress) -> CascadeProgress:
        """The held turn with the fallback before it, unless it is results: those the model takes up by itself."""
        if state.held is None or not self._head.line or passes_for_result(state.held):
            return state
        return structs.replace(state, held=self._head.line + _BETWEEN + state.held)

    # The environment.

    def _listened(self, message: Message, state: CascadeProgress) -> CascadeProgress:
        """What the user's words add; a result that became text is not the user's."""
        said = [piece for piece in message.pieces if isinstance(piece.block, Text) and piece.fate != "flattened"]
        text = "\n".join(piece.block.text for piece in said if isinstance(piece.block, Text))
        return self._heard(text, said[0].path, state) if said else state

    def _heard(self, text: str, path: str, state: CascadeProgress) -> CascadeProgress:
        if not self._head.tools or not text or WORKING_DIRECTORY in state.facts:
            return state
        found = environment_facts(text, self._redactor)
        # What was said first counts, and stands first.
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
    return _encode(_Row(role, text))


class Cascade:
    name = NAME
    text = False
    tail_rule = "CAS-07"
    tail_rules = frozenset({"CAS-03", "CAS-07", "CAS-10", "CAS-11"})

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> CascadeDialect:
        return CascadeDialect(setting, system)
