"""End a worker once everything is done that it was to do.

Which offsets are the ends was settled before it began, and the group's own offsets say how far all of its workers are.
One whose partitions are done stays until the others' are too, since it takes over where one of them dies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from aiokafka.errors import KafkaError
from faust.types import TP
from mode import Service

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime
    from pipeline.engine.transport import SpanConsumer

_LOOK_SECONDS = 0.5

# Called with the group's next offset of each partition of the inputs (contract names), where it has one.
Progress: TypeAlias = Callable[[dict[tuple[str, int], int]], None]


class Finish(Service):
    """Commits what is done up to the ends, and stops the worker once the group has reached all of them."""

    def __init__(
        self,
        runtime: Runtime,
        consumer: Callable[[], SpanConsumer],
        stop: Callable[[], None],
        on_progress: Progress | None,
    ) -> None:
        super().__init__()
        self._consumer = consumer
        self._stop_worker = stop
        self._on_progress = on_progress
        self._ends = {
            TP(runtime.source_prefix + topic, number): end
            for topic, ends in (runtime.scope.ends or {}).items()
            for number, end in enumerate(ends)
        }
        self._contract_name = runtime.contract_name

    @Service.task
    async def _watch_offsets(self) -> None:
        while not self.should_stop:
            await self.sleep(_LOOK_SECONDS)
            consumer = self._consumer()
            if not consumer.settled:
                continue
            try:
                done = await consumer.how_far(self._ends)
            except KafkaError:
                continue  # the watchdog says it where it lasts
            if self._on_progress is not None:
                self._on_progress({(self._contract_name(tp.topic), tp.partition): at for tp, at in done.items()})
            if all(done.get(tp, 0) >= end for tp, end in self._ends.items()):
                self._stop_worker()
                return
