"""The replaced parts of aiokafka: the object of a fetched record, and a connection whose transport was closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka import conn
from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaConnectionError

from reknit.pipeline.stages.base import Record

if TYPE_CHECKING:
    from aiokafka import TopicPartition
    from aiokafka.record._crecords import DefaultRecord


class StageRecords(fetcher.PartitionRecords):  # type: ignore[misc] # aiokafka has no types here
    """The records of one fetched partition.

    aiokafka creates an object with eleven fields for each record. A stage uses six of them. Creating it, and a second
    one from it, was measured as a tenth of a worker's time. So the one method that creates it is replaced, for the
    whole
    process: a worker's other consumers read changelogs, and use only keys and values.
    """

    def _consumer_record(self, tp: TopicPartition, record: DefaultRecord) -> Record:
        return Record(
            partition=tp.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=tuple(record.headers),
            timestamp=record.timestamp,
        )


class Connection(conn.AIOKafkaConnection):  # type: ignore[misc] # as above
    """A connection that reports a closed transport as the client's own error.

    If a transport fails, the client learns of it in a later iteration of the loop. A request that is sent before that
    raises RuntimeError in uvloop. The client expects OSError, so the task that sent the request died, and with it the
    worker.
    """

    def send(self, request: Any, expect_response: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002  as the client's
        self._check_transport()
        return super().send(request, expect_response)

    def _send_sasl_token(self, payload: bytes, expect_response: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002  as above
        self._check_transport()
        return super()._send_sasl_token(payload, expect_response)

    def _check_transport(self) -> None:
        if self._writer is not None and self._writer.transport.is_closing():
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: its transport is closed")


def patch_aiokafka() -> None:
    """Make every consumer of this process create ``Record`` objects, and every client ``Connection`` objects."""
    fetcher.PartitionRecords = StageRecords
    conn.AIOKafkaConnection = Connection
