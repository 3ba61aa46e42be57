"""Where the answers of a session begin and end: both protocols group what they show by answers of a run."""

from __future__ import annotations

from reknit.topics.items import AgentError, Item, ItemStarted, SessionInit, TurnResult

# The name of a run whose records name none.
_NAMELESS = "run"


class Answers:
    """The answers of a session, numbered in each run, so that every server derives the same ids from the records.

    Attributes:
        run: the run of the last answer.
        open: the id of the answer that is open, or None.
        is_passing: the answer was opened for a late change of an earlier one, and ends with that change.
        has_stopped: the turn of an API is over; the answer ends once no item of it is open.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.run = ""
        self.open: str | None = None
        self.is_passing = False
        self._programs: set[str] = set()
        self.has_stopped = False

    def name(self, suffix: str) -> str:
        """Return an id within the current run."""
        return f"{self.run or _NAMELESS}#{suffix}"

    def is_superseded_by(self, run: str, item: Item) -> bool:
        """Return True if the record begins another run. Late records of an earlier run do not."""
        begins = ItemStarted | SessionInit if self.open else ItemStarted | SessionInit | TurnResult | AgentError
        return run != self.run and isinstance(item, begins)

    def enter(self, run: str) -> None:
        """Continue with another run."""
        self.run = run

    def note_program(self) -> None:
        """Note that the run is of an agent program, whose answers end with a result. An API sends none."""
        self._programs.add(self.run)

    def begin(self, *, is_passing: bool) -> str | None:
        """Open an answer, and return its id; None if one is open."""
        self.is_passing = is_passing and (self.is_passing or self.open is None)
        if self.open is not None:
            return None
        number = self._numbers.get(self.run, 0)
        self._numbers[self.run] = number + 1
        self.open, self.has_stopped = self.name(str(number)), False
        return self.open

    def end(self) -> None:
        """Close the answer that is open."""
        self.open, self.is_passing, self.has_stopped = None, False, False

    def is_over(self) -> bool:
        """Return True if the answer ends as soon as none of its items is open."""
        return self.open is not None and (self.is_passing or (self.has_stopped and self.run not in self._programs))
