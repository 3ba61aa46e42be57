"""The exactly-once writer with an in-memory producer: when a new epoch begins, and the epoch of each write."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.errors import (
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)
from msgspec import structs

from reknit.pipeline.engine import epochs, seams
from reknit.pipeline.engine.commit import Batch
from reknit.pipeline.engine.limits import RefusedSizeError
from reknit.pipeline.engine.runtime import NoMetrics, NotAuthorizedError, PartitionLostError, Runtime, Tuning
from reknit.pipeline.engine.writer import writer_for
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import POSITION, Output, position_value


class Kafka:
    """A cluster with one transactional id: its epoch, the committed batches, and the steps of each client, in order."""

    def __init__(self):
        self.epoch = 0
        self.now = 100.0
        self.commit_seconds = 0.01
        self.commit_error = None
        self.first_error = asyncio.get_running_loop().create_future()  # of a transaction
        self.start_seconds = 0.0
        self.refused = None  # the topic that rejects records for their size
        self.committed = []
        self.steps = []
        self.ours = []  # the group's answers, True once the list is empty

    def monotonic(self):
        return self.now

    async def is_ours(self, position):
        self.steps.append(f"ours at {position}?")
        return self.ours.pop(0) if self.ours else True


class Rows(list):
    """A batch that is sent unchanged."""

    def append(self, *, key, value, **_):
        super().append((key, value))
        return True

    def close(self):
        pass

    def size(self):
        return 0

    def record_count(self):
        return len(self)


class Producer:
    def __init__(self, kafka, options):
        self.kafka, self.options, self.rows = kafka, options, []
        self._txn_manager = SimpleNamespace(_transaction_waiter=kafka.first_error)

    async def start(self):
        await asyncio.sleep(self.kafka.start_seconds)
        self.kafka.epoch += 1
        self.epoch = self.kafka.epoch
        self.kafka.steps.append(f"epoch {self.epoch}")

    async def stop(self):
        self.kafka.steps.append("stop")

    async def begin_transaction(self):
        self.rows = []

    def create_batch(self):
        return Rows()

    async def send_batch(self, batch, topic, *, partition):
        self.rows.append((topic, partition, list(batch)))
        sent = asyncio.get_running_loop().create_future()
        if topic == self.kafka.refused:
            sent.set_exception(MessageSizeTooLargeError())
        else:
            sent.set_result(SimpleNamespace(offset=10))
        return sent

    async def commit_transaction(self):
        self.kafka.now += self.kafka.commit_seconds
        if self.kafka.commit_error:
            raise self.kafka.commit_error
        if self.epoch != self.kafka.epoch:
            raise InvalidProducerEpoch
        self.kafka.committed.append((self.epoch, sorted(self.rows)))
        self.kafka.steps.append("commit")


class Counting(NoMetrics):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_new_epoch(self, topic, partition):
        self.epochs.append((topic, partition))


@pytest.fixture
async def kafka(monkeypatch):
    made = Kafka()
    monkeypatch.setattr(seams, "AIOKafkaProducer", lambda **options: Producer(made, options))
    monkeypatch.setattr(seams, "time", made)
    return made


@pytest.fixture
async def writer(kafka, tuning):
    runtime = Runtime(Config(prefix="p."), {}, Counting(), tuning)
    made = writer_for(runtime, "in.v1", 3, kafka.is_ours, SimpleNamespace(state_topic="state.v1"))
    await made.open()
    kafka.steps.clear()
    return made, runtime.metrics


@pytest.fixture
def tuning():
    return Tuning()


def batch(position):
    return Batch([Output("out.v1", b"k", b"v")], {b"k": b"1"}, position)


def rows(position):
    state = [(b"k", b"1"), (POSITION, position_value(position, 1))]
    return [("p.out.v1", 3, [(b"k", b"v")]), ("p.state.v1", 3, state)]


PAUSE = epochs.RETRY_PAUSE_MS / 1000


async def test_commits_without_a_retry_stay_in_one_epoch(kafka, writer):
    made, metrics = writer
    for position in (5, 9):
        kafka.commit_seconds = 0.8 * PAUSE
        assert await made.write(batch(position)) == 11 + 1
    assert kafka.committed == [(1, rows(5)), (1, rows(9))]
    assert (kafka.steps, metrics.epochs) == (["commit", "commit"], [])


async def test_a_commit_with_a_retry_pause_causes_a_new_epoch_for_the_next_transaction(kafka, writer):
    made, metrics = writer
    kafka.commit_seconds = PAUSE
    await made.write(batch(5))
    assert kafka.steps == ["commit"], "an idle partition needs no new epoch"
    kafka.commit_seconds = 0.01
    await made.write(batch(9))
    await made.write(batch(12))
    assert kafka.committed == [(1, rows(5)), (2, rows(9)), (2, rows(12))]
    assert kafka.steps == ["commit", "ours at 5?", "stop", "epoch 2", "ours at 5?", "commit", "commit"]
    assert metrics.epochs == [("in.v1", 3)]


@pytest.mark.parametrize("answer", [False, None])
@pytest.mark.parametrize(("earlier", "epoch"), [([], 1), ([True], 2)])
async def test_a_worker_that_may_have_lost_the_partition_writes_nothing_more(kafka, writer, answer, earlier, epoch):
    made, metrics = writer
    kafka.commit_seconds = PAUSE
    await made.write(batch(5))
    kafka.ours = [*earlier, answer]
    with pytest.raises(PartitionLostError) as lost:
        await made.write(batch(9))
    assert (lost.value.code, kafka.epoch, kafka.committed) == ("stuck", epoch, [(1, rows(5))])
    assert metrics.epochs == []


@pytest.mark.parametrize(
    "tuning",
    [Tuning(session_seconds=0.05), Tuning(session_seconds=3_600.0, rebalance_seconds=0.05)],
    ids=["a session", "a rebalance waits"],
)
async def test_starting_an_epoch_is_given_up_before_another_owner_is_possible(kafka, writer):
    made, _ = writer
    kafka.commit_seconds = PAUSE
    await made.write(batch(5))
    kafka.start_seconds = 30
    with pytest.raises(PartitionLostError) as lost:
        await made.write(batch(9))
    assert (lost.value.code, kafka.epoch, kafka.committed) == ("stuck", 1, [(1, rows(5))])


async def test_a_refused_topic_is_named_although_a_later_error_hides_it(kafka, writer):
    made, _ = writer
    kafka.first_error.set_exception(TopicAuthorizationFailedError("p.out.v1"))
    kafka.commit_error = KafkaError("the transaction failed")
    with pytest.raises(NotAuthorizedError) as error:
        await made.write(batch(5))
    assert (error.value.code, "p.out.v1" in error.value.message) == ("not_authorized", True)
    assert kafka.committed == []


async def test_an_epoch_is_not_reused_after_a_commit_of_unknown_outcome(kafka, writer):
    made, _ = writer
    kafka.commit_error = KafkaConnectionError("gone")
    with pytest.raises(KafkaConnectionError):
        await made.write(batch(5))
    kafka.commit_error = None
    await made.write(batch(5))
    assert kafka.committed == [(2, rows(5))]


@pytest.mark.parametrize(("topic", "named"), [("p.out.v1", "out.v1"), ("p.state.v1", "state.v1")])
async def test_a_transaction_is_aborted_after_a_rejected_record(kafka, writer, topic, named):
    made, _ = writer
    kafka.refused = topic
    with pytest.raises(RefusedSizeError) as refused:
        await made.write(structs.replace(batch(5), start=3))
    assert (refused.value.topic, kafka.committed) == (named, [])
    kafka.refused = None
    smaller = structs.replace(batch(5), outputs=[], changes={}, start=3)
    await made.write(smaller)
    # The group is asked with the position that is durable.
    assert kafka.steps == ["ours at 3?", "stop", "epoch 2", "ours at 3?", "commit"]
    assert kafka.committed == [(2, [("p.state.v1", 3, [(POSITION, position_value(5, 1))])])]


async def test_the_clients_retry_pause_matches_the_threshold(kafka, writer):
    made, _ = writer
    assert made._producer.options["retry_backoff_ms"] == epochs.RETRY_PAUSE_MS
