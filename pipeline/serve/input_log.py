"""The way of records from the gateway to the input topics: a queue, the journal, the brokers.

The request path only puts records into the queue. A thread stores them in the journal, and a task sends them from
there. So a broker that is down delays no client. The end of an answer waits until the journal has the exchange, as long
as the journal stores anything: an exchange whose end a client has seen is in the topics, also if this process is killed
in the next moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from reknit.pipeline.errors import InputError, ReknitError, error_name
from reknit.pipeline.serve.journal import Journal, Place
from reknit.pipeline.serve.journal_format import InputRecord
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.run_order import RunOrder
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS
from reknit.topics import headers as names
from reknit.topics.headers import EndOfRunHeaders, Headers

log = logging.getLogger("reknit.serve")

# Most bytes in the queue: the disk is too slow for what comes.
_MOST_QUEUED: Final = 64 * 2**20
# Bytes of a record in the journal besides its value.
_RECORD_BYTES: Final = 512
# Most records that wait for the end of another run of their session.
_MOST_WAITING: Final = 50_000
# Records of this time are sent together. Sent alone, an event of a stream costs several times as much.
_GATHER_SECONDS: Final = 0.05
_PAUSES: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
# Time for the rest of the journal at the end. The rest is sent after the next start.
_LAST_SECONDS: Final = 5.0
# Most time for which the end of an answer waits while the disk stores nothing. There is no limit while it does: with
# 200 connections on a busy machine answers waited for up to 4 s, since the records of others came first.
_STALLED_SECONDS: Final = 1.0
# Items that are stored at once, so that those who wait for the first of many see progress.
_AT_ONCE: Final = 16
_STOPPED: Final = "gateway stopped"

T = TypeVar("T")
Made: TypeAlias = Callable[[], Sequence[InputRecord]]


class Brokers(Protocol):
    """Sends records, as ``reknit.pipeline.client.Inputs`` does."""

    async def send(
        self, topic: str, session: str, value: bytes | None, headers: Headers = ()
    ) -> asyncio.Future[Any]: ...

    async def delivered(self, sent: Iterable[asyncio.Future[Any]]) -> None: ...


Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Brokers]]


class InputLog:
    """Takes records, and sends them in order.

    Attributes:
        failures: how often records that were taken could not be stored.

    Args:
        journal: where records wait.
        connect: connects to the brokers.
        metrics: counted per record.
    """

    def __init__(self, journal: Journal, connect: Connect, metrics: GatewayMetrics) -> None:
        self.failures = 0
        self._journal = journal
        self._connect = connect
        self._metrics = metrics
        self._queue: list[InputRecord | Made] = []
        self._queued = 0
        # Counts of items, and who waits for one to be stored.
        self._taken = 0
        self._stored = 0
        self._waiters: list[tuple[int, asyncio.Event]] = []
        # The disk stored nothing for a while. Until it does again, nothing waits for it.
        self._is_stalled = False
        self._has_queued = asyncio.Event()
        self._has_stored = asyncio.Event()
        self._closing = asyncio.Event()
        # The journal is used by one thread at a time.
        self._thread = ThreadPoolExecutor(1, "reknit-journal")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to store and send; end the runs that an earlier process did not end."""
        for last in self._journal.unfinished:
            self.put_end(end_of_run(last, _STOPPED))
        self._tasks = [asyncio.create_task(self._store_all()), asyncio.create_task(self._send_all())]

    def put(self, record: InputRecord) -> bool:
        """Take a record; return False if there is no room for it."""
        return self._put(record, len(record.value or b"") + _RECORD_BYTES)

    def put_made(self, make: Made, size: int) -> bool:
        """Take records that are made later, in the thread of the journal; return False if there is no room for them.

        Args:
            make: makes them; it never raises.
            size: their bytes, about.
        """
        return self._put(make, size)

    def put_end(self, record: InputRecord) -> None:
        """Take the end of a run, for which there is always room."""
        self._append(record)

    async def stored(self) -> None:
        """Wait until the journal has everything that was taken so far, or stores nothing for a moment."""
        if self._stored == self._taken or self._is_stalled:
            return
        waiter = asyncio.Event()
        self._waiters.append((self._taken, waiter))
        while not (waiter.is_set() or self._is_stalled):
            before = self._stored
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter.wait(), _STALLED_SECONDS)
            if self._stored == before:
                self._is_stalled = True

    async def close(self) -> None:
        """Store everything, and send for a few seconds what is left."""
        self._closing.set()
        self._has_queued.set()
        self._has_stored.set()
        if self._tasks:
            storing, sending = self._tasks
            await asyncio.gather(storing, return_exceptions=True)
            await asyncio.wait([sending], timeout=_LAST_SECONDS)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await self._in_thread(self._journal.close)
        self._thread.shutdown()

    def _put(self, item: InputRecord | Made, size: int) -> bool:
        if self._queued + size > _MOST_QUEUED or self._journal.size + self._queued + size > self._journal.most_bytes:
            return False
        self._queued += size
        self._append(item)
        return True

    def _append(self, item: InputRecord | Made) -> None:
        self._queue.append(item)
        self._taken += 1
        self._has_queued.set()

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    # From the queue to the journal.

    async def _store_all(self) -> None:
        while not (self._closing.is_set() and not self._queue):
            await self._has_queued.wait()
            self._has_queued.clear()
            queue, self._queue, size = self._queue, [], self._queued
            await self._store_queue(queue)
            self._queued -= size

    async def _store_queue(self, queue: Sequence[InputRecord | Made]) -> None:
        done = 0
        while done < len(queue):
            items = queue[done : done + _AT_ONCE]
            try:
                await self._in_thread(self._store, items)
            except Exception as error:  # noqa: BLE001  a fault must not end the task
                items = queue[done:]  # later records of a run must not follow a gap
                self.failures += 1
                self._metrics.log_lost.labels("disk" if isinstance(error, OSError) else "fault").inc(len(items))
                log.warning("%d records cannot be stored: %s", len(items), error_name(error))
            done += len(items)
            self._note_stored(len(items))
            self._metrics.log_bytes.set(self._journal.size)
            self._has_stored.set()

    def _note_stored(self, count: int) -> None:
        self._stored += count
        self._is_stalled = False
        for number, waiter in self._waiters:
            if number <= self._stored:
                waiter.set()
        self._waiters = [each for each in self._waiters if not each[1].is_set()]

    def _store(self, queue: Sequence[InputRecord | Made]) -> None:
        records: list[InputRecord] = []
        for item in queue:
            records += [item] if isinstance(item, InputRecord) else item()
        if records:
            self._journal.append(records)

    # From the journal to the brokers.

    async def _send_all(self) -> None:
        failed = 0
        while True:
            try:
                async with self._connect() as brokers:
                    failed = 0
                    await self._send_to(brokers)
                    return
            except Exception as error:  # noqa: BLE001  as above: the records stay, and are sent later
                pause = _PAUSES[min(failed, len(_PAUSES) - 1)]
                failed += 1
                known = isinstance(error, ReknitError)
                log.warning("records wait in the journal: %s", error if known else error_name(error))
                await asyncio.sleep(pause)

    async def _send_to(self, brokers: Brokers) -> None:
        """Send everything that is not delivered; return once the gateway ends and nothing is left."""
        order: RunOrder[Place] = RunOrder()
        await self._in_thread(self._journal.rewind)
        while True:
            self._has_stored.clear()
            found = await self._in_thread(self._journal.read) if order.waiting < _MOST_WAITING else []
            if not found:
                if self._closing.is_set() and self._tasks[0].done():
                    return
                await self._has_stored.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GATHER_SECONDS):
                        await self._closing.wait()
                continue
            ready = [(place, record) for place, record in found if order.arrive(record, place)]
            while ready:
                await self._deliver(brokers, ready)
                freed = [place for _, record in ready if record.ends_run for place in order.end(record)]
                # In one step: the thread may be busy with new records, and each step waits for it.
                ready = await self._in_thread(self._journal.read_again, freed)

    async def _deliver(self, brokers: Brokers, ready: Sequence[tuple[Place, InputRecord]]) -> None:
        """Send records, and note them once the brokers have them."""
        sent = []
        for _, record in ready:
            if record.topic == AGENT_TURNS and record.value is None:
                continue
            try:
                sent.append(await brokers.send(record.topic, record.session, record.value, record.headers))
            except InputError as error:  # no later attempt is better
                self._metrics.log_lost.labels(error.code).inc()
                log.warning("a record to %s cannot be written: %s", record.topic, error.code)
                continue
            self._metrics.log_records.labels(record.topic).inc()
        await brokers.delivered(sent)
        # Where this cannot be noted, the records are sent again after the next start, and dropped by the worker.
        with suppress(OSError):
            await self._in_thread(self._journal.deliver, [place.number for place, _ in ready])
        self._metrics.log_bytes.set(self._journal.size)


def end_of_run(last: InputRecord, reason: str) -> InputRecord:
    """Return the record that ends a run after its last record so far; for turns a mark that is not sent."""
    if last.topic == AGENT_TURNS:
        return InputRecord(AGENT_TURNS, last.session, None, (), last.run, last.seq + 1, ends_run=True)
    source = names.find_text(last.headers, names.SOURCE) or ""
    seq = last.seq + 1
    described = EndOfRunHeaders(exit=reason, source=source, run=last.run, seq=seq)
    return InputRecord(PROVIDER_EVENTS, last.session, None, names.encode(described), last.run, seq, ends_run=True)
