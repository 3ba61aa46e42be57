"""What the engine and a stage say to each other. A stage is pure; the engine owns brokers, transactions and clocks.

The engine makes one stage object for each source partition, gives it the partition's state changelog record by record
(``restore``), then batch by batch the source records (``process``), and writes what comes back in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field

Headers = tuple[tuple[str, bytes], ...]


class Record(Struct, frozen=True, kw_only=True):
    """One source record as the broker holds it. ``timestamp`` is in milliseconds since the epoch."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0


class Output(Struct, frozen=True):
    """One record to publish. ``topic`` is the contract's name, without prefix; the partition is the source's."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Result(Struct, kw_only=True):
    """What a batch gives: records to publish and state to keep, in order.

    ``changes`` has at most one entry a key; None deletes it. ``tally`` counts metric events by
    ``(metric name, *label values)``; the engine adds them to the metrics once the batch is committed.
    """

    outputs: list[Output] = field(default_factory=list)
    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    tally: dict[tuple[str, ...], float] = field(default_factory=dict)


class Stage(Protocol):
    """Source records of one partition to output records and state."""

    topic: str  # the source, by its contract name
    state_topic: str  # the changelog, by its contract name

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first; None deletes the key."""

    def process(self, records: Sequence[Record]) -> Result:
        """Work through records in order. Never raises for what a record holds: that becomes a dead letter."""
