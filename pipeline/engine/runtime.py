"""What the parts of one worker share: names, bounds, where to count, and how to end."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.interface import EngineError, NotAuthorizedError, Scope, StartupError
from pipeline.errors import ReknitError
from pipeline.kafka import REFUSALS, Cluster, connection, refusal
from pipeline.objects import Objects
from topics import RECORDED_PREFIX

if TYPE_CHECKING:
    from pipeline.engine.interface import EngineConfig, Metrics, StageFactory, Tuning

log = logging.getLogger("reknit.engine")

DELIVERIES = ("exactly-once", "at-least-once")


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
        # Where state is not in Kafka: called as `restore.restore` is.
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
