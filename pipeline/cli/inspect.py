"""``reknit inspect``: what the topics and the state hold of one session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from pipeline.cli import Exit, Progress, say, write_json
from pipeline.cli.broker import partitions_of, read_partitions, reader, run_with_broker, usual_partition
from pipeline.cli.config import Since, broker_options, configured, wait_option
from pipeline.errors import InputError
from pipeline.settings import Config
from pipeline.stages.base import Record
from pipeline.stages.defaults import Defaults
from pipeline.stages.events import EventStates
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
from topics.headers import as_texts

_SHOWN = (AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS)
_STATES = (TURNS_STATE, EVENTS_STATE)


@click.command("inspect")
@broker_options
@wait_option
@click.option("--records", is_flag=True, help="Also print every record of the session, topic by topic.")
@click.option("--since", type=Since(), help="Only records since then: 90s, 30m, 2h, 7d ago, or 2026-11-22T14:00.")
@click.option("--partition", type=int, help="Look there only; without it everywhere, the usual place first.")
@click.argument("session")
def inspect_command(
    session: str,
    records: bool,
    since: int | None,
    partition: int | None,
    config_file: str | None,
    **options: str | None,
) -> None:
    """Show what the topics and the state hold of a session: one JSON line, then its records if they are wanted.

    Ends with 2 where nothing is known of the session.
    """
    config = configured(config_file, **options)
    known = run_with_broker(config, lambda: _inspect(config, session, partition, since, show=records))
    if not known:
        say(f"reknit: nothing is known of session {session!r}")
        raise SystemExit(int(Exit.UNUSABLE))


async def _inspect(config: Config, session: str, partition: int | None, since: int | None, *, show: bool) -> bool:
    async with reader(config) as consumer:
        numbers = await partitions_of(consumer, config, AGENT_TURNS)
        if partition is not None and partition not in numbers:
            name = qualified(AGENT_TURNS, config.prefix)
            raise InputError("partition_unknown", f"{name} has partitions 0 to {numbers[-1]}, not {partition}")
        usual = usual_partition(session, numbers) if partition is None else partition
        found = await _found(consumer, config, session, [usual], since)
        # A producer with a partitioner of its own put its turns elsewhere.
        if partition is None and not found.keys() & {AGENT_TURNS, TURNS_STATE}:
            elsewhere = [number for number in numbers if number != usual]
            for name, records in (await _found(consumer, config, session, elsewhere, since)).items():
                found.setdefault(name, []).extend(records)
    turns, events = [
        [(record.key, record.value) for record in found.get(name, ())] for name in (TURNS_STATE, EVENTS_STATE)
    ]
    shown = [(name, record) for name in _SHOWN for record in found.get(name, ())]
    places = sorted({record.partition for records in found.values() for record in records}) or [usual]
    if len(places) > 1:
        say(f"reknit: {session} is in partitions {', '.join(map(str, places))}: its producers place it differently")
    summary = summarise(session.encode(), turns, events)
    counts = Counter(name for name, _ in shown)
    write_json({"session": session, "partition": places[0], "records": counts, **summary})
    for name, record in shown if show else ():
        write_json(as_json(name, record))
    return bool(shown or summary)


async def _found(
    consumer: AIOKafkaConsumer, config: Config, session: str, numbers: Sequence[int], since: int | None
) -> dict[str, list[ConsumerRecord]]:
    """The records of a session in these partitions, by topic; of states all, whatever ``since``."""
    found: dict[str, list[ConsumerRecord]] = {}
    key = session.encode()
    for topics, start in ((_SHOWN, since), (_STATES, None)):
        names = {qualified(topic, config.prefix): topic for topic in topics}
        places = [TopicPartition(name, number) for name in names for number in numbers]
        async for record in read_partitions(consumer, places, start, Progress()):
            topic = names[record.topic]
            if record.key == key or (topic in _STATES and record.key and record.key.endswith(key)):
                found.setdefault(topic, []).append(record)
    return found


def as_json(topic: str, record: ConsumerRecord | Record) -> dict[str, object]:
    """What is printed of a record; it takes one line, whatever the record holds."""
    return {
        "topic": topic,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "headers": dict(as_texts(record.headers)),
        "value": None if record.value is None else _value(record.value),
    }


def _value(value: bytes) -> object:
    """JSON as it is, but for the white space between its tokens; anything else as text."""
    try:
        msgspec.json.decode(value)
        return msgspec.Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value.decode("utf-8", "replace")


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
            "parked": entry.parked is not None,
            "waiting_records": len(entry.waiting),
            "segments": len(entry.segments),
            "requests": {target: sent.request_id for target, sent in entry.sent.last.items()},
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
