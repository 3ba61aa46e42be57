"""Dead letters: what could not be processed, unchanged, with headers that say why and where it stood."""

from __future__ import annotations

import hashlib

from pipeline._version import __version__
from pipeline.errors import ReknitError
from pipeline.stages.base import Headers, Output, Record
from topics import DEAD_LETTERS, LARGEST_OUTPUT
from topics import headers as names

# A header holds an error's words, not a copy of the input that an error may quote.
LONGEST_MESSAGE = 1000
# What the copied key and the headers beside a value may take of the largest record.
ROOM_FOR_HEADERS = 64 * 1024


def dead_letter(record: Record, topic: str, error: ReknitError) -> Output:
    """The record as it came, with ``reknit.error.*`` headers; a value that does not fit is named by its digest."""
    why = error_headers(
        error.code,
        topic,
        record.partition,
        record.offset,
        rule=error.rule or "",
        path=error.path,
        message=error.message[:LONGEST_MESSAGE],
    )
    headers = (*record.headers, *why)
    value = record.value
    if value is not None and len(value) > LARGEST_OUTPUT - ROOM_FOR_HEADERS:
        headers = (*headers, (names.ERROR_VALUE_SHA256, hashlib.sha256(value).hexdigest().encode()))
        value = None
    return Output(DEAD_LETTERS, record.key, value, headers)


def error_headers(
    code: str, topic: str, partition: int, offset: int, *, rule: str = "", path: str = "", message: str = ""
) -> Headers:
    """What a dead letter carries behind the headers of its record; ``topic`` is the contract's name."""
    words = (
        (names.ERROR_CODE, code),
        (names.ERROR_RULE, rule),
        (names.ERROR_PATH, path),
        (names.ERROR_MESSAGE, message),
    )
    return (
        # A message may quote a lone surrogate of the input; a header is UTF-8.
        *((name, text.encode("utf-8", "replace")) for name, text in words if text),
        (names.ERROR_TOPIC, topic.encode()),
        (names.ERROR_PARTITION, b"%d" % partition),
        (names.ERROR_OFFSET, b"%d" % offset),
        (names.ERROR_VERSION, __version__.encode()),
    )
