"""Losses that an accepted answer reports: blocks of the request that the model did not see.

The Messages API checks reasoning against the model, the account and the conversation that it was made for. If a check
fails, it leaves the block out and reports that in the answer (``input_transformations``). Source: ``BetaMessage`` of
anthropics/anthropic-sdk-python. Entries of other types say that a block was changed or accepted, not dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw, Struct

CODE: Final = "provider_dropped"
"""The code of the fix for each loss."""
MEMBER: Final = "input_transformations"
"""The member of an answer that has its losses."""
# A server can send any text. Records of fixes have names and places only.
_DROPPED: Final = re.compile(r"[a-z][a-z_]{0,59}_dropped")
_REASON: Final = re.compile(r"[a-z][a-z_]{0,79}")
_PLACE: Final = re.compile(r"[A-Za-z][\w.]{0,199}", re.ASCII)


class Loss(Struct, frozen=True):
    """A block that a provider left out: its place in the request, or "", and the reason."""

    path: str
    reason: str


class _Transformation(Struct):
    type: str
    path: str | None = None
    reason: str | None = None


_entries = msgspec.json.Decoder(list[Raw])
_entry = msgspec.json.Decoder(_Transformation)


def losses_in(transformations: bytes | Raw) -> Iterator[Loss]:
    """Yield the losses among the transformations of an answer. Unreadable entries are skipped."""
    try:
        entries = _entries.decode(transformations)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    for raw in entries:
        try:
            entry = _entry.decode(raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if _DROPPED.fullmatch(entry.type):
            reason = f"{entry.type}: {entry.reason}" if entry.reason and _REASON.fullmatch(entry.reason) else entry.type
            yield Loss(entry.path if entry.path and _PLACE.fullmatch(entry.path) else "", reason)
