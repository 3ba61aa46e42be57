"""Fetched records in the form that stages take, straight from the log.

aiokafka makes an object with eleven fields of each record, of which a stage sees six; making it, and a second one from
it, was measured to be a tenth of a worker's time. So the one method that makes it is replaced, for the whole process:
a worker's other consumers read changelogs, and of those only key and value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka.consumer import fetcher

from pipeline.stages.base import Record

if TYPE_CHECKING:
    from aiokafka import TopicPartition
    from aiokafka.record._crecords import DefaultRecord


class StageRecords(fetcher.PartitionRecords):  # type: ignore[misc] # aiokafka has no types here
    """The records of one fetched partition."""

    def _consumer_record(self, tp: TopicPartition, record: DefaultRecord) -> Record:
        return Record(
            partition=tp.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=tuple(record.headers),
            timestamp=record.timestamp,
        )


def install() -> None:
    """Let every consumer of this process make ``Record`` objects."""
    fetcher.PartitionRecords = StageRecords
