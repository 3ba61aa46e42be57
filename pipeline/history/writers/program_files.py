"""Values of the lines of programs' session files: a history has no times, so these are made."""

from __future__ import annotations

from typing import Final

_SECONDS: Final = 60
_MILLISECONDS: Final = 1000
DAY: Final = "2000-01-01"
FOLDER: Final = "."
"""The folder of a session, since a history has none."""


def time_of(number: int) -> str:
    """Return the time of a line: a millisecond after that of the line before it, from a fixed one on."""
    seconds, millisecond = divmod(number, _MILLISECONDS)
    minutes, second = divmod(seconds, _SECONDS)
    hour, minute = divmod(minutes, _SECONDS)
    return f"{DAY}T{hour:02d}:{minute:02d}:{second:02d}.{millisecond:03d}Z"
