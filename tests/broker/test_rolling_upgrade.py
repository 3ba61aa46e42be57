"""Workers of a former build, which know Faust's assignment only, are replaced one by one under load, and come back."""

import asyncio
import time
from collections import Counter

import harness
import pytest
import toy_stage
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

pytestmark = pytest.mark.broker

# The last release whose workers offer one strategy.
FORMER = "5e982c6"
PARTITIONS = 6
TUNING = {"session_seconds": 4.0, "heartbeat_seconds": 1.0, "rebalance_seconds": 10.0}


class Group:
    def __init__(self, bootstrap, prefix):
        self._bootstrap, self._prefix = bootstrap, prefix

    async def look(self):
        """Return state, strategy, and the partitions of each member by topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            (answer,) = await admin.describe_consumer_groups([f"{self._prefix}reknit"])
        finally:
            await admin.close()
        (_, _, state, _, strategy, members, *_), *_ = answer.groups
        found = []
        for _, _, _, _, assignment in members:
            parts = ConsumerProtocolMemberAssignment.decode(assignment).assignment if assignment else []
            found.append({topic.removeprefix(self._prefix): sorted(numbers) for topic, numbers in parts})
        return state, strategy, found

    async def uses(self, strategy, members, seconds=30.0):
        """Wait until this number of members have partitions by a strategy; return the partitions of each."""
        deadline = harness.deadline_after(seconds)
        while True:
            state, used, found = await self.look()
            if (state, used, len(found)) == ("Stable", strategy, members) and all(found):
                return found
            assert time.monotonic() < deadline, f"the group is {state} with {used}: {found}"
            await asyncio.sleep(0.2)


def each_partition_has_one_owner(found):
    owners = Counter((topic, number) for owned in found for topic, numbers in owned.items() for number in numbers)
    assert owners == Counter((topic, number) for topic in toy_stage.SOURCES for number in range(PARTITIONS))


def in_pairs(found):
    first, second = toy_stage.SOURCES
    return all(owned[first] == owned[second] for owned in found)


async def test_a_rolling_upgrade_and_a_rollback_lose_and_double_nothing(broker, prefix, tmp_path, free_port, build_at):
    place, sources = (broker.bootstrap, prefix), [prefix + source for source in toy_stage.SOURCES]
    group = Group(*place)
    await harness.make_topics(broker.bootstrap, [prefix + name for name in toy_stage.TOPICS], PARTITIONS)
    options = {"partitions": PARTITIONS, "tuning": TUNING}
    old = harness.toy_fleet(*place, tmp_path / "old", free_port, build=build_at(FORMER), **options)
    # While members of the former build are in the group, the present one writes state that they can read.
    new = harness.toy_fleet(*place, tmp_path / "new", free_port, state={"format": 2}, **options)
    with old, new:
        former = [old.start(), old.start()]
        async with harness.Feeder(broker.bootstrap, sources, PARTITIONS, 1_000) as feeder:
            await asyncio.gather(*(worker.ready(60) for worker in former))
            each_partition_has_one_owner(await group.uses("faust", 2))
            present = [new.start()]
            await present[0].ready(60)
            each_partition_has_one_owner(await group.uses("faust", 3))
            assert await former[0].stop() == 0
            each_partition_has_one_owner(await group.uses("faust", 2))
            present.append(new.start())
            await present[1].ready(60)
            each_partition_has_one_owner(await group.uses("faust", 3))
            former[1].kill()
            pairs = await group.uses("reknit-paired", 2)
            each_partition_has_one_owner(pairs)
            assert in_pairs(pairs)
            assert [len(owned[toy_stage.SOURCES[0]]) for owned in pairs] == [3, 3]
            # A rollback begins and is given up.
            back = old.start()
            await back.ready(60)
            each_partition_has_one_owner(await group.uses("faust", 3))
            assert await back.stop() == 0
            again = await group.uses("reknit-paired", 2)
            each_partition_has_one_owner(again)
            assert in_pairs(again)
            # A worker more takes a third of them, and both others keep the rest.
            present.append(new.start())
            await present[2].ready(60)
            three = await group.uses("reknit-paired", 3)
            assert in_pairs(three)
            assert [len(owned[toy_stage.SOURCES[0]]) for owned in three] == [2, 2, 2]
            first = toy_stage.SOURCES[0]
            assert sum(any(set(now[first]) <= set(before[first]) for before in again) for now in three) == 2
        await harness.caught_up(broker.bootstrap, prefix + toy_stage.OUT, sources, PARTITIONS, 60)
        audit = (toy_stage.ToyStage, toy_stage.SOURCES, [toy_stage.OUT], PARTITIONS)
        assert await harness.audit(*place, *audit) == feeder.sent > 5_000
        assert [await worker.stop() for worker in present] == [0, 0, 0]
