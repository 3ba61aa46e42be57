"""Healthy messages go from bytes straight into structs, in one strict decode, and from there into turns.

Each shape declares its message and says how one becomes a turn. What does not fit, or would take a fix, is not mended
here: there is None, and the message is read tolerantly, by the same declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import GenericAlias
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.history.healthy import Stretch, healthy_stretches
from pipeline.history.readers.rawjson import MAX_NESTING, is_utf8, may_nest_too_deeply
from pipeline.model import Block, Text, Turn

Shape: TypeAlias = Literal["anthropic", "openai-chat", "bedrock-converse", "claude-code", "openai-responses", "gemini"]
CANONICAL: Final[Shape] = "anthropic"

_T = TypeVar("_T")


class Healthy(Struct, frozen=True):
    """Turns of which each was healthy, and the shape that they show; they may hold stretches with nothing to mend.

    ``shape`` is the canonical one where nothing shows that it is another.
    """

    turns: list[Turn]
    shape: Shape
    stretches: Sequence[Stretch] = ()


class StrictReader(Generic[_T]):
    """Reads healthy messages of one shape.

    Args:
        shape: the shape.
        message: the type of its messages.
        turn_of: the turn of a message at an index, or None where it needs mending.
        is_telling: whether a message can be of no other shape.
        is_sound: whether the free-form JSON in a block can stay as it is, where ``turn_of`` has not looked at that.
    """

    def __init__(
        self,
        shape: Shape,
        message: Any,  # noqa: ANN401  a type, or a union of types
        turn_of: Callable[[_T, int], Turn | None],
        is_telling: Callable[[_T], bool],
        is_sound: Callable[[Block], bool],
    ) -> None:
        self._shape = shape
        self._list: msgspec.json.Decoder[tuple[_T, ...]] = msgspec.json.Decoder(GenericAlias(tuple, (message, ...)))
        self._message: msgspec.json.Decoder[_T] = msgspec.json.Decoder(message)
        self._turn_of = turn_of
        self._is_telling = is_telling
        self._is_sound = is_sound

    def read_list(self, value: Raw | bytes) -> Healthy | None:
        """A list of which every message is healthy, or None."""
        messages = decoded(self._list, value)
        if messages is None or (turns := self._turns(messages, 0)) is None:
            return None
        stretches = healthy_stretches(turns, self._is_sound)
        if not _are_sound(_outside(turns, stretches), self._is_sound):
            return None
        return Healthy(turns, self._shape_of(messages), stretches)

    def read_message(self, value: Raw | bytes, index: int) -> Healthy | None:
        """One message if it is healthy, or None."""
        message = decoded(self._message, value)
        turn = None if message is None else self._turn(message, index)
        if message is None or turn is None or not _are_sound((turn,), self._is_sound):
            return None
        return Healthy([turn], self._shape if self._is_telling(message) else CANONICAL)

    def _turns(self, messages: Iterable[_T], first: int) -> list[Turn] | None:
        turns: list[Turn] = []
        for index, message in enumerate(messages, first):
            turn = self._turn(message, index)
            if turn is None:
                return None
            turns.append(turn)
        return turns

    def _turn(self, message: _T, index: int) -> Turn | None:
        turn = self._turn_of(message, index)
        if turn is None or turn.own is UNSET or all(map(is_harmless, turn.own.members.values())):
            return turn
        return None

    def _shape_of(self, messages: Iterable[_T]) -> Shape:
        return self._shape if any(map(self._is_telling, messages)) else CANONICAL


def _outside(turns: Sequence[Turn], stretches: Iterable[Stretch]) -> Iterator[Turn]:
    """The turns outside of the stretches, of which nobody has seen yet whether their free-form JSON is sound."""
    at = 0
    for stretch in stretches:
        yield from turns[at : stretch.start]
        at = stretch.start + stretch.turns
    yield from turns[at:]


def _are_sound(turns: Iterable[Turn], is_sound: Callable[[Block], bool]) -> bool:
    for turn in turns:
        for block in turn.blocks:
            if not (type(block) is Text and block == Text(text=block.text)) and not is_sound(block):
                return False
    return True


def decoded(decoder: msgspec.json.Decoder[_T], value: Raw | bytes) -> _T | None:
    """What a strict decode gives, or None where the value does not fit."""
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_harmless(data: Raw | bytes) -> bool:
    """The strict decode has seen to the syntax; what it passes over in raw values is the encoding and the depth."""
    data = bytes(data)
    return is_utf8(data) and not (len(data) > MAX_NESTING and may_nest_too_deeply(data))
