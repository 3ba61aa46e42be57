"""A refused body while it is changed, and the places that sentences name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

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


class Change(Struct, frozen=True):
    """One change: its place in the refused body, and what was done."""

    path: str
    action: str


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

    def note(self, path: str, action: str) -> None:
        self.changes.append(Change(path, action))

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
