"""Offset commits: one in flight at a time, the newest offset of each partition."""

import asyncio

import pytest
from aiokafka import TopicPartition

from reknit.pipeline.engine.offsets import OffsetCommits

ONE, TWO = TopicPartition("in.v1", 1), TopicPartition("in.v1", 2)


class Broker:
    """Accepts commits, each when it is let through."""

    def __init__(self):
        self.commits = []
        self.gate = asyncio.Event()

    async def commit(self, offsets):
        self.commits.append(dict(offsets))
        await self.gate.wait()
        return True


async def no_committed_offset(_partition):
    return None


async def test_offsets_during_a_commit_are_combined_into_the_next():
    broker = Broker()
    offsets = OffsetCommits(broker.commit, no_committed_offset, last_seconds=1.0)
    offsets.soon(ONE, 5)
    await asyncio.sleep(0)
    for offset in (6, 7, 8):
        offsets.soon(ONE, offset)
    offsets.soon(TWO, 3)
    broker.gate.set()
    await offsets.finish()
    assert broker.commits == [{ONE: 5}, {ONE: 8, TWO: 3}]


async def test_a_commit_after_a_pause_is_made_too():
    broker = Broker()
    broker.gate.set()
    offsets = OffsetCommits(broker.commit, no_committed_offset, last_seconds=1.0)
    offsets.soon(ONE, 5)
    await offsets.finish()
    offsets.soon(ONE, 6)
    await offsets.finish()
    assert broker.commits == [{ONE: 5}, {ONE: 6}]


async def test_finishing_does_not_wait_for_a_client_that_has_stopped():
    broker = Broker()
    offsets = OffsetCommits(broker.commit, no_committed_offset, last_seconds=0.01)
    offsets.soon(ONE, 5)
    await offsets.finish()
    with pytest.raises(asyncio.CancelledError):
        await offsets._task
    assert broker.commits == [{ONE: 5}]


async def test_opening_does_not_wait_for_an_informational_offset(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.engine.offsets._LOOK_SECONDS", 0.01)

    async def no_answer(_partition):
        await asyncio.Event().wait()

    offsets = OffsetCommits(Broker().commit, no_answer, last_seconds=1.0)
    async with asyncio.timeout(60):
        await offsets.name_moved(ONE, 5)


class RefusingBroker:
    """Refuses the first commits."""

    def __init__(self, refusals):
        self.refusals, self.commits = refusals, []

    async def commit(self, offsets):
        self.commits.append(offsets)
        await asyncio.sleep(0)
        return len(self.commits) > self.refusals


@pytest.fixture
def without_pauses(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.engine.offsets._PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("reknit.pipeline.engine.offsets._AGAIN_SECONDS", 0.001)


@pytest.mark.usefixtures("without_pauses")
async def test_a_refused_commit_is_repeated_with_the_newest_offsets():
    broker = RefusingBroker(2)
    offsets = OffsetCommits(broker.commit, no_committed_offset, last_seconds=1.0)
    offsets.soon(ONE, 5)
    offsets.soon(TWO, 3)
    while not broker.commits:  # noqa: ASYNC110 - the commits are made by a task of their own
        await asyncio.sleep(0)
    offsets.soon(ONE, 6)
    await offsets._task
    assert broker.commits == [{ONE: 5, TWO: 3}, {ONE: 6, TWO: 3}, {ONE: 6, TWO: 3}]


@pytest.mark.usefixtures("without_pauses")
async def test_a_refused_commit_is_not_repeated_for_a_partition_that_moved_away():
    broker = RefusingBroker(1)
    offsets = OffsetCommits(broker.commit, no_committed_offset, last_seconds=1.0)
    offsets.soon(ONE, 5)
    offsets.soon(TWO, 3)
    while not broker.commits:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    offsets.forget(ONE)
    await offsets._task
    assert broker.commits == [{ONE: 5, TWO: 3}, {TWO: 3}]


async def test_finishing_repeats_no_refused_commit():
    broker = RefusingBroker(99)
    offsets = OffsetCommits(broker.commit, no_committed_offset, last_seconds=60.0)
    offsets.soon(ONE, 5)
    await offsets.finish()
    assert broker.commits == [{ONE: 5}]
