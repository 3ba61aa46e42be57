"""What a worker is given (configuration, bounds, stages, somewhere to count), what its parts share, and its errors.

Each error carries a code and says what the operator can do.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

from msgspec import Struct
from prometheus_client import CollectorRegistry

from pipeline.errors import Fault, ReknitError
from pipeline.kafka import REFUSALS, Cluster, connection, refusal
from pipeline.objects import Objects
from pipeline.stages.base import Result, Stage
from topics import RECORDED_PREFIX

log = logging.getLogger("reknit.engine")


class StartupError(ReknitError):
    """The worker cannot start with this configuration or this broker; nothing was read or written.

    Codes: ``port_taken``, ``port_refused``, ``topics_missing``, ``partitions_mismatch``, ``transactions_unsupported``,
    ``delivery_unknown``, ``state_dir_unusable``, ``disk_missing``, ``prefix_live``.
    """

    fault: ClassVar[Fault] = "caller"


class UpstreamChangedError(ReknitError):
    """An installed release of Faust, aiokafka or mode is not the one whose internals the engine overrides."""

    fault: ClassVar[Fault] = "us"


class EngineError(ReknitError):
    """A running worker cannot go on; the batch in flight is not committed and will be processed again.

    Codes: ``stalled`` (records wait and none is processed), ``state_unreadable``, ``message_too_large``,
    ``worker_failed``, and those of the subclasses.
    """

    fault: ClassVar[Fault] = "us"


class PartitionLostError(EngineError):
    """A partition cannot go on as it is, but may once it is opened anew: what was committed stands in its changelog.

    Codes: ``fenced`` (somebody took over its transactional id), ``stuck`` (a deadline was missed).
    """


class TopicChangedError(EngineError):
    """An input is not the one whose records were processed: ``position_beyond_end``."""

    fault: ClassVar[Fault] = "caller"


def beyond_end(topic: str, partition: int, position: int, end: int, changelog: str) -> TopicChangedError:
    return TopicChangedError(
        "position_beyond_end",
        f"{topic} partition {partition} ends at offset {end}, but it was processed up to {position}: was the topic "
        "made anew? What is kept of its sessions belongs to the former one. Start a pipeline of its own, with another "
        f"--prefix, or make {changelog} anew too.",
    )


class NotAuthorizedError(EngineError):
    """The brokers refuse what a worker needs to do; the message names the right."""

    fault: ClassVar[Fault] = "caller"


class EmbeddedBrokerError(ReknitError):
    """The embedded broker is not installed or does not start."""

    fault: ClassVar[Fault] = "caller"


Delivery = Literal["exactly-once", "at-least-once"]
DELIVERIES = get_args(Delivery)

# One call for each source partition that the worker opens; the argument is the partition's number.
StageFactory = Callable[[int], Stage]


class StateConfig(Protocol):
    """How state is kept."""

    @property
    def memory_mib(self) -> int:
        """How much memory the sessions at work may take in this worker."""

    @property
    def store(self) -> str:
        """Where the records of the others lie: ``memory``, or ``disk`` below the state directory."""

    @property
    def format(self) -> int:
        """The format in which state is written, one of ``STATE_FORMATS``."""


class EngineConfig(Cluster, Protocol):
    """The part of the configuration that the engine reads."""

    @property
    def delivery(self) -> str:
        """``exactly-once`` or ``at-least-once``; there is no silent downgrade from one to the other."""

    @property
    def state_dir(self) -> object:
        """A directory for what one worker may write locally (anything that ``pathlib.Path`` takes)."""

    @property
    def state(self) -> StateConfig:
        """How state is kept."""

    @property
    def metrics_port(self) -> int:
        """The port of /metrics, /livez and /readyz; 0 takes a free one."""


# Where nobody asked for a port; a second worker on the host then takes a free one.
DEFAULT_METRICS_PORT = 9464


class Tuning(Struct, frozen=True, kw_only=True):
    """Bounds of the engine. Seconds, bytes and counts; the defaults suit a broker in the same network."""

    # The group. A session of 10 s is how long a dead worker's partitions wait for a new owner.
    session_seconds: float = 10.0
    heartbeat_seconds: float = 2.0
    rebalance_seconds: float = 20.0
    # One batch: at least one record, then as much as fits. At most `slice_records` go to a stage at once, and fewer
    # where the last ones took longer than `slice_seconds`; between slices, of whichever partition, the event loop
    # breathes. A transaction with much more in it would outlast `transaction_seconds` on a busy machine.
    batch_records: int = 8_000
    batch_bytes: int = 8 << 20
    # From a partition's commit to its next batch, unless its share of the room below is full before.
    commit_interval_ms: int = 0
    slice_records: int = 4_000
    slice_seconds: float = 0.03
    # All partitions of a worker share this room for records that wait; each may hold one record more.
    pending_bytes: int = 128 << 20
    pending_records: int = 64_000
    # Fetching. A record larger than `fetch_bytes` still comes through, alone (KIP-74).
    poll_records: int = 2_000
    fetch_bytes: int = 1 << 20
    fetch_wait_seconds: float = 0.5  # how long a broker may hold a fetch that finds nothing
    # Writing. A record of 64 MiB plus an envelope must pass; larger ones become dead letters without a value.
    output_bytes: int = 68 << 20
    # A partition's batches go one after the other, so many small ones make a large transaction slow.
    send_batch_bytes: int = 1 << 20
    # Measured on recorded request bodies: zstd makes them 6 times smaller at 400 MB/s, lz4 4 times at 115 MB/s.
    compression: Literal["zstd", "lz4"] | None = "zstd"
    # Deadlines. A batch that can neither commit nor fail must not look alive.
    start_seconds: float = 30.0
    wait_seconds: float = 0.0  # how long a start looks again for a broker that does not answer
    batch_seconds: float = 30.0
    transaction_seconds: float = 25.0
    stop_seconds: float = 20.0
    stall_seconds: float = 60.0
    loop_stuck_seconds: float = 120.0
    # Changelogs are read by so many partitions at once.
    restores: int = 4
    metrics_host: str = "127.0.0.1"


class Scope(Struct, frozen=True, kw_only=True):
    """What a worker reads, what it publishes and where it ends; as it stands here, live work.

    ``source_prefix`` is that of the inputs; None is the worker's own, whose inputs it writes to as well. ``publishes``
    are the topics (contract names) whose outputs leave; None is all of them. ``ends`` has the offset before which the
    worker ends, by input and number of the partition; with None it goes on for ever. ``rate`` bounds the records that
    one process works through in a second.
    """

    source_prefix: str | None = None
    publishes: frozenset[str] | None = None
    ends: Mapping[str, Sequence[int]] | None = None
    rate: int | None = None


class Metrics(Protocol):
    """Where the engine reports. Calls come from the event loop's thread, at most a few for each batch."""

    registry: CollectorRegistry

    def on_commit(self, topic: str, partition: int, result: Result, records: int) -> None:
        """Take note of a committed batch; called only after the commit, with contract names for topics."""

    def on_batch(self, topic: str, partition: int, process_seconds: float, write_seconds: float) -> None:
        """Observe how long the batch took: in the stage, and from the first send to the commit."""

    def on_latency(self, topic: str, seconds: float) -> None:
        """Observe the time from when a batch's oldest record was written to the batch's commit."""

    def on_lag(self, topic: str, partition: int, records: int | None) -> None:
        """Set how many source offsets are not yet committed; None where that is not known, or not ours to say."""

    def on_restored(self, topic: str, partition: int, records: int, seconds: float) -> None:
        """Observe that a partition's state was read back."""

    def on_store_discarded(self, topic: str, reason: str) -> None:
        """Count stores on disk that could not be used; ``StoreError`` has the reasons."""

    def on_evicted(self, topic: str, sessions: int) -> None:
        """Count sessions at work that became records only, for want of memory."""

    def on_poison(self, topic: str, partition: int) -> None:
        """Count a record that a stage raised for; it is in the dead letters."""

    def on_levels(self, topic: str, partition: int, levels: Mapping[str, int]) -> None:
        """Set how much of what a partition's state holds, by metric; nothing of it, once it is let go."""

    def on_expired(self, topic: str, partition: int, offsets: int) -> None:
        """Count source offsets that the broker's retention removed before they were read."""

    def on_partitions(self, topic: str, count: int, every: int) -> None:
        """Note an assignment: how many partitions of a source topic this worker has, and how many there are."""

    def watch_broker(self, silent_seconds: Callable[[], float]) -> None:
        """Ask the function, whenever metrics are read, how long ago a broker answered last."""


class NoMetrics:
    """Metrics that count nothing and serve an empty registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def _ignore(self, *_: Any, **__: Any) -> None:  # noqa: ANN401  whatever is reported
        """Do nothing."""

    on_commit = on_batch = on_latency = on_lag = on_restored = on_store_discarded = _ignore
    on_evicted = on_poison = on_levels = on_expired = on_partitions = watch_broker = _ignore


def where(error: BaseException) -> str:
    """Return an error's type and the line that raised it. Its text may quote content, which no log may hold."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{place}"


# Without an answer for so long, the brokers count as away; they are asked every few seconds.
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
    ) -> None:
        if config.delivery not in DELIVERIES:
            raise StartupError(
                "delivery_unknown", f"delivery is {config.delivery!r}; it must be one of {', '.join(DELIVERIES)}"
            )
        self.cluster: Cluster = config
        self.bootstrap = config.bootstrap_servers
        self.connection = connection(config)
        self.scope = scope or Scope()
        self.prefix = config.prefix
        self.source_prefix = config.prefix if self.scope.source_prefix is None else self.scope.source_prefix
        # Beside a live worker that reads the same inputs, which this one must not write to.
        self.reads_another = self.source_prefix != self.prefix
        if self.reads_another:
            self.connection["client_id"] = f"{self.prefix}{config.kafka.client_id}"
        self.topic_ids: dict[str, str] = {}  # which topic of which cluster a name stands for, where brokers say it
        self.partitions = 0  # what the topics have; known once they were looked at
        self.exactly_once = config.delivery == "exactly-once"
        self.state_dir = Path(str(config.state_dir))
        self.metrics_port = config.metrics_port
        self.state = config.state
        self.open_partitions = 0
        self.group = f"{config.prefix}reknit"
        self.stages = dict(stages)
        self.metrics = metrics
        self.tuning = tuning
        self.objects = objects
        self.restores = asyncio.Semaphore(tuning.restores)
        # Held for a slice of records and a turn of the event loop, so that what is on its way goes on between slices.
        self.processing = asyncio.Lock()
        self._paced_until = 0.0
        # Where state is not in Kafka: called as `state.restore` is.
        self.read_changelog: Callable[..., Awaitable[Any]] | None = None
        self._answered_at = time.monotonic()
        metrics.watch_broker(lambda: self.silent_seconds)
        self.failure: ReknitError | None = None
        self.failed = asyncio.Event()

    @property
    def room(self) -> int:
        """The bytes of memory that the sessions of one partition may take: all open ones share it evenly."""
        return self.state.memory_mib * 1024 * 1024 // max(1, self.open_partitions)

    def contract_name(self, topic: str) -> str:
        """Return an input's name on the broker without the prefix."""
        return topic.removeprefix(self.source_prefix)

    @property
    def source_objects(self) -> Objects | None:
        """Where the values lie that records of the inputs name."""
        if self.objects is None or not self.reads_another:
            return self.objects
        return self.objects.of_pipeline(self.source_prefix)

    def destination(self, topic: str) -> str | None:
        """Return the topic that an output for this one goes to, both by contract names; None where none is to leave."""
        if self.reads_another and topic in self.stages:
            topic = RECORDED_PREFIX + topic
        publishes = self.scope.publishes
        return topic if publishes is None or topic in publishes else None

    def end_of(self, topic: str, partition: int) -> int | None:
        """Return the offset before which the worker ends in a partition of an input; None where it goes on for ever."""
        return None if self.scope.ends is None else self.scope.ends[topic][partition]

    @property
    def batch_records(self) -> int:
        """The most records of one batch, and no more than a second may have."""
        return min(self.tuning.batch_records, self.scope.rate or self.tuning.batch_records)

    async def pace(self, records: int) -> None:
        """Wait until so many records may be worked through."""
        if self.scope.rate is None:
            return
        begins = max(self._paced_until, time.monotonic())
        self._paced_until = begins + records / self.scope.rate
        await asyncio.sleep(begins - time.monotonic())

    def on_answer(self) -> None:
        """Take note that a broker answered just now."""
        self._answered_at = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """How long ago a broker answered last."""
        return time.monotonic() - self._answered_at

    @property
    def answers(self) -> bool:
        """Whether a broker answered lately."""
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
