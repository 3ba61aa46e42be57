"""OpenAI's Responses API: a flat list of items instead of messages.

Items have no ids: an id names what the provider keeps, and then an item must not stand without the one beside it
(RSP-03 to RSP-06). Reasoning goes back encrypted, to its issuer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Text, ToolUse, Unknown
from pipeline.targets._openai.rows import encode
from pipeline.targets._openai.speech import UserTurn, Voice, renamed
from pipeline.targets.base import STUB, Encoded, Ending, Row, Setting
from pipeline.targets.fitting import bare
from pipeline.targets.openai_responses.items import (
    Assistant,
    FunctionCall,
    FunctionOutput,
    OutputText,
    Refusal,
    ResponsesParts,
    User,
    reasoning_item,
    unfit_reasoning,
)
from pipeline.targets.openai_responses.parameters import NAME, write_head


class Sent(Struct, frozen=True, array_like=True):
    """How many items have been written."""

    count: int = 0


class ResponsesDialect:
    """The Responses API for one setting."""

    separator = b","
    marks_left = 0
    state = Sent()

    def __init__(self, setting: Setting, system: Sequence[Piece]) -> None:
        head = write_head(setting, [piece.block.text for piece in system if isinstance(piece.block, Text)])
        self.head, self.fixes = head.data, head.fixes
        self.prefix = head.before("input")
        self._model = setting.model
        # The structure repair leaves no id that is longer than the 64 characters of a call_id (RSP-08).
        self._voice = Voice(target=NAME, parts=ResponsesParts(), call_id=str)

    def encode(self, message: Message, state: Sent) -> Encoded:
        """Write one turn."""
        book = Book(NAME)
        write = self._assistant if message.role == "assistant" else self._user
        items, out = write(message, state.count, book)
        if not items:
            book.note("turn_stubbed", message.pieces[0].path)
            items = [Assistant(STUB) if message.role == "assistant" else User(STUB)]
            out = [("", "synthesised", "turn_stubbed", f"input.{state.count}.content")]
        after = Sent(state.count + len(items))
        data = b",".join(map(encode, items))
        return Encoded(data=data, state=after, rows=out, fixes=book.fixes, gone=book.gone)

    def end(self, messages: Sequence[Message], state: Sent, _settled: int, *, final: bool) -> Ending:  # noqa: ARG002  the API goes on with an answer as with anything else
        """Write the open turns."""
        parts: list[Encoded] = []
        for message in messages:
            parts.append(self.encode(message, state))
            state = parts[-1].state
        return Ending(parts=parts, suffix=b"]}", last=state.count - 1)

    def _assistant(self, message: Message, count: int, book: Book) -> tuple[list[Any], list[Row]]:
        unfit = unfit_reasoning(message, self._model)
        items: list[Any] = []
        out: list[Row] = []
        said: list[Piece] = []
        for at, came in enumerate(message.pieces):
            block = came.block
            if at in unfit:
                book.drop(unfit[at], came, detail=block.kind if isinstance(block, Unknown) else "")
                continue
            piece = bare(came, book, refusals=True)
            if isinstance(block, Text):
                said.append(piece)
                continue
            _say(said, items, out, count)
            said = []
            if isinstance(block, ToolUse):
                piece, call_id, name = renamed(piece, block, self._voice, book)
                item: Any = FunctionCall(call_id, name, bytes(block.input).decode().strip())
            else:
                item = reasoning_item(block)
            out.append(_row(piece, f"input.{count + len(items)}"))
            items.append(item)
        _say(said, items, out, count)
        return items, out

    def _user(self, message: Message, count: int, book: Book) -> tuple[list[Any], list[Row]]:
        turn = UserTurn(self._voice, book)
        for piece in message.pieces:
            turn.add(piece)
        items: list[Any] = [FunctionOutput(answer.tool_call_id, answer.content) for answer in turn.answers]
        rows = [_row(piece, f"input.{at}.output") for at, piece in enumerate(turn.answering, count)]
        place = f"input.{count + len(items)}.content"
        rows += [_row(piece, turn.place_of(at, place)) for at, piece in enumerate(turn.said)]
        if turn.parts:
            items.append(User(turn.alone if turn.alone is not None else turn.parts))
        return items, rows


def _row(piece: Piece, place: str) -> Row:
    return piece.path, piece.fate, piece.code, place


def _say(said: list[Piece], items: list[Any], out: list[Row], count: int) -> None:
    """Put what the assistant says at one place into one item: one text is a string, several or a refusal are parts."""
    texts = [piece.block for piece in said if isinstance(piece.block, Text)]
    if not texts:
        return
    place = f"input.{count + len(items)}.content"
    if len(texts) == 1 and not texts[0].refusal:
        out += [_row(piece, place) for piece in said]
        items.append(Assistant(texts[0].text))
        return
    out += [_row(piece, f"{place}.{at}") for at, piece in enumerate(said)]
    items.append(Assistant([Refusal(one.text) if one.refusal else OutputText(one.text) for one in texts]))


class OpenAIResponses:
    """The target ``openai-responses``."""

    name = NAME
    text = False
    # The API goes on after whatever comes last: what refuses an assistant's turn there is the policy.
    tail_rule = "RSP-23"
    tail_rules: frozenset[str] = frozenset()

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> ResponsesDialect:
        """Get ready for a session."""
        return ResponsesDialect(setting, system)
