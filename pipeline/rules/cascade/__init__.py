"""The rules of a planner that takes text only, with tools emulated in the text, as a fold over a request's messages.

They share no code with what writes such requests: what a tag is, and where it may stand, is said again here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pipeline.rules._fold import Fold
from pipeline.rules.base import Violation
from pipeline.rules.cascade import catalogue as rules
from pipeline.rules.cascade.catalogue import RULES
from pipeline.rules.cascade.tags import begins_with_result, judge_instructions, judge_results

__all__ = ["RULES", "Cascade"]

_ENVIRONMENT = re.compile(
    r"\s*## Authoritative environment for this session[ \t]*\n(?P<lines>.*?)(?:^---[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
_DIRECTORY = re.compile(r"^- Working directory: (?:/|~|[A-Za-z]:[\\/]|\\\\)", re.MULTILINE)
_NO_SLOT = ("tools", "tool_choice", "functions", "function_call")
_MESSAGE_KEYS = ("role", "content")
_ROLES = ("user", "assistant")  # a tuple, for a role may be anything


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """A message as the planner reads it."""

    role: Literal["user", "assistant"]
    content: str


class State(Struct, frozen=True):
    """What the end has to know: the role and place of the last message, and what is wrong with the user's latest."""

    role: str = ""
    at: int = 0
    latest: tuple[Violation, ...] = ()


class Cascade(Fold[State, Message]):
    """The rule set of the target ``cascade``."""

    target = "cascade"
    key = "messages"
    not_json = rules.BAD_JSON
    surrogate = rules.SURROGATE
    items: ClassVar[msgspec.json.Decoder[list[Message]]] = msgspec.json.Decoder(list[Message])

    def judge_head(self, head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
        """Judge the system slot, and look for what has no place."""
        found = [rules.NO_SLOT.broken(key) for key in _NO_SLOT if key in head]
        if not (model or head.get("model")):
            found.append(rules.NO_MODEL.broken("model"))
        system = head.get("system", "")
        if not isinstance(system, str):
            found.append(rules.SHAPE.broken("system", wanted="a string"))
        elif (block := _ENVIRONMENT.match(system)) and not _DIRECTORY.search(block["lines"]):
            found.append(rules.NO_DIRECTORY.broken("system"))
        return State(), found

    def read(self, values: Sequence[object], index: int) -> tuple[list[Message | None], list[Violation]]:
        """Make messages of JSON values tolerantly."""
        found: list[Violation] = []
        return [_read(value, f"messages.{at}", found) for at, value in enumerate(values, index)], found

    def walk(self, inner: State, items: Sequence[Message | None], index: int) -> tuple[State, list[Violation]]:
        """Judge messages."""
        found: list[Violation] = []
        for at, message in enumerate(items, index):
            if message is None:
                continue
            path = f"messages.{at}.content"
            if not message.content.strip():
                found.append(rules.BLANK.broken(path))
            inner = replace(inner, role=message.role, at=at)
            if message.role == "user" and begins_with_result(message.content):
                found += judge_results(message.content, path)
                inner = replace(inner, latest=())
            elif message.role == "user":
                inner = replace(inner, latest=tuple(judge_instructions(message.content, path)))
        return inner, found

    def judge_end(self, inner: State, count: int) -> list[Violation]:
        """Judge the user's latest turn, and who speaks last."""
        if not count:
            return [rules.NO_MESSAGES.broken("messages")]
        last = [rules.LAST_ASSISTANT.broken(f"messages.{inner.at}")] if inner.role == "assistant" else []
        return [*inner.latest, *last]

    def judge_no_list(self, body: dict[str, Any], inner: State) -> list[Violation]:
        """Judge a body without a list of messages."""
        del body, inner
        return [rules.SHAPE.broken("messages", wanted="a list of messages")]


def _read(value: object, path: str, found: list[Violation]) -> Message | None:
    """A message of a JSON value, as far as it is one."""
    if not isinstance(value, dict):
        found.append(rules.SHAPE.broken(path, wanted="an object with a role and a content"))
        return None
    role, content = value.get("role"), value.get("content")
    extra = [key for key in value if key not in _MESSAGE_KEYS]
    found += [rules.SHAPE.broken(f"{path}.{key}", wanted="a role and a content, nothing else") for key in extra]
    if role not in _ROLES:
        found.append(rules.SHAPE.broken(f"{path}.role", wanted='"user" or "assistant"'))
    if not isinstance(content, str):
        found.append(rules.SHAPE.broken(f"{path}.content", wanted="a string"))
        return None
    return Message("assistant" if role == "assistant" else "user", content)
