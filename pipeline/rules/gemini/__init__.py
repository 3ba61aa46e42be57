"""The rules of the Gemini API (generateContent), as a fold over a request's contents.

The body's contents may spell their fields either way; paths use the spelling in camel case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.rules._fold import Fold
from pipeline.rules.base import Violation
from pipeline.rules.gemini import catalogue as rules
from pipeline.rules.gemini.catalogue import RULES
from pipeline.rules.gemini.head import judge_head
from pipeline.rules.gemini.shape import read_contents
from pipeline.rules.gemini.state import State
from pipeline.rules.gemini.walk import Walk, judge_end
from pipeline.rules.gemini.wire import Content

__all__ = ["RULES", "Gemini", "State"]


class Gemini(Fold[State, Content]):
    """The rule set of the target ``gemini``."""

    target = "gemini"
    key = "contents"
    not_json = rules.BAD_JSON
    surrogate = rules.HALF_CHARACTER
    items = msgspec.json.Decoder(list[Content])

    def judge_head(self, head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
        """Judge the parameters."""
        return judge_head(head, model)

    def read(self, values: Sequence[object], index: int) -> tuple[list[Content | None], list[Violation]]:
        """Read contents that the typed decode refused."""
        return read_contents(values, index)

    def walk(self, inner: State, items: Sequence[Content | None], index: int) -> tuple[State, list[Violation]]:
        """Judge contents."""
        walk = Walk(inner, index)
        walk.contents(items)
        return walk.state(), walk.found

    def judge_end(self, inner: State, count: int) -> list[Violation]:
        """Judge the end of the contents."""
        return judge_end(inner, count)

    def judge_no_list(self, body: dict[str, Any], inner: State) -> list[Violation]:
        """Absent contents are none; anything but a list is a misfit."""
        if body.get(self.key) is None:
            return judge_end(inner, 0)
        return [rules.SHAPE.broken("contents", kind="TYPE_LIST")]
