"""The engine's seam to the brokers: a producer and a reader with the methods of aiokafka 0.14 that the engine calls."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from aiokafka.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    KafkaConnectionError,
    ProducerFenced,
    RequestTimedOutError,
)
from simulation.member import SimAdmin, SimConsumer

_RECORD_OVERHEAD = 70
# As the client and the engine's settings for it.
_COMMIT = True
_RETRY_SECONDS, _MARKERS_SECONDS = 0.1, 0.02


class SimBatch:
    def __init__(self, most):
        self.rows, self._bytes, self._most = [], 0, most

    def append(self, *, key, value, timestamp, headers):
        size = len(key or b"") + len(value or b"") + _RECORD_OVERHEAD
        if self.rows and self._bytes + size > self._most:
            return None
        self._bytes += size
        self.rows.append((key, value, tuple(headers)))
        return self

    def record_count(self):
        return len(self.rows)

    def size(self):
        return self._bytes

    def close(self):
        pass


class SimProducer:
    """Idempotent; repeats requests until they are answered, with EndTxn of version 0."""

    def __init__(self, cluster, network, *, transactional_id=None, transaction_timeout_ms=0, max_batch_size, **_):
        self._cluster, self._network = cluster, network
        self._tid, self._timeout, self._most = transactional_id, transaction_timeout_ms / 1000, max_batch_size
        self._identity = ()
        self._begun, self._added = False, set()
        self._sequences, self._last, self._deliveries = {}, {}, []
        self._data, self._coordination = {}, {}
        self.client = self

    async def _repeat(self, connection, kind, work, *args):
        while True:
            try:
                return await self._network.call(connection, kind, work, *args)
            except ConcurrentTransactions:
                await asyncio.sleep(_MARKERS_SECONDS)
            except (KafkaConnectionError, RequestTimedOutError):
                await asyncio.sleep(_RETRY_SECONDS)

    async def start(self):
        work = self._cluster.init_producer
        pid, epoch = await self._repeat(self._coordination, "InitProducerId", work, self._tid, self._timeout)
        self._identity = (self._tid, pid, epoch)

    async def begin_transaction(self):
        assert not self._begun
        self._begun, self._added = True, set()

    def create_batch(self):
        return SimBatch(self._most)

    async def send_batch(self, batch, topic, *, partition):
        place = (topic, partition)
        self._sequences[place] = self._sequences.get(place, 0) + 1
        delivery = self._deliver(batch, place, self._sequences[place], self._last.get(place))
        self._last[place] = asyncio.ensure_future(delivery)
        self._deliveries.append(self._last[place])
        return asyncio.shield(self._last[place])  # a caller that gives up does not stop the delivery

    async def _deliver(self, batch, place, sequence, before):
        if before is not None and not before.done():
            await asyncio.wait([before])
        try:
            if self._tid is not None and place not in self._added:
                work = self._cluster.add_partition
                await self._repeat(self._coordination, "AddPartitionsToTxn", work, *self._identity, place)
                self._added.add(place)
            work = self._cluster.produce
            base = await self._repeat(self._data, "Produce", work, place, *self._identity, sequence, batch.rows)
        except InvalidProducerEpoch:
            raise ProducerFenced from None
        return SimpleNamespace(offset=base)

    async def commit_transaction(self):
        if pending := [task for task in self._last.values() if not task.done()]:
            await asyncio.wait(pending)
        try:
            if self._added:
                work = self._cluster.end_transaction
                await self._repeat(self._coordination, "EndTxn", work, *self._identity, _COMMIT)
        except InvalidProducerEpoch:
            raise ProducerFenced from None
        self._begun = False

    async def stop(self):
        for task in self._deliveries:
            task.cancel()

    async def close(self):
        pass


class SimReader:
    """Reads a changelog, without a group."""

    def __init__(self, cluster, network, *, isolation_level, **_):
        self._cluster, self._network, self._connection = cluster, network, {}
        self._committed = isolation_level == "read_committed"
        self._at = {}

    async def start(self):
        pass

    def assign(self, places):
        self._at = dict.fromkeys(places, 0)

    async def end_offsets(self, places):
        return {place: (await self._bounds(place))[1] for place in places}

    async def beginning_offsets(self, places):
        return {place: (await self._bounds(place))[0] for place in places}

    async def _bounds(self, place):
        work = self._cluster.bounds
        return await self._network.call(self._connection, "ListOffsets", work, tuple(place), self._committed)

    def seek(self, place, offset):
        self._at[place] = offset

    async def position(self, place):
        return self._at[place]

    async def getmany(self, place, *, timeout_ms, max_records):
        wanted, most = {tuple(place): self._at[place]}, min(50, max_records)
        try:
            work = self._cluster.fetch
            found = await self._network.call(self._connection, "Fetch", work, wanted, self._committed, most)
        except (KafkaConnectionError, RequestTimedOutError):
            found = {}
        if not found:
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        _, self._at[place], records, _ = found[tuple(place)]
        return {place: records}

    async def stop(self):
        pass


class SimClient:
    """A connection for requests about topics."""

    def __init__(self, cluster, network):
        self._cluster, self._network, self._connection = cluster, network, {}

    async def bootstrap(self):
        pass

    def get_random_node(self):
        return 0

    async def send(self, _node, request):
        work, names = self._cluster.topics, tuple(request._topics)
        found = await self._network.call(self._connection, "Metadata", work, names)
        return SimpleNamespace(to_object=lambda: {"topics": found})

    async def close(self):
        self._connection.clear()


class SimBrokers:
    def __init__(self, cluster, network):
        self._cluster, self._network = cluster, network

    def producer(self, **options):
        return SimProducer(self._cluster, self._network, **options)

    def reader(self, **options):
        return SimReader(self._cluster, self._network, **options)

    def member(self, **options):
        return SimConsumer(self._cluster, self._network, options)

    def admin(self, **_):
        return SimAdmin(self._cluster, self._network)

    def client(self, **_):
        return SimClient(self._cluster, self._network)

    def generation(self, member):
        return member.generation

    def watch_heartbeats(self, member, on_heartbeat):
        member.watch = on_heartbeat
        return member.heartbeat

    def first_error(self, producer):
        return None

    async def abandon(self, producer):
        await producer.stop()
