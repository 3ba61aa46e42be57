"""The engine's seam to the group and the inputs: the simulated ``Member``, in place of Faust's consumer thread."""

from __future__ import annotations

import asyncio

from aiokafka import TopicPartition
from aiokafka.errors import (
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from simulation.loop import NODE

from reknit.pipeline.engine.batches import Span
from reknit.pipeline.engine.lease import Lease
from reknit.pipeline.stages.base import Record
from reknit.topics.positions import read_group_position

_JOIN_AGAIN_SECONDS = 0.1
_ANSWER_SECONDS = 5.0


class Places(set):
    """Partitions in the same order in each process: that of a plain set depends on the hashes of strings."""

    def __iter__(self):
        return iter(sorted(super().__iter__()))


class SimMember:
    def __init__(self, consumer, runtime, cluster, network):
        self._consumer, self._runtime, self._cluster, self._network = consumer, runtime, cluster, network
        self._loop, self._group, self._node = cluster.loop, cluster.group, NODE.get()
        self.in_group, self._poked = asyncio.Event(), asyncio.Event()
        self.places, self.positions = set(), {}
        self._name, self._generation = None, None
        self._commits = set()
        self._data, self._coordination = {}, {}
        runtime.lease = Lease(float("-inf"))

    async def live(self):
        """Join, work and join again, as the coordinator of a client does."""
        while True:
            self._generation = None
            for commit in self._commits:
                commit.cancel()
            await self._consumer.on_partitions_revoked(set(self.places))
            self._runtime.lease.end()
            self.places = set()
            self._name, generation, places = await self._join()
            self.places, self.positions = {TopicPartition(*place) for place in places}, {}
            self._generation = generation
            self._runtime.lease = Lease(float("-inf"))
            self._first_beat = self._loop.create_future()
            beats = asyncio.ensure_future(self._beat(generation))  # heartbeats continue during callbacks
            await self._first_beat
            await self._consumer.on_partitions_assigned(Places(self.places), generation)
            await beats

    async def _join(self):
        tuning = self._runtime.tuning
        while True:
            answer = self._loop.create_future()

            def joined(*found, answer=answer):
                self._loop.on(self._node, self._network.latency(), lambda: answer.done() or answer.set_result(found))

            request = (self._name, tuning.session_seconds, tuning.rebalance_seconds, joined)
            try:
                await self._network.call(self._coordination, "JoinGroup", self._group.join, *request)
                async with asyncio.timeout(tuning.rebalance_seconds + 5):
                    found = await answer
            except (KafkaError, TimeoutError):
                await asyncio.sleep(_JOIN_AGAIN_SECONDS)
            else:
                return found

    async def _beat(self, generation):
        """Send heartbeats until the group refuses one, the first one at once."""
        while await self._beat_once(generation):
            if not self._first_beat.done():
                self._first_beat.set_result(None)
            await asyncio.sleep(self._runtime.tuning.heartbeat_seconds)
        if not self._first_beat.done():
            self._first_beat.set_result(None)

    async def _beat_once(self, generation):
        lease, sent = self._runtime.lease, self._loop.now
        try:
            await self._network.call(self._coordination, "Heartbeat", self._group.heartbeat, self._name, generation)
        except RebalanceInProgressError:
            return False
        except (UnknownMemberIdError, IllegalGenerationError):
            self._name = None
            return False
        except KafkaError:
            return True
        lease.renew(sent + self._runtime.tuning.session_seconds)
        return True

    # As ``Member``.

    def poke(self):
        self._poked.set()

    async def spans(self, wanted, seconds):
        deadline = self._loop.now + seconds
        while self._consumer.flow_active:
            places = [tp for tp in sorted(wanted) if tp in self.positions and tp in self.places]
            spans = await self._fetch({tuple(tp): self.positions[tp] for tp in places}) if places else {}
            if spans or self._poked.is_set() or self._loop.now >= deadline:
                self._poked.clear()
                return spans
            for place in places:
                self._cluster.log(*place).waiting.append(lambda: self._loop.on(self._node, 0.001, self._poked.set))
            try:
                async with asyncio.timeout(min(deadline - self._loop.now, 0.5)):
                    await self._poked.wait()
            except TimeoutError:
                pass
        return {}

    async def _fetch(self, positions):
        committed, most = self._runtime.exactly_once, self._runtime.tuning.poll_records
        work, spans = self._cluster.fetch, {}
        found = await self._network.call(self._data, "Fetch", work, positions, committed, most)
        for place, (start, end, entries, limit) in found.items():
            tp = TopicPartition(*place)
            if tp in self.places and self.positions.get(tp) == start:
                self.positions[tp] = end
                spans[tp] = Span(start, end, [record_of(tp, entry) for entry in entries], max(limit, end))
        return spans

    async def bounds(self, tp):
        work = self._cluster.bounds
        return await self._network.call(self._data, "ListOffsets", work, tuple(tp), self._runtime.exactly_once)

    async def is_ours(self, tp, position):
        if not self.in_group.is_set():
            return None
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._commit({tp: position}) or None
        except (UnknownMemberIdError, IllegalGenerationError):
            return False
        except (KafkaError, TimeoutError):
            return None

    async def _commit(self, positions):
        """Commit offsets; return True if this was in the generation that assigned the partitions."""
        generation = self._generation
        if generation is None:
            return False
        offsets = {tuple(tp): (at, self._consumer.metadata_of(tp)) for tp, at in positions.items()}
        work = self._group.commit
        call = self._network.call(self._coordination, "OffsetCommit", work, self._name, generation, offsets)
        commit = asyncio.ensure_future(call)
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        try:
            await asyncio.wait([commit])
        finally:
            commit.cancel()
        if commit.cancelled():
            return False
        commit.result()
        return self._generation == generation

    async def commit_positions(self, positions):
        await self.in_group.wait()
        try:
            ours = {tp: at for tp, at in positions.items() if tp in self.places}
            return not ours or await self._commit(ours)
        except KafkaError:
            return False

    async def committed_by_hand(self, tp):
        self._network.happened["opened", self._runtime.contract_name(tp.topic), tp.partition] += (
            1  # the engine asks at each opening
        )
        found = await self._committed(tp)
        return None if found is None or read_group_position(*found) is not None else found[0]

    async def committed_by_worker(self, tp):
        found = await self._committed(tp)
        return None if found is None else read_group_position(*found)

    async def _committed(self, tp):
        try:
            return await self._network.call(self._coordination, "OffsetFetch", self._group.offsets.get, tuple(tp))
        except KafkaError:
            return None


def record_of(tp, entry):
    return Record(
        partition=tp.partition,
        offset=entry.offset,
        key=entry.key,
        value=entry.value,
        headers=entry.headers,
        timestamp=entry.timestamp,
    )
