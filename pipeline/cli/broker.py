"""Run the work of a command on a broker: wait until one answers, stop on a signal, report failures."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from reknit.pipeline.cli import fail
from reknit.pipeline.errors import BrokerDownError, ReknitError
from reknit.pipeline.kafka import connection, explained
from reknit.pipeline.settings import Config

T = TypeVar("T")

# Interval of attempts while no broker answers.
_LOOK_SECONDS = 0.5


def run_with_broker(config: Config, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run work that needs a broker once one answers; on failure, report the error and exit."""

    async def run() -> T:
        if config.wait_seconds:
            await _until_one_answers(config)
        return await work()

    try:
        return asyncio.run(run())
    except ReknitError as error:
        fail(error)


async def unless_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Run work until it is done, or until Ctrl-C or SIGTERM; return whether it is done."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def _until_one_answers(config: Config) -> None:
    clock = asyncio.get_running_loop().time
    end = clock() + config.wait_seconds
    while True:
        client = AIOKafkaClient(**connection(config))
        try:
            await client.bootstrap()
        except KafkaError as error:
            why = await explained(config, error)
            if clock() >= end or not isinstance(why, BrokerDownError):
                raise why from error
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return
        finally:
            await client.close()
