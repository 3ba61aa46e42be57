"""Producer epochs: a new one begins before a transaction that a late request could commit too early.

The client speaks version 0 of the transaction requests, where one epoch covers many transactions. After a timeout or a
lost connection it sends EndTxn again, and the broker may still have the first one in a queue. If that one arrives
during the next transaction, it commits what is written by then: outputs without their state. Kafka 4.1.1 with
``transaction.version`` 2 was seen to do so; KIP-890 protects only clients that send newer versions. After
InitProducerId a request of the former epoch is refused (error 47, INVALID_PRODUCER_EPOCH).

Before each retry the client sleeps for one retry pause. So a commit that took less time was sent once. The engine never
aborts a transaction. After a commit of unknown outcome the partition is opened again, which starts a new epoch too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaProducer

from reknit.pipeline.engine.runtime import PartitionLostError

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime

# The client's own default. A longer pause would cause fewer new epochs, but it delays every retry.
RETRY_PAUSE_MS = 100
# Timers of event loops have a resolution of 1 ms, so a measured pause may be slightly too short.
_RETRIED_SECONDS = 0.9 * RETRY_PAUSE_MS / 1000

IsOurs = Callable[[int], Awaitable[bool | None]]


class Epochs:
    """Decides when the producer of a source partition needs a new epoch, and starts it if this worker is the owner."""

    def __init__(self, runtime: Runtime, topic: str, partition: int, is_ours: IsOurs) -> None:
        """Create it. ``is_ours`` asks the group, with the next source offset, if this worker owns the partition."""
        self._runtime = runtime
        self._place = (topic, partition)
        self._is_ours = is_ours
        self.position = 0  # the next source offset, for the request to the group
        self.is_spent = False  # True if a request of this epoch may still arrive

    async def commit(self, producer: AIOKafkaProducer, position: int) -> None:
        """Commit the producer's transaction, which moves the partition to ``position``."""
        self.is_spent = True
        began = self._runtime.seams.clock.monotonic()
        await producer.commit_transaction()
        self.is_spent = self._runtime.seams.clock.monotonic() - began >= _RETRIED_SECONDS
        self.position = position

    async def renew(self, start: Callable[[], Awaitable[None]]) -> None:
        """Begin a new epoch with ``start``.

        A former owner must not start one, since that would fence the present owner. The second look at the group
        proves that no other worker owned the partition until the new epoch began. A worker that opens a partition looks
        too, after its epoch began and before it writes, so only an owner writes. Therefore the state in memory is still
        that of the changelog, which is not read again.

        Raises:
            PartitionLostError: ``stuck``, if the group does not confirm the owner, or the start took too long.
        """
        await self._check_owner()
        # A start that lasted until the partition has another owner would fence that one. Another owner comes once the
        # session expired, or once a rebalance waited for the batch in flight.
        seconds = min(self._runtime.tuning.session_seconds, self._runtime.tuning.hold_seconds)
        try:
            async with asyncio.timeout(seconds):
                await start()
        except TimeoutError:
            raise PartitionLostError("stuck", f"a new producer epoch took more than {seconds:.0f} s") from None
        await self._check_owner()
        self._runtime.metrics.on_new_epoch(*self._place)

    async def _check_owner(self) -> None:
        if not await self._is_ours(self.position):
            raise PartitionLostError(
                "stuck", "it needs a new producer epoch, and the group does not confirm that this worker owns it"
            )
