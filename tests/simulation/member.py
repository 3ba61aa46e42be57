"""The client of the group, with the methods of aiokafka 0.14 that the engine's ``Member`` calls, and its loop."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

from aiokafka import TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    MemberIdRequired,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownMemberIdError,
)
from aiokafka.structs import OffsetAndMetadata
from simulation.loop import NODE

_RETRY_SECONDS = 0.1
_UNANSWERED = (KafkaConnectionError, RequestTimedOutError)
_NONE = -1


class SameLoop:
    """As ``MemberLoop``: the client is in the worker's loop."""

    async def start(self):
        pass

    async def call(self, work):
        return await work

    async def call_back(self, work):
        return await work

    def soon(self, callback):
        callback()

    async def stop(self, seconds):
        pass


class SimConsumer:
    def __init__(self, cluster, network, options):
        self._cluster, self._network, self._node = cluster, network, NODE.get()
        self._loop, self._group = cluster.loop, cluster.group
        self._committed = options["isolation_level"] == "read_committed"
        self._beat_seconds = options["heartbeat_interval_ms"] / 1000
        self._session_seconds = options["session_timeout_ms"] / 1000
        self._rebalance_seconds = options["rebalance_timeout_ms"] / 1000
        self.generation, self._name = _NONE, None
        self._places, self._positions, self._limits = set(), {}, {}
        self._claim = _NONE  # the last generation that assigned partitions
        self._rejoin, self._is_rebalancing = asyncio.Event(), True
        self._data, self._coordination = {}, {}
        self.watch = lambda: lambda: None

    async def start(self):
        pass

    def subscribe(self, topics, listener):
        self._listener = listener
        self._life = asyncio.ensure_future(self._live())

    async def stop(self):
        self._life.cancel()

    # The group.

    async def _live(self):
        """Join, work and join again, as the coordinator of a client does."""
        beats = None
        while True:
            self._rejoin.clear()
            self._is_rebalancing = True
            await self._listener.on_partitions_revoked(set(self._places))  # heartbeats continue meanwhile
            if beats is not None:
                beats.cancel()
            places = await self._join()
            self._claim = self.generation
            self._places, self._positions = {TopicPartition(*place) for place in places}, {}
            self._is_rebalancing = False
            await self._listener.on_partitions_assigned(set(self._places))  # without heartbeats
            beats = asyncio.ensure_future(self._beat())
            await self._rejoin.wait()

    async def _join(self):
        """Join and sync until both succeed; return the assigned partitions."""
        while True:
            try:
                joined = await self._wait_for("JoinGroup", self._group.join, self._name, *self._options())
                self.generation = joined.generation
                shares = self._group.shares() if joined.leader == self._name else {}
                self._rejoin.clear()
                return await self._wait_for("SyncGroup", self._group.sync, self._name, self.generation, shares)
            except MemberIdRequired as error:
                (self._name,) = error.args
                continue
            except (UnknownMemberIdError, IllegalGenerationError):
                self._reset()
            except (KafkaError, TimeoutError):
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    def _options(self):
        # The engine's assignor sends a claim that changes with each assignment.
        return self._session_seconds, self._rebalance_seconds, self._claim

    async def _wait_for(self, kind, work, *args):
        """Send a request whose answer waits for other members, and return the answer."""
        answer = self._loop.create_future()

        def settle(result, error):
            if not answer.done():
                answer.set_exception(error) if error else answer.set_result(result)

        def reply(result, error):
            self._loop.on(self._node, self._network.latency(), settle, result, error)

        await self._network.call(self._coordination, kind, work, *args, reply)
        async with asyncio.timeout(self._rebalance_seconds + 5):
            return await answer

    async def _beat(self):
        while self._name is not None:
            await asyncio.sleep(self._beat_seconds)
            await self.heartbeat()

    async def heartbeat(self):
        """Send one heartbeat; a member that has to join again is still one until it joins."""
        accepted, work = self.watch(), self._group.heartbeat
        try:
            await self._network.call(self._coordination, "Heartbeat", work, self._name, self.generation)
        except RebalanceInProgressError:
            self._rejoin.set()
        except (UnknownMemberIdError, IllegalGenerationError):
            self._reset()
            return
        except KafkaError:
            return
        accepted()

    def _reset(self):
        self._name, self.generation = None, _NONE
        self._rejoin.set()

    async def commit(self, offsets):
        if any(tp not in self._places for tp in offsets):
            raise IllegalStateError
        await self._send_commit({tuple(tp): offset for tp, offset in offsets.items()})

    async def _send_commit(self, offsets):
        while True:
            work = self._group.commit
            try:
                await self._network.call(self._coordination, "OffsetCommit", work, self._name, self.generation, offsets)
            except (UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError) as error:
                if isinstance(error, RebalanceInProgressError):
                    self._rejoin.set()
                else:
                    self._reset()
                raise CommitFailedError from error
            except _UNANSWERED:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    # Records.

    def assignment(self):
        return self._places

    def seek(self, tp, offset):
        if tp not in self._places:
            raise IllegalStateError
        self._positions[tp] = offset

    async def position(self, tp):
        if tp not in self._places:
            raise IllegalStateError
        return self._positions[tp]  # the engine asks for known ones only

    def highwater(self, tp):
        return self._limits.get(tp)

    last_stable_offset = highwater

    async def getmany(self, *places, timeout_ms=0, max_records=None):
        """Wait for records. Nothing is fetched in advance, so a timeout of 0 returns none."""
        deadline = self._loop.now + timeout_ms / 1000
        while (left := deadline - self._loop.now) > 1e-6:
            if not self._is_rebalancing and (found := await self._fetch(sorted(places), max_records)):
                return found
            await self._change_of(places, min(left, 0.5))
        return {}

    async def _change_of(self, places, seconds):
        changed = asyncio.Event()
        for place in places:
            self._cluster.log(*place).waiting.append(lambda: self._loop.on(self._node, 0.001, changed.set))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    async def _fetch(self, places, most):
        """Fetch, and move the positions of the partitions that have new records or markers."""
        wanted, work = {tuple(tp): self._positions[tp] for tp in places}, self._cluster.fetch
        try:
            found = await self._network.call(self._data, "Fetch", work, wanted, self._committed, most)
        except _UNANSWERED:
            return {}
        except OffsetOutOfRangeError as error:
            ((place, position),) = error.args[0].items()
            raise OffsetOutOfRangeError({TopicPartition(*place): position}) from None
        records = {}
        for place, (start, end, entries, limit) in found.items():
            tp = TopicPartition(*place)
            if self._positions.get(tp) != wanted[place] or self._is_rebalancing:
                continue
            if start != wanted[place]:
                raise OffsetOutOfRangeError({tp: wanted[place]})
            self._positions[tp], self._limits[tp] = end, limit
            records[tp] = [record_of(tp, entry) for entry in entries]
        return records

    async def beginning_offsets(self, places):
        return {place: (await self._bounds(place))[0] for place in places}

    async def end_offsets(self, places):
        return {place: (await self._bounds(place))[1] for place in places}

    async def _bounds(self, place):
        work = self._cluster.bounds
        return await self._network.call(self._data, "ListOffsets", work, tuple(place), self._committed)


def record_of(tp, entry):
    """Return an entry with the fields of aiokafka's records."""
    return SimpleNamespace(
        partition=tp.partition,
        offset=entry.offset,
        key=entry.key,
        value=entry.value,
        headers=entry.headers,
        timestamp=entry.timestamp,
    )


class SimAdmin:
    def __init__(self, cluster, network):
        self._cluster, self._network, self._connection = cluster, network, {}

    async def start(self):
        pass

    async def list_consumer_group_offsets(self, group, partitions):
        prefix = group.removesuffix("reknit")
        work = self._cluster.group.offsets.get
        found = {}
        for tp in partitions:
            offset = await self._network.call(self._connection, "OffsetFetch", work, tuple(tp))
            found[tp] = OffsetAndMetadata(*(offset or (_NONE, "")))
        for topic, number in partitions:  # the engine asks at each opening, and again if it gets no answer
            self._network.happened["opened", topic.removeprefix(prefix), number] += 1
        return found

    async def close(self):
        self._connection.clear()
