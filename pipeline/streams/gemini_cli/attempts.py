"""Second attempts at an answer, found in texts: the Gemini CLI asks again without a word, and its output has both.

A new attempt begins where a delta does, and mostly it begins as the one before did. So every delta that says again how
the text began may be the start of one; it is, as far as anybody can tell, once it has said all that the first attempt
had said. Attempts between the two may have been cut earlier, and say less. A model may also say the same twice: what is
found here is never more than doubtful.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# A shorter beginning says too little for its repetition to stand apart.
_TELLING: Final = 8


class Attempts(Struct, array_like=True):
    """The text of one answer, as far as it came. Places are counted in code points.

    ``parts`` is the text; ``open`` are the places from which on everything has said the beginning again, each as the
    list of the starts of the attempts that led to it. ``doubtful`` says that the text holds a beginning twice that was
    too short, or stood across a call.
    """

    parts: list[str] = []
    length: int = 0
    open: list[list[int]] = []
    doubtful: bool = False

    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def extend(self, piece: str) -> list[int]:
        """Take a delta; return the starts of other attempts than the first, once one of them has said enough."""
        at = self.length
        self.parts.append(piece)
        self.length += len(piece)
        if not self.open and not (at and piece[:1] == self.parts[0][:1]):
            return []  # nearly always
        text, before = self.text(), self.open
        begun = [*before[0], at] if before else [at]
        candidates = [*before, begun] if at else before
        self.open = [starts for starts in candidates if _says_again(text, piece, at - starts[-1], starts[0])]
        return next((starts for starts in self.open if self.length - starts[-1] >= starts[0]), [])

    def go_on_from(self, start: int) -> None:
        """Take what stands from this place on for the text of the first attempt."""
        rest = self.text()[start:]
        self.parts, self.length, self.open = [rest], len(rest), []

    def may_begin_again(self) -> bool:
        """Whether it ends in what may be the start of another attempt, or held one."""
        return self.doubtful or bool(self.open)


def _says_again(text: str, piece: str, said: int, first: int) -> bool:
    """Whether an attempt that has said so much goes on like the first one, as far as that came."""
    return text.startswith(piece[: first - said], said)


def is_telling(beginning: str) -> bool:
    """Whether a text that begins so would hardly say it twice by chance."""
    return len(beginning) >= _TELLING
