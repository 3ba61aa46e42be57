"""A refused body while it is changed, and the places that sentences name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from reknit.pipeline.registry import TARGETS

JsonObject = dict[str, Any]
# Targets whose bodies have Claude's blocks, and the names of their lists of turns.
CLAUDE: Final = frozenset({"anthropic", "bedrock-converse"})
CHAT: Final = frozenset(name for name, target in TARGETS.items() if target.shape == "openai-chat")
RESPONSES: Final = frozenset({"openai-responses"})
GEMINI: Final = frozenset({"gemini"})
EVERY: Final = CLAUDE | CHAT | RESPONSES | GEMINI
_STEPS: Final = re.compile(r"[.\[\]/]+")


_DIGEST: Final = 16
_encode = msgspec.json.Encoder(order="deterministic").encode


def digest_of(value: object) -> bytes:
    """Return a digest of JSON, whatever the order of its members."""
    return hashlib.blake2b(_encode(value), digest_size=_DIGEST).digest()


class Revoked(Struct, frozen=True):
    """A value that a provider does not accept any more, as later requests find it again.

    Attributes:
        kind: ``reasoning``, ``search``, ``item``, ``id``, ``container``, ``signature`` or ``medium``.
        digest: of the value.
        put: takes its place, if anything does.
    """

    kind: str
    digest: bytes
    put: str = ""


Known: TypeAlias = Mapping[tuple[str, bytes], str]
"""Revoked values by kind and digest, each with its replacement."""


class Change(Struct, frozen=True):
    """One change: its place in the refused body, what was done, and the value that it takes out."""

    path: str
    action: str
    revoked: Revoked | None = None


class RefusedBody:
    """A body that a provider refused.

    Attributes:
        target: that refused it.
        value: the body, changed by repairs.
        changes: the changes so far.

    Args:
        target: that refused it.
        value: the body.
        model: that it was sent to, where the body does not name it.
    """

    def __init__(self, target: str, value: JsonObject, model: str = "") -> None:
        self.target = target
        self._model = model
        self.value = copied(value)
        self.changes: list[Change] = []
        # Lists get shorter while they are repaired. The objects are kept, so that no other one gets their identity.
        self._given = list(_placed(self.turns, self.turns_name))
        self._places = {id(part): path for part, path in self._given}

    def note(self, path: str, action: str, revoked: Revoked | None = None) -> None:
        self.changes.append(Change(path, action, revoked))

    def place_of(self, part: JsonObject, path: str) -> str:
        """Return the place of a turn or a block in the refused body; ``path`` if it is not one of these."""
        return self._places.get(id(part), path)

    def moves(self) -> dict[str, str]:
        """Return the present place of each turn and block that is still there, or that something took the place of."""
        present = list(_placed(self.turns, self.turns_name))
        found = {self._places[id(part)]: path for part, path in present if id(part) in self._places}
        added: dict[str, list[str]] = {}
        for part, path in present:
            if id(part) not in self._places:
                added.setdefault(path.rpartition(".")[0], []).append(path)
        for _, place in reversed(self._given):
            if place in found or not added:
                continue
            # New parts of a list took the places of dropped ones, the last of them first.
            new = added.get(self._present_list(place, found))
            if new:
                found[place] = new.pop()
        return found

    def _present_list(self, place: str, found: Mapping[str, str]) -> str:
        """Return where the list now is that held a part, by the present places of turns and blocks."""
        held_in = place.rpartition(".")[0]
        steps = held_in.split(".")
        for end in range(len(steps), 1, -1):
            owner = ".".join(steps[:end])
            if owner in found:
                return ".".join([found[owner], *steps[end:]])
        return held_in

    @property
    def places(self) -> frozenset[str]:
        """The places of turns and blocks in the refused body."""
        return frozenset(self._places.values())

    @property
    def model(self) -> str:
        return self._model or text_in(self.value.get("model"))

    @property
    def turns(self) -> list[JsonObject]:
        """The turns of the conversation, or the items of a Responses request."""
        name = "contents" if self.target == "gemini" else "input" if self.target == "openai-responses" else "messages"
        return [each for each in items_in(self.value.get(name)) if isinstance(each, dict)]

    @property
    def turns_name(self) -> str:
        return "contents" if self.target == "gemini" else "input" if self.target == "openai-responses" else "messages"

    def last_answer(self) -> int:
        """Return the index of the last turn of the assistant, or -1."""
        return max((at for at, turn in enumerate(self.turns) if is_answer(turn)), default=-1)


def _placed(turns: list[JsonObject], name: str) -> Iterator[tuple[JsonObject, str]]:
    for at, turn in enumerate(turns):
        yield turn, f"{name}.{at}"
        for holder in ("content", "parts", "output"):
            yield from _placed_in(items_in(turn.get(holder)), f"{name}.{at}.{holder}")


def _placed_in(parts: list[Any], path: str) -> Iterator[tuple[JsonObject, str]]:
    for at, part in enumerate(parts):
        members = members_of(part)
        if part is not members:
            continue
        yield members, f"{path}.{at}"
        inner = members_of(members.get("toolResult"))
        yield from _placed_in(items_in(members.get("content")), f"{path}.{at}.content")
        yield from _placed_in(items_in(inner.get("content")), f"{path}.{at}.toolResult.content")


def is_answer(turn: JsonObject) -> bool:
    """Return True if the model wrote a turn or an item."""
    return turn.get("role") in ("assistant", "model") or turn.get("type") in (
        *("function_call", "custom_tool_call", "reasoning", "web_search_call", "code_interpreter_call"),
        "computer_call",
    )


def steps_of(path: str) -> list[str]:
    """Return the names and indexes of a path: ``messages.3.content.0``, ``input[5].id``, ``#/messages/2/content/0``."""
    return [step for step in _STEPS.split(path.strip("#")) if step]


def indexes_of(path: str) -> list[int]:
    """Return the indexes of a path. Names of union members between them do not matter."""
    return [int(step) for step in steps_of(path) if step.isdecimal()]


def copied(value: Any) -> Any:  # noqa: ANN401  any JSON
    """Return a copy of JSON that shares no list and no object with it."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def items_in(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def members_of(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def text_in(value: object) -> str:
    return value if isinstance(value, str) else ""


def objects_in(values: Iterable[object]) -> Iterator[JsonObject]:
    return (each for each in values if isinstance(each, dict))
