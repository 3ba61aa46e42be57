"""Gemini's generateContent: a turn is a content, a block a part of it.

Calls and responses are matched by their order and number, so responses come in the order of their calls. Ids that came
in this shape go back; those of other shapes are sent to the models that write ids themselves, Gemini 3 and later, as
some older surfaces refuse them (GEM-11). Ids that reading made up are never sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pipeline.history.exchanges import calls_last
from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Structure, Thinking, ToolUse
from pipeline.targets.base import Encoded, ListDialect, Setting, row, stub_for
from pipeline.targets.fitting import in_common_words
from pipeline.targets.gemini.blocks import (
    GeminiFitting,
    in_order,
    shows_id,
    signed,
    unfit_reasoning,
    wants_signatures,
    written,
)
from pipeline.targets.gemini.parameters import NAME, write_head

_encode = msgspec.json.Encoder().encode


class GeminiProgress(Struct, frozen=True, array_like=True):
    """How many contents there are, and the calls of the last one: the function's name by the call's id.

    ``unnamed`` are the ids of those calls that were written without their id.
    """

    count: int = 0
    calls: dict[str, str] = {}
    unnamed: frozenset[str] = frozenset()


class GeminiDialect(ListDialect):
    def __init__(self, setting: Setting, system: Sequence[Piece]) -> None:
        self.state = GeminiProgress()
        self._model = setting.model
        self._observed = setting.observed
        self._newer = wants_signatures(setting.model)
        head = write_head(setting, system)
        self.fixes = head.fixes
        self.head = head.data
        self.prefix = head.before("contents")

    def encode_message(self, message: Message, state: GeminiProgress, *, final: bool) -> Encoded:  # noqa: ARG002  an answer to go on with is written as any
        book = Book(NAME, self._observed)
        message = in_common_words(message, book)
        fitting = GeminiFitting(book=book, media_in_results=self._newer)
        pieces = fitting.fit_message(message.pieces, unfit_reasoning(message, self._model))
        if all(isinstance(piece.block, Thinking) for piece in pieces) and (not pieces or book.makes("reasoning_alone")):
            for piece in pieces:
                book.drop("reasoning_alone", piece)
            pieces = [stub_for(message, book)]
        # A response names its call's function, which only the turn before tells.
        calls, unnamed = state.calls, state.unnamed
        if message.role == "assistant":
            if book.fixes:
                # A line of text may now stand for an image behind a call.
                pieces = calls_last(pieces, set(), book)
            called = {piece.block.id: piece for piece in pieces if isinstance(piece.block, ToolUse)}
            calls = {call_id: piece.block.name for call_id, piece in called.items()}  # type: ignore[union-attr]  # calls
            named = {each for each, piece in called.items() if shows_id(piece, calls[each], always=self._newer)}
            if named and not self._newer:
                # Beside a call with its id, one without would take the results of both.
                named = {each for each, piece in called.items() if shows_id(piece, calls[each], always=True)}
            unnamed = frozenset(calls.keys() - named)
        else:
            pieces = in_order(pieces, calls, book)
        parts = signed(pieces, state.count, book, placeholders=self._newer)
        role = "model" if message.role == "assistant" else message.role
        shown = [written(part, calls, unnamed, always=self._newer) for part in parts]
        return Encoded(
            data=_encode({"role": role, "parts": shown}),
            state=GeminiProgress(state.count + 1, calls, unnamed),
            rows=[row(part.piece, f"contents.{state.count}.parts.{at}") for at, part in enumerate(parts)],
            fixes=book.fixes,
            gone=book.gone,
        )


class Gemini:
    name = NAME
    text = False
    tail_rule = "GEM-09"
    tail_rules = frozenset({"GEM-05", "GEM-09"})

    def structure(self, setting: Setting) -> Structure:  # noqa: ARG002  all models have it from the API, images that some of them draw included
        return Structure(
            assistant_last="always",
            neighbours=frozenset({"user"}),
            assistant_media=True,
            unanswered=True,
            blank=frozenset({"user", "assistant"}),
            ids_again=True,
            own=NAME,
        )

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> GeminiDialect:
        return GeminiDialect(setting, system)
