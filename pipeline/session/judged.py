"""The judgement of a target's bodies. Each settled chunk is judged once.

All methods take the settled chunks, which only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from reknit.pipeline.rules.base import RuleSet, Violation, WholeBody

# Up to this many bytes of settled chunks are judged again with each request. A second judging step costs more.
_LITTLE = 4096


class JudgedExtent(Struct, frozen=True, gc=False):
    """How far the chunks were judged.

    Attributes:
        chunks: the number of judged chunks.
        head: the head of the bodies that were judged.
        state: the rules' state after these chunks; None before the first judgement.
        violations: the number of violations so far.
        inert: rules that judge whole bodies have nothing against the chunks.
    """

    chunks: int = 0
    head: bytes = b""
    state: Any = None
    violations: int = 0
    inert: bool = True


BEGINNING: Final = JudgedExtent()


class JudgedChunks:
    """The judgement of the settled chunks of one target, by the rules of a ``model``."""

    def __init__(
        self,
        rules: RuleSet[Any],
        model: str | None,
        separator: bytes,
        extent: JudgedExtent = BEGINNING,
        violations: Sequence[Violation] = (),
    ) -> None:
        self._rules = rules
        self._model = model
        self._separator = separator
        self._judged, self._head, self._state = extent.chunks, extent.head, extent.state
        self._violations = [*violations]
        self._inert = extent.inert
        # The parts after the settled judgement that the last request judged, the state after them, and the violations.
        self._ahead: tuple[list[bytes], Any, list[Violation]] | None = None

    def extent(self) -> JudgedExtent:
        """Return how far the judgement is."""
        return JudgedExtent(self._judged, self._head, self._state, len(self._violations), self._inert)

    def at(self, extent: JudgedExtent) -> JudgedChunks:
        """Return the judgement at an earlier extent; this one is not changed."""
        violations = self._violations[: extent.violations]
        return JudgedChunks(self._rules, self._model, self._separator, extent, violations)

    def judge(self, chunks: list[bytes], parts: Iterable[bytes], head: bytes) -> list[Violation]:
        """Return the violations of a body that ends with ``parts``; another ``head`` makes all be judged again."""
        rules = self._rules
        self.advance(chunks, head, most_left=_LITTLE)
        pieces = [*chunks[self._judged :], *parts]
        state = self._state
        found: list[Violation] = []
        if pieces:
            state, found = rules.judge_messages(state, b",".join(pieces))
            self._ahead = pieces, state, found
        return [*self._violations, *found, *rules.judge_end(state)]

    def advance(self, chunks: list[bytes], head: bytes, *, most_left: int = 0) -> None:
        """Judge settled chunks, without the end of a body.

        Most messages that the last request judged have settled unchanged, and are not judged again.

        Args:
            chunks: the settled chunks.
            head: of the bodies.
            most_left: up to this many bytes of the chunks need not be judged.
        """
        if self._state is None or head != self._head:
            self._state, self._violations = self._rules.judge_head(head, self._model)
            self._judged, self._head, self._ahead = 0, head, None
        if self._ahead is not None:
            pieces, state, found = self._ahead
            upto = self._judged + len(pieces)
            if chunks[self._judged : upto] == pieces:
                self._judged, self._state = upto, state
                self._violations += found
            self._ahead = None
        new = chunks[self._judged :]
        if sum(map(len, new)) > most_left:
            self._state, found = self._rules.judge_messages(self._state, b",".join(new))
            self._violations += found
            self._judged = len(chunks)

    def judge_text(
        self, chunks: Sequence[bytes], length: int, opening: bytes, ending: bytes, whole: Callable[[], bytes]
    ) -> list[Violation]:
        """Return the violations of a text: of its ends only, if the rules allow all settled chunks.

        Args:
            chunks: the settled chunks.
            length: their number of bytes.
            opening: the text before them.
            ending: the text after them.
            whole: returns the whole text.
        """
        rules = self._rules
        if chunks and isinstance(rules, WholeBody) and self._are_inert(rules, chunks):
            found = rules.judge_ends(opening, length, ending)
            if found is not None:
                return found
        return rules.validate(whole(), self._model)

    def judge_again(self, chunks: list[bytes], judged: JudgedExtent) -> None:
        """Judge the chunks as an earlier judgement did that went further, so that a rewind to here costs nothing."""
        if isinstance(self._rules, WholeBody):
            self._are_inert(self._rules, chunks)
        elif judged.chunks:
            self.judge(chunks, (), judged.head)

    def _are_inert(self, rules: WholeBody, chunks: Sequence[bytes]) -> bool:
        """Return True if the rules have nothing against the settled chunks; each is looked at once."""
        if self._inert and self._judged < len(chunks):
            new = chunks[self._judged :]
            self._inert = all(map(rules.inert, new if self._judged else [self._separator, *new]))
            self._judged = len(chunks)
        return self._inert
