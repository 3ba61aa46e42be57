"""The simulation's model of transactions and topics gives the same answers as a real broker to the same requests.

Requests are sent raw, since clients hide errors and repeat requests. Two producers share a transactional id, so one
fences the other. A broker writes markers in the background, so a request that finds them unfinished is repeated, as
clients do.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import harness
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    ConcurrentTransactions,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from simulation.tape import Tape
from simulation.transactions import Cluster

from reknit.pipeline.engine.topic_ids import ask

pytestmark = pytest.mark.broker

SEQUENCES, COMMANDS, PARTITIONS = 12, 40, 2
_TIMEOUT_MS = 60_000
# A broker is not ready, or still writes markers. For requests of this version it reports the latter, when records are
# sent, as too few replicas.
REPEATED = {
    ConcurrentTransactions,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
}


class Instant:
    """A world without delays: markers are written at once, and no transaction times out."""

    now = 0.0

    def on(self, _node, delay, callback, *args):
        if delay < 1.0:
            callback(*args)


class Model:
    def __init__(self):
        self.cluster = Cluster(Instant(), Tape(0).stream("brokers"), 0.0)

    async def call(self, name, *args):
        work = getattr(self.cluster, name)
        for _ in range(2):  # the markers of an aborted transaction are written after the first answer
            try:
                return None, work(*args)
            except ConcurrentTransactions:
                pass
            except Exception as error:  # noqa: BLE001  the answer is compared, whatever it is
                return type(error).__name__, None
        return "ConcurrentTransactions", None

    async def contents(self, topic, *, committed):
        logs = [self.cluster.log(topic, partition) for partition in range(PARTITIONS)]
        return [
            ([(e.offset, e.value) for e in log.records(committed=committed)], log.lso if committed else log.end)
            for log in logs
        ]


class RealBroker:
    def __init__(self, bootstrap):
        self.bootstrap, self.client = bootstrap, AIOKafkaClient(bootstrap_servers=bootstrap)

    async def start(self, tid):
        await self.client.bootstrap()
        await harness.find_coordinator(self.client, CoordinationType.TRANSACTION, tid)

    async def call(self, name, *args):
        async with asyncio.timeout(30):
            while True:
                code, found = await getattr(self, name)(*args)
                error = for_code(code)
                if error not in REPEATED:
                    return (None if code == 0 else error.__name__), (found if code == 0 else None)
                await asyncio.sleep(0.02)

    async def _send(self, request):
        return await self.client.send(self.client.get_random_node(), request)

    async def init_producer(self, tid, _seconds):
        answer = await self._send(InitProducerIdRequest(tid, _TIMEOUT_MS))
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    async def add_partition(self, tid, pid, epoch, place):
        topic, partition = place
        answer = await self._send(AddPartitionsToTxnRequest(tid, pid, epoch, [(topic, [partition])]))
        return answer.errors[0][1][0][1], None

    async def produce(self, place, tid, pid, epoch, sequence, rows):  # noqa: PLR0917  the fields of the request
        identity = {"is_transactional": 1, "producer_id": pid, "producer_epoch": epoch, "base_sequence": sequence - 1}
        builder = DefaultRecordBatchBuilder(2, 0, batch_size=1 << 20, **identity)
        ((key, value, _),) = rows
        builder.append(0, None, key, value, [])
        topics = [(place[0], [(place[1], bytes(builder.build()))])]
        answer = await self._send(ProduceRequest(required_acks=-1, timeout=10_000, topics=topics, transactional_id=tid))
        _, code, offset, *_ = answer.topics[0][1][0]
        return code, offset

    async def end_transaction(self, tid, pid, epoch, commit):
        code, _ = await self.end_again(tid, pid, epoch, commit)
        if code == 0:  # until the markers are written, a partition accepts records of the transaction
            await self.call("end_again", tid, pid, epoch, commit)
        return code, None

    async def end_again(self, tid, pid, epoch, commit):
        """Send EndTxn; a repetition is answered with success once the markers are written."""
        return (await self._send(EndTxnRequest(tid, pid, epoch, commit))).error_code, None

    async def contents(self, topic, *, committed):
        level = "read_committed" if committed else "read_uncommitted"
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        found = []
        async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap, isolation_level=level) as reader:
            for place in places:
                reader.assign([place])
                await reader.seek_to_beginning(place)
                end, records = (await reader.end_offsets([place]))[place], []
                while await reader.position(place) < end:
                    records += (await reader.getmany(place, timeout_ms=100)).get(place, [])
                found.append(([(record.offset, record.value) for record in records], end))
        return found


def commands(seed):
    """Return random commands; the first two make both producers known."""
    draw = random.Random(seed)  # noqa: S311  test data
    yield "init_producer", 0, 0, None
    yield "init_producer", 1, 0, None
    kinds = ["init_producer"] + ["add_partition"] * 4 + ["produce"] * 5 + ["repeat"] + ["end_transaction"] * 3
    for _ in range(COMMANDS):
        # The second producer fenced the first one, so it is the one that has successes.
        yield draw.choice(kinds), draw.choice([0, 1, 1, 1]), draw.randrange(PARTITIONS), draw.random() < 0.7


async def answers(executor, topic, tid, seed):
    """Run the commands of a seed; return each answer, with epochs but without producer ids."""
    producers = [SimpleNamespace(identity=None, sequences={}) for _ in range(2)]
    for number, (kind, which, partition, commit) in enumerate(commands(seed)):
        producer, place = producers[which], (topic, partition)
        if kind == "init_producer":
            error, found = await executor.call(kind, tid, _TIMEOUT_MS / 1000)
            producer.identity, producer.sequences = found, {}
            yield number, kind, which, error, found[1]
        elif kind == "add_partition":
            yield number, kind, which, *(await executor.call(kind, tid, *producer.identity, place))
        elif kind == "end_transaction":
            error, _ = await executor.call(kind, tid, *producer.identity, commit)
            yield number, kind, which, commit, error
        else:
            last = producer.sequences.get(place, (0, b""))
            if kind == "repeat" and not last[0]:
                continue
            sequence, value = last if kind == "repeat" else (last[0] + 1, b"%d" % number)
            rows = [(b"k", value, ())]
            error, offset = await executor.call("produce", place, tid, *producer.identity, sequence, rows)
            if error is None:
                producer.sequences[place] = (sequence, value)
            yield number, kind, which, error, offset


@pytest.mark.parametrize("seed", range(SEQUENCES))
async def test_the_model_answers_as_the_broker(broker, prefix, seed):
    topic, tid = f"{prefix}model", f"{prefix}t"
    await harness.make_topics(broker.bootstrap, [topic], PARTITIONS)
    model, real = Model(), RealBroker(broker.bootstrap)
    await real.start(tid)
    try:
        wanted = [answer async for answer in answers(real, topic, tid, seed)]
        assert [answer async for answer in answers(model, topic, tid, seed)] == wanted
        for committed in (False, True):
            expected = await model.contents(topic, committed=committed)
            async with asyncio.timeout(30):
                while (found := await real.contents(topic, committed=committed)) != expected:
                    if [records for records, _ in found] != [records for records, _ in expected]:
                        break
                    await asyncio.sleep(0.05)
            assert found == expected
    finally:
        await real.client.close()


async def test_a_topic_that_was_created_again_is_empty_has_another_id_and_no_former_position(broker, prefix):
    topic, position = f"{prefix}again", 3
    place = TopicPartition(topic, 0)
    await harness.make_topics(broker.bootstrap, [topic], 1)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for _ in range(position + 1):
            await producer.send_and_wait(topic, b"v")
    real_id = await id_of(broker.bootstrap, topic)
    await harness.recreate_topics(broker.bootstrap, [topic], 1)
    model = Model().cluster
    for at in range(position + 1):
        model.produce(place, None, 1, 0, at, [(None, b"v", ())])
    model_id = model.topic_id(topic)
    model.recreate(topic)
    assert (await id_of(broker.bootstrap, topic) != real_id) is (model.topic_id(topic) != model_id) is True
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([place])
        consumer.seek(place, position)
        first, end = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
        assert (first, end) == ({place: 0}, {place: 0})
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.getmany(place, timeout_ms=30_000)
    assert model.bounds(place, committed=True) == (0, 0)
    with pytest.raises(OffsetOutOfRangeError):
        model.fetch({place: position}, committed=True, most=10)


async def id_of(bootstrap, topic):
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    try:
        await client.bootstrap()
        return (await ask(client, [topic])).ids[topic]
    finally:
        await client.close()
