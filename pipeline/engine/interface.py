"""What the engine asks of its callers: a configuration, stage factories and somewhere to count; and its errors.

Each error carries a code and says what the operator can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry

from pipeline.errors import Fault, ReknitError
from pipeline.kafka import Cluster
from pipeline.stages.base import Result, Stage


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

    def on_commit(self, topic: str, partition: int, result: Result, records: int) -> None:
        """Do nothing."""

    def on_batch(self, topic: str, partition: int, process_seconds: float, write_seconds: float) -> None:
        """Do nothing."""

    def on_latency(self, topic: str, seconds: float) -> None:
        """Do nothing."""

    def on_lag(self, topic: str, partition: int, records: int | None) -> None:
        """Do nothing."""

    def on_restored(self, topic: str, partition: int, records: int, seconds: float) -> None:
        """Do nothing."""

    def on_store_discarded(self, topic: str, reason: str) -> None:
        """Do nothing."""

    def on_evicted(self, topic: str, sessions: int) -> None:
        """Do nothing."""

    def on_poison(self, topic: str, partition: int) -> None:
        """Do nothing."""

    def on_levels(self, topic: str, partition: int, levels: Mapping[str, int]) -> None:
        """Do nothing."""

    def on_expired(self, topic: str, partition: int, offsets: int) -> None:
        """Do nothing."""

    def on_partitions(self, topic: str, count: int, every: int) -> None:
        """Do nothing."""

    def watch_broker(self, silent_seconds: Callable[[], float]) -> None:
        """Do nothing."""
