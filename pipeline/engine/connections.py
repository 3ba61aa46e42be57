"""Connections to brokers: the event loop in which they end when the peer is unreachable, and the end of a client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient

from reknit.pipeline.errors import error_name

log = logging.getLogger("reknit.engine")

_TLS_GOODBYE_SECONDS = 0.2
# A network that drops packets gives no error. TCP then retransmits after 1, 2, 4, 8, 16 and more seconds, and the
# client waits for that as long as for an answer: 40 s. So after an outage of a minute a worker was seen to need up to
# 20 s more to connect. A new connection attempt begins with a short pause again.
_CONNECT_SECONDS = 10.0
# A connection without acknowledgements ends after this time, with or without data in flight.
_DEAD_SECONDS = 15
_PROBE_SECONDS = 5


class Loop(uvloop.Loop):
    """uvloop, with connections that end if the peer is unreachable.

    When a TLS connection closes, uvloop waits half a minute for the peer's close_notify; Kafka sends none.
    """

    async def create_connection(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as uvloop's own
        if options.get("ssl"):
            options.setdefault("ssl_shutdown_timeout", _TLS_GOODBYE_SECONDS)
        async with asyncio.timeout(_CONNECT_SECONDS):
            made: Any = await super().create_connection(*args, **options)
        end_when_dead(made[0].get_extra_info("socket"))
        return made


def end_when_dead(connection: Any) -> None:  # noqa: ANN401  a socket, or an event loop's replacement
    """Make a TCP connection end if the peer acknowledges nothing; on systems other than Linux by keepalive only."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_SECONDS * 1000)


def is_cancelled() -> bool:
    """Return True if the current task was cancelled; otherwise a ``CancelledError`` is not about this task.

    aiokafka lets the cancellation of its own tasks and futures out of ``stop`` and ``close``. A second ``close`` raises
    one if the first took too long: that ``gather`` has cancelled the futures for which the second waits. A partition
    whose task took that for its own end stayed closed until the worker was started again.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def foreign_cancellations_ignored(failure: str) -> Iterator[None]:
    """Log ``failure`` and continue if the client raises a ``CancelledError`` about its own tasks."""
    try:
        yield
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        log.info("%s: %s", failure, error_name(error))


async def close_client(client: AIOKafkaClient, seconds: float) -> None:
    """Close a client's connections within ``seconds``. A failure is logged, so that a stop continues."""
    try:
        with foreign_cancellations_ignored("a client was not closed"):
            async with asyncio.timeout(seconds):
                await client.close()
    except Exception as error:  # noqa: BLE001  any error: the client is given up either way
        log.info("a client was not closed: %s", error_name(error))


async def stop_reader(reader: AIOKafkaConsumer) -> None:
    """Stop a reader; what it raises about its own tasks is ignored."""
    with foreign_cancellations_ignored("a reader was not stopped"):
        await reader.stop()
