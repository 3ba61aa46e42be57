"""The actor of one source partition: it owns the partition's stage, its state and its place in the log.

It opens in this order, and no other is sound: take the partition over (which fences the former owner), read the state
changelog to its end (it holds the next source offset), work. While the group rebalances it is held: the batch in
flight is finished, what waits is given up, since it will be fetched again from the position that is committed. After a
failure that may pass it is opened anew, in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError
from msgspec import structs

from pipeline.engine.batches import Backlog, Slices, Span, buried, log_letters, output_size, size_letter, walk
from pipeline.engine.runtime import EngineError, PartitionLostError, log, where
from pipeline.engine.state import PartitionState
from pipeline.engine.writer import Batch, Writer
from pipeline.kafka import REFUSALS
from pipeline.objects import with_objects
from pipeline.stages.base import Record, Result, Stage, StoppedError

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime

# The pause before a partition is opened anew, doubled at each look up to the second value.
_REOPEN_SECONDS = 0.5
_REOPEN_SECONDS_MOST = 5.0


class Phase(Enum):
    OPENING = "opening"
    WORKING = "working"
    HELD = "held"
    CLOSED = "closed"


class Partition:
    def __init__(
        self,
        runtime: Runtime,
        topic: str,
        number: int,
        *,
        writer: Callable[[Stage], Writer],
        on_room: Callable[[], None],
        on_opened: Callable[[int], Awaitable[None]],
        on_position: Callable[[int], None],
        is_ours: Callable[[int], Awaitable[bool | None]],
    ) -> None:
        """Begin to open.

        Args:
            runtime: what the worker shares.
            topic: the contract's name.
            number: the partition's.
            writer: makes the writer, once the stage is there.
            on_room: called when more records may come.
            on_opened: called with the next source offset once it is read, before all that follow.
            on_position: called with it once everything before it is durable.
            is_ours: asks the group, with it, whether the partition is this worker's now; None where nobody knows.
        """
        self.topic = topic
        self.number = number
        self._place = (topic, number)
        self._end = runtime.end_of(topic, number)
        self.phase = Phase.OPENING
        self.next = 0  # the next source offset to process; known once the changelog is read
        self.aligned = False  # whether the source consumer was told to fetch from `next`
        self._runtime = runtime
        self._tuning = runtime.tuning
        self._on_room = on_room
        self._on_opened = on_opened
        self._on_position = on_position
        self._kept = PartitionState(runtime, topic, number)
        self._new_writer = writer
        self._writer = writer(self._kept.stage)
        self._is_ours = is_ours
        # Failures that a new opening may mend: the last one, and the first since the last commit.
        self._failed_at = self._failing_since = float("-inf")
        self._due = 0.0  # when the next batch may begin
        self._backlog = Backlog()
        self._full = False  # whether the consumer was told so; then it waits for `on_room`
        self._oldest_ms = 0  # when the oldest record of the batch in flight was written
        self._slices = Slices(self._tuning.slice_records, self._tuning.slice_seconds)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._live(), name=f"{topic}-{number}")

    # What the consumer side calls.

    def wants(self, share_bytes: int, share_records: int) -> bool:
        """Return whether more records may come, given this partition's share of the worker's memory."""
        self._full = self._backlog.fills(share_bytes, share_records)
        if self._full:
            self._wake.set()  # it waits for more no longer
        return self.phase is Phase.WORKING and self.aligned and not (self._full or self.at_end)

    def offer(self, span: Span) -> None:
        """Accept a span of the log, or raise ``Hole``: records before it are missing."""
        if self.phase is not Phase.WORKING:
            return  # held or closing: it will be fetched again
        self._backlog.accept(span if self._end is None else span.before(self._end))
        if self._backlog:
            self._wake.set()

    def expired(self, first: int) -> None:
        """Go on at ``first``: the broker's retention removed what came before it was read.

        That is a loss, but for who begins with what a live pipeline has read already.
        """
        lost = self._backlog.end
        if lost or not self._runtime.reads_another:
            log.error("%s partition %d: offsets %d to %d expired before they were read", *self._place, lost, first - 1)
            self._runtime.metrics.on_expired(*self._place, first - lost)
        self._backlog.clear(first)

    @property
    def at_end(self) -> bool:
        """Whether everything was fetched before the offset at which the worker is to end."""
        return self._end is not None and self._backlog.end >= self._end

    @property
    def waits_for(self) -> int:
        """The offset from which this actor needs the log."""
        return self._backlog.end

    @property
    def done_to(self) -> int:
        """The offset up to which nothing is left to do: markers behind the last record count as done."""
        return self.next if self._backlog or not self._idle.is_set() else self._backlog.end

    async def hold(self, seconds: float) -> None:
        """Finish the batch in flight, for at most so many seconds, and give up what waits.

        One that is still opening is closed instead: if its start overtook that of a new owner, it would fence it.
        """
        if self.phase is Phase.OPENING:
            await self.close()
            return
        if self.phase is Phase.WORKING:
            self.phase = Phase.HELD
        self._backlog.clear(self.next)
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            log.warning("%s partition %d: the batch in flight outlives the rebalance", *self._place)

    def resume(self) -> None:
        """Go on after a rebalance that left the partition here."""
        if self.phase is Phase.HELD:
            self.phase = Phase.WORKING
            self.aligned = False
            self._backlog.clear(self.next)
            self._wake.set()
            # The group may have refused it while it rebalanced, and nothing may come that tells it once more.
            self._on_position(self.next)

    async def close(self) -> None:
        """Finish the batch in flight and let go. What waits is not committed, so it will be read again."""
        opening = self.phase is Phase.OPENING
        self.phase = Phase.CLOSED
        self._backlog.clear(self.next)
        self._wake.set()
        if not opening:
            # Without a broker the batch in flight has no end; given up, it is not committed either.
            await asyncio.wait([self._task], timeout=self._tuning.stop_seconds / 2)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # The actor's own task.

    async def _live(self) -> None:
        try:
            while self.phase is not Phase.CLOSED:
                try:
                    await self._open()
                    await self._work_until_closed()
                except REFUSALS:
                    raise
                except (PartitionLostError, KafkaError, OSError) as error:
                    await self._make_way(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the worker
            self._runtime.fail(error)
        finally:
            self.phase = Phase.CLOSED
            self._kept.close()
            await self._writer.close()

    async def _work_until_closed(self) -> None:
        while self.phase is not Phase.CLOSED:
            if self.phase is Phase.HELD or not self._backlog:
                self._wake.clear()
                await self._wake.wait()
                continue
            if not self._full and (left := self._due - time.monotonic()) > 0:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), left)
                continue
            self._idle.clear()
            try:
                await self._work()
            finally:
                self._idle.set()

    async def _make_way(self, error: PartitionLostError | KafkaError | OSError) -> None:
        """Let go after a failure, and return once the partition may be opened anew, or is closed.

        What became of the batch in flight is not known: it may be committed. Its changelog says so, once the new
        opening has settled the transaction. A former owner must not open, since that would fence the new one.

        Raises:
            PartitionLostError: it has another owner, or nothing was committed for long though brokers answer.
        """
        if self.phase is not Phase.WORKING and self.phase is not Phase.OPENING:
            self.phase = Phase.CLOSED  # a rebalance is under way: it opens the partition anew where it belongs
            return
        self.phase, self.aligned = Phase.OPENING, False
        self._backlog.clear(self.next)
        self._kept.fail(error)
        self._note_failure(error)
        log.warning("%s partition %d is opened anew: %s", *self._place, _words(error))
        await self._writer.close()
        delay = _REOPEN_SECONDS
        while True:
            await asyncio.sleep(delay)
            delay = min(delay * 2, _REOPEN_SECONDS_MOST)
            ours = await self._is_ours(self.next) if self._runtime.answers else None
            if ours is False and isinstance(error, PartitionLostError) and error.code == "fenced":
                raise error
            if ours is False:
                self.phase = Phase.CLOSED
                return
            if ours:
                break
        self._writer = self._new_writer(self._kept.stage)

    def _note_failure(self, error: Exception) -> None:
        now, patience = time.monotonic(), self._tuning.stall_seconds
        if not self._runtime.answers or now - self._failed_at > 2 * patience:
            self._failing_since = now
        self._failed_at = now
        if now - self._failing_since > patience:
            raise error

    def _stuck(self, what: str, seconds: float) -> PartitionLostError:
        return PartitionLostError("stuck", f"{what} took more than {seconds:.0f} s")

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._tuning.start_seconds):
                await self._writer.open()
        except TimeoutError:
            raise self._stuck("taking the partition over", self._tuning.start_seconds) from None
        self.next = await self._kept.read() or 0
        await self._on_opened(self.next)
        self._backlog.clear(self.next)
        if self.phase is Phase.CLOSED:
            return  # meanwhile, and the cancellation was lost on the way: asyncio.wait_for may, until Python 3.12
        self.phase = Phase.WORKING
        self._on_position(self.next)
        self._on_room()

    async def _work(self) -> None:
        records, position = self._backlog.take_batch(self.next, self._runtime.batch_records, self._tuning.batch_bytes)
        self._oldest_ms = records[0].timestamp if records else 0
        if self._full:
            self._on_room()
        started = time.monotonic()
        result, done, at, size = Result(), 0, 0, 0
        while at < len(records):
            part = await with_objects(records[at : at + self._slices.length], self._runtime.source_objects)
            await self._runtime.pace(len(part))
            try:
                async with self._runtime.processing:
                    before = time.perf_counter()
                    made = self._kept.stage.process(part)
                    took = time.perf_counter() - before
                    await asyncio.sleep(0)
            except OSError:
                raise  # a stage does nothing that can raise it: its store failed
            except Exception as error:  # noqa: BLE001 - a stage's bug, whatever it raises; or it wants to stop
                if not isinstance(error, StoppedError):
                    log.error("the stage of %s raised in partition %d: %s", *self._place, where(error))
                await self._commit(result, part[0].offset, done, started)
                await self._process_poisoned(part)
                result, done, size, started = Result(), 0, 0, time.monotonic()
            else:
                made_bytes = self._add_result(result, made, part)
                self._slices.note_cost(len(part), made_bytes, took)
                size += made_bytes
                done += len(part)
            at += len(part)
            if size > self._tuning.batch_bytes and at < len(records):
                await self._commit(result, part[-1].offset + 1, done, started)
                result, done, size, started = Result(), 0, 0, time.monotonic()
        await self._commit(result, position, done, started)

    def _add_result(self, result: Result, made: Result, part: Sequence[Record]) -> int:
        last = part[-1].offset
        size = 0
        for output in made.outputs:
            bytes_of_one = output_size(output)
            if bytes_of_one > self._tuning.output_bytes:
                output = size_letter(output, *self._place, last)  # noqa: PLW2901 - it stands for it
                bytes_of_one = 0
            destination = self._runtime.destination(output.topic)
            if destination is None:
                continue
            if destination != output.topic:
                output = structs.replace(output, topic=destination)  # noqa: PLW2901 - as above
            size += bytes_of_one
            result.outputs.append(output)
        result.changes.update(made.changes)
        size += sum(map(len, filter(None, made.changes.values())))
        for key, amount in made.tally.items():
            result.tally[key] = result.tally.get(key, 0) + amount
        return size

    async def _commit(self, result: Result, position: int, records: int, started: float) -> None:
        if position <= self.next:
            return
        processed = time.monotonic()
        try:
            async with asyncio.timeout(self._tuning.batch_seconds):
                behind = await self._writer.write(Batch(result.outputs, result.changes, position, self._kept.format))
        except TimeoutError:
            raise self._stuck("a commit", self._tuning.batch_seconds) from None
        self.next = position
        self._failed_at = float("-inf")
        self._runtime.on_answer()
        self._on_position(position)
        now = time.monotonic()
        self._due = now + self._tuning.commit_interval_ms / 1000
        metrics = self._runtime.metrics
        metrics.on_commit(*self._place, result, records)
        log_letters(result.outputs)
        metrics.on_batch(*self._place, processed - started, now - processed)
        if records:
            metrics.on_latency(self.topic, max(0.0, time.time() - self._oldest_ms / 1000))
        metrics.on_lag(*self._place, max(0, self._backlog.limit - position))
        self._kept.committed(result.changes, position, behind)

    # Poison: a record for which the stage raised. Stages turn bad input into dead letters themselves, so this is a bug.

    async def _process_poisoned(self, part: Sequence[Record]) -> None:
        """Process records one by one, and put those that make the stage raise into the dead letters.

        An exception may have left the stage's state in memory half changed, so the stage is made anew from the
        changelog before anything else. What was made before the bad one is right and is committed.
        """
        rest = list(part)
        await self._rebuild()
        while rest:
            results, error = walk(self._kept.stage, rest)
            batch = Result()
            for made, record in zip(results, rest, strict=False):
                self._add_result(batch, made, [record])
            rest = rest[len(results) :]
            await self._commit(batch, rest[0].offset if rest else part[-1].offset + 1, len(results), time.monotonic())
            if isinstance(error, StoppedError):
                raise error
            if error is not None:
                await self._rebuild()
                await self._bury(rest.pop(0))

    async def _bury(self, record: Record) -> None:
        self._runtime.metrics.on_poison(*self._place)
        made, error = buried(self._kept.stage, record)
        self._add_result(batch := Result(), made, [record])
        await self._commit(batch, record.offset + 1, 1, time.monotonic())
        if error is not None:
            await self._rebuild()

    async def _rebuild(self) -> None:
        deadline = time.monotonic() + self._tuning.start_seconds
        while True:
            position = await self._kept.read() or 0
            # A commit returns before its markers are written, so a reader may not see the last one yet.
            if position >= self.next:
                return
            if time.monotonic() > deadline:
                raise EngineError("state_unreadable", f"the changelog ends at {position}, before offset {self.next}")
            await asyncio.sleep(0.02)


def _words(error: PartitionLostError | KafkaError | OSError) -> str:
    return error.message if isinstance(error, PartitionLostError) else where(error)
