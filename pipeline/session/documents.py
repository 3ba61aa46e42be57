"""A document with a whole history: its repair, and that of the same document with more messages.

An agent sends its whole history with each request. The messages that the last request had are the same bytes, so only
the new ones need to be read and repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from reknit.pipeline.history.frameworks import FRAMEWORKS
from reknit.pipeline.history.readers.shapes import (
    TRANSCRIPTS,
    ReadResult,
    decided_in,
    may_grow,
    read,
    read_added,
    read_next,
)
from reknit.pipeline.model import Turn, Unknown
from reknit.pipeline.policy import Policy
from reknit.pipeline.providers.base import Target
from reknit.pipeline.session.bindings import PrefixBindings, SavedBindings
from reknit.pipeline.session.fit import fit_for
from reknit.pipeline.session.request import Normalized
from reknit.pipeline.session.scaled import Scale, check_scale
from reknit.pipeline.session.tokens import CountTokens
from reknit.pipeline.session.working import HistoryPoint, WorkingHistory
from reknit.pipeline.targets import Setting

GivenHistory: TypeAlias = bytes | str | list[Any] | dict[str, Any]


def begin_document(
    history: GivenHistory,
    target: Target,
    source: str,
    policy: Policy,
    *,
    model: str | None = None,
    count_tokens: CountTokens | None = None,
    scale: Scale | None = None,
    answered: Mapping[int, bool] = MappingProxyType({}),
) -> tuple[WorkingHistory, ReadResult]:
    """Return a working history with the messages and the settings of a document, and how it was read.

    The arguments are those of ``normalize`` and ``normalize_answered``.

    Raises:
        InputError: the document cannot be used.
        UnknownTargetError: the shape does not exist.
    """
    check_scale(policy, scale)
    found = read(history, source)
    given = found.conversation
    setting = Setting(system=given.system, tools=given.tools, model=model or given.model, params=given.params)
    bindings = PrefixBindings(SavedBindings(answered=dict(answered)), keeps_answered=bool(answered))
    work = WorkingHistory((target,), policy, setting, fit=fit_for(policy, setting, count_tokens), bindings=bindings)
    work.note_fixes(found.fixes)
    work.begin_history(given.turns, found.valid_runs, scale)
    return work, found


class GrowingDocument:
    """A document to which messages are added.

    Args:
        document: the JSON of the first one.
        target: of its requests.
        policy: of repair; its media are not scaled.
        model: in place of the document's model.
        answered: as of ``normalize_answered``; no later one than the document's messages.

    Raises:
        InputError: the document cannot be used.
    """

    def __init__(
        self,
        document: bytes,
        target: Target,
        policy: Policy,
        *,
        model: str | None = None,
        answered: Mapping[int, bool] = MappingProxyType({}),
    ) -> None:
        self._target = target.name
        self._work, found = begin_document(document, target, "auto", policy, model=model, answered=answered)
        self._work.count = found.received or max((turn.index for turn in found.conversation.turns), default=-1) + 1
        self._reader = found.reader
        # Messages of frameworks may take the place of earlier ones, and transcripts have lines.
        self._can_grow = found.shape not in FRAMEWORKS and found.shape not in TRANSCRIPTS and may_grow(document)
        # The shape that the messages decide is found when one is added: it takes half as long as the repair.
        self._document: bytes | None = document if self._can_grow and self._reader is None else None
        self._point: HistoryPoint | None = None

    def request(self) -> Normalized:
        """Return the request of the document, as ``normalize`` makes it."""
        return self._work.request(self._target, is_sent=False)

    def add(self, messages: Sequence[bytes]) -> bool:
        """Add messages.

        Returns:
            False where the document must be read as a whole; then this object must not be used any more.

        Raises:
            InputError: a message cannot be used; this object must not be used any more.
        """
        if not messages:
            return self._can_grow
        self._decide()
        if not self._can_grow:
            return False
        added: list[Turn] = []
        for message in messages:
            turns = self._read(message)
            if turns is None:
                return False
            self._work.count += 1
            added += turns
        if added:
            self._work.take_turns(added)
        return True

    def keep_point(self) -> bool:
        """Remember how far the document is, in place of an earlier point; return False if it cannot go back there."""
        self._decide()
        self._point = self._work.point() if self._can_grow else None
        return self._point is not None

    def back(self) -> int:
        """Go back to the remembered point, as often as needed; return its number of messages.

        It is 0 where the document must be read as a whole; then this object must not be used any more.
        """
        return self._work.count if self._point is not None and self._work.cut_at(self._point) else 0

    def _decide(self) -> None:
        """Find the shape that the messages decide for those that are added."""
        if self._document is not None:
            self._work.decided, self._document = decided_in(self._document), None

    def _read(self, message: bytes) -> list[Turn] | None:
        """Read the next message; None where the document must be read as a whole."""
        work = self._work
        if self._reader is not None:
            return read_added(message, work.count, self._reader)
        turns, fixes, decided = read_next(message, index=work.count, decided=work.decided)
        # A message that decides the shape changes how the others are read. A document of too many messages with fixes
        # or with unknown blocks is refused.
        return None if fixes or decided != work.decided or any(map(_has_unknown, turns)) else turns


def _has_unknown(turn: Turn) -> bool:
    return any(isinstance(block, Unknown) for block in turn.blocks)
