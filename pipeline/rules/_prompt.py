"""What the rules of programs that take one prompt share: it is UTF-8 text, and says something.

Such a program takes one prompt and no history, so there is nothing to fold: the head is the whole text.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pipeline.rules.base import Rule, Violation, WholeBody


class Prompt(WholeBody):
    """The rules of one program; ``encoding`` and ``blank`` are its own words for the two that all have."""

    encoding: ClassVar[Rule]
    blank: ClassVar[Rule]

    @abstractmethod
    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        """What else the program has against a prompt; ``body`` is its text in bytes."""

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        del model
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            return [self.encoding.broken("", byte=error.start)]
        return [*([] if text.strip() else [self.blank.broken("")]), *self.judge_text(text, body)]

    def inert(self, piece: bytes) -> bool:
        """Whether a piece is text."""
        try:
            piece.decode()
        except UnicodeDecodeError:
            return False
        return True

    def say_something(self, opening: bytes, ending: bytes) -> bool:
        """Whether the ends of a prompt are inert and not blank, so that inert pieces between them change nothing."""
        return self.inert(opening) and self.inert(ending) and bool((opening + ending).decode().strip())
