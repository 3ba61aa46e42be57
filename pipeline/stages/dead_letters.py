"""Dead letters: what could not be processed, unchanged, with headers that say why and where it stood."""

from __future__ import annotations

import hashlib

from pipeline._version import __version__
from pipeline.errors import ReknitError
from pipeline.stages.base import Output, Record
from topics import DEAD_LETTERS, LARGEST_OUTPUT
from topics import headers as names

# A header holds an error's words, not a copy of the input that an error may quote.
LONGEST_MESSAGE = 1000
# What the copied key and the headers beside a value may take of the largest record.
ROOM_FOR_HEADERS = 64 * 1024


def dead_letter(record: Record, topic: str, error: ReknitError) -> Output:
    """The record as it came, with ``reknit.error.*`` headers; a value that does not fit is named by its digest."""
    headers = [*record.headers, *_why(error), *_where(record, topic)]
    value = record.value
    if value is not None and len(value) > LARGEST_OUTPUT - ROOM_FOR_HEADERS:
        headers.append((names.ERROR_VALUE_SHA256, hashlib.sha256(value).hexdigest().encode()))
        value = None
    return Output(DEAD_LETTERS, record.key, value, tuple(headers))


def _why(error: ReknitError) -> list[tuple[str, bytes]]:
    found = [
        (names.ERROR_CODE, error.code),
        (names.ERROR_RULE, error.rule or ""),
        (names.ERROR_PATH, error.path),
        (names.ERROR_MESSAGE, error.message[:LONGEST_MESSAGE]),
    ]
    # A message may quote a lone surrogate of the input; a header is UTF-8.
    return [(name, text.encode("utf-8", "replace")) for name, text in found if text]


def _where(record: Record, topic: str) -> list[tuple[str, bytes]]:
    return [
        (names.ERROR_TOPIC, topic.encode()),
        (names.ERROR_PARTITION, b"%d" % record.partition),
        (names.ERROR_OFFSET, b"%d" % record.offset),
        (names.ERROR_VERSION, __version__.encode()),
    ]
