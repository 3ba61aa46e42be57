"""A worker of the product that ends itself at a point: ``worker.py POINT worker OPTIONS``."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))
import toy_worker

from pipeline.engine import state, writer
from reknit.__main__ import main

WHILE_RESTORING = "killed while state is read back"
BEFORE_STATE = "killed between outputs and state"
_RECORDS = 20
_BATCHES = 5


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
    """What a transaction would take back: outputs of a batch stand there, and it will be processed again."""
    count = itertools.count(1)

    class Writer(writer.AtLeastOnceWriter):
        async def write(self, batch: writer.Batch) -> int | None:
            if batch.outputs and next(count) == _BATCHES:
                await self._sender.send_outputs(batch.outputs)
                os.kill(os.getpid(), signal.SIGKILL)
            return await super().write(batch)

    writer.AtLeastOnceWriter = Writer


if __name__ == "__main__":
    point = sys.argv.pop(1)
    if point == WHILE_RESTORING:
        die_while_restoring()
    elif point == BEFORE_STATE:
        die_before_state()
    else:
        toy_worker.fail_at(point)
    main()
