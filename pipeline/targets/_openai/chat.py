"""A chat in OpenAI's shape, message by message.

A turn of the repaired history becomes one or several messages: an assistant's turn one with its calls; a user's turn a
tool message for each result, then one user message with media out of the results and what the user said. The system
prompt is the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Text, Thinking, ToolUse
from pipeline.targets._openai.families import Chat, Template
from pipeline.targets._openai.parameters import system_text
from pipeline.targets._openai.rows import call, encode
from pipeline.targets._openai.speech import (
    AssistantTurn,
    Said,
    UserTurn,
    Voice,
    content_of,
    own_members,
    system_message,
    system_messages,
)
from pipeline.targets.base import Encoded, Ending, Row, Setting, WrittenHead, stub_for
from pipeline.targets.fitting import in_common_words, system_rows

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
        prompt = system_text(setting.system, voice.target, self.fixes)
        # A template with one system message has no place for whose each was.
        owners = frozenset() if template.one_system else voice.owners
        system = system_rows(system, voice.target, self.fixes, owners)
        self._system = system_messages(prompt, system, voice, joined=template.one_system, takes=model.system)

    def encode(self, message: Message, state: Sent) -> Encoded:
        """Write one turn."""
        return self._write(message, state, final=False)

    def end(self, messages: Sequence[Message], state: Sent, _settled: int, *, final: bool) -> Ending:
        """Write the open turns; a system prompt stays where there is nothing else."""
        parts: list[Encoded] = []
        for at, message in enumerate(messages):
            parts.append(self._write(message, state, final=final and at == len(messages) - 1))
            state = parts[-1].state
        if not state.count and self._system:
            state = Sent(len(self._system))
            parts.append(Encoded(data=b",".join(map(encode, self._system)), state=state))
        return Ending(parts=parts, suffix=b"]}", last=state.count - 1)

    def _write(self, message: Message, state: Sent, *, final: bool) -> Encoded:
        book = Book(self._voice.target)
        message = in_common_words(message, book)
        rows: list[Row] = []
        first = [] if state.count else self._system
        count = state.count + len(first)
        if message.role == "system":
            written, waiting = [self._system_row(message, count, rows)], list[Waiting]()
        elif message.role == "assistant":
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
            turn.add_piece(piece)
        if not (turn.texts or turn.calls or turn.refusals):
            turn.say(stub_for(message, book))
        calls, waiting = turn.calls, []
        if self._template.single_call and len(calls) > 1:
            turn.serialise()
            waiting = [
                Waiting(call["id"], call["function"]["name"] if at else "", call["function"]["arguments"] if at else "")
                for at, call in enumerate(calls)
            ]
            calls = calls[:1]
        rows += _assistant_rows(turn, f"messages.{count}", count if waiting else None)
        row: dict[str, Any] = {"role": "assistant", "content": self._content(turn.texts), **turn.beside}
        if turn.texts:
            row["content"] = self._content(turn.texts)
        if turn.refusals:
            row["refusal"] = "\n".join(turn.refusals)
        reasoning = "\n".join(turn.reasoning)
        if reasoning or (calls and self._model.echo):
            row["reasoning_content"] = reasoning
        if calls:
            row["tool_calls"] = list(calls)
        if final and self._template.prefix:
            row["prefix"] = True
        return [row], waiting

    def _system_row(self, message: Message, count: int, rows: list[Row]) -> dict[str, Any]:
        row = system_message(message.pieces, self._voice, self._model.system)
        place = f"messages.{count}.content"
        many = isinstance(row["content"], list)
        rows += [_row(piece, f"{place}.{at}" if many else place) for at, piece in enumerate(message.pieces)]
        return row

    def _content(self, texts: list[Text]) -> str | list[Any] | None:
        return content_of(texts, self._voice.parts) if texts else None

    def _user(self, message: Message, state: Sent, count: int, book: Book, rows: list[Row]) -> list[Any]:
        turn = UserTurn(self._voice, book)
        for piece in message.pieces:
            turn.add_piece(piece)
        if not (turn.answers or turn.said):
            turn.say(stub_for(message, book))
        written = _in_turn(state.waiting, turn)
        places = [at for at, row in enumerate(written, count) if row["role"] == "tool"]
        rows += [_row(piece, f"messages.{at}.content") for (piece, *_), at in zip(turn.answers, places, strict=True)]
        if written and turn.said and self._template.answer_first:
            place = f"messages.{count + len(written)}.content"
            book.note_fix("assistant_inserted", place)
            written.append({"role": "assistant", "content": ANSWERED})
            rows.append(("", "synthesised", "assistant_inserted", place))
        for said in turn.said:
            assert isinstance(said, Said)  # noqa: S101  a chat has no items
            rows += said.rows(f"messages.{count + len(written)}.content")
            written.append({"role": "user", "content": said.content, **said.beside})
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
    answers = [
        {"role": "tool", "tool_call_id": call_id, "content": content, **own_members(piece.own)}
        for piece, call_id, content in turn.answers
    ]
    if not waiting:
        return answers
    by_id = {answer["tool_call_id"]: answer for answer in answers}
    written: list[Any] = []
    for one in waiting:
        if one.name:
            again = call(one.id, one.name, msgspec.Raw(one.arguments.encode()))
            written.append({"role": "assistant", "content": None, "tool_calls": [again]})
        if (answer := by_id.pop(one.id, None)) is not None:
            written.append(answer)
    return [*written, *by_id.values()]
