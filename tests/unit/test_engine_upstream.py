from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka import conn
from aiokafka.conn import CloseReason
from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest

from reknit.pipeline.engine import upstream
from reknit.pipeline.engine.runtime import UpstreamChangedError


def test_the_installed_version_is_the_one_the_engine_was_written_for():
    upstream.verify_upstream()


def test_every_part_exists_and_the_table_is_not_empty():
    assert len(upstream.PARTS) > 60
    assert [part for part in upstream.PARTS if upstream.digest_of(part) is None] == []


def test_every_method_that_the_transport_overrides_is_in_the_table():
    from reknit.pipeline.engine.transport import SpanConsumer, SpanThread

    named = {part.split(":")[1].split(".")[-1] for part in upstream.PARTS}
    for kind in (SpanConsumer, SpanThread):
        inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
        overridden = {name for name, value in vars(kind).items() if callable(value) and name in inherited}
        assert overridden - {"__init__", "__doc__"} - named == set()


@pytest.mark.parametrize(
    ("table", "entry", "said"),
    [
        ("VERSIONS", {"aiokafka": "0.0.1"}, "aiokafka is 0.14.0, not 0.0.1"),
        ("VERSIONS", {"no-such-package": "1.0"}, "no-such-package is None, not 1.0"),
        ("PARTS", {"faust.app.base:App.on_stop": "0" * 12}, "faust.app.base:App.on_stop was changed"),
        ("PARTS", {"faust.app.base:App.gone": "0" * 12}, "faust.app.base:App.gone was changed"),
        ("PARTS", {"faust.no_such_module:x": "0" * 12}, "faust.no_such_module:x was changed"),
    ],
)
def test_a_difference_is_an_error_that_names_it(monkeypatch, table, entry, said):
    monkeypatch.setattr(upstream, table, {**getattr(upstream, table), **entry})
    with pytest.raises(UpstreamChangedError) as error:
        upstream.verify_upstream()
    assert error.value.code == "upstream_changed"
    assert error.value.message.startswith(said)
    assert "pip install faust-streaming==" in error.value.message


def test_the_table_can_be_printed(capsys):
    assert upstream.main() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f'    "{part}": "{digest}",' for part, digest in upstream.PARTS.items()]


def in_a_loop(work):
    """Run a coroutine function with the engine's event loop."""

    async def run():
        return await work(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=upstream.Loop) as runner:
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
        assert in_a_loop(options) == (1, 1000 * upstream._DEAD_SECONDS)


def test_a_connection_that_is_not_accepted_is_given_up(monkeypatch):
    monkeypatch.setattr(upstream, "_CONNECT_SECONDS", 0.05)

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
        connection = upstream.Connection(*broker, on_close=lambda _, reason: lost.append(reason))
        await connection.connect()
        connection._writer.transport.abort()
        with pytest.raises(KafkaConnectionError, match="its transport is closed"):
            await send(connection)
        await connection.close()
        return connection.connected()

    assert (in_a_loop(send_after_failure), lost) == (False, [CloseReason.CONNECTION_BROKEN])


def test_a_worker_creates_these_connections(broker, monkeypatch):
    monkeypatch.setattr(conn, "AIOKafkaConnection", conn.AIOKafkaConnection)
    monkeypatch.setattr(fetcher, "PartitionRecords", fetcher.PartitionRecords)
    upstream.patch_aiokafka()

    async def connect(_loop):
        connection = await conn.create_conn(*broker)
        await connection.close()
        return type(connection)

    assert in_a_loop(connect) is upstream.Connection
