"""The rules of the Bedrock Converse API, as a fold over a request's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.rules._fold import Fold
from pipeline.rules.base import Violation
from pipeline.rules.bedrock_converse import catalogue as rules
from pipeline.rules.bedrock_converse.catalogue import RULES
from pipeline.rules.bedrock_converse.head import judge_head
from pipeline.rules.bedrock_converse.plain import pass_plain
from pipeline.rules.bedrock_converse.shape import read_messages
from pipeline.rules.bedrock_converse.state import State
from pipeline.rules.bedrock_converse.walk import Walk, judge_end
from pipeline.rules.bedrock_converse.wire import Message

__all__ = ["RULES", "BedrockConverse", "State"]


class BedrockConverse(Fold[State, Message]):
    """The rule set of the target ``bedrock-converse``."""

    target = "bedrock-converse"
    key = "messages"
    not_json = rules.BAD_JSON
    surrogate = rules.HALF_CHARACTER
    items = msgspec.json.Decoder(list[Message])

    def judge_head(self, head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
        """Judge the parameters."""
        return judge_head(head, model)

    def read(self, values: Sequence[object], index: int) -> tuple[list[Message | None], list[Violation]]:
        """Read messages that the typed decode refused."""
        return read_messages(values, index)

    def walk(self, inner: State, items: Sequence[Message | None], index: int) -> tuple[State, list[Violation]]:
        """Judge messages, the plain beginning of a request first."""
        passed = 0
        if not index:
            inner, passed = pass_plain(inner, items)
        walk = Walk(inner, index + passed)
        walk.messages(items[passed:])
        return walk.state(), walk.found

    def judge_end(self, inner: State, count: int) -> list[Violation]:
        """Judge the end of the messages."""
        return judge_end(inner, count)

    def judge_no_list(self, body: dict[str, Any], inner: State) -> list[Violation]:
        """Absent messages are none; anything but a list is a misfit."""
        if body.get(self.key) is None:
            return judge_end(inner, 0)
        return [rules.SHAPE.broken("messages", words="Input should be a valid list")]
