"""Send records to Kafka: a producer that waits for all replicas, a limit of records in flight, typed errors.

The records are the callers'. So is the error for a record that is too large: a command and the client library report
it under different codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from reknit.pipeline.errors import BrokerError
from reknit.pipeline.kafka import Cluster, connection, explained
from reknit.pipeline.kafka.admin import EMBEDDED_CLUSTER, connected
from reknit.topics import LARGEST_INPUT

# Records in flight. Delivery stays in order: aiokafka has one batch in flight for each partition.
OUTSTANDING = 500
# After this time without an answer the broker counts as down.
ANSWER_SECONDS = 15
_LOOPBACK = frozenset({"127.0.0.1", "localhost"})


async def open_producer(
    cluster: Cluster,
    *,
    start_seconds: float | None = None,
    **options: Any,  # noqa: ANN401  the client's options
) -> AIOKafkaProducer:
    """Start a producer that waits for all replicas; the caller stops it.

    Args:
        cluster: where the brokers are.
        start_seconds: how long the start may take; by default the client's own limits apply.
        options: further options of the client. ``enable_idempotence`` has no effect on the embedded broker, which
            gives no producer ids: a record whose acknowledgement is lost can be written twice there.

    Raises:
        BrokerError: no broker answers, or it refuses.
    """
    if options.get("enable_idempotence") and await _is_embedded(cluster):
        options["enable_idempotence"] = False
    producer = AIOKafkaProducer(**connection(cluster), acks="all", max_request_size=LARGEST_INPUT, **options)
    try:
        await asyncio.wait_for(producer.start(), start_seconds)
    except BaseException as error:
        await producer.stop()
        if isinstance(error, KafkaError | TimeoutError):
            raise await explained(cluster, error) from error
        raise
    return producer


async def _is_embedded(cluster: Cluster) -> bool:
    """Return True for the embedded broker, which is recognized by its cluster id; a real cluster never falls back."""
    host, _, _ = cluster.bootstrap_servers.rpartition(":")
    if host not in _LOOPBACK:  # it listens there only
        return False
    try:
        async with connected(cluster, ANSWER_SECONDS) as admin:
            return await admin.cluster_id() == EMBEDDED_CLUSTER
    except BrokerError:
        return False  # the producer's own start gives the reason


@asynccontextmanager
async def producing(cluster: Cluster) -> AsyncIterator[AIOKafkaProducer]:
    """Yield a producer with the time limits of a command.

    Raises:
        BrokerError: no broker answers, or it refuses; also for the client's errors in the block.
    """
    producer = await open_producer(cluster, start_seconds=ANSWER_SECONDS, request_timeout_ms=ANSWER_SECONDS * 1000)
    try:
        yield producer
    except (KafkaError, TimeoutError) as error:
        raise await explained(cluster, error) from error
    finally:
        await producer.stop()


async def hand_over(
    cluster: Cluster,
    producer: AIOKafkaProducer,
    topic: str,
    value: bytes | None,
    *,
    key: bytes,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> asyncio.Future[Any]:
    """Put a record into the producer's next batch; ``acknowledged`` waits until the brokers have it.

    Args:
        cluster: where the brokers are.
        producer: a started producer.
        topic: the topic's name on the brokers.
        value: of the record.
        key: of the record.
        headers: of the record.

    Raises:
        MessageSizeTooLargeError: the record is larger than an input may be.
        BrokerError: no broker answers, or it refuses.
    """
    try:
        sent: asyncio.Future[Any] = await producer.send(topic, value=value, key=key, headers=list(headers))
    except MessageSizeTooLargeError:
        raise
    except KafkaError as error:
        raise await explained(cluster, error) from error
    return sent


async def acknowledged(cluster: Cluster, sent: asyncio.Future[Any]) -> Any:  # noqa: ANN401  aiokafka has no types here
    """Wait until the brokers have a record, and return the client's metadata of it.

    Raises:
        BrokerError: no broker answers, or it refuses.
    """
    try:
        return await sent
    except KafkaError as error:
        raise await explained(cluster, error) from error


class Sender:
    """Sends records with a limit of how many are in flight, in order for each key."""

    def __init__(self, cluster: Cluster, producer: AIOKafkaProducer) -> None:
        self._cluster = cluster
        self._producer = producer
        self._sent: list[asyncio.Future[Any]] = []

    async def send(
        self, topic: str, value: bytes | None, key: bytes, headers: Sequence[tuple[str, bytes | None]] = ()
    ) -> None:
        """Send a record; wait while too many are in flight.

        Raises:
            MessageSizeTooLargeError: as ``hand_over``.
            BrokerError: as ``hand_over``; also for a record that was sent before.
        """
        self._sent.append(await hand_over(self._cluster, self._producer, topic, value, key=key, headers=headers))
        if len(self._sent) >= OUTSTANDING:
            await self.flush()

    async def flush(self) -> None:
        """Wait until the brokers have every record.

        Raises:
            BrokerError: as ``acknowledged``.
        """
        waiting, self._sent = self._sent, []
        try:
            await asyncio.gather(*waiting)
        except KafkaError as error:  # explained once: an explanation may connect to the broker
            raise await explained(self._cluster, error) from error
