"""The undocumented parts of aiokafka that Reknit relies on, with a test or more for each, without a broker.

They are the parts for which the client has no public call. ``tests/broker/test_client_behaviour.py`` has the behaviour
of public calls that only a broker shows; ``test_kafka_header_names.py`` and ``test_engine_connections.py`` have that of
the decoder and of connections.
"""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, conn
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer import consumer as group_consumer
from aiokafka.consumer import fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import (
    ConcurrentTransactions,
    IllegalGenerationError,
    KafkaConnectionError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
)
from aiokafka.producer import sender
from aiokafka.structs import OffsetAndMetadata

from reknit.pipeline.engine.client_patch import Coordinator, patch_aiokafka
from reknit.pipeline.engine.client_requests import GroupRequest, TopicsRequest
from reknit.pipeline.engine.seams import KafkaBrokers

PLACE = TopicPartition("t", 0)


class Client:
    """A connection to one broker, which gives these answers, and then none."""

    cluster = SimpleNamespace(add_listener=lambda _: None)

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    async def coordinator_lookup(self, *_):
        return 1

    async def ready(self, *_, **__):
        return True

    async def force_metadata_update(self):
        pass

    async def send(self, _node, request, group=None):
        self.requests.append(request)
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def heartbeat(error=None):
    return SimpleNamespace(error_code=0 if error is None else error.errno)


@pytest.fixture
async def producer():
    """A producer that was not started."""
    made = AIOKafkaProducer(bootstrap_servers="nobody:1", transactional_id="t")
    yield made
    await made.stop()


@pytest.fixture
async def member():
    """A member of generation 7, and its client's connection."""
    client = Client()
    coordinator = GroupCoordinator(client, SubscriptionState(), group_id="g", enable_auto_commit=False)
    coordinator.generation, coordinator.member_id, coordinator.coordinator_id = 7, "m", 1
    yield SimpleNamespace(_coordinator=coordinator), client
    coordinator._coordination_task.cancel()
    await asyncio.gather(coordinator._coordination_task, return_exceptions=True)


@pytest.fixture
def patched(monkeypatch):
    """The client's parts are replaced, for one test."""
    for module, name in (
        (conn, "AIOKafkaConnection"),
        (group_consumer, "GroupCoordinator"),
        (sender, "BACKOFF_OVERRIDE"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    patch_aiokafka()


async def commit(member, client, answer):
    client.answers = [SimpleNamespace(topics=[("t", [(0, 0 if answer is None else answer.errno)])])]
    offsets = {PLACE: OffsetAndMetadata(5, "reknit")}
    await member._coordinator.commit_offsets(None, offsets)


async def test_a_commit_has_the_generation_of_the_coordinator(member):
    # `generation`: a commit proves the owner of a partition only in the generation that assigned it.
    consumer, client = member
    assert KafkaBrokers().generation(consumer) == 7
    await commit(consumer, client, None)
    (request,) = client.requests
    sent = request.prepare({request.API_KEY: (2, 2)})
    assert (sent.consumer_group_generation_id, sent.consumer_id) == (7, "m")


@pytest.mark.parametrize("error", [UnknownMemberIdError, IllegalGenerationError])
async def test_a_member_that_the_group_refuses_has_no_generation(member, error):
    consumer, client = member
    with pytest.raises(Exception, match="rebalanced") as failed:
        await commit(consumer, client, error)
    assert isinstance(failed.value.__cause__, error)
    assert KafkaBrokers().generation(consumer) < 0


async def test_a_member_keeps_its_generation_while_the_group_prepares_the_next_one(member):
    consumer, client = member
    with pytest.raises(Exception, match="rebalanced") as failed:
        await commit(consumer, client, RebalanceInProgressError)
    assert isinstance(failed.value.__cause__, RebalanceInProgressError)
    assert KafkaBrokers().generation(consumer) == 7


@pytest.mark.parametrize(
    ("answer", "is_member"),
    [
        (heartbeat(), True),
        (heartbeat(RebalanceInProgressError), True),
        (heartbeat(UnknownMemberIdError), False),
        (heartbeat(IllegalGenerationError), False),
        (KafkaConnectionError("gone"), False),
    ],
)
async def test_a_heartbeat_shows_if_the_coordinator_accepted_it(member, answer, is_member):
    # `_do_heartbeat`: the lease of at-least-once delivery lasts one session from the last heartbeat that was accepted.
    consumer, client = member
    steps = []

    def on_heartbeat():
        steps.append("sent")
        return lambda: steps.append("accepted")

    send = KafkaBrokers().watch_heartbeats(consumer, on_heartbeat)
    client.answers = [answer]
    assert await send() is is_member
    assert steps == ["sent", "accepted"][: 1 + is_member]


async def test_the_coordinator_sends_its_heartbeats_through_the_watched_function(member):
    consumer, client = member
    accepted = asyncio.Event()
    KafkaBrokers().watch_heartbeats(consumer, lambda: accepted.set)
    consumer._coordinator._heartbeat_interval_ms = 1
    client.answers = [heartbeat()]
    consumer._coordinator._start_heartbeat_task()
    async with asyncio.timeout(60):
        await accepted.wait()
    await consumer._coordinator._stop_heartbeat_task()


async def test_the_first_error_of_a_transaction_is_known(producer):
    # `_transaction_waiter`: a later error, of a send to another topic, may hide which topic was refused.
    manager, brokers = producer._txn_manager, KafkaBrokers()
    assert brokers.first_error(producer) is None
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    assert brokers.first_error(producer) is None
    refused = TopicAuthorizationFailedError("p.out")
    manager.error_transaction(refused)
    assert brokers.first_error(producer) is refused


async def test_a_producer_without_a_broker_can_be_abandoned(producer):
    # `sender_task`: without it the sender of a stopped producer retries without end, and may write an old batch later.
    await KafkaBrokers().abandon(producer)
    ends = asyncio.Event()

    async def deliver():
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()

    producer._sender._sender_task = asyncio.create_task(deliver())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await KafkaBrokers().abandon(producer)
    assert (ends.is_set(), producer._sender.sender_task.done()) == (True, True)


async def test_the_pause_between_two_transactions_is_the_one_that_was_set(patched):
    # `BACKOFF_OVERRIDE`: saves 3 ms of the median, and 10 ms of one transaction in ten, if they follow each other.
    manager = SimpleNamespace(txn_partitions=set())
    handler = sender.AddPartitionsToTxnHandler(SimpleNamespace(_txn_manager=manager, _retry_backoff=0.1), [PLACE])
    answer = SimpleNamespace(errors=[("t", [(0, ConcurrentTransactions.errno)])])
    assert handler.handle_response(answer) == 0.002


def test_a_worker_joins_its_group_with_its_own_coordinator(patched):
    assert group_consumer.GroupCoordinator is Coordinator


def test_classes_that_are_replaced_are_found_by_their_names():
    assert "AIOKafkaConnection(" in inspect.getsource(conn.create_conn)
    assert "GroupCoordinator(" in inspect.getsource(AIOKafkaConsumer.start)
    assert "MemoryRecords(" in inspect.getsource(fetcher)


@pytest.mark.parametrize(("request_of", "versions"), [(TopicsRequest, [5, 10]), (GroupRequest, [3])])
def test_own_requests_are_sent_in_a_version_that_the_broker_knows(request_of, versions):
    # Topic ids and authorized operations are in no public call.
    for version in versions:
        sent = request_of(["t"] if request_of is TopicsRequest else "g").prepare({request_of.API_KEY: (0, version)})
        assert (sent.API_VERSION, bool(sent.encode())) == (version, True)


async def test_requests_that_no_public_call_sends():
    # `_client.fetch_all_metadata`: `topics` sends the same request and returns only names. `_send_request`: groups are
    # deleted with it.
    consumer = AIOKafkaConsumer(bootstrap_servers="nobody:1")
    assert inspect.iscoroutinefunction(consumer._client.fetch_all_metadata)
    await consumer.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers="nobody:1")
    admin._client = client = Client("answer")
    assert (await admin._send_request("request", 1), client.requests) == ("answer", ["request"])
