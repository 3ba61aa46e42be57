"""A chat in OpenAI's shape, message by message.

A turn of the repaired history becomes one or several messages: an assistant's turn one with its calls; a user's turn a
tool message for each result, then one user message with media out of the results and what the user said. The system
prompt is the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from pipeline.history.clean import SYSTEM_MARK
from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Text, Thinking, ToolUse
from pipeline.targets._openai.families import Chat, Template
from pipeline.targets._openai.parameters import system_text
from pipeline.targets._openai.rows import Answer, Assistant, System, User, call, encode
from pipeline.targets._openai.speech import AssistantTurn, UserTurn, Voice
from pipeline.targets.base import Encoded, Ending, Row, Setting, WrittenHead, stub_for

# What the assistant says between results and the user where the template wants it to.
ANSWERED: Final = "Understood."


class Waiting(Struct, frozen=True, array_like=True):
    """A call whose result comes with the next turn; it is written with that if it has not been already."""

    id: str
    name: str = ""
    arguments: str = ""


class Sent(Struct, frozen=True, array_like=True):
    """How many messages have been written, and the calls of the last one, if it may show only one at a time."""

    count: int = 0
    waiting: list[Waiting] = []


class ChatDialect:
    """The chat for one setting."""

    separator = b","
    marks_left = 0
    state = Sent()

    def __init__(
        self,
        voice: Voice,
        head: WrittenHead,
        setting: Setting,
        system: Sequence[Piece],
        *,
        model: Chat,
        template: Template,
    ) -> None:
        self.head = head.data
        self.fixes = head.fixes
        self.prefix = head.before("messages")
        self._voice = voice
        self._model = model
        self._template = template
        rows = [piece.block.text for piece in system if isinstance(piece.block, Text)]
        prompt = system_text(setting.system, rows, voice.target, self.fixes)
        self._system: System | User | None = None
        if prompt:
            self._system = System(prompt) if model.system else User(SYSTEM_MARK + prompt)

    def encode(self, message: Message, state: Sent) -> Encoded:
        """Write one turn."""
        return self._write(message, state, final=False)

    def end(self, messages: Sequence[Message], state: Sent, _settled: int, *, final: bool) -> Ending:
        """Write the open turns; a system prompt stays where there is nothing else."""
        parts: list[Encoded] = []
        for at, message in enumerate(messages):
            parts.append(self._write(message, state, final=final and at == len(messages) - 1))
            state = parts[-1].state
        if not state.count and self._system is not None:
            state = Sent(1)
            parts.append(Encoded(data=encode(self._system), state=state))
        return Ending(parts=parts, suffix=b"]}", last=state.count - 1)

    def _write(self, message: Message, state: Sent, *, final: bool) -> Encoded:
        book = Book(self._voice.target)
        rows: list[Row] = []
        first = [self._system] if self._system is not None and not state.count else []
        count = state.count + len(first)
        if message.role == "assistant":
            written, waiting = self._assistant(message, count, book, rows, final=final)
        else:
            written, waiting = self._user(message, state, count, book, rows), []
        data = b",".join(map(encode, [*first, *written]))
        after = Sent(count + len(written), waiting)
        return Encoded(data=data, state=after, rows=rows, fixes=book.fixes, gone=book.gone)

    def _assistant(
        self, message: Message, count: int, book: Book, rows: list[Row], *, final: bool
    ) -> tuple[list[Any], list[Waiting]]:
        turn = AssistantTurn(self._voice, book)
        for piece in message.pieces:
            turn.add(piece)
        if not (turn.texts or turn.calls or turn.refusals):
            turn.say(stub_for(message, book))
        calls, waiting = turn.calls, []
        if self._template.single_call and len(calls) > 1:
            turn.serialise()
            waiting = [
                Waiting(call.id, call.function.name if at else "", call.function.arguments if at else "")
                for at, call in enumerate(calls)
            ]
            calls = calls[:1]
        rows += _assistant_rows(turn, f"messages.{count}", count if waiting else None)
        reasoning = "\n".join(turn.reasoning)
        row = Assistant(
            content=self._content(turn.texts),
            refusal="\n".join(turn.refusals) if turn.refusals else UNSET,
            reasoning_content=reasoning if reasoning or (calls and self._model.echo) else UNSET,
            tool_calls=list(calls) if calls else UNSET,
            prefix=True if final and self._template.prefix else UNSET,
        )
        return [row], waiting

    def _content(self, texts: list[str]) -> str | list[Any] | None:
        if len(texts) > 1:
            return [self._voice.parts.text(text) for text in texts]
        return texts[0] if texts else None

    def _user(self, message: Message, state: Sent, count: int, book: Book, rows: list[Row]) -> list[Any]:
        turn = UserTurn(self._voice, book)
        for piece in message.pieces:
            turn.add(piece)
        if not (turn.answers or turn.parts):
            turn.say(stub_for(message, book))
        written = _in_turn(state.waiting, turn)
        places = [at for at, row in enumerate(written, count) if isinstance(row, Answer)]
        rows += [_row(piece, f"messages.{at}.content") for piece, at in zip(turn.answering, places, strict=True)]
        if written and turn.parts and self._template.answer_first:
            book.note("assistant_inserted", f"messages.{count + len(written)}.content")
            written.append(Assistant(content=ANSWERED))
            rows.append(("", "synthesised", "assistant_inserted", f"messages.{count + len(written) - 1}.content"))
        place = f"messages.{count + len(written)}.content"
        rows += [_row(piece, turn.place_of(at, place)) for at, piece in enumerate(turn.said)]
        if turn.parts:
            written.append(User(turn.alone if turn.alone is not None else turn.parts))
        return written


def _row(piece: Piece, place: str) -> Row:
    return piece.path, piece.fate, piece.code, place


def _assistant_rows(turn: AssistantTurn, place: str, alone: int | None) -> list[Row]:
    """The rows of an assistant's message; with ``alone``, its number, each call but the first has a later one."""
    rows: list[Row] = []
    said = called = 0
    for piece in turn.out:
        if isinstance(piece.block, ToolUse):
            at = f"{place}.tool_calls.{called}"
            if alone is not None and called:
                # The results stand between: call, result, call, result.
                at = f"messages.{alone + 2 * called}.tool_calls.0"
            called += 1
        elif isinstance(piece.block, Thinking):
            at = f"{place}.reasoning_content"
        elif isinstance(piece.block, Text) and piece.block.refusal:
            at = f"{place}.refusal"
        else:
            at = f"{place}.content.{said}" if len(turn.texts) > 1 else f"{place}.content"
            said += 1
        rows.append(_row(piece, at))
    return rows


def _in_turn(waiting: Sequence[Waiting], turn: UserTurn) -> list[Any]:
    """The tool messages; where a message has one call at a time, each behind its own call."""
    if not waiting:
        return list(turn.answers)
    by_id = {answer.tool_call_id: answer for answer in turn.answers}
    written: list[Any] = []
    for one in waiting:
        if one.name:
            again = call(one.id, one.name, msgspec.Raw(one.arguments.encode()))
            written.append(Assistant(content=None, tool_calls=[again]))
        if (answer := by_id.pop(one.id, None)) is not None:
            written.append(answer)
    return [*written, *by_id.values()]
