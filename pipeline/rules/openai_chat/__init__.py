"""The rules of OpenAI's Chat Completions API, as a fold over a request's messages.

Recorded look-alikes (Mistral, DeepSeek, Groq, Ollama) are laxer; the rules are those of api.openai.com.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from pipeline.rules._fold import Fold, Progress
from pipeline.rules._openai import kind
from pipeline.rules.base import Violation
from pipeline.rules.openai_chat import catalogue as rules
from pipeline.rules.openai_chat.catalogue import RULES
from pipeline.rules.openai_chat.head import judge_head
from pipeline.rules.openai_chat.shape import read_messages
from pipeline.rules.openai_chat.state import State
from pipeline.rules.openai_chat.walk import judge_end, walk_messages
from pipeline.rules.openai_chat.wire import Message

__all__ = ["RULES", "OpenAIChat", "Progress", "State"]


class OpenAIChat(Fold[State, Message]):
    """The rule set of the target ``openai-chat``."""

    target = "openai-chat"
    key = "messages"
    not_json = rules.BAD_JSON
    surrogate = rules.SURROGATE
    items: ClassVar[msgspec.json.Decoder[list[Message]]] = msgspec.json.Decoder(list[Message])

    def judge_head(self, head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
        """Judge parameters and tools."""
        facts, found = judge_head(head, model)
        return State(head=facts), found

    def read(self, values: Sequence[object], index: int) -> tuple[list[Message | None], list[Violation]]:
        """Make messages of JSON values tolerantly."""
        return read_messages(values, index)

    def walk(self, inner: State, items: Sequence[Message | None], index: int) -> tuple[State, list[Violation]]:
        """Judge messages."""
        return walk_messages(inner, items, index)

    def judge_end(self, inner: State, count: int) -> list[Violation]:
        """Judge the end of the messages."""
        return judge_end(inner, count)

    def judge_no_list(self, body: dict[str, Any], inner: State) -> list[Violation]:
        """Judge a body without a list of messages."""
        del inner
        if "messages" not in body:
            return [rules.MISSING.broken("messages")]
        got = kind(body["messages"])
        return [rules.SHAPE.broken("messages", wanted="an array of objects", got=got)]
