"""The rules of OpenAI's Responses API, as a fold over the items of a request's ``input``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from pipeline.rules._fold import Fold, Progress
from pipeline.rules._openai import kind
from pipeline.rules.base import Violation
from pipeline.rules.openai_responses import catalogue as rules
from pipeline.rules.openai_responses.catalogue import RULES
from pipeline.rules.openai_responses.head import judge_head
from pipeline.rules.openai_responses.shape import read_items
from pipeline.rules.openai_responses.walk import State, judge_end, walk_items
from pipeline.rules.openai_responses.wire import Item

__all__ = ["RULES", "OpenAIResponses", "Progress", "State"]


class OpenAIResponses(Fold[State, Item]):
    """The rule set of the target ``openai-responses``; its messages are the items of ``input``."""

    target = "openai-responses"
    key = "input"
    not_json = rules.BAD_JSON
    surrogate = rules.SURROGATE
    items: ClassVar[msgspec.json.Decoder[list[Item]]] = msgspec.json.Decoder(list[Item])

    def judge_head(self, head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
        """Judge parameters and tools; no rule differs between models."""
        del model
        facts, found = judge_head(head)
        return State(head=facts), found

    def read(self, values: Sequence[object], index: int) -> tuple[list[Item | None], list[Violation]]:
        """Make items of JSON values tolerantly."""
        return read_items(values, index)

    def walk(self, inner: State, items: Sequence[Item | None], index: int) -> tuple[State, list[Violation]]:
        """Judge items."""
        return walk_items(inner, items, index)

    def judge_end(self, inner: State, count: int) -> list[Violation]:
        """Judge the end of the input, which may be empty."""
        del count
        return judge_end(inner)

    def judge_no_list(self, body: dict[str, Any], inner: State) -> list[Violation]:
        """Judge a body whose input is one text, or missing."""
        given = body.get("input")
        if isinstance(given, str):
            return []
        if given is None:
            known = inner.head.chained or body.get("prompt") is not None
            return [] if known else [rules.NO_INPUT.broken("input")]
        wanted = "one of an array of objects or string"
        return [rules.SHAPE.broken("input", at="input", wanted=wanted, got=kind(given))]
