"""What a partition keeps: its stage, the store of its sessions' records, and the changelog from which both are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.engine.cold import PackedRecords
from pipeline.engine.restore import restore
from pipeline.engine.runtime import log
from pipeline.stages.base import Live

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime
    from pipeline.stages.base import Stage

# Of a partition's memory for sessions, the part that records may take which are not compressed yet.
_LOOSE = 1 / 8


class PartitionState:
    """A partition's stage and store. ``topic`` is the source's, a contract name."""

    def __init__(self, runtime: Runtime, topic: str, number: int) -> None:
        self._runtime = runtime
        runtime.open_partitions += 1
        self._place = (topic, number)
        self.stage: Stage = runtime.stages[topic](number)
        self._changelog = runtime.prefix + self.stage.state_topic
        self.format = runtime.state.format

    async def read(self) -> int | None:
        """Make the stage anew as the changelog has it; the next source offset, None where nothing was committed.

        Raises:
            EngineError: as ``restore``.
        """
        runtime, (topic, number) = self._runtime, self._place
        self._store = PackedRecords(int(runtime.room * _LOOSE))
        self.stage = runtime.stages[topic](number)
        self.stage.keep_in(self._store)
        async with runtime.restores:
            restored = await restore(
                runtime.connection,
                self._changelog,
                number,
                self.stage.restore,
                committed_only=runtime.exactly_once,
                patience=runtime.tuning.start_seconds,
            )
        runtime.metrics.on_restored(topic, number, restored.records, restored.seconds)
        told = (topic, number, restored.records, restored.seconds)
        log.info("%s partition %d: %d records of state restored in %.1f s", *told)
        self.format = max(restored.state_format, runtime.state.format)
        self.stage.use_format(self.format)
        self._tell(Live())
        return restored.position

    def committed(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Keep what a commit has made durable, and let go of the sessions that there is no room for."""
        topic, _ = self._place
        live = self.stage.committed(changes, self._runtime.room)
        if live.evicted:
            self._runtime.metrics.on_evicted(topic, live.evicted)
        self._tell(live)

    def close(self) -> None:
        self._runtime.open_partitions -= 1
        self._runtime.metrics.on_levels(*self._place, {})

    def _tell(self, live: Live) -> None:
        held = {
            "reknit_sessions_live": live.sessions,
            "reknit_sessions_live_bytes": live.memory_bytes,
            "reknit_sessions_stored": self._store.sessions,
            "reknit_sessions_stored_bytes": self._store.size,
        }
        self._runtime.metrics.on_levels(*self._place, self.stage.levels() | held)
