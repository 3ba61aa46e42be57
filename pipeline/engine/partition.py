"""The actor of one source partition: it owns the partition's stage, state and position.

It opens in this order, which is the only correct one: take the partition over (which fences the former owner), read the
state changelog to its end (it has the next source offset), work. While the group rebalances the actor is paused: it
finishes the batch in flight and drops waiting records, which will be fetched again from the committed position. After a
temporary failure it opens again, in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError
from msgspec import Struct, field, structs

from reknit.pipeline.engine.backoff import Backoff
from reknit.pipeline.engine.batches import (
    Backlog,
    Slices,
    Span,
    dead_letter_for,
    letter_alone,
    log_letters,
    output_size,
    size_letter,
    smaller_letter,
    walk,
)
from reknit.pipeline.engine.commit import Batch, Writer, group_offset
from reknit.pipeline.engine.connections import is_cancelled
from reknit.pipeline.engine.limits import RefusedSizeError, StateSizeError
from reknit.pipeline.engine.runtime import EngineError, LimitTooSmallError, PartitionLostError, log, where
from reknit.pipeline.engine.state import PartitionState
from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.kafka import REFUSALS
from reknit.pipeline.stages.base import Output, Record, Result, Stage, StoppedError
from reknit.topics import DEAD_LETTERS
from reknit.topics.positions import PositionMark, group_metadata

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime

# Pause before a partition is opened again: the first, doubled up to the second until a commit succeeds. Each opening
# reads the changelog.
_REOPEN_SECONDS = 0.5
_REOPEN_SECONDS_MOST = 5.0


class Phase(Enum):
    OPENING = "opening"
    WORKING = "working"
    PAUSED = "paused"
    CLOSED = "closed"


class Work(Struct):
    """Processed records that are not committed yet.

    Attributes:
        started: when work on them began, in seconds of the monotonic clock.
        records: the processed records.
        result: everything that they led to, with outputs as they are sent.
        size: bytes of the result's outputs and state.
        is_due: the records were kept in state and are due (`reknit.pipeline.stages.releases`). The position is after
            them already.
    """

    started: float
    records: list[Record] = field(default_factory=list)
    result: Result = field(default_factory=Result)
    size: int = 0
    is_due: bool = False

    @property
    def has_result(self) -> bool:
        return bool(self.result.outputs or self.result.changes)


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
        mark_at_opening: Callable[[int | None, PositionMark], Awaitable[PositionMark]] | None = None,
    ) -> None:
        """Start opening.

        Args:
            runtime: the worker's shared values.
            topic: its name in the contract.
            number: the number of the partition.
            writer: creates the writer, once the stage exists.
            on_room: called when more records may come.
            on_opened: called with the next source offset once it is read, before every ``on_position``.
            on_position: called with it once everything before it is durable.
            is_ours: asks the group, with that offset, whether this worker owns the partition; None if that is unknown.
            mark_at_opening: called with the position and its mark, as the changelog has them (None: it has none);
                returns the mark to write, or raises. Without it marks stay as they are.
        """
        self.topic = topic
        self.number = number
        self._place = (topic, number)
        self._end = runtime.end_of(topic, number)
        self.phase = Phase.OPENING
        self.next = 0  # the next source offset to process; known once the changelog is read
        self.aligned = False  # True if the source consumer fetches from `next`
        self._runtime = runtime
        self._tuning = runtime.tuning
        self._clock = runtime.seams.clock
        self._lease = runtime.lease
        self._on_room = on_room
        self._on_opened = on_opened
        self._mark_at_opening = mark_at_opening
        self._on_position = on_position
        self._kept = PartitionState(runtime, topic, number)
        self._offered_at = self._clock.monotonic()
        self._new_writer = writer
        self._writer = writer(self._kept.stage)
        self._is_ours = is_ours
        # Failures that a new opening may repair: the last one, and the first since the last commit.
        self._failed_at = self._failing_since = float("-inf")
        self._backoff = Backoff(_REOPEN_SECONDS, _REOPEN_SECONDS_MOST)
        self._next_batch_at = 0.0
        self._has_due = False  # True if records that are kept in state are due, as of the last commit
        self._released_at: int | None = None  # the unique offset of their release
        self._committed_to: int | None = None  # the changelog's offset after the last commit, if known
        self._backlog = Backlog()
        self._full = False  # whether the consumer waits for `on_room`
        self._slices = Slices(self._tuning.slice_records, self._tuning.slice_seconds)
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._live(), name=f"{topic}-{number}")

    # Called by the consumer side.

    def wants(self, share_bytes: int, share_records: int) -> bool:
        """Return whether more records may come, given this partition's share of the worker's memory."""
        self._full = self._backlog.is_full(share_bytes, share_records)
        if self._full:
            self._wake.set()  # it does not wait for more any longer
        return self.phase is Phase.WORKING and self.aligned and not (self._full or self.at_end)

    def offer(self, span: Span) -> None:
        """Accept a span of the log, or raise ``OffsetGap``: records before it are missing."""
        if self.phase is not Phase.WORKING:
            return  # paused or closing: it will be fetched again
        self._offered_at = self._clock.monotonic()
        span = span if self._end is None else span.before(self._end)
        if base := self._kept.mark.base:
            span = structs.replace(span, records=[structs.replace(record, base=base) for record in span.records])
        self._backlog.accept(span)
        if self._backlog:
            self._wake.set()

    def expired(self, first: int) -> None:
        """Continue at ``first``: the broker's retention removed earlier records before they were read.

        This is a loss, except for a pipeline that starts with records that a live pipeline has read already.
        """
        lost = self._backlog.end
        if lost or not self._runtime.reads_another:
            log.error("%s partition %d: offsets %d to %d expired before they were read", *self._place, lost, first - 1)
            self._runtime.metrics.on_expired(*self._place, first - lost)
        self._backlog.clear(first)

    @property
    def at_end(self) -> bool:
        """True if everything before the worker's end offset was fetched."""
        return self._end is not None and self._backlog.end >= self._end

    @property
    def waits_for(self) -> int:
        """The offset from which this actor needs the log."""
        return self._backlog.end

    @property
    def done_to(self) -> int:
        """The offset up to which everything is done: transaction markers after the last record count as done."""
        if self._has_due:
            return group_offset(self.next, has_due=True)
        return self.next if self._backlog or not self._idle.is_set() else self._backlog.end

    @property
    def group_metadata(self) -> str:
        """The metadata of this partition's group offset. Transaction markers alone can move it above 0."""
        return group_metadata(self._kept.mark.base, self.next, released_at=self._released_at)

    async def pause(self, seconds: float) -> None:
        """Pause: finish the batch in flight, within ``seconds``, and drop waiting records.

        An actor that is still opening is closed instead: if it started after a new owner, it would fence that one.
        """
        if self.phase is Phase.OPENING:
            await self.close()
            return
        if self.phase is Phase.WORKING:
            self.phase = Phase.PAUSED
        self._backlog.clear(self.next)
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            log.warning("%s partition %d: the batch in flight outlives the rebalance", *self._place)

    def resume(self) -> None:
        """Resume after a rebalance that left the partition here."""
        if self.phase is Phase.PAUSED:
            self.phase = Phase.WORKING
            self.aligned = False
            self._lease = self._runtime.lease
            self._backlog.clear(self.next)
            self._wake.set()
            # The group may have refused the commit during the rebalance, and no later record may repeat it.
            self._on_position(group_offset(self.next, has_due=self._has_due))

    async def close(self) -> None:
        """Finish the batch in flight and close. Waiting records are not committed, so they will be read again."""
        opening = self.phase is Phase.OPENING
        self.phase = Phase.CLOSED
        self._backlog.clear(self.next)
        self._wake.set()
        if not opening:
            # Without a broker the batch in flight never ends; it is given up and not committed.
            seconds = self._tuning.stop_seconds / 2 if self._runtime.answers else 0.0
            await asyncio.wait([self._task], timeout=seconds)
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
                except asyncio.CancelledError:
                    if is_cancelled():
                        raise
                    await self._make_way(PartitionLostError("stuck", "the client cancelled a call by itself"))
        except Exception as error:  # noqa: BLE001 - any other error ends the worker
            self._runtime.fail(error)
        finally:
            self.phase = Phase.CLOSED
            self._kept.close()
            await self._writer.close()

    async def _work_until_closed(self) -> None:
        while self.phase is not Phase.CLOSED:
            if self.phase is Phase.PAUSED or not (self._backlog or self._has_due):
                self._wake.clear()
                await self._wake.wait()
                continue
            if self._has_due:
                await self._busy_with(self._work_off_due())
            has_room = self._runtime.scope.holds_due or self._kept.stage.has_room()
            if self.phase is not Phase.WORKING or not self._backlog or not has_room:
                continue
            left = 0.0 if self._full else self._next_batch_at - self._clock.monotonic()
            if left <= 0:
                await self._busy_with(self._work())
            elif not self._has_due:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), left)

    async def _busy_with(self, work: Awaitable[None]) -> None:
        self._idle.clear()
        try:
            await work
        finally:
            self._idle.set()

    async def _make_way(self, error: PartitionLostError | KafkaError | OSError) -> None:
        """Close after a failure, and return once the partition may be opened again, or is closed.

        The outcome of the batch in flight is unknown: it may be committed. The changelog shows it once the new opening
        has settled the transaction. A former owner must not open, since that would fence the new one.

        Raises:
            PartitionLostError: nothing was committed for a long time although brokers answer.
        """
        if self.phase is not Phase.WORKING and self.phase is not Phase.OPENING:
            self.phase = Phase.CLOSED  # a rebalance is under way: the new owner opens the partition
            return
        self.phase, self.aligned = Phase.OPENING, False
        self._backlog.clear(self.next)
        self._kept.fail(error)
        self._note_failure(error)
        log.warning("%s partition %d is opened again: %s", *self._place, _words(error))
        await self._writer.close()
        while self.phase is Phase.OPENING:
            await self._pause_to_retry()
            ours = await self._ask_group()
            if ours is False:
                # The group no longer knows this member, which joins again. The new owner opens the partition.
                self.phase = Phase.CLOSED
                return
            if ours:
                if self._runtime.lease.lasts(self._clock.monotonic()):
                    self._writer = self._new_writer(self._kept.stage)
                    return
                # Without a lease no batch could be written. A group may accept commits, but answer no heartbeat.
                self._note_failure(error)

    async def _pause_to_retry(self) -> None:
        await asyncio.sleep(self._backoff.pause())
        if not self._runtime.answers:
            await self._runtime.next_answer()
            self._backoff.reset()

    async def _ask_group(self) -> bool | None:
        """Return whether this worker owns the partition, None if the group does not know it now."""
        return await self._is_ours(group_offset(self.next, has_due=self._has_due))

    def _note_failure(self, error: Exception) -> None:
        now, patience = self._clock.monotonic() - self._runtime.run_clock.lost, self._tuning.stall_seconds
        if not self._runtime.answers or now - self._failed_at > 2 * patience:
            self._failing_since = now
        self._failed_at = now
        if now - self._failing_since > patience:
            raise error

    def _stuck(self, what: str, seconds: float) -> PartitionLostError:
        return PartitionLostError("stuck", f"{what} took more than {seconds:.0f} s")

    async def _open(self) -> None:
        self._lease = self._runtime.lease
        try:
            async with asyncio.timeout(self._tuning.start_seconds):
                await self._writer.open()
        except TimeoutError:
            raise self._stuck("taking the partition over", self._tuning.start_seconds) from None
        position = await self._kept.read()
        self.next = position or 0
        self._runtime.metrics.on_position(*self._place, self.next)
        await self._on_opened(self.next)
        self._kept.mark = self._kept.stored_mark
        if self._mark_at_opening is not None:
            self._kept.mark = await self._mark_at_opening(position, self._kept.stored_mark)
        self._has_due = self._is_due()
        # A worker that was suspended may open after its partition has another owner. That owner may begin a new epoch,
        # which fences this one, and it does not read again what this one wrote in between (`Epochs.renew`).
        ours = await self._ask_group()
        while ours is None and self.phase is Phase.OPENING:
            await self._pause_to_retry()
            ours = await self._ask_group()
        if not ours:
            self.phase = Phase.CLOSED
        elif position is not None and self._kept.mark != self._kept.stored_mark:
            await self._adopt_ids(position)
        self._backlog.clear(self.next)
        if self.phase is Phase.CLOSED:
            return  # also closed in the meantime: asyncio.wait_for may lose a cancellation before Python 3.12
        self.phase = Phase.WORKING
        self._committed_to = None
        # The ownership check has committed it, but an earlier offset may still wait to be committed.
        self._on_position(group_offset(self.next, has_due=self._has_due))
        self._on_room()

    async def _adopt_ids(self, position: int) -> None:
        """Store the topics' ids with a position that an earlier build wrote, now and not with the next record.

        Without it, a topic that is re-created before the partition's next record would not be noticed.
        """
        mark = self._kept.mark
        log.info(
            "%s partition %d: the position was stored without topic ids; from now on it has %s and %s",
            *(*self._place, mark.input_id, mark.state_id),
        )
        start = group_offset(position, has_due=self._has_due)
        end_offset = await self._write_batch(
            Batch([], {}, position, self._kept.format, self._has_due, mark, start, self._lease)
        )
        self._kept.committed({}, position, end_offset)

    def _is_due(self) -> bool:
        """True if records kept in state are due and may be processed."""
        has_due = not self._runtime.scope.holds_due and self._kept.stage.due_record() is not None
        self._released_at = self._kept.stage.released_at() if has_due else None
        return has_due

    async def _write_batch(self, batch: Batch) -> int | None:
        """Write a batch, within a time limit.

        Raises:
            PartitionLostError: as ``Writer.write``, and ``stuck``.
            TopicChangedError: a topic was re-created.
        """
        try:
            async with asyncio.timeout(self._tuning.batch_seconds):
                if self._runtime.topics is not None:
                    await self._runtime.topics.confirm(self._offered_at)
                return await self._writer.write(batch)
        except TimeoutError:
            raise self._stuck("a commit", self._tuning.batch_seconds) from None

    async def _work(self) -> None:
        records, position = self._backlog.take_batch(self.next, self._runtime.batch_records, self._tuning.batch_bytes)
        if self._full:
            self._on_room()
        work, at = self._new_work(), 0
        while at < len(records):
            part = await self._runtime.complete(records[at : at + self._slices.length], self._kept.stage)
            await self._runtime.pace(len(part))
            try:
                made, took = await self._process(part)
            except OSError:
                raise  # a stage does nothing that can raise it: its store failed
            except Exception as error:  # noqa: BLE001 - a stage's bug, whatever it raises; or its request to stop
                self._log_raised(error)
                await self._settle(work, part[0].offset)
                await self._process_poisoned(part)
                work = self._new_work()
            else:
                self._slices.note_cost(len(part), self._add_result(work, made, part), took)
                work.records += records[at : at + len(part)]
            at += len(part)
            if work.size > self._tuning.batch_bytes and at < len(records):
                await self._settle(work, part[-1].offset + 1)
                work = self._new_work()
        await self._settle(work, position)

    async def _work_off_due(self) -> None:
        """Process the next due records, as many as one transaction may have, and commit the result.

        The position is after these records, so it does not move. The stage's state, which no longer has them, is in
        the same transaction as their outputs, so they are processed once, wherever a process ends: see
        ``reknit.pipeline.stages.releases``. The stage gets one record at a time, since each may cost as much as its
        whole history, and the event loop runs between them.
        """
        work = self._new_work(is_due=True)
        most = min(self._tuning.release_records, self._runtime.batch_records)
        record = self._kept.stage.due_record()
        while record is not None and self.phase is Phase.WORKING and len(work.records) < most:
            (record,) = await self._runtime.complete([record], self._kept.stage)
            try:
                made, _ = await self._process([record])
            except OSError:
                raise  # as in ``_work``
            except Exception as error:  # noqa: BLE001 - as in ``_work``
                self._log_raised(error)
                await self._settle(work, self.next)
                await self._process_poisoned([record], is_due=True)
                return
            self._add_result(work, made, [record])
            work.records.append(record)
            before, record = record, self._kept.stage.due_record()
            if record is not None and (record.key, record.unique_offset) == (before.key, before.unique_offset):
                raise EngineError("due_not_taken", f"offset {record.offset} is due again after it was taken")
            if work.size > self._tuning.batch_bytes:
                break
        await self._settle(work, self.next)
        self._has_due = self._is_due()

    def _new_work(self, records: Sequence[Record] = (), *, is_due: bool = False) -> Work:
        return Work(self._clock.monotonic(), list(records), is_due=is_due)

    async def _process(self, part: Sequence[Record]) -> tuple[Result, float]:
        """Process records in the stage; return its result and the seconds. Then let the event loop run."""
        async with self._runtime.processing:
            before = self._clock.cost()
            made = self._kept.stage.process(part)
            took = self._clock.cost() - before
            self._runtime.steps[self._place] += 1
            await asyncio.sleep(0)
        return made, took

    def _log_raised(self, error: Exception) -> None:
        if not isinstance(error, StoppedError):
            log.error("the stage of %s raised in partition %d: %s", *self._place, where(error))

    def _add_result(self, work: Work, made: Result, part: Sequence[Record]) -> int:
        """Add the stage's result for records to the work; return its size in bytes."""
        result, last, size = work.result, part[-1].offset, 0
        for output in made.outputs:
            bytes_of_one = output_size(output)
            if bytes_of_one > self._tuning.output_bytes:
                if output.topic != DEAD_LETTERS:  # counted by its stage
                    _count_letter(result, self.topic)
                output = size_letter(output, *self._place, last, base=self._kept.mark.base)  # noqa: PLW2901 - it replaces it
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
        work.size += size
        return size

    async def _settle(self, work: Work, position: int) -> None:
        """Commit work; if the changelog refuses its state, find the records that cause it."""
        try:
            await self._commit(work, position)
        except StateSizeError:
            await self._process_one_by_one(work, position)

    async def _commit(self, work: Work, position: int) -> None:
        """Make work durable. That of due records does not move the position, which is after them.

        Raises:
            StateSizeError: the changelog refuses a record of state; nothing of the work is durable.
        """
        if position > self.next or (work.is_due and work.has_result):
            await self._write(work, position)
        elif work.has_result:
            raise EngineError("position_not_moved", f"a batch with outputs ends at {position}, not after {self.next}")

    async def _write(self, work: Work, position: int) -> None:
        result, records = work.result, 0 if work.is_due else len(work.records)
        processed = self._clock.monotonic()
        start = group_offset(self.next, has_due=self._has_due)
        has_due = self._is_due()
        while True:
            outputs, changes = result.outputs, result.changes
            batch = Batch(outputs, changes, position, self._kept.format, has_due, self._kept.mark, start, self._lease)
            try:
                self._committed_to = await self._write_batch(batch)
            except RefusedSizeError as error:
                self._replace_refused(result, error, len(changes), max(0, position - 1))
            else:
                break
        self.next, self._has_due = position, has_due
        self._failed_at = float("-inf")
        self._backoff.reset()
        self._runtime.steps[self._place] += 1
        self._runtime.on_answer()
        self._on_position(batch.group_offset)
        now = self._clock.monotonic()
        self._next_batch_at = now + self._tuning.commit_interval_ms / 1000
        metrics = self._runtime.metrics
        metrics.on_commit(*self._place, result, records)
        metrics.on_position(*self._place, position)
        log_letters(result.outputs)
        if self._runtime.observer is not None and result.outputs:
            self._runtime.observer.on_written(*self._place, result.outputs, now - work.started)
        metrics.on_batch(*self._place, processed - work.started, now - processed)
        if records:
            metrics.on_latency(self.topic, max(0.0, self._clock.wall() - work.records[0].timestamp / 1000))
        metrics.on_lag(*self._place, max(0, self._backlog.limit - position))
        self._kept.committed(result.changes, position, self._committed_to)

    def _replace_refused(self, result: Result, error: RefusedSizeError, state_rows: int, last: int) -> None:
        """Replace outputs that are too large for their topic by dead letters, or dead letters by smaller ones.

        Raises:
            StateSizeError: state is too large for the changelog.
            LimitTooSmallError: a topic refuses even a position or a minimal dead letter.
        """
        name, apply = self._runtime.prefix + error.topic, self._runtime.command("topics apply --fix")
        words = f"{name} takes no record of this size; its {error.setting} is too small, and {apply} sets it"
        if error.topic == self._kept.stage.state_topic:
            if state_rows in error.rows:
                raise LimitTooSmallError("message_too_large", f"{words}: it takes no position")
            if error.rows:
                raise StateSizeError("state_size", words)
            return
        log.warning("%s partition %d: %s", *self._place, words)
        of_topic = [at for at, output in enumerate(result.outputs) if output.topic == error.topic]
        replaced: dict[int, Output | None] = {}
        for at in [of_topic[row] for row in error.rows]:
            output, place = result.outputs[at], (*self._place, last)
            if output.topic == DEAD_LETTERS:
                replaced[at] = smaller_letter(output, *place)
                if replaced[at] is None:
                    raise LimitTooSmallError("message_too_large", f"{words}: it takes no dead letter")
                continue
            _count_letter(result, self.topic)
            letter = size_letter(output, *place, message=words, base=self._kept.mark.base)
            replaced[at] = letter if self._runtime.destination(DEAD_LETTERS) else None
        outputs = [replaced.get(at, output) for at, output in enumerate(result.outputs)]
        result.outputs = [output for output in outputs if output is not None]

    async def _process_one_by_one(self, work: Work, position: int) -> None:
        """Process records with a commit each, and dead-letter those whose state the changelog refuses."""
        await self._rebuild()
        for record in work.records:
            # Due records are kept in state and have their values already.
            given = [record] if work.is_due else list(await self._runtime.complete([record], self._kept.stage))
            one = self._new_work(is_due=work.is_due, records=given)
            self._add_result(one, self._kept.stage.process(given), given)
            try:
                await self._commit(one, self.next if work.is_due else record.offset + 1)
            except StateSizeError as error:
                log.error("%s partition %d offset %d becomes a dead letter: %s", *self._place, record.offset, error)
                await self._rebuild()
                await self._dead_letter(given[0], is_due=work.is_due, why=error)
        await self._commit(self._new_work(is_due=work.is_due), position)

    # Poison: a record for which the stage raised. Stages turn bad input into dead letters themselves, so this is a bug.

    async def _process_poisoned(self, part: Sequence[Record], *, is_due: bool = False) -> None:
        """Process records one by one, and dead-letter those that make the stage raise.

        An exception may have left the stage's state in memory half changed, so the stage is rebuilt from the changelog
        first. The results of the records before the bad one are right and are committed. The position is after due
        records and does not move with them.
        """
        rest = list(part)
        await self._rebuild()
        while rest:
            results, error = walk(self._kept.stage, rest)
            work = self._new_work(is_due=is_due, records=rest[: len(results)])
            for made, record in zip(results, rest, strict=False):
                self._add_result(work, made, [record])
            rest = rest[len(results) :]
            position = rest[0].offset if rest else part[-1].offset + 1
            await self._settle(work, self.next if is_due else position)
            if isinstance(error, StoppedError):
                raise error
            if error is not None:
                await self._rebuild()
                self._runtime.metrics.on_poison(*self._place)
                await self._dead_letter(rest.pop(0), is_due=is_due)

    async def _dead_letter(self, record: Record, *, is_due: bool, why: ReknitError | None = None) -> None:
        made, error = dead_letter_for(self._kept.stage, record, why)
        if is_due and error is not None:
            await self._drop_due(made, record)
        try:
            await self._commit_letter(made, record, is_due=is_due)
        except StateSizeError as refused:  # the session's state after the policy is too large as well
            made, error = letter_alone(self.topic, record, why or refused), refused
            if is_due:
                await self._drop_due(made, record)
            await self._commit_letter(made, record, is_due=is_due)
        if is_due:
            return
        if error is not None:
            await self._rebuild()

    async def _drop_due(self, made: Result, record: Record) -> None:
        """Return a dead letter whose only change of state is that its record is no longer due."""
        await self._rebuild()
        made.changes = self._kept.stage.drop_due(record)

    async def _commit_letter(self, made: Result, record: Record, *, is_due: bool) -> None:
        work = self._new_work(is_due=is_due, records=[record])
        self._add_result(work, made, [record])
        await self._commit(work, self.next if is_due else record.offset + 1)

    async def _rebuild(self) -> None:
        deadline = self._clock.monotonic() + self._tuning.start_seconds
        while True:
            position = await self._kept.read() or 0
            # A commit returns before its transaction markers are written, so a reader may not see the last one yet. A
            # slice of a release does not move the position, so the changelog's own offset is compared as well.
            if position >= self.next and self._kept.read_to >= (self._committed_to or 0):
                return
            if self._clock.monotonic() > deadline:
                raise EngineError("state_unreadable", f"the changelog ends at {position}, before offset {self.next}")
            await asyncio.sleep(0.02)


def _count_letter(result: Result, topic: str) -> None:
    key = ("reknit_dead_letters_total", topic, "size")
    result.tally[key] = result.tally.get(key, 0) + 1


def _words(error: PartitionLostError | KafkaError | OSError) -> str:
    return f"{error.message} ({error_name(error)})" if isinstance(error, PartitionLostError) else where(error)
