"""Bedrock's Converse API.

The tool configuration stands behind the messages. Converse wants one as soon as the history has calls, whether or not
anybody gave tools (BED-10): the tools that the history calls are then declared by their names, and since that list
grows, its place at the end keeps the bytes before it a prefix of the next request. The order of keys means nothing to
the service; its prompt cache starts with the tools and begins anew when one is added, as it would anywhere.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct, structs

from pipeline.fixes import make
from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import STRICT, Role, Structure, Text, ToolResult, ToolUse, Unknown
from pipeline.targets.anthropic import NO_PREFILL_SINCE, is_thinking
from pipeline.targets.anthropic.fitness import version_of
from pipeline.targets.base import (
    Encoded,
    Ending,
    HealthyTurns,
    ListDialect,
    Setting,
    row,
    stub_for,
    without_trailing_space,
)
from pipeline.targets.bedrock_converse.blocks import (
    ConverseFitting,
    is_document,
    point_behind,
    tool_name,
    written,
    written_as_they_are,
)
from pipeline.targets.bedrock_converse.fitness import MARKERS, fit_reasoning, unpaired_halves
from pipeline.targets.bedrock_converse.parameters import NAME, stub_tools, write_head
from pipeline.targets.head import before_list

# What is said beside a document, where nobody says anything (BED-21).
_BESIDE_DOCUMENT: Final = "See the attached document."
# What the assistant says between results and words that must not share a turn (BED-17).
_BETWEEN: Final = "I have the results."
_RESULTS_ALONE: Final = ("llama", "mistral")

# Which Claude was recorded to begin with the assistant, and since which the end may be its with tools as well.
_ASSISTANT_FIRST: Final = (4, 5)
_PREFILL_SINCE: Final = (3, 5)

_encode = msgspec.json.Encoder().encode


class ConverseProgress(Struct, frozen=True, array_like=True):
    """How many messages there are, the names of their documents, and the tools called where nobody declared any.

    ``numbers`` are those that repeated names were told apart by last; there were none before 0.2.0.
    """

    count: int = 0
    documents: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    numbers: dict[str, int] = {}


class ConverseDialect(ListDialect):
    def __init__(self, setting: Setting, system: Sequence[Piece]) -> None:
        self.state = ConverseProgress()
        self._observed = setting.observed
        self._model = (setting.model or "").lower()
        self._results_alone = any(name in self._model for name in _RESULTS_ALONE)
        self._results_alone = self._results_alone and "assistant_inserted" not in self._observed
        head = write_head(setting, system)
        self.fixes = head.fixes
        self._before = _encode(head.keys)
        self._tools = head.tools
        self._points_left = head.points_left
        self.head = self._whole_head(head.tools)
        self.prefix = before_list(self._before, "messages")

    def encode_message(self, message: Message, state: ConverseProgress, *, final: bool) -> Encoded:
        """Write one message; what it says for good sets no breakpoints, since only the newest are worth one."""
        return self._write(message, state, final=final)

    def _write(self, message: Message, state: ConverseProgress, *, final: bool, points: Container[str] = ()) -> Encoded:
        book = Book(NAME, self._observed)
        fitting = ConverseFitting(
            book=book, model=self._model, before=state.documents, numbers=state.numbers, points=points
        )
        halves = unpaired_halves(message, self._model) if "nova" in self._model else set()
        pieces = fitting.fit_message(message.pieces, dict.fromkeys(halves, "server_tool_unpaired"))
        # Reasoning is judged last: a turn that has lost a block to the fitting keeps none of it.
        fitted = structs.replace(message, pieces=pieces, changed=message.changed | fitting.dropped)
        pieces = fit_reasoning(fitted, self._model, book)
        if final:
            pieces = without_trailing_space(pieces, book)
        turns = self._turns(message, _worded(message, pieces, book), state.count, book)
        tools = state.tools
        if not self._tools:
            called = (piece.block.name for piece in fitting.out if isinstance(piece.block, ToolUse))
            tools = tuple(dict.fromkeys((*tools, *called)))
        return Encoded(
            data=b",".join(
                _encode({"role": role, "content": [written(p.block) for p in pieces]}) for role, pieces in turns
            ),
            state=ConverseProgress(state.count + len(turns), fitting.titles, tools, fitting.numbers),
            rows=[
                row(piece, f"messages.{number}.content.{at}")
                for number, (_, pieces) in enumerate(turns, state.count)
                for at, piece in enumerate(pieces)
            ],
            fixes=book.fixes,
            gone=book.gone,
        )

    def encode_healthy(self, healthy: HealthyTurns, start: int, state: ConverseProgress) -> tuple[Encoded, int] | None:
        """Write healthy messages, if their tools' names can stay and nothing is put between or into them."""
        if self._results_alone or not self._tools or any(tool_name(name) != name for name in healthy.names):
            return None
        data, count = written_as_they_are(healthy, start, self._model)
        behind = structs.replace(state, count=state.count + count)
        return (Encoded(data=data, state=behind), start + count) if count else None

    def encode_ending(
        self, messages: Sequence[Message], state: ConverseProgress, settled: int, *, final: bool
    ) -> Ending:
        """Write the open messages and, behind them, the tools; an answer to go on with ends in no whitespace."""
        del settled
        write = partial(self._write, points=self._newest_points(messages))
        parts = self.encode_open(messages, state, final=final, write=write)
        state = parts[-1].state if parts else state
        if self._tools or not state.tools or "tools_stubbed" in self._observed:
            return Ending(parts=parts, suffix=self._suffix(self._tools), last=state.count - 1)
        tools = stub_tools(state.tools)
        fix = make("tools_stubbed", "toolConfig", target=NAME, detail=", ".join(state.tools))
        parts.append(Encoded(data=b"", state=state, fixes=[fix]))
        return Ending(parts=parts, suffix=self._suffix(tools), head=self._whole_head(tools), last=state.count - 1)

    def _newest_points(self, messages: Sequence[Message]) -> frozenset[str]:
        """The places of the open blocks whose breakpoints there is room for."""
        marked = [piece.path for message in messages for piece in message.pieces if point_behind(piece.block)]
        return frozenset(marked[-self._points_left :] if self._points_left else ())

    def _turns(self, message: Message, pieces: list[Piece], count: int, book: Book) -> list[tuple[str, list[Piece]]]:
        """The message as one, or as three where results stand alone."""
        results = [piece for piece in pieces if isinstance(piece.block, ToolResult)]
        if not self._results_alone or not results or len(results) == len(pieces):
            return [(message.role, pieces)]
        words = [piece for piece in pieces if not isinstance(piece.block, ToolResult)]
        book.note_fix("assistant_inserted", f"messages.{count + 1}.content.0")
        between = Piece(Text(text=_BETWEEN), -1, "", fate="synthesised", code="assistant_inserted")
        return [("user", results), ("assistant", [between]), ("user", words)]

    def _suffix(self, tools: bytes) -> bytes:
        return b'],"toolConfig":%b}' % tools if tools else b"]}"

    def _whole_head(self, tools: bytes) -> bytes:
        if not tools:
            return self._before
        return self._before[:-1] + (b"," if len(self._before) > 2 else b"") + b'"toolConfig":%b}' % tools


def _worded(message: Message, pieces: list[Piece], book: Book) -> list[Piece]:
    """The pieces with the words that the service misses: beside a document, or in a turn that has nothing else."""
    said = [piece for piece in pieces if not (isinstance(piece.block, Unknown) and piece.block.kind in MARKERS)]
    if not said:
        return [stub_for(message, book), *pieces]
    document = next((piece for piece in said if is_document(piece.block)), None)
    if document is None or any(isinstance(piece.block, Text) for piece in said):
        return pieces
    if not book.makes("document_text_added"):
        return pieces
    book.note_fix("document_text_added", document.path, tool_id=document.tool_id)
    added = Piece(Text(text=_BESIDE_DOCUMENT), -1, "", fate="synthesised", code="document_text_added")
    return [*pieces, added]


class BedrockConverse:
    name = NAME
    text = False
    tail_rule = "BED-11"
    tail_rules = frozenset({"BED-01", "BED-03b", "BED-11", "BED-11b"})

    def structure(self, setting: Setting) -> Structure:
        """What recorded requests were accepted with, by the model's family."""
        model = (setting.model or "").lower()
        both: frozenset[Role] = frozenset({"user", "assistant"})
        if "claude" in model:
            version = version_of(model)
            prefill = version is not None and _PREFILL_SINCE <= version < NO_PREFILL_SINCE and not is_thinking(setting)
            return Structure(assistant_first=version == _ASSISTANT_FIRST, assistant_last="text" if prefill else "never")
        if "nova" in model:
            return Structure(neighbours=both, blank=both, blank_results=True, ids_again=True)
        return Structure(neighbours=both) if "titan" in model else STRICT

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> ConverseDialect:
        return ConverseDialect(setting, system)
