"""Healthy messages go from bytes straight into structs, in one strict decode, and from there into turns.

Each shape declares its message and says how one becomes a turn. What does not fit, or would take a fix, is not mended
here: there is None, and the message is read tolerantly, by the same declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import GenericAlias
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.history.healthy import IsSound, Stretch, healthy_stretches
from pipeline.history.readers.rawjson import MAX_NESTING, is_utf8, may_nest_too_deeply
from pipeline.model import Block, Own, Text, Turn

Shape: TypeAlias = Literal[
    "anthropic", "openai-chat", "bedrock-converse", "claude-code", "openai-responses", "gemini", "gemini-chat"
]
CANONICAL: Final[Shape] = "anthropic"

Placed: TypeAlias = tuple[Block, str]
"""A block and its place in the input."""

_T = TypeVar("_T")

# How many parts of a content may not fit for the others to be read together.
_MISFITS: Final = 2
# Where msgspec says that a list does not fit.
_INDEX: Final = re.compile(r"`\$\[(\d+)\]")

# The usual keys beside ``messages``, in the order in which they then stand in a body.
_USUAL_KEYS: Final = (
    "system tools model params max_tokens max_completion_tokens temperature top_p top_k stop stop_sequences stream "
    "stream_options thinking tool_choice parallel_tool_calls response_format metadata cache_control modelId toolConfig "
    "inferenceConfig additionalModelRequestFields additionalModelResponseFieldPaths guardrailConfig outputConfig "
    "performanceConfig promptVariables requestMetadata serviceTier"
)
_USUAL: Final = tuple(_USUAL_KEYS.split())


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
        is_sound: whether the free-form JSON in a block can stay as it is; None where ``turn_of`` has looked at that.
    """

    def __init__(
        self,
        shape: Shape,
        message: Any,  # noqa: ANN401  a type, or a union of types
        turn_of: Callable[[_T, int], Turn | None],
        is_telling: Callable[[_T], bool],
        is_sound: IsSound | None = None,
    ) -> None:
        messages = GenericAlias(tuple, (message, ...))
        beside = [(key, Raw | UnsetType, UNSET) for key in _USUAL]
        document = msgspec.defstruct("Document", [("messages", messages), *beside], forbid_unknown_fields=True)
        self._shape = shape
        self._document: msgspec.json.Decoder[Any] = msgspec.json.Decoder(document)
        self._list: msgspec.json.Decoder[tuple[_T, ...]] = msgspec.json.Decoder(messages)
        self._message: msgspec.json.Decoder[_T] = msgspec.json.Decoder(message)
        self._turn_of = turn_of
        self._is_telling = is_telling
        self._is_sound = is_sound

    def read_document(self, text: bytes) -> tuple[Healthy, dict[str, Raw]] | None:
        """A document with only the usual keys beside its messages, which are all healthy, and these keys; or None."""
        document = decoded(self._document, text)
        healthy = None if document is None else self._healthy(document.messages)
        if healthy is None:
            return None
        return healthy, {key: value for key in _USUAL if (value := getattr(document, key)) is not UNSET}

    def read_list(self, value: Raw | bytes) -> Healthy | None:
        """A list of which every message is healthy, or None."""
        messages = decoded(self._list, value)
        return None if messages is None else self._healthy(messages)

    def read_message(self, value: Raw | bytes, index: int) -> Healthy | None:
        """One message if it is healthy, or None."""
        message = decoded(self._message, value)
        turn = None if message is None else self._turn_of(message, index)
        if message is None or turn is None or (self._is_sound and not _are_sound((turn,), self._is_sound)):
            return None
        if turn.own is not UNSET and not _is_own_harmless(turn.own):
            return None
        return Healthy([turn], self._shape if self._is_telling(message) else CANONICAL)

    def _healthy(self, messages: Sequence[_T]) -> Healthy | None:
        turns = self._turns(messages, 0)
        if turns is None:
            return None
        if self._is_sound is None:
            stretches = healthy_stretches(turns)
        else:
            stretches = healthy_stretches(turns, self._is_sound)
            if not _are_sound(_outside(turns, stretches), self._is_sound):
                return None
        is_told = self._shape != CANONICAL and any(map(self._is_telling, messages))
        return Healthy(turns, self._shape if is_told else CANONICAL, stretches)

    def _turns(self, messages: Iterable[_T], first: int) -> list[Turn] | None:
        turns: list[Turn] = []
        turn_of = self._turn_of
        for index, message in enumerate(messages, first):
            turn = turn_of(message, index)
            if turn is None or not (turn.own is UNSET or _is_own_harmless(turn.own)):
                return None
            turns.append(turn)
        return turns


class StrictParts(Generic[_T]):
    """Reads the parts of a content that are healthy, where others of its parts or its message are not.

    Args:
        parts: decodes a list of healthy parts.
        read_one: the blocks of a part at a path, or None where it needs mending.
    """

    def __init__(
        self, parts: msgspec.json.Decoder[tuple[_T, ...]], read_one: Callable[[_T, str], list[Placed] | None]
    ) -> None:
        self._list = parts
        self._read_one = read_one

    def read(self, items: Sequence[Raw], path: str) -> dict[int, list[Placed]]:
        """The blocks of each part that is healthy, in few decodes, by its index in the content at a path.

        A part that does not fit is left out and the others are decoded again; where many do not, none is read here.
        """
        # A part that is alone is as quickly mended.
        if len(items) == 1:
            return {}
        left = list(range(len(items)))
        for _ in range(_MISFITS + 1):
            try:
                parts = self._list.decode(b"[%b]" % b",".join([items[at] for at in left]))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                misfit = _INDEX.search(str(error))
                if misfit is None:
                    return {}
                del left[int(misfit[1])]
                continue
            read = ((at, self._read_one(part, f"{path}.{at}")) for at, part in zip(left, parts, strict=True))
            return {at: placed for at, placed in read if placed is not None}
        return {}


def _outside(turns: Sequence[Turn], stretches: Iterable[Stretch]) -> Iterator[Turn]:
    """The turns outside of the stretches, of which nobody has seen yet whether their free-form JSON is sound."""
    at = 0
    for stretch in stretches:
        yield from turns[at : stretch.start]
        at = stretch.start + stretch.turns
    yield from turns[at:]


def _are_sound(turns: Iterable[Turn], is_sound: IsSound) -> bool:
    for turn in turns:
        for block in turn.blocks:
            if not (type(block) is Text and block == Text(text=block.text)) and not is_sound(block):
                return False
    return True


def _is_own_harmless(own: Own) -> bool:
    return all(map(is_harmless, own.members.values()))


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
