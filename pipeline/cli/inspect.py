"""``reknit inspect``: what the topics and the state hold of one session."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click
import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord

from pipeline.cli.broker import broker_options, configured, partition_of, read_partition, reader
from pipeline.cli.output import Exit, fail, say, write_json
from pipeline.config import Config
from pipeline.errors import ReknitError
from pipeline.stages.defaults import Defaults
from pipeline.stages.event_state import EventStates
from pipeline.stages.turn_state import TurnStates
from topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    EVENTS_STATE,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TURNS_STATE,
    qualified,
)

_SHOWN = (AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS)


@click.command("inspect")
@broker_options
@click.option("--records", is_flag=True, help="Also print every record of the session, topic by topic.")
@click.option("--partition", type=int, help="Where the session is, if its producer has a partitioner of its own.")
@click.argument("session")
def inspect_command(
    session: str,
    records: bool,
    partition: int | None,
    config_file: str | None,
    **options: str | None,
) -> None:
    """Show what the topics and the state hold of a session: one JSON line, then its records if they are wanted.

    Ends with 2 where nothing is known of the session.
    """
    config = configured(config_file, **options)
    try:
        known = asyncio.run(_inspect(config, session, partition, show=records))
    except ReknitError as error:
        fail(error)
    if not known:
        say(f"reknit: nothing is known of session {session!r}")
        raise SystemExit(int(Exit.UNUSABLE))


async def _inspect(config: Config, session: str, partition: int | None, *, show: bool) -> bool:
    async with reader(config) as consumer:
        if partition is None:
            partition = await partition_of(consumer, config, AGENT_TURNS, session)
        turns, events = [
            [(record.key, record.value) for record in await _records(consumer, config, name, partition)]
            for name in (TURNS_STATE, EVENTS_STATE)
        ]
        found = [
            (name, record)
            for name in _SHOWN
            for record in await _records(consumer, config, name, partition)
            if record.key == session.encode()
        ]
    counts = Counter(name for name, _ in found)
    summary = summarise(session.encode(), turns, events)
    write_json({"session": session, "partition": partition, "records": counts, **summary})
    for name, record in found if show else ():
        write_json(as_json(name, record))
    return bool(found or summary)


async def _records(consumer: AIOKafkaConsumer, config: Config, name: str, partition: int) -> list[ConsumerRecord]:
    return [record async for record in read_partition(consumer, qualified(name, config.prefix), partition)]


def as_json(topic: str, record: ConsumerRecord) -> dict[str, object]:
    """What is printed of a record; it takes one line, whatever the record holds."""
    return {
        "topic": topic,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "headers": dict(_texts(record.headers)),
        "value": None if record.value is None else _value(record.value),
    }


def _value(value: bytes) -> object:
    """JSON as it is, but for the white space between its tokens; anything else as text."""
    try:
        msgspec.json.decode(value)
        return msgspec.Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value.decode("utf-8", "replace")


def _texts(headers: Iterable[tuple[str, bytes]]) -> Iterable[tuple[str, str]]:
    return ((name, value.decode("utf-8", "replace")) for name, value in headers)


Rows = Iterable[tuple[bytes, bytes | None]]


def summarise(session: bytes, turns: Rows, events: Rows) -> dict[str, Any]:
    """What both sides keep of a session, as plain values; ``{}`` where they keep nothing.

    ``turns`` and ``events`` are changelog records of the session's partition, oldest first.
    """
    history, stream = TurnStates(Defaults().session), EventStates()
    for states, rows in ((history, turns), (stream, events)):
        for key, value in rows:
            if key.endswith(session):
                states.restore(key, value)
    return _history(history, session) | _stream(stream, session)


def _history(states: TurnStates, session: bytes) -> dict[str, Any]:
    entry = states.find(session)
    if entry is None:
        return {}
    return {
        "history": {
            "turn": entry.turn,
            "messages": entry.session.count,
            "targets": entry.session.targets,
            "model": entry.session.model,
            "policy": entry.session.policy,
            "waiting": entry.session.waiting,
            "quarantined": entry.quarantined,
            "segments": len(entry.segments),
            "requests": {target: sent.request_id for target, sent in entry.sent.items()},
        }
    }


def _stream(states: EventStates, session: bytes) -> dict[str, Any]:
    entry = states.find(session)
    if entry is None:
        return {}
    return {
        "stream": {
            "source": entry.recovery.source,
            "records_assistant": entry.records,
            "waiting_turns": len(entry.waiting),
        }
    }
