"""Position marks: the topics that a position belongs to, and the number from which its offsets count.

Kafka gives each topic an id, and a re-created topic has another one (KIP-516). A position counts in one input topic and
belongs to the state in one changelog, so its record holds both ids as of the time when the partition was opened. They
are headers, which builds without this check ignore.

The record's value holds the fields that a build must not ignore. A build that does not know a field cannot read the
value, and refuses it:

- ``base``: the input topic was re-created and accepted. Offsets begin at 0 again, and offset + base is unique over all
  topics that the input has had. Request ids and the order of waiting records depend on it.
- ``until``: the state is being rebuilt and is complete at this offset. Before it, a worker would publish again what was
  published before.

The group's offsets have metadata of the same kind. They follow the position, and they remain when a changelog is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from reknit.topics.headers import Headers

# Key of the position record in the changelog. No stage's key begins with a zero byte: session ids are text.
POSITION = b"\0position"

# Each batch of a worker ends with a position record, so the last one is near the end of a changelog.
TAIL_RECORDS = 2_000
_INPUT_ID, _STATE_ID = "input-id", "state-id"
# Workers write this metadata with the group's offsets; offsets that operators set with Kafka's tools have other
# metadata.
_BY_A_WORKER = "reknit"
_WITHOUT_STATE = "empty"


def position_value(position: int, state_format: int) -> bytes:
    """Return the value under ``POSITION``.

    Builds that only read format 1 cannot read any other format, and report that.
    """
    return b"%d" % position if state_format == 1 else b"%d %d" % (position, state_format)


def read_position(value: bytes) -> tuple[int, int]:
    """Return the next source offset and the format of the state. Further fields of the value are ignored."""
    position, *more = value.split(b" ")
    return int(position), int(more[0]) if more else 1


class PositionMark(Struct, frozen=True, kw_only=True):
    """See the module. An id is empty if an older build wrote the position, or if the brokers have no topic ids."""

    base: int = 0
    until: int | None = None
    input_id: str = ""
    state_id: str = ""


UNMARKED = PositionMark()


def position_row(position: int, state_format: int, mark: PositionMark) -> tuple[bytes, bytes, Headers]:
    """Return key, value and headers of a position record."""
    fields = [("base", mark.base or None), ("until", mark.until)]
    more = b"".join(b" %s=%d" % (name.encode(), value) for name, value in fields if value is not None)
    value = b"%d %d%s" % (position, state_format, more) if more else position_value(position, state_format)
    ids = ((_INPUT_ID, mark.input_id), (_STATE_ID, mark.state_id))
    return POSITION, value, tuple((name, topic_id.encode()) for name, topic_id in ids if topic_id)


def read_mark(value: bytes, headers: Iterable[tuple[str, bytes]]) -> PositionMark:
    """Return the mark of a position record.

    Raises:
        ValueError: a newer build wrote the record.
    """
    read_position(value)
    fields = _fields(value.decode().split(" ")[2:])
    ids = {name: (topic_id or b"").decode() for name, topic_id in headers if name in {_INPUT_ID, _STATE_ID}}
    return PositionMark(
        base=fields.get("base", 0),
        until=fields.get("until"),
        input_id=ids.get(_INPUT_ID, ""),
        state_id=ids.get(_STATE_ID, ""),
    )


def _fields(parts: Iterable[str]) -> dict[str, int]:
    fields: dict[str, int] = {}
    for part in parts:
        name, _, number = part.partition("=")
        if name not in {"base", "until"}:
            raise ValueError(f"unknown field {name!r}")
        fields[name] = int(number)
    return fields


class GroupPosition(Struct, frozen=True):
    """A position, ``offset``, that a worker committed for the group. Without ``has_state`` no position record exists.

    ``released_at``: the unique offset of the record that released a parked session, if that release was in progress.
    """

    offset: int
    base: int = 0
    has_state: bool = True
    released_at: int | None = None


def group_metadata(base: int, position: int, *, released_at: int | None = None) -> str:
    """Return the metadata of a group's offset that a worker commits.

    While records are due, the group's offset is less than the ``position``, so the metadata holds it.
    """
    words = [_BY_A_WORKER]
    words += [f"base={base}"] if base else []
    words += [] if position else [_WITHOUT_STATE]
    words += [] if released_at is None else [f"position={position}", f"released={released_at}"]
    return " ".join(words)


def read_group_position(offset: int, metadata: str) -> GroupPosition | None:
    """Return the position that a group's offset represents, or None if no worker committed it."""
    first, *words = metadata.split(" ")
    if first != _BY_A_WORKER:
        return None
    said = {name: int(number) for name, _, number in (word.partition("=") for word in words) if number.isdecimal()}
    position = said.get("position", offset)
    return GroupPosition(position, said.get("base", 0), _WITHOUT_STATE not in words, said.get("released"))
