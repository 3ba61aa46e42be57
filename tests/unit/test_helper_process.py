"""Work in another process is ended when it takes too long, and its errors have none of its input."""

import os
from contextlib import contextmanager
from functools import partial

import pytest

from reknit.pipeline.errors import InputError, InternalError, PolicyError
from reknit.pipeline.helper_process import HelperProcess
from reknit.pipeline.session.arguments import policy_from

PID = "__import__('os').getpid()"


@contextmanager
def helper_for(work, seconds=0.5):
    """Yield a coroutine function that calls ``work`` in a helper process, with a time limit."""
    helper = HelperProcess(work)
    try:
        yield partial(helper.run, seconds, work)
    finally:
        helper.stop()


async def test_slow_work_is_ended_and_the_next_is_done():
    with helper_for(eval) as run:
        first = await run(PID)
        with pytest.raises(InputError, match="too_long"):
            await run("__import__('time').sleep(60)")
        assert len({first, await run(PID), os.getpid()}) == 3


async def test_work_without_a_time_limit_is_not_ended():
    with helper_for(eval, seconds=None) as run:
        first = await run(PID)
        assert await run("__import__('time').sleep(0.1)") is None
        assert await run(PID) == first


async def test_an_error_of_the_work_is_returned_with_its_place():
    with helper_for(policy_from) as run, pytest.raises(PolicyError) as found:
        await run({"tail": "wag"})
    assert (found.value.code, found.value.path) == ("policy", "policy.tail")


async def test_an_internal_error_has_none_of_the_input():
    with helper_for(int) as run:
        with pytest.raises(InternalError, match="ValueError") as failed:
            await run("what was pasted")
        assert "pasted" not in str(failed.value)
        assert await run("1") == 1


async def test_a_process_that_dies_is_reported_and_restarted():
    with helper_for(eval) as run:
        with pytest.raises(InternalError, match="helper_ended"):
            await run("__import__('os')._exit(1)")
        assert await run("1 + 1") == 2
