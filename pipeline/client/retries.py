"""Pauses between attempts: as long as the provider asks, else growing.

Providers use ``retry-after-ms`` (OpenAI, Anthropic) or HTTP's ``retry-after`` (RFC 9110, 10.2.3) in seconds or as a
date. A date is compared with the answer's own ``date`` header, so that a wrong clock changes nothing.
"""

from __future__ import annotations

import email.utils
import random
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
# Longest pause that a provider can ask for. It covers limits per minute and per hour. A daily limit asks for many
# hours; an answer that late is no use to its session.
LONGEST_WAIT: Final = 3600.0
_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]*)?")


def pause_after(attempt: int) -> float:
    """Return the seconds to wait after attempt 0, 1, …, with jitter, so that failed requests do not return together."""
    longest: float = min(_FIRST_PAUSE * 2 ** min(attempt, 16), _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  no secret hangs on it


def asked_pause(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that a provider asks to wait; None without a readable header.

    Args:
        headers: of the answer, by lower-case name.
        now: seconds since the epoch, used if the answer has no ``date``; default: the clock.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after", "")
    seconds = _number(given)
    if seconds is not None:
        return seconds
    due = _moment(given)
    if due is None:
        return None
    answered = _moment(headers.get("date", ""))
    if answered is None:
        answered = time.time() if now is None else now
    return max(due - answered, 0.0)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _moment(text: str) -> float | None:
    """Parse a date in any form of RFC 9110 or RFC 5322, GMT by default, to seconds since the epoch."""
    try:
        found = email.utils.parsedate_tz(text)
        return None if found is None else datetime(*found[:6], tzinfo=UTC).timestamp() - (found[9] or 0)
    except (ValueError, OverflowError):
        return None
