"""Rules of an API that imitates OpenAI's Chat Completions: those that it shares, under names of its own.

A look-alike's rule set is a fold with two walks. One is that of Chat Completions, whose findings count where the
look-alike is known to refuse the same. The other has the look-alike's own rules.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from reknit.pipeline.providers.openai_chat.rules import OpenAIChat, chat_message
from reknit.pipeline.providers.openai_chat.rules import Turns as Chat
from reknit.pipeline.providers.openai_chat.rules.catalogue import Message
from reknit.pipeline.rules._fold import Fold, Walk
from reknit.pipeline.rules.base import Catalogue, Rule, Violation


def share_rules(
    catalogue: Catalogue, prefix: str, *, hard: Sequence[Rule] = (), soft: Sequence[Rule] = ()
) -> dict[str, Rule]:
    """Enter rules of Chat Completions into a look-alike's catalogue, and return them by their ids there."""
    shared: dict[str, Rule] = {}
    for rules, severity in ((hard, "hard"), (soft, "soft")):
        for rule in rules:
            shared[rule.id] = replace(
                rule, id=f"{prefix}-{rule.id}", target=catalogue.target, severity=severity, families=(), fact=""
            )
    catalogue.rules.update({rule.id: rule for rule in shared.values()})
    return shared


class LookAlikeTurns(Walk, kw_only=True, eq=False):
    """The state of a conversation with a look-alike; a subclass judges messages by the look-alike's own rules.

    Attributes:
        chat: the state of calls and tool messages, by the shared rules.
        shared: the shared rules, by their ids at Chat Completions.
        is_plain: the look-alike has no rules of its own for this model.
    """

    chat: Chat
    shared: Mapping[str, Rule]
    is_plain: bool = False

    def fork(self) -> Self:
        return replace(self, found=[], chat=self.chat.fork())

    def share(self) -> None:
        """Take over the findings of the shared rules."""
        for violation in self.chat.found:
            ours = self.shared.get(violation.rule)
            if ours is not None:
                severity = violation.severity if ours.severity == "model" else ours.severity
                self.found.append(Violation(ours.id, violation.path, violation.message, severity))
        self.chat.found = []

    def judge_items(self, items: Sequence[Any]) -> None:
        """Judge messages: by the shared rules, then by the look-alike's own."""
        self.chat.judge_items(items)
        self.share()
        if self.is_plain:
            self.index += len(items)
        else:
            super().judge_items(items)

    def judge_end(self) -> None:
        self.chat.judge_end()
        self.share()
        if not self.is_plain:
            self.judge_own_end()

    @abstractmethod
    def judge_own_end(self) -> None:
        """Judge by the look-alike's own rules what only the end of the messages shows."""


def is_forced(choice: object) -> bool:
    """Return True if a choice among tools makes the model call one."""
    return choice == "required" or (isinstance(choice, dict) and choice.get("type") == "function")


L = TypeVar("L", bound=LookAlikeTurns)


class LookAlike(Fold[L, Message], Generic[L]):
    """The fold of a look-alike.

    Attributes:
        message: the type of its messages, which may have more parts and members than those of Chat Completions.
    """

    key = "messages"
    message: ClassVar[type[Message]] = Message
    items: ClassVar[msgspec.json.Decoder[Any]] = OpenAIChat.items
    chat: ClassVar[OpenAIChat] = OpenAIChat()

    def read_item(self, value: object, path: str, walk: L) -> Message | None:
        message = chat_message(value, path, walk.chat, self.message)
        walk.share()
        return message

    def judge_no_list(self, walk: L, body: dict[str, Any]) -> None:
        """Judge a body without a list of messages, which no server takes."""
        before = len(walk.found)
        self.chat.judge_no_list(walk.chat, body)
        walk.share()
        walk.found[before:] = [replace(violation, severity="hard") for violation in walk.found[before:]]
