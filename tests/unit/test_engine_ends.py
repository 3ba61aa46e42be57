"""The end of a worker: its causes, the work that it interrupts, and the exit status."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from reknit.pipeline.engine.ends import EXIT_CLEAN, EXIT_UNUSABLE, Ends
from reknit.pipeline.engine.runtime import EngineError, NoMetrics, NotAuthorizedError, Runtime, Tuning
from reknit.pipeline.engine.services import EXIT_FAILED, Deadman
from reknit.pipeline.settings import Config


@pytest.fixture
async def ends():
    runtime = Runtime(Config(bootstrap_servers="nobody:1"), {}, NoMetrics(), Tuning())
    made = Ends(runtime, Deadman(60.0))
    made.install()
    yield made
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


async def nothing():
    pass


async def raise_it():
    raise ValueError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("has_started", [True, False])
async def test_a_signal_interrupts_the_work_and_is_logged_after_the_start(ends, caplog, number, has_started):
    interrupted = asyncio.Event()

    async def work():
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            interrupted.set()
            raise

    caplog.set_level("INFO", "reknit.engine")
    if has_started:
        ends.on_started()
    assert not await ends.unless_begun(work())
    assert interrupted.is_set()
    said = [f"stopping: {number.name}"] if has_started else []
    assert ([record.getMessage() for record in caplog.records], ends.status) == (said, EXIT_CLEAN)


async def test_work_that_ends_first_is_done_and_its_error_is_raised(ends):
    assert await ends.unless_begun(nothing())
    with pytest.raises(ValueError):
        await ends.unless_begun(raise_it())
    ends.on_done()
    assert not await ends.unless_begun(nothing())


@pytest.mark.parametrize(
    ("failure", "status"), [(EngineError("stalled", "x"), EXIT_FAILED), (NotAuthorizedError("x", "x"), EXIT_UNUSABLE)]
)
async def test_a_failure_ends_the_worker_with_its_status(ends, failure, status):
    ends._runtime.fail(failure)
    ends.on_failure()
    assert (ends.begun, ends.status, ends._deadman.status) == (True, status, status)


async def test_the_time_limit_of_a_stop_counts_from_its_begin(ends):
    ends.on_done()
    first = ends._deadman._deadline
    ends.on_failure()
    assert first is not None
    assert ends._deadman._deadline == first
