"""A worker of the product that ends itself at a point: ``worker.py POINT worker OPTIONS``."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))
import toy_worker

from reknit.__main__ import main
from reknit.pipeline.engine import epochs, state, writer
from reknit.pipeline.engine.commit import Batch

WHILE_RESTORING = "killed while state is read back"
BEFORE_A_SLICE, AFTER_A_SLICE = "killed before a slice's commit", "killed after a slice's commit"
BEFORE_STATE = "killed between outputs and state"
_RECORDS = 20
_BATCHES = 5
_SLICES = 3


def die_while_restoring() -> None:
    plain, count = state.restore, itertools.count(1)

    async def restore(connection, topic, partition, apply, **more):
        def apply_or_die(key: bytes, value: bytes | None) -> None:
            apply(key, value)
            if next(count) == _RECORDS:
                os.kill(os.getpid(), signal.SIGKILL)

        return await plain(connection, topic, partition, apply_or_die, **more)

    state.restore = restore


def die_before_state() -> None:
    """A transaction would roll this back: outputs of a batch are published, and it will be processed again."""
    count = itertools.count(1)

    class Writer(writer.AtLeastOnceWriter):
        async def write(self, batch: Batch) -> int | None:
            if batch.outputs and next(count) == _BATCHES:
                await self._sender.send_outputs(batch.outputs)
                os.kill(os.getpid(), signal.SIGKILL)
            return await super().write(batch)

    writer.AtLeastOnceWriter = Writer


def die_in_a_release(point: str) -> None:
    """At a slice of a release which is not the last one: its transaction is written, and committed or not."""
    count, plain = itertools.count(1), epochs.Epochs.commit

    class Epochs(epochs.Epochs):
        async def commit(self, producer, position: int) -> None:
            if self.is_slice and next(count) == _SLICES:
                if point == AFTER_A_SLICE:
                    await plain(self, producer, position)
                os.kill(os.getpid(), signal.SIGKILL)
            await plain(self, producer, position)

    class Writer(writer.ExactlyOnceWriter):
        async def write(self, batch: Batch) -> int | None:
            self._epochs.is_slice = batch.has_due
            return await super().write(batch)

    writer.Epochs, writer.ExactlyOnceWriter = Epochs, Writer


if __name__ == "__main__":
    point = sys.argv.pop(1)
    if point == WHILE_RESTORING:
        die_while_restoring()
    elif point == BEFORE_STATE:
        die_before_state()
    elif point in {BEFORE_A_SLICE, AFTER_A_SLICE}:
        die_in_a_release(point)
    else:
        toy_worker.fail_at(point)
    main()
