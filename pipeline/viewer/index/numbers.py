"""Parses the numbers in addresses: cursors, places of records and positions. No other module does.

A page's address may hold any text. Returned numbers fit into SQLite's integers. Those of a place fit into the bits that
a row's number has for them: a larger partition would name a record of another topic.
"""

from __future__ import annotations

import re
from typing import Final

from reknit.pipeline.errors import InputError
from reknit.pipeline.viewer.index.entries import OFFSETS, PARTITIONS, RANKS

# SQLite's and Kafka's integers have 64 bits and a sign. A record's time may be negative.
_MOST: Final = 2**63 - 1
_CURSOR: Final = re.compile(r"(-?\d{1,19})-(\d{1,19})", re.ASCII)
_POSITION: Final = re.compile(r"(-?\d{1,19})/(-?\d{1,19})", re.ASCII)
_PLACE: Final = re.compile(r"([^/]+)/(\d{1,19})/(\d{1,19})", re.ASCII)
# Characters of a malformed text that an error quotes.
_QUOTED: Final = 80


def read_cursor(text: str) -> tuple[int, int]:
    """Return both numbers of a list's cursor: ``1760000000000-17``.

    Raises:
        InputError: ``bad_search``.
    """
    found = _pair(_CURSOR, text)
    if found is None:
        raise InputError("bad_search", f"{text[:_QUOTED]!r} is no place to go on from", path="after")
    return found


def read_position(text: str) -> tuple[int, int]:
    """Return both numbers of a position, the name of a live page's message: ``0/17``.

    Raises:
        InputError: ``place_unknown``.
    """
    found = _pair(_POSITION, text)
    if found is None:
        raise InputError("place_unknown", "a place is two numbers, as 0/17")
    return found


def read_place(text: str) -> tuple[str, int, int]:
    """Return topic, partition and offset of a record's place, as headers write it: ``topic/partition/offset``.

    Raises:
        InputError: ``bad_place``.
    """
    found = _PLACE.fullmatch(text)
    if found is not None:
        topic, partition, offset = found[1], int(found[2]), int(found[3])
        if topic in RANKS and partition < PARTITIONS and offset < OFFSETS:
            return topic, partition, offset
    raise InputError("bad_place", f"{text[:_QUOTED]!r} is no place of a record: topic/partition/offset")


def is_place(text: str) -> bool:
    """Return whether ``read_place`` reads this text. A header that should have a place may have any text."""
    try:
        read_place(text)
    except InputError:
        return False
    return True


def _pair(form: re.Pattern[str], text: str) -> tuple[int, int] | None:
    found = form.fullmatch(text)
    if found is None:
        return None
    first, second = int(found[1]), int(found[2])
    return (first, second) if max(abs(first), abs(second)) <= _MOST else None
