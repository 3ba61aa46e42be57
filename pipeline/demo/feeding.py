"""Feeding the fleet: sessions side by side, at a pace that can be watched, each client waiting where it would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from msgspec import Struct

from pipeline.config import Config
from pipeline.demo.recordings import Input, Recording, Wait, inputs
from topics import LARGEST_INPUT, qualified

RECORDS_PER_SECOND = 200
# How often a client that waits for the worker looks again.
_LOOK_SECONDS = 0.02


class _Client(Struct):
    """One session on its way."""

    key: str
    rest: Iterator[Input | Wait]
    waits_for: int = 0


def total(recordings: Sequence[Recording]) -> int:
    """How many records the fleet has."""
    return sum(isinstance(record, Input) for recording in recordings for record in inputs(recording))


async def feed(
    config: Config,
    clients: Mapping[str, Recording],
    recorded: Callable[[str], int],
    on_sent: Callable[[], None],
) -> None:
    """Write every session's records, one of each in turn, and return once the broker has them.

    ``clients`` are the sessions by the key that they have on the broker; ``recorded`` says how many turns the worker
    has appended to a session's log, ``on_sent`` is called after each record.
    """
    producer = AIOKafkaProducer(bootstrap_servers=config.bootstrap_servers, acks="all", max_request_size=LARGEST_INPUT)
    await producer.start()
    try:
        one_each = [_Client(key, inputs(recording)) for key, recording in clients.items()]
        await _feed(producer, config.prefix, one_each, recorded, on_sent)
    finally:
        await producer.stop()


async def _feed(
    producer: AIOKafkaProducer,
    prefix: str,
    clients: list[_Client],
    recorded: Callable[[str], int],
    on_sent: Callable[[], None],
) -> None:
    clock = asyncio.get_running_loop().time
    delivered: list[Awaitable[Any]] = []
    due = clock()
    while clients:
        for client in [client for client in clients if recorded(client.key) >= client.waits_for]:
            step = next(client.rest, None)
            match step:
                case None:
                    clients.remove(client)
                case Wait():
                    client.waits_for = step.recorded
                case Input():
                    delivered.append(await _send(producer, prefix, client.key, step))
                    on_sent()
                    due = max(due + 1 / RECORDS_PER_SECOND, clock() - _LOOK_SECONDS)
                    await asyncio.sleep(due - clock())
        if all(recorded(client.key) < client.waits_for for client in clients):
            await asyncio.sleep(_LOOK_SECONDS)
    await asyncio.gather(*delivered)


async def _send(producer: AIOKafkaProducer, prefix: str, key: str, record: Input) -> Awaitable[Any]:
    delivered: Awaitable[Any] = await producer.send(
        qualified(record.topic, prefix), value=record.value, key=key.encode(), headers=list(record.headers)
    )
    return delivered
