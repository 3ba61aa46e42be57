"""The actor of one source partition: it owns the partition's stage, its state and its place in the log.

It opens in this order, and no other is sound: take the partition over (which fences the former owner), read the state
changelog to its end (it holds the next source offset), work. While the group rebalances it is parked: the batch in
flight is finished, what waits is given up, since it will be fetched again from the position that is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from pipeline.engine.contiguity import Chain, Span
from pipeline.engine.dead_letters import fetched_size, output_size, poison_letter, size_letter, walk
from pipeline.engine.errors import EngineError
from pipeline.engine.recovery import restore
from pipeline.engine.runtime import log, where
from pipeline.engine.writer import Batch, Writer
from pipeline.stages.base import Record, Result, Stage

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime

# Outputs of a slice that is too large make the next one smaller; see `_slice_length`.
_SLICE_BYTES = 8 << 20
# Until a partition's first slice was timed, its records count as slow ones.
_SLOW_RECORD_SECONDS = 60e-6


class State(Enum):
    """What an actor does now."""

    OPENING = "opening"
    WORKING = "working"
    PARKED = "parked"
    CLOSED = "closed"


class Partition:
    """One source partition and everything that is kept for it."""

    def __init__(
        self,
        runtime: Runtime,
        topic: str,
        number: int,
        *,
        writer: Callable[[Stage], Writer],
        on_room: Callable[[], None],
        on_position: Callable[[int], None],
    ) -> None:
        """Begin to open.

        Args:
            runtime: what the worker shares.
            topic: the contract's name.
            number: the partition's.
            writer: makes the writer, once the stage is there.
            on_room: called when more records may come.
            on_position: called with the next source offset, once everything before it is durable.
        """
        self.topic = topic
        self.number = number
        self.state = State.OPENING
        self.next = 0  # the next source offset to process; known once the changelog is read
        self.aligned = False  # whether the source consumer was told to fetch from `next`
        self._runtime = runtime
        self._tuning = runtime.tuning
        self._on_room = on_room
        self._on_position = on_position
        self._stage = runtime.stages[topic](number)
        self._writer = writer(self._stage)
        self._chain = Chain(0)
        self._limit = 0
        self._pending: deque[Record] = deque()
        self._pending_bytes = 0
        self._full = False  # whether the consumer was told so; then it waits for `on_room`
        self._oldest_ms = 0  # when the oldest record of the batch in flight was written
        # What one source record makes in bytes, and takes in the stage in seconds, as seen lately.
        self._record_bytes = 1.0
        self._record_seconds = _SLOW_RECORD_SECONDS
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._live(), name=f"{topic}-{number}")

    # What the consumer side calls.

    def wants(self, share_bytes: int, share_records: int) -> bool:
        """Return whether more records may come, given this partition's share of the worker's memory."""
        self._full = self._pending_bytes >= share_bytes or len(self._pending) >= share_records
        return self.state is State.WORKING and self.aligned and not self._full

    def offer(self, span: Span) -> None:
        """Take a span of the log.

        Raises:
            Hole: records before it are missing; nothing was taken.
        """
        if self.state is not State.WORKING:
            return  # parked or closing: it will be fetched again
        records = self._chain.take(span)
        self._limit = span.limit
        if records:
            self._pending.extend(records)
            self._pending_bytes += fetched_size(records)
            self._wake.set()

    def expired(self, first: int) -> None:
        """Go on at ``first``: the broker's retention removed what came before it was read. That is a loss."""
        log.error(
            "%s partition %d: offsets %d to %d expired before they were read",
            self.topic,
            self.number,
            self._chain.end,
            first - 1,
        )
        self._runtime.metrics.on_expired(self.topic, self.number, first - self._chain.end)
        self._chain.restart(first)

    @property
    def waits_for(self) -> int:
        """The offset from which this actor needs the log."""
        return self._chain.end

    @property
    def done_to(self) -> int:
        """The offset up to which nothing is left to do: markers behind the last record count as done."""
        return self.next if self._pending or not self._idle.is_set() else self._chain.end

    async def park(self, seconds: float) -> None:
        """Finish the batch in flight, for at most so many seconds, and give up what waits.

        One that is still opening is closed instead: if its start overtook that of a new owner, it would fence it.
        """
        if self.state is State.OPENING:
            await self.close()
            return
        if self.state is State.WORKING:
            self.state = State.PARKED
        self._drop_pending()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            log.warning("%s partition %d: the batch in flight outlives the rebalance", self.topic, self.number)

    def resume(self) -> None:
        """Go on after a rebalance that left the partition here."""
        if self.state is State.PARKED:
            self.state = State.WORKING
            self.aligned = False
            self._chain.restart(self.next)
            self._wake.set()

    async def close(self) -> None:
        """Finish the batch in flight and let go. What waits is not committed, so it will be read again."""
        opening = self.state is State.OPENING
        self.state = State.CLOSED
        self._drop_pending()
        self._wake.set()
        if opening:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._chain.restart(self.next)

    # The actor's own task.

    async def _live(self) -> None:
        try:
            await self._open()
            while self.state is not State.CLOSED:
                if self.state is State.PARKED or not self._pending:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                self._idle.clear()
                try:
                    await self._work()
                finally:
                    self._idle.set()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the worker
            self._runtime.fail(error)
        finally:
            self.state = State.CLOSED
            await self._writer.close()

    def _stuck(self, what: str, seconds: float) -> EngineError:
        return EngineError("stuck", f"{self.topic} partition {self.number}: {what} took more than {seconds:.0f} s")

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._tuning.start_seconds):
                await self._writer.open()
        except TimeoutError:
            raise self._stuck("taking the partition over", self._tuning.start_seconds) from None
        self.next = await self._restore() or 0
        self._chain.restart(self.next)
        self.state = State.WORKING
        self._on_position(self.next)
        self._on_room()

    async def _restore(self) -> int | None:
        runtime = self._runtime
        async with runtime.recoveries:
            restored = await restore(
                runtime.connection,
                runtime.prefix + self._stage.state_topic,
                self.number,
                self._stage.restore,
                committed_only=runtime.exactly_once,
                patience=self._tuning.start_seconds,
            )
        runtime.metrics.on_restored(self.topic, self.number, restored.records, restored.seconds)
        return restored.position

    async def _work(self) -> None:
        """Process and commit what waits, as much as fits into one batch."""
        records, position = self._take()
        started = time.monotonic()
        result, done, at = Result(), 0, 0
        size = 0
        while at < len(records):
            part = records[at : at + self._slice_length()]
            before = time.perf_counter()
            try:
                made = self._stage.process(part)
            except Exception as error:  # noqa: BLE001 - a stage's bug, whatever it raises
                log.error("the stage of %s raised in partition %d: %s", self.topic, self.number, where(error))
                await self._commit(result, part[0].offset, done, started)
                await self._process_poisoned(part)
                result, done, size, started = Result(), 0, 0, time.monotonic()
            else:
                self._record_seconds = max(1e-6, (time.perf_counter() - before) / len(part))
                size += self._add(result, made, part)
                done += len(part)
            at += len(part)
            if size > self._tuning.batch_bytes and at < len(records):
                await self._commit(result, part[-1].offset + 1, done, started)
                result, done, size, started = Result(), 0, 0, time.monotonic()
            if at < len(records):
                await asyncio.sleep(0)
        await self._commit(result, position, done, started)

    def _take(self) -> tuple[list[Record], int]:
        """Return the records of the next batch, at least one, and the source offset behind them."""
        pending, size = self._pending, 0
        records: list[Record] = []
        while pending and pending[0].offset < self.next:  # committed by a batch that outlived a rebalance
            self._pending_bytes -= fetched_size([pending.popleft()])
        if len(pending) <= self._tuning.batch_records and self._pending_bytes <= self._tuning.batch_bytes:
            records, size = list(pending), self._pending_bytes
            pending.clear()
        while pending and len(records) < self._tuning.batch_records:
            next_size = fetched_size([pending[0]])
            if records and size + next_size > self._tuning.batch_bytes:
                break
            size += next_size
            records.append(pending.popleft())
        self._pending_bytes -= size
        self._oldest_ms = records[0].timestamp if records else 0
        if self._full:
            self._on_room()
        # Where nothing waits, the chain's end counts: it lies behind trailing transaction markers too.
        return records, records[-1].offset + 1 if pending else max(self._chain.end, self.next)

    def _slice_length(self) -> int:
        """Return how many records the stage gets at once: few where each makes much or takes long.

        That bounds memory, and how long everything else in the worker waits. Results do not depend on it.
        """
        bounds = (
            self._tuning.slice_records,
            int(_SLICE_BYTES / self._record_bytes),
            int(self._tuning.slice_seconds / self._record_seconds),
        )
        return max(1, min(bounds))

    def _add(self, result: Result, made: Result, part: Sequence[Record]) -> int:
        """Append what a slice made to the batch; return its bytes."""
        last = part[-1].offset
        size = 0
        for output in made.outputs:
            bytes_of_one = output_size(output)
            if bytes_of_one > self._tuning.output_bytes:
                output = size_letter(output, self.topic, self.number, last)  # noqa: PLW2901 - it stands for it
            else:
                size += bytes_of_one
            result.outputs.append(output)
        result.changes.update(made.changes)
        size += sum(map(len, filter(None, made.changes.values())))
        for key, amount in made.tally.items():
            result.tally[key] = result.tally.get(key, 0) + amount
        self._record_bytes = max(1.0, self._record_bytes * 0.5, size / len(part))
        return size

    async def _commit(self, result: Result, position: int, records: int, started: float) -> None:
        if position <= self.next:
            return
        processed = time.monotonic()
        try:
            async with asyncio.timeout(self._tuning.batch_seconds):
                await self._writer.write(Batch(result.outputs, result.changes, position))
        except TimeoutError:
            raise self._stuck("a commit", self._tuning.batch_seconds) from None
        self.next = position
        self._on_position(position)
        now = time.monotonic()
        metrics = self._runtime.metrics
        metrics.on_commit(self.topic, self.number, result, records)
        metrics.on_batch(self.topic, self.number, processed - started, now - processed)
        if records:
            metrics.on_latency(self.topic, max(0.0, time.time() - self._oldest_ms / 1000))
        metrics.on_lag(self.topic, self.number, max(0, self._limit - position))

    # Poison: a record for which the stage raised. Stages turn bad input into dead letters themselves, so this is a
    # bug in a stage, and it must not stop the partition.

    async def _process_poisoned(self, part: Sequence[Record]) -> None:
        """Process records of which one makes the stage raise, and put that one into the dead letters.

        An exception may have left the stage's state in memory half changed, so the stage is made anew from the
        changelog before anything else. Then the records go one by one. What was made before the bad one is right and
        is committed with the dead letter; the stage is dirty once more and is made anew once more.
        """
        rest, dirty = list(part), True
        while rest:
            if dirty:
                await self._rebuild()
            results, error = walk(self._stage, rest)
            done = len(results)
            if error is not None:
                results.append(self._bury(rest[done]))
                done += 1
            batch = Result()
            for made, record in zip(results, rest, strict=False):
                self._add(batch, made, [record])
            await self._commit(batch, rest[done - 1].offset + 1, done, time.monotonic())
            rest, dirty = rest[done:], error is not None
        if dirty:
            await self._rebuild()

    def _bury(self, record: Record) -> Result:
        """Return what stands for a poison record: its dead letter, counted as stages count theirs."""
        self._runtime.metrics.on_poison(self.topic, self.number)
        letter = poison_letter(self.topic, record)
        return Result(outputs=[letter], tally={("reknit_dead_letters_total", self.topic, "internal"): 1})

    async def _rebuild(self) -> None:
        """Make the stage anew from what is committed."""
        deadline = time.monotonic() + self._tuning.start_seconds
        while True:
            self._stage = self._runtime.stages[self.topic](self.number)
            position = await self._restore() or 0
            # A commit returns before its markers are written, so a reader may not see the last one yet.
            if position >= self.next:
                return
            if time.monotonic() > deadline:
                raise EngineError("state_unreadable", f"the changelog ends at {position}, before offset {self.next}")
            await asyncio.sleep(0.02)
