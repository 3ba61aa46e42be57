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
from aiokafka.errors import KafkaError

from reknit.pipeline.errors import error_name
from reknit.pipeline.kafka import may_pass

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
    """uvloop, with connections that end if the peer is unreachable, and a line for each request that was given up.

    When a TLS connection closes, uvloop waits half a minute for the peer's close_notify; Kafka sends none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_exception_handler(_report)

    async def create_connection(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as uvloop's own
        if options.get("ssl"):
            options.setdefault("ssl_shutdown_timeout", _TLS_GOODBYE_SECONDS)
        async with asyncio.timeout(_CONNECT_SECONDS):
            made: Any = await super().create_connection(*args, **options)
        end_when_dead(made[0].get_extra_info("socket"))
        return made


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task awaits: a client's in a line, any other with its traceback.

    aiokafka protects a commit from the cancellation of its caller. If the member was removed from its group meanwhile,
    the broker refuses the commit, and the loop reported that as an unhandled exception.
    """
    error = context.get("exception")
    if isinstance(error, KafkaError):
        log.warning("a request to the brokers that was given up failed: %s", error_name(error))
    else:
        loop.default_exception_handler(context)


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


def is_passing(error: KafkaError | OSError | TimeoutError | asyncio.CancelledError) -> bool:
    """Return True if the same call may succeed later: a task of the client was cancelled, or as ``may_pass``."""
    return not is_cancelled() if isinstance(error, asyncio.CancelledError) else may_pass(error)


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
