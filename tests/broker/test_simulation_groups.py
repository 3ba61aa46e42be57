"""The simulation's model of a consumer group gives the same answers as a real broker to the same random requests.

A join and a sync wait for other members, so each member sends them on a connection of its own. After each command the
test collects answers until heartbeats show that the missing ones wait for a further command. Which of several members
becomes the leader after the former one has gone is random in a broker; the model takes the same.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random

import harness
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    MemberIdRequired,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from simulation.groups import Group, Joined

pytestmark = pytest.mark.broker

SEQUENCES, COMMANDS, MEMBERS = 5, 80, 3
NO_GENERATION = -1
# A member has to sync, and the next command to arrive, within the short time.
LONG_SECONDS, SHORT_SECONDS = 300.0, 6.0
_NOT_READY = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


class ManualTime:
    def __init__(self):
        self.now, self._timers, self._numbers = 0.0, [], itertools.count()

    def on(self, _node, delay, callback, *args):
        heapq.heappush(self._timers, (self.now + delay, next(self._numbers), callback, args))

    def advance(self, seconds):
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, callback, args = heapq.heappop(self._timers)
            callback(*args)
        self.now = end


class Elections:
    """Choose the leaders that a broker chose. ``joined`` has its answers to the leaders by generation."""

    def __init__(self, joined):
        self.group, self._joined = None, joined

    def choice(self, names):
        following = self._joined.get(self.group.generation + 1, Joined(0, "", ()))
        if following.leader in names:
            return following.leader
        # The broker chose one that left before the next generation.
        return next((name for name in names if name not in following.members), names[0])


class ModelGroup:
    def __init__(self, joined):
        self._time, elections = ManualTime(), Elections(joined)
        self._group = elections.group = Group(self._time, elections)

    async def join(self, _slot, *args):
        return await self._wait_for(self._group.join, *args)

    async def sync(self, _slot, *args):
        return await self._wait_for(self._group.sync, *args)

    async def _wait_for(self, work, *args):
        answer = asyncio.get_running_loop().create_future()
        work(*args, lambda result, error: answer.set_exception(error) if error else answer.set_result(result))
        return await answer

    async def heartbeat(self, name, generation):
        self._group.heartbeat(name, generation)

    async def commit(self, name, generation, offset):
        self._group.commit(name, generation, {"place": (offset, "")})

    async def leave(self, name):
        self._group.leave(name)

    async def offset(self):
        return self._group.offsets.get("place", (-1, ""))[0]

    async def pause(self):
        await asyncio.sleep(0)

    def advance(self, seconds):
        self._time.advance(seconds)


class RealGroup:
    """A group of a broker. Its members get the names that the model would give them."""

    def __init__(self, bootstrap, name, topic):
        self._place = TopicPartition(topic, 0)
        self._name, self._admin = name, AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        self._client, *self._waiting = (AIOKafkaClient(bootstrap_servers=bootstrap) for _ in range(MEMBERS + 1))
        self._ids, self._names = {None: ""}, {}

    async def __aenter__(self):
        await self._admin.start()
        for client in (self._client, *self._waiting):
            await client.bootstrap()
        await harness.find_coordinator(self._client, CoordinationType.GROUP, self._name)
        return self

    async def __aexit__(self, *_):
        await self._admin.close()
        for client in (self._client, *self._waiting):
            await client.close()

    async def _send(self, client, request, code_of=lambda answer: answer.error_code):
        while True:
            answer = await client.send(client.get_random_node(), request)
            error = for_code(code_of(answer))
            if error is MemberIdRequired:
                raise MemberIdRequired(self._name_of(answer.member_id))
            if code_of(answer) == 0:
                return answer
            if error not in _NOT_READY:
                raise error
            await asyncio.sleep(0.02)

    def _name_of(self, member_id):
        name = self._names.setdefault(member_id, f"m{len(self._names) + 1}")
        self._ids[name] = member_id
        return name

    async def join(self, slot, name, session, patience, metadata):
        times = int(session * 1000), int(patience * 1000)
        request = JoinGroupRequest(self._name, *times, self._ids[name], None, "consumer", [("strategy", metadata)])
        answer = await self._send(self._waiting[slot], request)
        members = tuple(self._name_of(member_id) for member_id, *_ in answer.members)
        return Joined(answer.generation_id, self._name_of(answer.leader_id), members)

    async def sync(self, slot, name, generation, shares):
        sent = [(self._ids[each], share) for each, share in shares.items()]
        request = SyncGroupRequest(self._name, generation, self._ids[name], None, sent)
        return (await self._send(self._waiting[slot], request)).member_assignment

    async def heartbeat(self, name, generation):
        await self._send(self._client, HeartbeatRequest(self._name, generation, self._ids[name]))

    async def commit(self, name, generation, offset):
        topic, partition = self._place
        topics = [(topic, [(partition, offset, "")])]
        request = OffsetCommitRequest(self._name, generation, self._ids[name], -1, topics)
        await self._send(self._client, request, lambda answer: answer.topics[0][1][0][1])

    async def leave(self, name):
        await self._send(self._client, LeaveGroupRequest(self._name, self._ids[name]))

    async def offset(self):
        found = await self._admin.list_consumer_group_offsets(self._name, partitions=[self._place])
        return found[self._place].offset

    async def pause(self):
        await asyncio.sleep(0.01)

    def advance(self, seconds):
        """Time passes by itself."""


class Member:
    """The knowledge of one member. ``request`` is the task of its join or sync that has no answer yet.

    An announced member has a name and has not joined.
    """

    def __init__(self, slot):
        self.slot, self.name, self.metadata = slot, None, 0
        self.is_live = self.is_announced = False
        self.generation, self.joined = NO_GENERATION, Joined(NO_GENERATION, "", ())
        self.request, self.joins = None, False

    @property
    def is_leader(self):
        return self.joined.leader == self.name


async def error_of(request):
    try:
        await request
    except KafkaError as error:
        return type(error)
    return None


class Dialogue:
    """Sends commands to a group and notes the answers."""

    def __init__(self, group):
        self._group, self.members, self.answers = group, [Member(slot) for slot in range(MEMBERS)], []
        self.joined = {}  # the answers to leaders by generation
        self._synced = NO_GENERATION  # the last generation whose leader sent the assignment

    @property
    def live(self):
        return [member for member in self.members if member.is_live]

    # Requests that wait.

    def send_join(self, member, *, changed, as_new=False, session=LONG_SECONDS, patience=LONG_SECONDS):
        if member.is_announced:
            member.is_announced, member.is_live = False, True
        elif as_new and not member.is_live:
            member.name, member.generation = None, NO_GENERATION
        member.metadata += changed
        member.joins = True
        member.request = asyncio.ensure_future(self._join(member, session, patience, b"%d" % member.metadata))

    async def announce(self, member):
        """Send the first request of a new member, which gets its name."""
        try:
            await self._group.join(member.slot, None, LONG_SECONDS, LONG_SECONDS, b"")
        except MemberIdRequired as error:
            (member.name,), member.generation, member.is_announced = error.args, NO_GENERATION, True

    async def _join(self, member, *options):
        try:
            return await self._group.join(member.slot, member.name, *options)
        except MemberIdRequired as error:
            (member.name,), member.is_live = error.args, True
            return await self._group.join(member.slot, member.name, *options)

    def send_sync(self, member):
        shares = {name: b"%d %s" % (member.generation, name.encode()) for name in member.joined.members}
        member.joins = False
        request = self._group.sync(member.slot, member.name, member.generation, shares)
        member.request = asyncio.ensure_future(request)

    async def settle(self, *command):
        """Collect answers until those that are missing wait for a command or for time."""
        found = []
        async with asyncio.timeout(60):
            while waiting := [member for member in self.members if member.request is not None]:
                answered = [member for member in waiting if member.request.done()]
                found += [await self._collect(member) for member in answered]
                if not answered:
                    if await self._is_blocked(waiting):
                        break
                    await self._group.pause()
        self.answers.append((*command, sorted(found, key=repr)))

    async def _collect(self, member):
        request, member.request = member.request, None
        if (error := await error_of(request)) is not None:
            member.is_live &= error is not UnknownMemberIdError
            return member.slot, error
        answer = request.result()
        if not member.joins:
            self._synced = max(self._synced, member.generation)
            return member.slot, "shares", answer
        member.joined, member.generation = answer, answer.generation
        if member.is_leader:
            self.joined[answer.generation] = answer
        return member.slot, answer.generation, answer.leader, sorted(answer.members)

    async def _is_blocked(self, waiting):
        joining = [member for member in waiting if member.joins]
        for member in joining:
            if await self._beat(member) is UnknownMemberIdError:
                return False  # the broker has not received its join, or answers with this error
        others = [member for member in self.live if member not in joining]
        if any(member.is_announced for member in self.members):
            others += joining  # if all have joined, they still wait for the announced one
        is_preparing = RebalanceInProgressError in [await self._beat(member) for member in others]
        if len(joining) == len(waiting):
            return is_preparing
        return not (is_preparing or joining) and all(self._waits_for_leader(member) for member in waiting)

    def _waits_for_leader(self, member):
        return member.is_live and not member.is_leader and member.generation > self._synced

    def _beat(self, member):
        return error_of(self._group.heartbeat(member.name, member.generation))

    # Other requests.

    async def heartbeat(self, member, age=0):
        return await error_of(self._group.heartbeat(member.name, member.generation - age))

    async def commit(self, member, age, offset):
        return await error_of(self._group.commit(member.name, member.generation - age, offset))

    async def commit_without_membership(self, offset):
        return await error_of(self._group.commit(None, NO_GENERATION, offset))

    async def leave(self, member):
        error = await error_of(self._group.leave(member.name))
        member.is_live = member.is_announced = False
        return error

    def may_leave(self, member):
        """False if that would make it impossible to know, by heartbeats, that the others wait."""
        is_in_sync = member.request is not None and not member.joins  # a broker would never answer it
        return not is_in_sync and (member.is_announced or not any(each.is_announced for each in self.members))

    async def offset(self):
        return await self._group.offset()

    async def pass_time(self, member, error):
        """Let time pass until the heartbeats of a member get an error."""
        self._group.advance(SHORT_SECONDS + 1)
        async with asyncio.timeout(60):
            while await self._beat(member) is not error:
                await self._group.pause()


KINDS = ["join"] * 6 + ["sync"] * 6 + ["heartbeat"] * 3 + ["commit"] * 3 + ["leave", "announce", "alone", "offset"]


async def run_commands(dialogue, seed):
    draw = random.Random(seed)  # noqa: S311  test data
    first, second, _ = dialogue.members
    if draw.random() < 0.5:
        await dialogue.announce(second)
    dialogue.send_join(first, changed=True, as_new=True)
    await dialogue.settle("first join")
    for number in range(COMMANDS):
        kind, member = draw.choice(KINDS), draw.choice(dialogue.members)
        age, changed, as_new = draw.choice([0, 0, 1]), draw.random() < 0.5, draw.random() < 0.8
        answer = None
        if kind == "heartbeat":
            answer = await dialogue.heartbeat(member, age)
        elif kind == "commit":
            answer = await dialogue.commit(member, age, number)
        elif kind == "alone":
            answer = await dialogue.commit_without_membership(number)
        elif kind == "offset":
            answer = await dialogue.offset()
        elif kind == "leave" and dialogue.may_leave(member):
            answer = await dialogue.leave(member)
        elif kind == "announce" and member.request is None and not (member.is_live or member.is_announced):
            await dialogue.announce(member)
        elif kind == "join" and member.request is None:
            dialogue.send_join(member, changed=changed, as_new=as_new)
        elif kind == "sync" and member.request is None and member.name is not None:
            dialogue.send_sync(member)
        await dialogue.settle(number, kind, member.slot, age, answer)


async def join_all(dialogue, **options):
    """Let members join, one by one, until all are in one new generation."""
    last = max(member.generation for member in dialogue.members)
    for member in itertools.cycle(dialogue.members):
        await asyncio.sleep(0)
        if member.request is None:
            dialogue.send_join(member, changed=True, as_new=True, **options)
            await dialogue.settle("join all", member.slot)
        oldest, *_, newest = sorted(member.generation for member in dialogue.members)
        if last < oldest == newest and not any(member.request for member in dialogue.members):
            return


async def sync_all(dialogue):
    for member in sorted(dialogue.members, key=lambda member: not member.is_leader):
        dialogue.send_sync(member)
        await dialogue.settle("sync all")


async def end_by_patience(dialogue):
    """All but one do not join in time."""
    first, *others = dialogue.members
    await join_all(dialogue, patience=SHORT_SECONDS)
    await sync_all(dialogue)
    dialogue.send_join(first, changed=True, patience=SHORT_SECONDS)
    await dialogue.settle("the others stay away")
    await dialogue.pass_time(others[0], UnknownMemberIdError)
    for member in others:
        member.is_live = False


async def end_by_session(dialogue):
    """One sends no heartbeats."""
    first, *others = dialogue.members
    dialogue.send_join(first, changed=True, session=SHORT_SECONDS)
    await dialogue.settle("short session")
    await join_all(dialogue)
    await sync_all(dialogue)
    await dialogue.pass_time(others[0], RebalanceInProgressError)
    first.is_live = False


async def end_by_sync(dialogue):
    """No member syncs in time."""
    await join_all(dialogue, patience=SHORT_SECONDS)
    await dialogue.pass_time(dialogue.members[0], UnknownMemberIdError)
    for member in dialogue.members:
        member.is_live = False


async def answers(group, seed, end):
    """Run a sequence; return all answers, and those to the leaders by generation."""
    dialogue = Dialogue(group)
    await run_commands(dialogue, seed)
    await join_all(dialogue)
    await sync_all(dialogue)
    await end(dialogue)
    for member in dialogue.members:
        found = await dialogue.heartbeat(member), await dialogue.commit(member, 0, 1000 + member.slot)
        await dialogue.settle("afterwards", member.slot, *found, await dialogue.commit_without_membership(2000))
    await join_all(dialogue)
    await sync_all(dialogue)
    dialogue.answers.append(await dialogue.offset())
    return dialogue.answers, dialogue.joined


async def check(bootstrap, name, topic, seed, end):
    async with RealGroup(bootstrap, name, topic) as real:
        wanted, joined = await answers(real, seed, end)
    found, _ = await answers(ModelGroup(joined), seed, end)
    assert found == wanted


@pytest.mark.parametrize("end", [end_by_patience, end_by_session, end_by_sync])
async def test_the_model_of_a_group_answers_as_the_broker(broker, prefix, end):
    topic = f"{prefix}input"
    await harness.make_topics(broker.bootstrap, [topic], 1)
    async with asyncio.TaskGroup() as tasks:  # most of the time is that of members that send nothing
        for number in range(SEQUENCES):
            tasks.create_task(check(broker.bootstrap, f"{prefix}{number}", topic, f"{end.__name__} {number}", end))
