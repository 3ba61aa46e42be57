"""The strict reader: valid messages are decoded from bytes into structs in one pass, and from those into turns.

Each shape declares its message and how one becomes a turn. A message that does not fit, or would need a fix, gives None
here and is read tolerantly, by the same declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import GenericAlias
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.history.readers.fields import Fields
from reknit.pipeline.history.readers.rawjson import MAX_NESTING, is_utf8, may_nest_too_deeply, starts_with
from reknit.pipeline.history.readers.tolerant import MISFITS, Declared, declared_in, members_of
from reknit.pipeline.history.valid_runs import IsSound, ValidRun, find_valid_runs
from reknit.pipeline.model import Own, Role, Text, Turn

Shape: TypeAlias = Literal[
    "anthropic",
    "openai-chat",
    "bedrock-converse",
    "claude-code",
    "openai-responses",
    "gemini",
    "gemini-chat",
    "codex-rollout",
]
FrameworkShape: TypeAlias = Literal[
    "langchain",
    "pydantic-ai",
    "ag-ui",
    "ai-sdk-model",
    "ai-sdk-ui",
    "otel-genai",
    "adk-events",
    "opencode",
    "llama-index",
    "haystack",
    "autogen",
    "semantic-kernel",
    "goose",
    "mastra",
    "letta",
    "pi-session",
    "copilot-events",
    "acp",
    "agentcore-memory",
    "cline",
    "openai-agents",
]
"""The shapes in which agent frameworks store histories (`reknit.pipeline.history.frameworks`)."""
CANONICAL: Final[Shape] = "anthropic"
ROLES: Final[dict[str, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "user",
    "function": "user",
}
"""The roles in lists of messages, and what they are in the canonical form."""

_T = TypeVar("_T")

_encode = msgspec.json.Encoder().encode

# The way on which msgspec says that a member is not declared: members, and an index in each that is a list.
_STEPS: Final = re.compile(r"\.(\w+)(?:\[(\d+)\])?")
_UNDECLARED: Final = "Object contains unknown field"

# The usual keys besides ``messages``, in their order in a body.
_USUAL_KEYS: Final = (
    "system tools model params max_tokens max_completion_tokens temperature top_p top_k stop stop_sequences stream "
    "stream_options thinking tool_choice parallel_tool_calls response_format metadata cache_control modelId toolConfig "
    "inferenceConfig additionalModelRequestFields additionalModelResponseFieldPaths guardrailConfig outputConfig "
    "performanceConfig promptVariables requestMetadata serviceTier"
)
_USUAL: Final = tuple(_USUAL_KEYS.split())


class ValidTurns(Struct, frozen=True):
    """Turns that are all valid as is, and the shape that they indicate; they may hold runs that need no repair.

    ``shape`` is the canonical one if nothing indicates another. ``decides``: a single message has a key by which only
    this shape can be that of the messages after it. ``reader`` is the reader of a list.
    """

    turns: list[Turn]
    shape: Shape
    valid_runs: Sequence[ValidRun] = ()
    decides: bool = False
    reader: StrictReader[Any] | None = None


class Misfit(Struct, frozen=True):
    """A message that is not valid, and why its decode failed, if it did."""

    reader: StrictReader[Any]
    reason: str = ""


class StrictReader(Generic[_T]):
    """Reads valid messages of one shape.

    Args:
        shape: the shape.
        message: the type of its messages.
        turn_of: returns the turn of a message at an index, or None if it needs repair.
        is_telling: whether a message can be of no other shape.
        is_sound: whether the free-form JSON in a block can stay unchanged; None if ``turn_of`` checks that.
        decides: whether a message decides the shape of those after it; by default, whether it can be of no other.
        meant: undeclared members that have a meaning for the tolerant reader.
        kept_whole: members that are never reduced here, nor the members next to them.
    """

    def __init__(
        self,
        shape: Shape,
        message: Any,  # noqa: ANN401  a type, or a union of types
        turn_of: Callable[[_T, int], Turn | None],
        is_telling: Callable[[_T], bool],
        is_sound: IsSound | None = None,
        *,
        decides: Callable[[_T], bool] | None = None,
        meant: Iterable[str] = (),
        kept_whole: Iterable[str] = (),
    ) -> None:
        messages = GenericAlias(tuple, (message, ...))
        siblings = [(key, Raw | UnsetType, UNSET) for key in _USUAL]
        document = msgspec.defstruct("Document", [("messages", messages), *siblings], forbid_unknown_fields=True)
        self._shape = shape
        self._document: msgspec.json.Decoder[Any] = msgspec.json.Decoder(document)
        self._list: msgspec.json.Decoder[tuple[_T, ...]] = msgspec.json.Decoder(messages)
        self._message: msgspec.json.Decoder[_T] = msgspec.json.Decoder(message)
        self._turn_of = turn_of
        self._decides_shape = is_telling
        self._is_sound = is_sound
        self._decides = decides or is_telling
        self._declared = declared_in(message)
        self._meant = frozenset(meant)
        self._kept_whole = frozenset(kept_whole)

    def read_document(self, text: bytes) -> tuple[ValidTurns, dict[str, Raw]] | None:
        """Return a document of valid messages with only the usual keys besides them, and these keys; or None."""
        document = decoded(self._document, text)
        found = None if document is None else self._valid_turns(document.messages)
        if found is None:
            return None
        return found, {key: value for key in _USUAL if (value := getattr(document, key)) is not UNSET}

    def read_list(self, value: Raw | bytes) -> ValidTurns | None:
        """Return a list whose messages are all valid, or None."""
        messages = decoded(self._list, value)
        return None if messages is None else self._valid_turns(messages)

    def read_message(self, value: Raw | bytes, index: int) -> ValidTurns | Misfit:
        try:
            message = self._message.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Misfit(self, str(error))
        turn = self._turn_of(message, index)
        if turn is None or (self._is_sound and not _are_sound((turn,), self._is_sound)):
            return Misfit(self)
        if turn.own is not UNSET and not _is_own_harmless(turn.own):
            return Misfit(self)
        shape = self._shape if self._decides_shape(message) else CANONICAL
        return ValidTurns([turn], shape, decides=self._decides(message))

    def read_declared(self, fields: Fields, index: int, misfit: Misfit) -> Turn | None:
        """Return a message that is valid except for undeclared members, which are dropped with a fix each.

        Args:
            fields: the message.
            index: its index in the history.
            misfit: why it is not valid as is.
        """
        is_tried = misfit.reader is self
        reason = misfit.reason if is_tried else _UNDECLARED
        for _ in range(MISFITS):
            odd: list[tuple[Fields, Iterable[str]]] = []
            steps = _STEPS.findall(reason.partition(" - at ")[2]) if reason.startswith(_UNDECLARED) else None
            kept = None if steps is None else self._kept(fields, self._declared, steps, odd)
            if kept is None or (is_tried and not odd):
                break
            is_tried = True
            found = self.read_message(msgspec.json.encode(kept), index)
            if isinstance(found, ValidTurns):
                for each, declared in odd:
                    each.ignore(*declared)
                    each.drop_rest()
                fields.clear()
                return found.turns[0]
            reason = found.reason
        return None

    def _kept(
        self,
        fields: Fields,
        declared: Declared,
        steps: Sequence[tuple[str, str]],
        odd: list[tuple[Fields, Iterable[str]]],
    ) -> dict[str, Raw] | None:
        """Return the declared members of an object; None if other members have a meaning.

        Args:
            fields: the object.
            declared: the members of each kind of it.
            steps: the path to the place to examine: names of members, and an index in each that is a list.
            odd: receives objects with other members, with their declared members.
        """
        members = members_of(fields.peek("type"), declared)
        kept = fields.members()
        if members is None:
            return kept
        others = kept.keys() - members.keys()
        if not (self._meant.isdisjoint(others) and (not others or self._kept_whole.isdisjoint(kept))):
            return None
        if others:
            kept = {name: value for name, value in kept.items() if name in members and not starts_with(value, b"n")}
        for name, at in steps[:1]:
            inner, value = members.get(name), fields.peek(name)
            if (
                inner is None
                or value is None
                or name in self._kept_whole
                or not starts_with(value, b"[" if at else b"{")
            ):
                return None
            if not at:
                whole = self._kept(Fields(value, fields.at(name), fields.notes), inner, steps[1:], odd)
                if whole is None:
                    return None
                kept[name] = Raw(msgspec.json.encode(whole))
                continue
            objects: list[dict[str, Raw] | None] = []
            for i, each in enumerate(fields.objects(name)):
                if each is None:
                    return None
                item = Fields(fields.whole, f"{fields.at(name)}.{i}", fields.notes, members=each)
                objects.append(self._kept(item, inner, steps[1:] if i == int(at) else (), odd))
            if None in objects:
                return None
            kept[name] = Raw(msgspec.json.encode(objects))
        if others:
            odd.append((fields, members))
        return kept

    def _valid_turns(self, messages: Sequence[_T]) -> ValidTurns | None:
        turns: list[Turn] = []
        turn_of = self._turn_of
        for index, message in enumerate(messages):
            turn = turn_of(message, index)
            if turn is None or not (turn.own is UNSET or _is_own_harmless(turn.own)):
                return None
            turns.append(turn)
        if self._is_sound is None:
            valid_runs = find_valid_runs(turns)
        else:
            valid_runs = find_valid_runs(turns, self._is_sound)
            if not _are_sound(_outside(turns, valid_runs), self._is_sound):
                return None
        is_decided = self._shape != CANONICAL and any(map(self._decides_shape, messages))
        return ValidTurns(turns, self._shape if is_decided else CANONICAL, valid_runs, reader=self)


def _outside(turns: Sequence[Turn], valid_runs: Iterable[ValidRun]) -> Iterator[Turn]:
    """Yield the turns outside of the runs, whose free-form JSON has not been checked yet."""
    at = 0
    for valid_run in valid_runs:
        yield from turns[at : valid_run.start]
        at = valid_run.start + valid_run.turns
    yield from turns[at:]


def _are_sound(turns: Iterable[Turn], is_sound: IsSound) -> bool:
    for turn in turns:
        for block in turn.blocks:
            if not (type(block) is Text and block == Text(text=block.text)) and not is_sound(block):
                return False
    return True


def _is_own_harmless(own: Own) -> bool:
    return all(map(is_harmless, own.members.values()))


def own_of(provider: str, kind: str = "", /, **members: Raw | str | UnsetType | None) -> Own | UnsetType:
    """Return the provider-specific ones of these members that are present, as written or as strings."""
    found: dict[str, Raw] = {}
    for name, value in members.items():
        # Most are ids and absent members. Looked at in this order, reading items of Responses takes 4 % less.
        if type(value) is str:
            found[name] = Raw(_encode(value))
        elif isinstance(value, Raw) and not starts_with(value, b"n"):
            found[name] = value
    return Own(provider, found, kind) if found or kind else UNSET


def unless(empty: bytes, value: Raw | UnsetType | None) -> Raw | None:
    """Return a member that is present, and is neither null nor the given empty value."""
    return None if value is None or value is UNSET or bytes(value) in (b"null", empty) else value


def decoded(decoder: msgspec.json.Decoder[_T], value: Raw | bytes) -> _T | None:
    """Decode strictly; return None if the value does not fit."""
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_harmless(data: Raw | bytes) -> bool:
    """The strict decode has seen to the syntax; what it passes over in raw values is the encoding and the depth."""
    data = bytes(data)
    # Nearly all are ASCII, which is cheaper to see here than by a call.
    return (data.isascii() or is_utf8(data)) and not (len(data) > MAX_NESTING and may_nest_too_deeply(data))
