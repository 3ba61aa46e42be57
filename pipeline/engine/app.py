"""The Faust app: one declared agent for each source topic, so that Faust subscribes to it and assigns it.

And a patch of aiokafka, which makes an object with eleven fields of each record. A stage sees six of them; making it,
and a second one from it, was measured to be a tenth of a worker's time. So the one method that makes it is replaced,
for the whole process: a worker's other consumers read changelogs, and of those only key and value.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import faust
from aiokafka.consumer import fetcher
from faust.types import StreamT, TransportT

from pipeline.engine.runtime import Runtime
from pipeline.engine.transport import SpanTransport
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


def patch_aiokafka() -> None:
    """Let every consumer of this process make ``Record`` objects."""
    fetcher.PartitionRecords = StageRecords


# Faust and its client build debug records for each message even where nobody sees them; our services log as theirs.
_QUIET = ("faust", "aiokafka", "mode", __name__.rpartition(".")[0])


class ReknitApp(faust.App):
    """A Faust app whose transport works in batches."""

    runtime: Runtime

    def _new_transport(self) -> TransportT:
        return SpanTransport(self.conf.broker_consumer, self)


def make_app(runtime: Runtime) -> ReknitApp:
    """Return the app for a worker. Its id carries the prefix, so pipelines on one broker do not meet."""
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("faust.transport.drivers.aiokafka").addFilter(_no_topic_creation)
    tuning = runtime.tuning
    app = ReknitApp(
        runtime.group,
        broker=[f"kafka://{server.strip()}" for server in runtime.bootstrap.split(",")],
        store="memory://",
        datadir=str(runtime.state_dir / "faust"),
        topic_partitions=runtime.partitions,
        topic_allow_declare=False,  # `reknit topics apply` makes topics
        topic_disable_leader=True,
        table_standby_replicas=0,
        stream_wait_empty=False,  # streams see nothing
        stream_recovery_delay=0,
        broker_session_timeout=tuning.session_seconds,
        broker_heartbeat_interval=tuning.heartbeat_seconds,
        broker_rebalance_timeout=tuning.rebalance_seconds,
        broker_request_timeout=max(40.0, tuning.rebalance_seconds + 10.0),
        consumer_auto_offset_reset="earliest",
        web_enabled=False,  # health.py serves what is worth serving
        worker_redirect_stdouts=False,
    )
    app.runtime = runtime
    for topic in runtime.stages:
        _subscribe(app, runtime.source_prefix + topic)
    return app


def _subscribe(app: ReknitApp, topic: str) -> None:
    source = app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    async def never_called(stream: StreamT[Any]) -> None:
        async for _ in stream:
            raise AssertionError(f"a record of {topic} took Faust's own path")

    app.agent(source, name=f"subscribe-{topic}")(never_called)


def _no_topic_creation(record: logging.LogRecord) -> bool:
    """Drop Faust's warning that it may not create topics: it is meant to not create them."""
    return not record.getMessage().startswith("Topic creation disabled")
