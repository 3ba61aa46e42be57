"""Configuration, limits and shared values of a worker, the metrics interface, and the engine's errors.

Each error has a code and states what the operator can do.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

from msgspec import Struct
from prometheus_client import CollectorRegistry

from reknit.pipeline.engine.lease import Lease
from reknit.pipeline.engine.limits import TopicLimits
from reknit.pipeline.engine.run_clock import RunClock
from reknit.pipeline.engine.seams import LIVE, Seams
from reknit.pipeline.errors import Fault, ReknitError, error_name
from reknit.pipeline.kafka import REFUSALS, Cluster, Compression, connection, refusal
from reknit.pipeline.objects import Objects, with_objects
from reknit.pipeline.scaling import Scaler, scaler_for
from reknit.pipeline.stages.base import Output, Record, Result, Stage
from reknit.topics import RECORDED_PREFIX
from reknit.topics.positions import GroupPosition, PositionMark

log = logging.getLogger("reknit.engine")


class StartupError(ReknitError):
    """The worker cannot start with this configuration or this broker; nothing was read or written.

    Codes: ``port_taken``, ``port_refused``, ``topics_missing``, ``partitions_mismatch``, ``transactions_unsupported``,
    ``delivery_unknown``, ``state_dir_unusable``, ``disk_missing``, ``prefix_live``.
    """

    fault: ClassVar[Fault] = "caller"


class UpstreamChangedError(ReknitError):
    """An installed release of Faust, aiokafka or mode is not the one that this release was tested with."""

    fault: ClassVar[Fault] = "us"


class EngineError(ReknitError):
    """A running worker cannot continue; the batch in flight is not committed and will be processed again.

    Codes: ``stalled`` (records wait and none is processed), ``state_unreadable``, ``position_not_moved`` (a batch has
    outputs but no records), ``due_not_taken`` (the same for a record that was kept in state), ``worker_failed``, and
    those of the subclasses.
    """

    fault: ClassVar[Fault] = "us"


class PartitionLostError(EngineError):
    """A partition must be opened again before it can continue: committed state is in its changelog.

    Codes: ``fenced`` (its transactional id was taken over, or a transaction timed out), ``stuck`` (a missed deadline).
    """


class TopicChangedError(EngineError):
    """An input or a changelog is another topic than the one that the state belongs to.

    Codes: ``input_recreated``, ``state_recreated``, ``topics_recreated`` (both), ``state_lost`` (the changelog holds no
    position), ``state_rebuilding`` (a rebuild was interrupted), ``position_beyond_end`` (if ids do not show it).
    """

    fault: ClassVar[Fault] = "caller"


class LimitTooSmallError(EngineError):
    """A topic's size limit is too small for a dead letter: ``message_too_large``."""

    fault: ClassVar[Fault] = "caller"


class NotAuthorizedError(EngineError):
    """The brokers refuse an operation of the worker; the message names the right."""

    fault: ClassVar[Fault] = "caller"


class EmbeddedBrokerError(ReknitError):
    """The embedded broker is not installed or does not start."""

    fault: ClassVar[Fault] = "caller"


Delivery = Literal["exactly-once", "at-least-once"]
DELIVERIES = get_args(Delivery)

# Called for each source partition that the worker opens, with the partition's number.
StageFactory = Callable[[int], Stage]


class StateConfig(Protocol):
    """Storage of state."""

    @property
    def memory_mib(self) -> int:
        """Memory for sessions in use, in MiB, for the whole worker."""

    @property
    def store(self) -> str:
        """Storage of the other sessions' records: ``memory``, or ``disk`` below the state directory."""

    @property
    def format(self) -> int:
        """The format of written state, one of ``STATE_FORMATS``."""


class EngineConfig(Cluster, Protocol):
    """The part of the configuration that the engine reads."""

    @property
    def delivery(self) -> str:
        """``exactly-once`` or ``at-least-once``; there is no silent downgrade from one to the other."""

    @property
    def state_dir(self) -> object:
        """The directory of one worker's local files (any value that ``pathlib.Path`` accepts)."""

    @property
    def state(self) -> StateConfig:
        """Storage of state."""

    @property
    def metrics_port(self) -> int:
        """The port of /metrics, /livez and /readyz; 0 takes a free one."""


# Without a configured port; a second worker on the host then takes a free one.
DEFAULT_METRICS_PORT = 9464


_STOP_SECONDS = 20.0


class Tuning(Struct, frozen=True, kw_only=True):
    """Limits of the engine in seconds, bytes and counts; the defaults suit a broker in the same network."""

    # The group. After a worker's death, its partitions wait for the session's 10 s for a new owner.
    session_seconds: float = 10.0
    heartbeat_seconds: float = 2.0
    rebalance_seconds: float = 20.0
    # One batch: at least one record, then as many as fit. At most `slice_records` go to a stage per call, and fewer
    # if the last ones took longer than `slice_seconds`. The event loop runs between slices of all partitions. A
    # transaction with many more records would outlast `transaction_seconds` on a busy machine.
    batch_records: int = 8_000
    batch_bytes: int = 8 << 20
    # Most records of a release in one transaction; fewer if their outputs are larger than a batch, since each may
    # publish a request with its whole history.
    release_records: int = 64
    # Pause between a partition's commit and its next batch, unless its share of the memory below is full.
    commit_interval_ms: int = 0
    slice_records: int = 4_000
    slice_seconds: float = 0.03
    # Memory for waiting records, shared by all partitions of a worker; each may exceed its share by one record.
    pending_bytes: int = 128 << 20
    pending_records: int = 64_000
    # Fetching. A record larger than `fetch_bytes` is still fetched, alone (KIP-74).
    poll_records: int = 2_000
    fetch_bytes: int = 1 << 20
    fetch_wait_seconds: float = 0.5  # a broker may hold a fetch without records for this time
    # Writing. A record of 64 MiB plus an envelope must pass; larger ones become dead letters without a value.
    output_bytes: int = 68 << 20
    # A partition's batches are sent one after the other, and many small ones make a large transaction slow.
    send_batch_bytes: int = 1 << 20
    # Measured on recorded request bodies: zstd makes them 6 times smaller at 400 MB/s, lz4 4 times at 115 MB/s.
    compression: Compression = "zstd"
    # Deadlines. A batch that neither commits nor fails must not look alive.
    start_seconds: float = 30.0
    wait_seconds: float = 0.0  # a start waits this time for a broker that does not answer
    batch_seconds: float = 30.0
    transaction_seconds: float = 25.0
    stop_seconds: float = _STOP_SECONDS  # batches in flight have half of it
    stall_seconds: float = 60.0
    loop_stuck_seconds: float = 120.0
    # Partitions that read their changelogs at the same time.
    restores: int = 4
    metrics_host: str = "127.0.0.1"
    # Whether workers of former releases may be in the group: their strategy of assignment is offered too, and a
    # rebalance takes twice as many requests.
    has_former_members: bool = True

    def at_stop(self, seconds: float) -> float:
        """Return the time limit of a step of a stop: ``seconds``, or less if the stop has less than the default."""
        return seconds * min(1.0, self.stop_seconds / _STOP_SECONDS)

    @property
    def hold_seconds(self) -> float:
        """Seconds that a rebalance waits for batches in flight; joining the group takes the rest of its time."""
        return self.rebalance_seconds * 0.7


class Scope(Struct, frozen=True, kw_only=True):
    """Inputs, outputs and ends of a worker. The defaults are those of live work.

    Args:
        source_prefix: prefix of the inputs; None: the worker's own prefix, whose inputs it also writes to.
        publishes: topics (contract names) whose outputs are published; None: all.
        ends: offsets before which the worker ends, by input and partition; None: it runs without end.
        rate: records per second of one process at most; None: no limit.
        bases: bases of a live pipeline's positions, by input and partition, so that a replay makes the same ids.
        holds_due: True if due records must stay due.
    """

    source_prefix: str | None = None
    publishes: frozenset[str] | None = None
    ends: Mapping[str, Sequence[int]] | None = None
    rate: int | None = None
    bases: Mapping[str, Sequence[int]] = {}
    holds_due: bool = False


class Metrics(Protocol):
    """Receives the engine's measurements, from the event loop's thread, with at most a few calls per batch."""

    registry: CollectorRegistry

    def on_commit(self, topic: str, partition: int, result: Result, records: int) -> None:
        """Count a committed batch; called only after the commit, with contract names for topics."""

    def on_batch(self, topic: str, partition: int, process_seconds: float, write_seconds: float) -> None:
        """Observe the seconds of a batch: in the stage, and from the first send to the commit."""

    def on_latency(self, topic: str, seconds: float) -> None:
        """Observe the time from when a batch's oldest record was written to the batch's commit."""

    def on_lag(self, topic: str, partition: int, records: int | None) -> None:
        """Set the number of source offsets that are not committed; None if unknown, or reported by another worker."""

    def on_position(self, topic: str, partition: int, position: int | None) -> None:
        """Set the next source offset to process; None if the partition belongs to another worker now."""

    def on_working(self, topic: str, working: Collection[int], every: int) -> None:
        """Set the partitions of a source topic that this worker processes, and the number of all."""

    def on_restored(self, topic: str, partition: int, records: int, seconds: float) -> None:
        """Observe the restore of a partition's state."""

    def on_store_discarded(self, topic: str, reason: str) -> None:
        """Count unusable stores on disk; ``StoreError`` has the reasons."""

    def on_evicted(self, topic: str, sessions: int) -> None:
        """Count sessions in use that were evicted to records for lack of memory."""

    def on_poison(self, topic: str, partition: int) -> None:
        """Count a record that made a stage raise; it is a dead letter."""

    def on_new_epoch(self, topic: str, partition: int) -> None:
        """Count a new producer epoch after a commit that may have been sent twice."""

    def on_levels(self, topic: str, partition: int, levels: Mapping[str, int]) -> None:
        """Set the amounts in a partition's state by metric; none after it is closed."""

    def on_expired(self, topic: str, partition: int, offsets: int) -> None:
        """Count source offsets that the broker's retention removed before they were read."""

    def on_partitions(self, topic: str, count: int, every: int) -> None:
        """Set an assignment: the number of a source topic's partitions of this worker, and of all."""

    def watch_broker(self, silent_seconds: Callable[[], float]) -> None:
        """Call the function for each read of the metrics: it returns the seconds since a broker answered last."""


class Observer(Protocol):
    """Receives what a worker has written, from the event loop's thread, with one call per batch."""

    def on_written(self, topic: str, partition: int, outputs: Sequence[Output], seconds: float) -> None:
        """Take the outputs of a committed batch, by contract names, which began ``seconds`` ago; never raises."""


class NoMetrics:
    """Metrics that record nothing and serve an empty registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def _ignore(self, *_: Any, **__: Any) -> None:  # noqa: ANN401  whatever is reported
        """Do nothing."""

    on_commit = on_batch = on_latency = on_lag = on_restored = on_store_discarded = _ignore
    on_position = on_working = _ignore
    on_evicted = on_poison = on_new_epoch = on_levels = on_expired = on_partitions = watch_broker = _ignore


class TopicChecks(Protocol):
    """Compares topics with those of positions and state. See ``topic_ids``."""

    async def confirm(self, since: float) -> None:
        """Make sure that records fetched at ``since`` came from the topics of the worker's start, or raise."""

    async def mark_at_opening(
        self,
        topic: str,
        number: int,
        position: int | None,
        mark: PositionMark,
        ask_group: Callable[[], Awaitable[GroupPosition | None]],
    ) -> PositionMark:
        """Return the mark for the position records that a partition writes from now on, or raise."""


def where(error: BaseException) -> str:
    """Return the error's name, as ``error_name``, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return f"{error_name(error)}{place}"


# Longest interval between two turns of the event loop.
TICK_SECONDS = 1.0
# After this time without an answer the brokers count as down; a request is sent every few seconds.
SILENT_SECONDS = 10.0


class Runtime:
    """One worker's configuration, its stages, and its first failure."""

    def __init__(
        self,
        config: EngineConfig,
        stages: Mapping[str, StageFactory],
        metrics: Metrics,
        tuning: Tuning,
        objects: Objects | None = None,
        *,
        scope: Scope | None = None,
        seams: Seams = LIVE,
        observer: Observer | None = None,
    ) -> None:
        if config.delivery not in DELIVERIES:
            raise StartupError(
                "delivery_unknown", f"delivery is {config.delivery!r}; it must be one of {', '.join(DELIVERIES)}"
            )
        self.seams = seams
        self.cluster: Cluster = config
        self.bootstrap = config.bootstrap_servers
        self.connection = connection(config)
        self.scope = scope or Scope()
        self.prefix = config.prefix
        self.source_prefix = config.prefix if self.scope.source_prefix is None else self.scope.source_prefix
        # For a shadow: a live worker reads the same inputs, which this one must not write to.
        self.reads_another = self.source_prefix != self.prefix
        if self.reads_another:
            self.connection["client_id"] = f"{self.prefix}{config.kafka.client_id}"
        self.topic_ids: dict[str, str] = {}  # ids of the topics and the cluster, if the brokers report them
        self.topics: TopicChecks | None = None  # if positions and state are in Kafka
        self.missing_topics: list[str] = []
        self.lease = Lease()
        self.limits = TopicLimits(seams.clock.monotonic)
        self.partitions = 0  # of the topics; known after the first check
        self.delivery = config.delivery
        self.exactly_once = config.delivery == "exactly-once"
        self.state_dir = Path(str(config.state_dir))
        self.metrics_port = config.metrics_port
        self.state = config.state
        self.open_partitions = 0
        self.group = f"{config.prefix}reknit"
        self.stages = dict(stages)
        self.metrics = metrics
        self.observer = observer
        self.tuning = tuning
        self.objects = objects
        self.restores = asyncio.Semaphore(tuning.restores)
        # Held during a slice of records and a turn of the event loop, so that I/O continues between slices.
        self.processing = asyncio.Lock()
        # How much of the time since the start this process could not run, and what each partition has done since:
        # slices of records and commits.
        self.run_clock = RunClock(TICK_SECONDS, clock=seams.clock.monotonic)
        self.steps: Counter[tuple[str, int]] = Counter()
        self._paced_until = 0.0
        # Where state is not in Kafka: called as `state.restore` is.
        self.read_changelog: Callable[..., Awaitable[Any]] | None = None
        self._answered_at = self.seams.clock.monotonic()
        self._answered = asyncio.Event()  # another one after each answer
        metrics.watch_broker(lambda: self.silent_seconds)
        self.failure: ReknitError | None = None
        self.failed = asyncio.Event()

    @property
    def room(self) -> int:
        """Bytes of memory for the sessions of one partition: all open partitions share evenly."""
        return self.state.memory_mib * 1024 * 1024 // max(1, self.open_partitions)

    def command(self, words: str) -> str:
        """Return a command for this worker's pipeline, as a message shows it."""
        found = f"`reknit {words} --bootstrap-servers {self.bootstrap}"
        found += f" --prefix {self.prefix}" if self.prefix else ""
        return found + (f" --source-prefix '{self.source_prefix}'`" if self.reads_another else "`")

    def how_to_continue(self, topic: str) -> str:
        """Return the advice for a re-created input, by its contract name."""
        if self.scope.ends is not None:
            return "a replay cannot continue with another topic: start one under another --id"
        return (
            f"{self.command(f'topics accept {topic} --from earliest')} continues with its first record, and "
            "`--from end` after its last"
        )

    def base_of(self, topic: str, partition: int) -> int:
        """Return the base of a partition of an input that has no position yet (``reknit.topics.positions``)."""
        bases = self.scope.bases.get(topic)
        return bases[partition] if bases else 0

    def contract_name(self, topic: str) -> str:
        """Return an input's name on the broker without the prefix."""
        return topic.removeprefix(self.source_prefix)

    @property
    def source_objects(self) -> Objects | None:
        """The store of values that records of the inputs name."""
        if self.objects is None or not self.reads_another:
            return self.objects
        return self.objects.of_pipeline(self.source_prefix)

    @cached_property
    def scaler(self) -> Scaler | None:
        """Scales the images of records; None if this worker cannot."""
        return scaler_for(self.objects, self.source_objects)

    async def complete(self, records: Sequence[Record], stage: Stage) -> Sequence[Record]:
        """Return the first of some records with the values that they refer to, and what has to be made of these.

        Raises:
            ConnectionError: the object store does not answer.
        """
        found = await with_objects(records, self.source_objects)
        return found if self.scaler is None else await self.scaler.with_scaled(found, stage.scales)

    def destination(self, topic: str) -> str | None:
        """Return the topic for an output to this one, both by contract names; None if it is not published."""
        if self.reads_another and topic in self.stages:
            topic = RECORDED_PREFIX + topic
        publishes = self.scope.publishes
        return topic if publishes is None or topic in publishes else None

    def end_of(self, topic: str, partition: int) -> int | None:
        """Return the offset before which the worker ends in a partition of an input; None if it runs without end."""
        return None if self.scope.ends is None else self.scope.ends[topic][partition]

    @property
    def batch_records(self) -> int:
        """Most records of one batch, also limited by the records of one second."""
        return min(self.tuning.batch_records, self.scope.rate or self.tuning.batch_records)

    async def pace(self, records: int) -> None:
        """Wait until ``count`` records may be processed."""
        if self.scope.rate is None:
            return
        begins = max(self._paced_until, self.seams.clock.monotonic())
        self._paced_until = begins + records / self.scope.rate
        await asyncio.sleep(begins - self.seams.clock.monotonic())

    def on_answer(self) -> None:
        """Note that a broker answered now."""
        self._answered_at = self.seams.clock.monotonic()
        answered, self._answered = self._answered, asyncio.Event()
        answered.set()

    async def next_answer(self) -> None:
        """Wait until a broker answers."""
        await self._answered.wait()

    @property
    def silent_seconds(self) -> float:
        """Seconds since a broker answered last."""
        return self.seams.clock.monotonic() - self._answered_at

    @property
    def answers(self) -> bool:
        """True if a broker answered recently."""
        return self.silent_seconds < SILENT_SECONDS

    def fail(self, error: BaseException) -> None:
        """End the worker because of ``error``. The first failure counts; later ones follow from it."""
        if self.failure is not None:
            return
        if isinstance(error, REFUSALS):
            error = NotAuthorizedError("not_authorized", refusal(error))
        elif not isinstance(error, ReknitError):
            error = EngineError("worker_failed", where(error))
        log.error("the worker ends: %s", error)
        self.failure = error
        self.failed.set()
