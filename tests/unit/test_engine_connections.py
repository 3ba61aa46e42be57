"""Connections to brokers end if the peer is unreachable, and a closed transport is an error of the client's own."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka import conn
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import CloseReason
from aiokafka.consumer import consumer
from aiokafka.errors import KafkaConnectionError, UnknownMemberIdError
from aiokafka.producer import sender
from aiokafka.protocol.admin import ApiVersionRequest
from certificates import make_certificate

from reknit.pipeline.engine import client_patch, connections, writer


def in_a_loop(work):
    """Run a coroutine function with the engine's event loop."""

    async def run():
        return await work(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=connections.Loop) as runner:
        return runner.run(run())


def test_a_connection_ends_when_the_peer_acknowledges_nothing():
    async def options(loop):
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.getsockname())
        made = transport.get_extra_info("socket")
        found = made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        dead = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        transport.close()
        return found, dead

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert in_a_loop(options) == (1, 1000 * connections._DEAD_SECONDS)


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (UnknownMemberIdError("group"), [("reknit.engine", "a request to the brokers that was given up failed")]),
        (ValueError("a bug"), [("asyncio", "Task exception was never retrieved")]),
    ],
)
def test_a_request_that_nothing_awaits_any_more_is_a_line_in_the_log(error, logged, caplog):
    async def give_up(_loop):
        has_begun, answer, has_failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def request():
            has_begun.set()
            await answer.wait()
            has_failed.set()
            raise error

        async def commit():
            await asyncio.shield(request())

        caller = asyncio.create_task(commit())
        await has_begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        answer.set()
        await has_failed.wait()

    in_a_loop(give_up)
    gc.collect()
    assert [(record.name, record.getMessage().splitlines()[0].partition(":")[0]) for record in caplog.records] == logged


@pytest.fixture
def kafka_over_tls(tmp_path):
    """The address of a server which, like Kafka, never answers the end of a TLS connection; and a client's context."""
    make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    ended = threading.Event()

    def accept(server):
        accepted, _ = server.accept()
        with context.wrap_socket(accepted, server_side=True):
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, server)
        yield server.getsockname(), ssl.create_default_context(cafile=tmp_path / "cert.pem")
        ended.set()
        accepting.result()


def test_the_end_of_a_tls_connection_does_not_wait_for_the_peer(kafka_over_tls):
    address, context = kafka_over_tls

    class Client(asyncio.Protocol):
        def connection_lost(self, _error):
            lost.set()

    async def connect_and_close(loop):
        transport, _ = await loop.create_connection(Client, *address, ssl=context)
        transport.close()
        try:
            async with asyncio.timeout(20):  # uvloop alone waits 30 s for the peer
                await lost.wait()
        finally:
            transport.abort()  # an open connection would keep the loop from closing
            await lost.wait()

    lost = asyncio.Event()
    in_a_loop(connect_and_close)


def test_a_connection_that_is_not_accepted_is_given_up(monkeypatch):
    monkeypatch.setattr(connections, "_CONNECT_SECONDS", 0.05)

    async def connect(loop):
        await loop.create_connection(asyncio.Protocol, *server.getsockname())

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        with socket.create_connection(server.getsockname()), pytest.raises(TimeoutError):  # its queue is full now
            in_a_loop(connect)


def answer_versions(server):
    """Answer the first request of a connection, for the API versions of a broker, with an empty list."""
    accepted, _ = server.accept()
    with accepted:
        size = int.from_bytes(accepted.recv(4, socket.MSG_WAITALL))
        correlation_id = accepted.recv(size, socket.MSG_WAITALL)[4:8]
        answer = correlation_id + bytes(2) + bytes(4)
        accepted.sendall(len(answer).to_bytes(4) + answer)
        accepted.recv(1)  # until the client closes


@pytest.fixture
def broker():
    """The address of a broker that answers one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer_versions, server)
        yield server.getsockname()
        answered.result()


@pytest.mark.parametrize(
    "send",
    [lambda connection: connection.send(ApiVersionRequest()), lambda connection: connection._send_sasl_token(b"token")],
    ids=["a request", "a token"],
)
def test_a_request_over_a_transport_that_failed_is_an_error_of_the_connection(broker, send):
    lost = []

    async def send_after_failure(_loop):
        connection = client_patch.Connection(*broker, on_close=lambda _, reason: lost.append(reason))
        await connection.connect()
        connection._writer.transport.abort()
        with pytest.raises(KafkaConnectionError, match="its transport is closed"):
            await send(connection)
        await connection.close()
        return connection.connected()

    assert (in_a_loop(send_after_failure), lost) == (False, [CloseReason.CONNECTION_BROKEN])


def test_a_worker_creates_these_connections(broker, monkeypatch):
    monkeypatch.setattr(conn, "AIOKafkaConnection", conn.AIOKafkaConnection)
    monkeypatch.setattr(consumer, "GroupCoordinator", consumer.GroupCoordinator)
    monkeypatch.setattr(sender, "BACKOFF_OVERRIDE", sender.BACKOFF_OVERRIDE)
    client_patch.patch_aiokafka()

    async def connect(_loop):
        connection = await conn.create_conn(*broker)
        await connection.close()
        return type(connection)

    assert in_a_loop(connect) is client_patch.Connection


class UnendingConnection:
    """A connection whose peer does not take what was sent, so that its end does not come."""

    def __init__(self, loop):
        self.closed = loop.create_future()

    def close(self, reason=None, exc=None):
        return self.closed


def unending_client(loop):
    client = AIOKafkaClient(bootstrap_servers="127.0.0.1:1")
    client._conns["one"] = UnendingConnection(loop)
    return client


def test_a_client_that_was_not_closed_in_time_may_be_closed_again(caplog):
    caplog.set_level("INFO")

    async def close_twice(loop):
        client = unending_client(loop)
        for _ in range(2):
            await connections.close_client(client, 0.01)

    in_a_loop(close_twice)
    assert caplog.messages == ["a client was not closed: TimeoutError", "a client was not closed: CancelledError"]


def test_a_task_that_closes_a_client_can_be_cancelled():
    async def cancel(loop):
        task = asyncio.ensure_future(connections.close_client(unending_client(loop), 60.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_a_loop(cancel)


def test_a_producer_whose_tasks_were_cancelled_is_given_up(caplog):
    caplog.set_level("INFO")
    given_up = []

    class Producer:
        async def stop(self):
            raise asyncio.CancelledError

    class Brokers:
        async def abandon(self, producer):
            given_up.append(producer)

    async def stop(loop):
        producer = Producer()
        producer.client = unending_client(loop)
        await writer._stop_producer(Brokers(), producer, 0.01)
        return given_up == [producer]

    assert in_a_loop(stop)
    assert caplog.messages == ["a client was not closed: TimeoutError"]
