"""The rules that every program with a plain text prompt has: the prompt is UTF-8 and is not blank.

The prompt holds the whole history, so a rule set judges it as a whole.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from reknit.pipeline.rules.base import Catalogue, Rule, Violation, WholeBody


class Prompt(WholeBody):
    """The rules of one program; ``encoding`` and ``blank`` are its own words for the two that all have."""

    encoding: ClassVar[Rule]
    blank: ClassVar[Rule]

    @abstractmethod
    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        """Return the program's further violations in a prompt; ``body`` is its text in bytes."""

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        del model
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            return [self.encoding.broken("", byte=error.start)]
        return [*([] if text.strip() else [self.blank.broken("")]), *self.judge_text(text, body)]

    def inert(self, piece: bytes) -> bool:
        """Return True if a piece is text."""
        try:
            piece.decode()
        except UnicodeDecodeError:
            return False
        return True

    def say_something(self, opening: bytes, ending: bytes) -> bool:
        """Return True if a prompt's ends are inert and not blank, so inert pieces between them change nothing."""
        return self.inert(opening) and self.inert(ending) and bool((opening + ending).decode().strip())


def ends_with_assistant(catalogue: Catalogue, rule_id: str) -> None:
    catalogue.rule(
        rule_id,
        "hard",
        "The last message is the assistant's, so that the prompt would ask for nothing.",
        summary="Under the policy tail=reject, a history does not end with the assistant.",
        repair="append a user turn, or choose another policy",
        source="Reknit: a prompt is what the user says",
        unchecked="a prompt does not show whose words are its last",
    )
