"""Streams: raw provider events in, items out, with what the stream dropped recovered from what came later."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator

from pipeline.streams.recovery.diagnosis import END_OF_INPUT
from pipeline.streams.recovery.finished import FinishedTurn
from pipeline.streams.session import Recovery
from pipeline.streams.sources import SOURCES
from topics.items import Item

__all__ = ["SOURCES", "FinishedTurn", "Recovery", "recover"]


def recover(lines: Iterable[bytes | str] | bytes | str, source: str = "claude-cli") -> Iterator[Item]:
    """The items of one run.

    ``lines`` is the whole output, or its lines; each element is one or several whole events. Items come as soon as
    their line is read. At the end of the lines what is still open is completed as incomplete.

    Raises:
        UnknownTargetError: there is no such source.
    """
    recovery = Recovery(source, records=False)
    # By its full name: the folder `bytes` has that one in here.
    for line in [lines] if isinstance(lines, builtins.bytes | str) else lines:
        yield from recovery.feed(line.encode("utf-8", "replace") if isinstance(line, str) else line)
    yield from recovery.end_run(END_OF_INPUT)
