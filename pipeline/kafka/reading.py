"""Read what partitions have now, with a consumer that belongs to no group. Failures are typed errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from reknit.pipeline.kafka import connection, explained
from reknit.pipeline.settings import Config
from reknit.topics import LARGEST_OUTPUT

# A poll that only passes transaction markers returns nothing, so the last poll costs this wait.
POLL_MS = 50


# Called with the number of offsets that were read, and of all.
OnProgress: TypeAlias = Callable[[int, int], None]


def isolation_of(config: Config) -> str:
    """Return the isolation with which a pipeline's own outputs are read: committed records only, where it commits."""
    return "read_committed" if config.delivery == "exactly-once" else "read_uncommitted"


def groupless_consumer(config: Config, isolation: str, **options: Any) -> AIOKafkaConsumer:  # noqa: ANN401  the client's
    """Return a consumer without a group, which moves no offsets. It is not started."""
    # With the client's default for a missing offset, assign() starts at the end and overrides seek_to_beginning().
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": POLL_MS, **options}
    return AIOKafkaConsumer(**connection(config), isolation_level=isolation, **settings)


@asynccontextmanager
async def reader(config: Config) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer without a group that reads committed records only.

    Raises:
        BrokerError: no broker answers, or it refuses.
    """
    consumer = groupless_consumer(config, isolation_of(config), max_partition_fetch_bytes=LARGEST_OUTPUT)
    try:
        await consumer.start()
        yield consumer
    except KafkaError as error:
        raise await explained(config, error) from error
    finally:
        await consumer.stop()


async def read_partitions(
    consumer: AIOKafkaConsumer,
    places: Collection[TopicPartition],
    since_ms: int | None = None,
    on_progress: OnProgress = lambda _done, _all: None,
    *,
    stretches: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> AsyncIterator[ConsumerRecord]:
    """Yield all records that the partitions have now, each partition's oldest first.

    Args:
        consumer: a consumer without a group.
        places: the partitions.
        since_ms: skip records that are older, in milliseconds since the epoch.
        on_progress: called with the number of offsets that were read, and of all.
        stretches: for a partition, the first offset to read and the first that is not read.
    """
    if not places:
        return
    consumer.assign(list(places))
    ends = await consumer.end_offsets(places)
    await consumer.seek_to_beginning(*places)
    if since_ms is not None:
        for place, found in (await consumer.offsets_for_times(dict.fromkeys(places, since_ms))).items():
            consumer.seek(place, ends[place] if found is None else found.offset)
    bounds = stretches or {}
    for place, (first, behind) in bounds.items():
        ends[place] = min(ends[place], behind)
        consumer.seek(place, max(first, await consumer.position(place)))
    at = {place: await consumer.position(place) for place in places}
    every = sum(max(0, ends[place] - at[place]) for place in places)
    while missing := {place: ends[place] - at[place] for place in places if at[place] < ends[place]}:
        on_progress(every - sum(missing.values()), every)
        for place, records in (await consumer.getmany(*missing, timeout_ms=POLL_MS)).items():
            for record in records:
                # Yield the rest of the last batch too: the embedded broker reports ends inside of it.
                if place not in bounds or record.offset < bounds[place][1]:
                    yield record
        at = {place: await consumer.position(place) for place in places}
