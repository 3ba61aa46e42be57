"""Looks at the cluster every two seconds: the worker's positions, the ends of the inputs, the members of its group.

``reknit.pipeline.viewer.progress`` evaluates the looks. The watch has connections of its own: the follower's records
prove nothing of a worker, and a consumer of a frozen broker waits exactly like one that has read everything. Each look
ends within three seconds, whatever the brokers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError
from msgspec import structs

from reknit.pipeline.errors import BrokerDownError, BrokerError, ReknitError, error_name
from reknit.pipeline.kafka import connection, explained
from reknit.pipeline.kafka.admin import Admin
from reknit.pipeline.kafka.partitions import every_place
from reknit.pipeline.kafka.reading import POLL_MS, groupless_consumer, isolation_of
from reknit.pipeline.settings import Config
from reknit.pipeline.viewer.index import Index
from reknit.pipeline.viewer.progress import Look, Loss, Place, Progress, Seen
from reknit.topics import DAY_MS, INPUTS, name_of

_log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 3.0
# Clients that lost their broker are closed within this time, or left to themselves.
_CLOSE_SECONDS: Final = 1.0
# Records before a position are looked for this long at most, in all partitions together.
_PROBE_SECONDS: Final = 1.0
# Topics are looked for again after this time; they are made and deleted by hand.
_TOPICS_SECONDS: Final = 30.0
# A loss is shown this long.
LOSSES_MS: Final = 7 * DAY_MS


class Watch:
    """Fills a ``Progress``; ``run`` ends only by being cancelled.

    Args:
        config: the cluster and the prefix.
        index: has the times of the newest records, and keeps losses.
        progress: takes the looks.
    """

    def __init__(self, config: Config, index: Index, progress: Progress) -> None:
        self._config = config
        self._index = index
        self._progress = progress
        self._source_prefix = config.inputs_prefix
        self._group = f"{config.prefix}reknit"
        self._places: dict[TopicPartition, Place] = {}
        self._places_at = float("-inf")
        # Results of probes by partition: its position, the end up to which it was read, the time of the first record.
        self._probed: dict[Place, tuple[int, int, int | None]] = {}
        self._last: Mapping[Place, Seen] = {}
        self._problem = ""  # the one that was logged last

    async def run(self) -> None:
        self._progress.begin()
        while True:
            admin = AIOKafkaAdminClient(**connection(self._config), request_timeout_ms=int(_LOOK_SECONDS * 1000))
            # Records of an open transaction wait too.
            consumer = self._consumer("read_uncommitted")
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await _all(admin.start(), consumer.start())
                while True:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        look = await self._look(Admin(admin), consumer)
                    self._problem = ""
                    await self._keep_losses(look)  # first: a page that shows no waiting records shows what was lost
                    self._progress.note(look)
                    await asyncio.sleep(_EVERY_SECONDS)
            except Exception as error:  # noqa: BLE001  pages show any failure as an old look
                self._places = {}  # a topic may have been deleted
                await self._note(error)
            finally:
                await _closed(admin.close(), consumer.stop())
            await asyncio.sleep(_EVERY_SECONDS)

    async def _note(self, error: Exception) -> None:
        if isinstance(error, GroupAuthorizationFailedError):
            error = BrokerError("not_authorized", f"not known: no right to describe the group {self._group}")
        elif isinstance(error, KafkaError):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    error = await explained(self._config, error)
        if isinstance(error, TimeoutError | OSError | BrokerDownError):
            return  # the age of the last look shows it
        words = error.message if isinstance(error, ReknitError) else f"the look failed: {error_name(error)}"
        if words != self._problem:
            _log.warning("the progress of the worker is not known: %s", error_name(error))
        self._problem = words
        self._progress.note_problem(words)

    def _consumer(self, isolation_level: str) -> AIOKafkaConsumer:
        return groupless_consumer(self._config, isolation_level, request_timeout_ms=int(_LOOK_SECONDS * 1000))

    async def _look(self, admin: Admin, consumer: AIOKafkaConsumer) -> Look:
        if time.monotonic() > self._places_at + _TOPICS_SECONDS or not self._places:
            there = await every_place(consumer)
            names = {topic: name_of(topic, self._config.prefix, self._config.source_prefix) for topic in INPUTS}
            self._places = {
                place: (topic, place.partition) for topic, name in names.items() for place in there.get(name, ())
            }
            self._places_at = time.monotonic()
        committed, is_at_work, firsts, ends = await _all(
            admin.next_offsets(self._group, self._places),
            admin.is_at_work(self._group),
            consumer.beginning_offsets(self._places),
            consumer.end_offsets(self._places),
        )
        found = {
            self._places[at]: Seen(first=firsts[at], end=ends[at], position=committed.get(at)) for at in self._places
        }
        self._last = await self._probed_all(found)
        return Look(partitions=self._last, is_at_work=is_at_work, newest=self._index.newest)

    # Between a position and an end there may be only the markers of transactions. So a position that does not move is
    # probed once: the watch reads the first record after it.

    async def _probed_all(self, found: dict[Place, Seen]) -> dict[Place, Seen]:
        names = {place: at for at, place in self._places.items()}
        still = {
            place: seen.next
            for place, seen in found.items()
            if seen.waits and self._is_still(place, seen) and not self._is_known(place, seen)
        }
        if still:
            await self._probe({names[place]: position for place, position in still.items()})
        return {place: self._with_probe(place, seen) for place, seen in found.items()}

    def _is_still(self, place: Place, seen: Seen) -> bool:
        before = self._last.get(place)
        return before is None or before.position == seen.position

    def _is_known(self, place: Place, seen: Seen) -> bool:
        position, end, oldest_ms = self._probed.get(place, (-1, -1, None))
        return position == seen.next and (oldest_ms is not None or end == seen.end)

    def _with_probe(self, place: Place, seen: Seen) -> Seen:
        if not self._is_known(place, seen):
            return seen
        _, _, oldest_ms = self._probed[place]
        return structs.replace(seen, has_records=oldest_ms is not None, oldest_ms=oldest_ms)

    async def _probe(self, positions: Mapping[TopicPartition, int]) -> None:
        """Look for the first record from each position on, with the isolation of a worker."""
        consumer = self._consumer(isolation_of(self._config))
        try:
            await consumer.start()
            ends = await consumer.end_offsets(positions)
            consumer.assign(list(positions))
            for at, position in positions.items():
                consumer.seek(at, position)
            await self._read_firsts(consumer, positions, ends)
        finally:
            await _closed(consumer.stop())

    async def _read_firsts(
        self, consumer: AIOKafkaConsumer, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        pending = set(positions)
        deadline = time.monotonic() + _PROBE_SECONDS
        while pending and time.monotonic() < deadline:
            records = await consumer.getmany(*pending, timeout_ms=POLL_MS, max_records=1)
            for at in list(pending):
                if records.get(at):
                    self._probed[self._places[at]] = positions[at], ends[at], records[at][0].timestamp
                elif await consumer.position(at) >= ends[at]:
                    self._probed[self._places[at]] = positions[at], ends[at], None
                else:
                    continue
                pending.remove(at)

    async def _keep_losses(self, look: Look) -> None:
        """Keep the offsets that a topic lost before a worker took them, and show those of the last days."""
        now_ms = int(time.time() * 1000)
        begins_at_0 = self._source_prefix == self._config.prefix
        for (topic, partition), seen in look.partitions.items():
            # A pipeline that reads the inputs of another one begins where they begin.
            position = 0 if seen.position is None and begins_at_0 else seen.position
            if position is not None and position < seen.first:
                await asyncio.to_thread(self._index.note_loss, topic, partition, position, seen.first, now_ms)
        rows = await asyncio.to_thread(self._index.losses, now_ms - LOSSES_MS)
        self._progress.losses = [
            Loss(topic=topic, partition=partition, first=first, next=following, seen_ms=seen_ms)
            for topic, partition, first, following, seen_ms in rows
        ]


async def _all(*calls: Awaitable[Any]) -> list[Any]:
    """Return what the calls return, once all have ended; raise the first error.

    ``asyncio.gather`` raises at once. A call that still ran would open a connection after its client was closed.
    """
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


async def _closed(*closing: Awaitable[object]) -> None:
    """Close clients; give up on those that wait for a frozen broker."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await asyncio.gather(*closing, return_exceptions=True)
