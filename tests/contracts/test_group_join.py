"""The requests by which the client of a member joins its group, with a group in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import MemberIdRequired, RebalanceInProgressError
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, JoinGroupResponse_v5, SyncGroupRequest

from reknit.pipeline.engine.client_patch import Coordinator

TOPIC = "in.v1"
STRATEGIES = (RangePartitionAssignor, RoundRobinPartitionAssignor)
# A group that has not settled after this number of generations is not expected to settle.
MOST_GENERATIONS = 30


class Membership:
    def __init__(self):
        self.protocols, self.joining, self.syncing = [], None, None


class Group:
    """A group of the classic protocol, as the coordinator of Kafka 4.1 keeps it, without time limits.

    ``settled`` is the first generation in which all members have their assignment; None after too many generations.
    """

    def __init__(self):
        self.members, self.generation, self.assignment = {}, 0, None
        self.is_preparing, self._names = False, 0
        self.settled = asyncio.get_running_loop().create_future()
        self._synced = set()

    def join(self, name, protocols):
        answer = asyncio.get_running_loop().create_future()
        if not name:
            self._names += 1
            answer.set_result(JoinGroupResponse_v5(0, MemberIdRequired.errno, -1, "", "", f"m{self._names}", []))
            return answer
        member = self.members.setdefault(name, Membership())
        # Kafka gives a follower of the present generation the same answer again if its request has not changed.
        assert member.protocols != protocols or self.is_preparing or name == min(self.members), "not simulated"
        member.protocols, member.joining = protocols, answer
        if not self.is_preparing:
            self.is_preparing = True
            for each in self.members.values():
                self._answer_sync(each, RebalanceInProgressError.errno)
        if all(each.joining is not None for each in self.members.values()):
            self._begin()
        return answer

    def _begin(self):
        self.is_preparing, self.assignment, self._synced = False, None, set()
        self.generation += 1
        if self.generation == MOST_GENERATIONS and not self.settled.done():
            self.settled.set_result(None)
        names = Counter(protocol for each in self.members.values() for protocol, _ in each.protocols)
        leader = min(self.members)
        common = [name for name, _ in self.members[leader].protocols if names[name] == len(self.members)]
        for name, each in self.members.items():
            found = [(other, "", dict(m.protocols)[common[0]]) for other, m in self.members.items() if name == leader]
            each.joining.set_result(JoinGroupResponse_v5(0, 0, self.generation, common[0], leader, name, found))
            each.joining = None

    def sync(self, name, generation, assignment):
        answer = asyncio.get_running_loop().create_future()
        self.members[name].syncing = answer
        if self.is_preparing or generation != self.generation:
            self._answer_sync(self.members[name], RebalanceInProgressError.errno)
            return answer
        self._synced.add(name)
        self.assignment = dict(assignment) or self.assignment
        if self.assignment is not None:
            for other, each in self.members.items():
                self._answer_sync(each, 0, self.assignment[other])
            if self._synced == self.members.keys() and len(self.members) > 1 and not self.settled.done():
                self.settled.set_result(self.generation)
        return answer

    def _answer_sync(self, member, error, assignment=b""):
        if member.syncing is not None:
            member.syncing.set_result(SimpleNamespace(error_code=error, member_assignment=assignment))
            member.syncing = None

    def heartbeat(self):
        return SimpleNamespace(error_code=RebalanceInProgressError.errno if self.is_preparing else 0)


class Client:
    """A member's connection; ``before_answers`` is awaited before each answer to a request to join."""

    def __init__(self, group):
        self.cluster = SimpleNamespace(add_listener=lambda _: None, partitions_for_topic=lambda _: {0, 1, 2, 3})
        self.joins, self.has_joined, self._group = [], asyncio.Event(), group

    async def coordinator_lookup(self, *_):
        return 1

    async def ready(self, *_, **__):
        return True

    def set_topics(self, _topics):
        pass

    async def _maybe_wait_metadata(self):
        pass

    async def before_answers(self):
        pass

    async def send(self, _node, request, group=None):
        if isinstance(request, HeartbeatRequest):
            return self._group.heartbeat()
        if isinstance(request, JoinGroupRequest):
            sent = request.prepare({request.API_KEY: (5, 5)})
            if sent.member_id:
                self.joins.append([name for name, _ in sent.group_protocols])
                self.has_joined.set()
            answer = await self._group.join(sent.member_id, list(sent.group_protocols))
            if sent.member_id:
                await self.before_answers()
            return answer
        assert isinstance(request, SyncGroupRequest)
        sent = request.prepare({request.API_KEY: (1, 1)})
        return await self._group.sync(sent.member_id, sent.generation_id, sent.group_assignment)


@pytest.fixture
async def members():
    """Return what creates a member, with its client; ends all of them."""
    group, made = Group(), []

    def create(kind):
        client, subscription = Client(group), SubscriptionState()
        limits = {"heartbeat_interval_ms": 10, "retry_backoff_ms": 1, "max_poll_interval_ms": 2**31 - 1}
        options = {"group_id": "g", "enable_auto_commit": False, "assignors": STRATEGIES, **limits}
        coordinator = kind(client, subscription, **options)
        made.append(coordinator)
        return client, subscription

    create.group = group
    yield create
    tasks = [task for each in made for task in (each._coordination_task, each._heartbeat_task) if task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle(members, kind):
    """Let two members join: the request of the second one comes before the first one has its answer."""
    (first, one), (second, other) = members(kind), members(kind)

    async def until_both_joined():
        if not second.has_joined.is_set():
            other.subscribe({TOPIC})
        await second.has_joined.wait()

    first.before_answers = until_both_joined
    one.subscribe({TOPIC})
    async with asyncio.timeout(60):
        return await members.group.settled, first.joins + second.joins


async def test_a_member_joins_with_one_request_for_all_strategies_and_the_group_settles(members):
    settled, joins = await settle(members, Coordinator)
    assert settled == 2
    assert joins == [[strategy.name for strategy in STRATEGIES]] * 3


async def test_the_client_without_the_patch_joins_once_for_each_strategy_and_the_group_never_settles(members):
    """If this fails, the client sends one request, and the patch is not needed any more."""
    settled, joins = await settle(members, GroupCoordinator)
    assert settled is None
    assert {len(strategies) for strategies in joins} == {1, 2}
