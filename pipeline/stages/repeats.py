"""Producers deliver at least once: a record that comes again under its id is ignored, unless it says something else."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import msgspec
from msgspec import UNSET

from pipeline.errors import InputError
from pipeline.stages.turn_state import Entry, SeenId
from topics.records import TurnAppended, TurnRecord

# The place of a record that is no message: it stays known whatever becomes of the history.
NO_MESSAGE = -1

_encode = msgspec.json.Encoder(order="deterministic").encode


def seen_before(entry: Entry, event: TurnRecord) -> bool:
    """Whether the record was taken before; if not, its id is noted.

    Raises:
        InputError: the id was taken by a record that says something else.
    """
    name = getattr(event, "id", UNSET)
    if name is UNSET:
        return False
    digest = _digest(event)
    seen = entry.ids.get(name)
    if seen is None:
        place = entry.session.count if isinstance(event, TurnAppended) else NO_MESSAGE
        entry.ids[name] = SeenId(digest, place)
        entry.new_ids.add(name)
        return False
    if seen.digest != digest:
        raise InputError("id_reused", "this id came before with other content")
    return True


def kept_by(entry: Entry, name: str) -> int | str:
    """How many messages stay if the one that came under this id becomes the last; else the id, as a message's own."""
    seen = entry.ids.get(name)
    return name if seen is None or seen.messages == NO_MESSAGE else seen.messages + 1


def forget(entry: Entry, name: str) -> None:
    """Take a note back: its record could not be used."""
    if entry.ids.pop(name, None) is not None:
        entry.gone_ids.add(name)


def forget_behind(entry: Entry, count: int) -> None:
    """After the history was cut to ``count`` messages: ids of those that are gone may come again."""
    for name in [name for name, seen in entry.ids.items() if seen.messages >= count]:
        forget(entry, name)


def _digest(event: TurnRecord) -> bytes:
    """A digest of what the record says, however it was written."""
    encoded = _encode(event)
    # Of a message that only the tolerant reader takes, the bytes stand for what it says.
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        encoded = _encode(msgspec.json.decode(encoded))
    return hashlib.sha256(encoded).digest()[:16]
