"""The engine's access to the outside: clocks, clients of the brokers, the loop of the group's client, stores on disk.

The defaults are those of a live worker. A simulation (``tests/simulation``) replaces all of them, so that a seed
decides the order and the outcome of everything. Blocking work has a seam in ``reknit.pipeline.objects``.

The private parts of the clients that a worker reaches into are used here and in ``client_patch`` only. Each has a test
of what the engine relies on (``tests/contracts``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient

from reknit.pipeline.engine.member_loop import MemberLoop, ThreadLoop

# Called when a heartbeat is sent; what it returns is called if the coordinator accepts the heartbeat.
HeartbeatWatch = Callable[[], Callable[[], None]]


class Clock(Protocol):
    """Times in seconds. The engine has no other source of chance: it draws no random numbers."""

    def monotonic(self) -> float:
        """Return a time for intervals and deadlines."""

    def wall(self) -> float:
        """Return the seconds since the epoch, for metrics."""

    def cost(self) -> float:
        """Return a time with a high resolution; differences are the cost of a slice."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def cost(self) -> float:
        return time.perf_counter()


class Brokers(Protocol):
    """Creates clients. Options are those of aiokafka."""

    def producer(self, **options: Any) -> AIOKafkaProducer:  # noqa: ANN401  the client's options
        """Create a producer; it is not connected."""

    def reader(self, **options: Any) -> AIOKafkaConsumer:  # noqa: ANN401  as above
        """Create a consumer without a group; it is not connected."""

    def member(self, **options: Any) -> AIOKafkaConsumer:  # noqa: ANN401  as above
        """Create a consumer that joins a group; it is not connected."""

    def admin(self, **options: Any) -> AIOKafkaAdminClient:  # noqa: ANN401  as above
        """Create a client for requests about groups; it is not connected."""

    def client(self, **options: Any) -> AIOKafkaClient:  # noqa: ANN401  as above
        """Create a client for requests about topics; it is not connected."""

    def generation(self, member: AIOKafkaConsumer) -> int:
        """Return the generation in which a member would commit now; negative if it has none."""

    def watch_heartbeats(
        self, member: AIOKafkaConsumer, on_heartbeat: HeartbeatWatch
    ) -> Callable[[], Awaitable[object]]:
        """Watch all heartbeats of a started member; return a function that sends one now."""

    def first_error(self, producer: AIOKafkaProducer) -> BaseException | None:
        """Return the first error of the transaction. A later one, of a send to another topic, may hide the reason."""

    async def abandon(self, producer: AIOKafkaProducer) -> None:
        """End the deliveries of a producer that does not stop by itself; its connections stay open."""


class KafkaBrokers:
    def producer(self, **options: Any) -> AIOKafkaProducer:  # noqa: ANN401  as in ``Brokers``
        return AIOKafkaProducer(**options)

    def reader(self, **options: Any) -> AIOKafkaConsumer:  # noqa: ANN401  as in ``Brokers``
        return AIOKafkaConsumer(**options)

    def member(self, **options: Any) -> AIOKafkaConsumer:  # noqa: ANN401  as in ``Brokers``
        return AIOKafkaConsumer(**options)

    def admin(self, **options: Any) -> AIOKafkaAdminClient:  # noqa: ANN401  as in ``Brokers``
        return AIOKafkaAdminClient(**options)

    def client(self, **options: Any) -> AIOKafkaClient:  # noqa: ANN401  as in ``Brokers``
        return AIOKafkaClient(**options)

    def generation(self, member: AIOKafkaConsumer) -> int:
        return member._coordinator.generation  # type: ignore[no-any-return] # noqa: SLF001  no public call has it

    def watch_heartbeats(
        self, member: AIOKafkaConsumer, on_heartbeat: HeartbeatWatch
    ) -> Callable[[], Awaitable[object]]:
        coordinator = member._coordinator  # noqa: SLF001  no public call shows when a heartbeat was answered
        send = coordinator._do_heartbeat  # noqa: SLF001  as above

        async def heartbeat() -> bool:
            on_answer = on_heartbeat()
            is_member: bool = await send()
            if is_member:
                on_answer()
            return is_member

        coordinator._do_heartbeat = heartbeat  # noqa: SLF001  as above
        return heartbeat

    def first_error(self, producer: AIOKafkaProducer) -> BaseException | None:
        waiter = producer._txn_manager._transaction_waiter  # noqa: SLF001  it has the first error
        if waiter is None or not waiter.done() or waiter.cancelled():
            return None
        return waiter.exception()  # type: ignore[no-any-return] # aiokafka has no types here

    async def abandon(self, producer: AIOKafkaProducer) -> None:
        task = producer._sender.sender_task  # noqa: SLF001  the client has no other way to stop
        while task is not None and not task.done():  # it waits for its tasks one by one; each is cancelled in turn
            task.cancel()
            await asyncio.wait([task], timeout=0.1)


class Seams:
    """The implementations that one worker uses.

    ``disk`` opens a store on disk as ``DiskRecords`` does; None: that. ``member_loop`` creates the loop of the group's
    client.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        brokers: Brokers | None = None,
        disk: Callable[..., Any] | None = None,
        member_loop: Callable[[], MemberLoop] = ThreadLoop,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.brokers: Brokers = brokers or KafkaBrokers()
        self.disk = disk
        self.member_loop = member_loop


LIVE = Seams()
