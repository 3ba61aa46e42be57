"""``reknit inspect``, ``sessions``, ``export`` and ``import``.

They show the records and the state of a session, list sessions with their status, release parked sessions, and write
sessions as documents and back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import click
import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.cli import Exit, Group, Progress, fail, read_input, say, stdin, write_bytes, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import JSON, Since, with_config
from reknit.pipeline.cli.convert import WRITTEN
from reknit.pipeline.cli.offline import FILE
from reknit.pipeline.cli.output import show_fixes
from reknit.pipeline.client import Place, Turns
from reknit.pipeline.errors import InputError, InternalError
from reknit.pipeline.history.writers import writer_named
from reknit.pipeline.history.writers.base import Writer
from reknit.pipeline.kafka.partitions import partitions_of, usual_partition
from reknit.pipeline.kafka.reading import read_partitions, reader
from reknit.pipeline.kafka.sending import producing
from reknit.pipeline.session.export import Export, export, export_as, restoring
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import POSITION, Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventStates
from reknit.pipeline.stages.turn_state import Parked, TurnState, TurnStates, session_of
from reknit.pipeline.stages.waiting import unpacked
from reknit.topics import (
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
from reknit.topics.headers import ERROR_CODE, ERROR_LETTER, ERROR_PREFIX, as_texts
from reknit.topics.records import REKNIT, TURN_RECORDS, SessionReleased

_SHOWN = (AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS)
_STATES = (TURNS_STATE, EVENTS_STATE)


@click.command("inspect")
@with_config
@click.option("--records", is_flag=True, help="Also print every record of the session, topic by topic.")
@click.option("--since", type=Since(), help="Only records since then: 90s, 30m, 2h, 7d ago, or 2026-11-22T14:00.")
@click.option("--partition", type=int, help="Look there only; without it everywhere, the usual place first.")
@click.argument("session")
def inspect_command(config: Config, session: str, records: bool, since: int | None, partition: int | None) -> None:
    """Show the state of a session in one JSON line, then its records if requested.

    The line begins with the last rejection, if a request of the session was rejected: the reason and the record.
    Exits with 2 if nothing is known of the session.
    """
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
        found = await _records_of(consumer, config, session, [usual], since)
        # A producer with another partitioner wrote its turns to another partition.
        if partition is None and not found.keys() & {AGENT_TURNS, TURNS_STATE}:
            elsewhere = [number for number in numbers if number != usual]
            for name, records in (await _records_of(consumer, config, session, elsewhere, since)).items():
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
    rejection = last_rejection(found.get(DEAD_LETTERS, ()))
    write_json({**rejection, "session": session, "partition": places[0], "records": counts, **summary})
    for name, record in shown if show else ():
        write_json(as_json(name, record))
    return bool(shown or summary)


async def _records_of(
    consumer: AIOKafkaConsumer, config: Config, session: str, numbers: Sequence[int], since: int | None
) -> dict[str, list[ConsumerRecord]]:
    """Return the records of a session in these partitions, by topic; ``since`` does not limit states."""
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


def last_rejection(letters: Iterable[ConsumerRecord]) -> dict[str, dict[str, str]]:
    """Return the newest rejection among a session's dead letters as ``last_rejection``; ``{}`` without one."""
    found: dict[str, str] = {}
    newest = -1
    for letter in letters:
        why = {name: value for name, value in as_texts(letter.headers) if name.startswith(ERROR_PREFIX)}
        if why.get(ERROR_CODE) == "rejected" and ERROR_LETTER not in why and letter.timestamp >= newest:
            newest = letter.timestamp
            found = {name.removeprefix(ERROR_PREFIX): value for name, value in why.items()}
    return {"last_rejection": found} if found else {}


def as_json(topic: str, record: ConsumerRecord | Record) -> dict[str, object]:
    """Return the JSON to print for a record; it fits on one line for any content."""
    return {
        "topic": topic,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "headers": dict(as_texts(record.headers)),
        "value": None if record.value is None else _value(record.value),
    }


def _value(value: bytes) -> object:
    """Return JSON without the white space between its tokens, and any other value as text."""
    try:
        msgspec.json.decode(value)
        return msgspec.Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value.decode("utf-8", "replace")


Rows = Iterable[tuple[bytes, bytes | None]]


def summarise(session: bytes, turns: Rows, events: Rows) -> dict[str, Any]:
    """Return the state of both stages for a session as plain values; ``{}`` without state.

    ``turns`` and ``events`` are changelog records of the session's partition, oldest first.
    """
    history, stream = TurnStates(Defaults().session), EventStates()
    for states, rows in ((history, turns), (stream, events)):
        for key, value in rows:
            if key.endswith(session):
                states.restore(key, value)
    summary: dict[str, Any] = {}
    if (turn_state := history.find(session)) is not None:
        summary["history"] = {
            "turn": turn_state.turn,
            "messages": turn_state.session.count,
            "targets": turn_state.session.targets,
            "model": turn_state.session.model,
            "policy": turn_state.session.policy,
            "waiting": turn_state.session.waiting,
            "quarantined": turn_state.quarantined,
            "parked": turn_state.parked is not None,
            "releasing": session in history.releases,
            "waiting_records": history.waiting_of(session),
            "segments": len(turn_state.segments),
            "requests": {target: sent.request_id for target, sent in turn_state.sent.last.items()},
        }
        if turn_state.session.refusals:
            summary["history"]["healed"] = {
                target: [structs.asdict(noted) for noted in healed]
                for target, healed in turn_state.session.refusals.items()
            }
    if (event_state := stream.find(session)) is not None:
        summary["stream"] = {
            "source": event_state.recovery.source,
            "records_assistant": event_state.records,
            "waiting_turns": len(event_state.waiting),
        }
    return summary


# Status of sessions.

RECORD = click.option(
    "--record",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file with the record of agent.turns.v1 to be taken in place of what came; - for stdin.",
)


class Standing(Struct, frozen=True):
    """The state of a session. If it cannot be read, ``entry`` is None and ``error`` gives the reason.

    ``waiting`` counts its records that wait because it is parked or is being released. If one of them closed the
    session, it may have no state until the next one is taken.
    """

    partition: int
    key: bytes
    entry: TurnState | None
    error: InternalError | None = None
    waiting: int = 0
    is_releasing: bool = False

    @property
    def parked(self) -> Parked | None:
        return None if self.entry is None else self.entry.parked

    @property
    def failed(self) -> Record | None:
        """The record that parked the session, without its value."""
        return None if self.parked is None else unpacked(self.key, self.parked.failed)

    @property
    def follows(self) -> bool:
        """True if new records become dead letters because an earlier record did."""
        return self.entry is not None and self.entry.quarantined

    @property
    def state(self) -> str:
        if self.is_releasing:
            return "releasing"
        return "parked" if self.failed else "follows" if self.follows else "open"

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"session": self.key.decode("utf-8", "replace"), "partition": self.partition}
        if self.error is not None:
            return {**facts, "state": "unreadable"}
        facts["state"] = self.state
        if self.entry is not None:
            facts |= {"turn": self.entry.turn, "messages": self.entry.session.count}
        if self.is_releasing:
            facts["waiting"] = self.waiting
        if self.parked is None or self.failed is None:
            return facts
        details = {"waiting": self.waiting, "bytes": self.parked.size, "overflowed": self.parked.overflowed}
        return {**facts, "record": str(Place(AGENT_TURNS, self.partition, self.failed.offset)), **details}


def retry_id(failed: Place, base: int = 0) -> str:
    """Return the id of the record that retries a failed one; concurrent retries have the same id.

    A re-created topic has the same offsets again; ``base`` is the base of the failed record.
    """
    return f"retry/{failed}+{base}" if base else f"retry/{failed}"


def release_of(session: Standing, record: bytes | None) -> bytes:
    """Return the record that releases a parked session.

    Raises:
        InputError: the session is not parked.
    """
    if session.failed is None:
        raise InputError("not_parked", f"session {session.key.decode('utf-8', 'replace')!r} is not parked")
    failed = Place(AGENT_TURNS, session.partition, session.failed.offset)
    return msgspec.json.encode(
        SessionReleased(
            record=UNSET if record is None else Raw(record),
            id=retry_id(failed, session.failed.base),
            origin=REKNIT,
        )
    )


def repaired_record(given: bytes) -> bytes:
    """Return a user's record if it is a valid one of ``agent.turns``; else exit."""
    try:
        TURN_RECORDS.decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fail(InputError("bad_record", f"--record is no record of {AGENT_TURNS}: {error}"))
    return given.strip()


async def standing(
    consumer: AIOKafkaConsumer, config: Config, whose: Collection[tuple[int, bytes]] | None = None
) -> Iterator[Standing]:
    """Return the status of sessions by partition and key; of all sessions if none is named."""
    name = qualified(TURNS_STATE, config.prefix)
    numbers = await partitions_of(consumer, config, TURNS_STATE)
    states = {number: TurnStates(Defaults().session) for number in numbers}
    seen: dict[tuple[int, bytes], None] = {}
    places = [TopicPartition(name, number) for number in numbers if whose is None or number in {n for n, _ in whose}]
    async for record in read_partitions(consumer, places, on_progress=Progress()):
        place = (record.partition, session_of(record.key or b""))
        if record.key != POSITION and (whose is None or place in whose):
            states[record.partition].restore(record.key, record.value)
            seen[place] = None
    return _found(states, sorted(seen))


def _found(states: dict[int, TurnStates], places: list[tuple[int, bytes]]) -> Iterator[Standing]:
    for partition, key in places:
        kept = states[partition]
        is_releasing = key in kept.releases
        try:
            entry = kept.find(key)
        except InternalError as error:
            yield Standing(partition, key, None, error)
        else:
            if entry is not None or is_releasing:
                is_waiting = is_releasing or (entry is not None and entry.parked is not None)
                waiting = kept.waiting_of(key) if is_waiting else 0
                yield Standing(partition, key, entry, waiting=waiting, is_releasing=is_releasing)
                kept.committed({}, room=0)  # frees the memory of a session that was printed


@click.group("sessions", cls=Group)
def sessions_group() -> None:
    """List sessions with their status, and release parked ones."""


@sessions_group.command("list")
@with_config
@JSON
def list_command(config: Config, *, as_lines: bool) -> None:
    """Print every session that has a state: open, parked, or quarantined after an earlier dead letter."""
    _print(config, as_lines=as_lines, only_parked=False)


@sessions_group.command("parked")
@with_config
@JSON
def parked_command(config: Config, *, as_lines: bool) -> None:
    """Print the parked sessions: the failed record of each, and the number of records that wait."""
    _print(config, as_lines=as_lines, only_parked=True)


def _print(config: Config, *, as_lines: bool, only_parked: bool) -> None:
    async def work() -> None:
        async with reader(config) as consumer:
            for session in await standing(consumer, config):
                if session.parked is not None or not only_parked:
                    facts = session.facts()
                    write_json(facts) if as_lines else click.echo(_line(facts))

    run_with_broker(config, work)


def _line(facts: dict[str, object]) -> str:
    more = ", ".join(f"{name} {facts[name]}" for name in ("turn", "messages", "record", "waiting") if name in facts)
    return f"{facts['state']:<10}  {facts['session']}  {more}".rstrip()


@sessions_group.command("release")
@with_config
@RECORD
@click.option("--without-record", is_flag=True, help="Leave out what the session is parked for.")
@click.argument("session")
def release_command(config: Config, session: str, *, record: str | None, without_record: bool) -> None:
    """Release a parked session, with a repaired record or without it; waiting records are then taken in order.

    Exits with 2 if the session is not parked.
    """
    if (record is None) != without_record:
        fail(InputError("record_unnamed", "say what is taken in its place: --record FILE, or --without-record"))
    given = None if record is None else repaired_record(read_input(record))
    run_with_broker(config, lambda: _release(config, session, given))


async def _release(config: Config, session: str, record: bytes | None) -> None:
    key = session.encode()
    async with reader(config) as consumer:
        numbers = await partitions_of(consumer, config, TURNS_STATE)
        found = list(await standing(consumer, config, {(number, key) for number in numbers}))
    parked = next((each for each in found if each.parked is not None), Standing(0, key, None))
    value = release_of(parked, record)
    async with producing(config) as producer:
        name = qualified(AGENT_TURNS, config.prefix)
        await producer.send_and_wait(name, value, key=key, partition=parked.partition)
    say(f"session {session}: released, {parked.waiting} records go on")


@click.command("export")
@with_config
@click.option("--as", "shape", help=f"Print each as a list of messages of a framework's shape: {WRITTEN}.")
@click.argument("sessions", nargs=-1, required=True)
def export_command(config: Config, shape: str | None, sessions: tuple[str, ...]) -> None:
    """Print sessions as documents that restore them, one per line; `normalize` accepts `document`.

    With --as, a line is a list of messages as `convert` writes it, and what the shape has no place for is a line on
    stderr. A program's file (claude-code, codex-rollout) holds one session.

    Exits with 2 if nothing is known of one of them.
    """
    try:
        writer = None if shape is None else writer_named(shape)
    except InputError as error:
        fail(error)
    if writer is not None and writer.lines and len(sessions) > 1:
        raise click.UsageError(f"a file of {writer.name} holds one session: name one")
    run_with_broker(config, lambda: _export(config, sessions, writer))


async def _export(config: Config, sessions: tuple[str, ...], writer: Writer | None) -> None:
    async with reader(config) as consumer:
        numbers = await partitions_of(consumer, config, TURNS_STATE)
        whose = [(usual_partition(session, numbers), session.encode()) for session in sessions]
        found = {one.key: one for one in await standing(consumer, config, whose)}
    for session in sessions:
        one = found.get(session.encode())
        if one is not None and one.error is not None:
            raise one.error
        if one is None or one.entry is None:
            raise InputError("unknown_session", f"nothing is known of session {session!r}")
        if one.waiting:
            say(f"reknit: {session} is {one.state}; {one.waiting} records that wait are not in the document")
        if writer is None:
            write_json(export(session, one.entry.session))
        else:
            written = export_as(one.entry.session, writer)
            write_bytes(written.data if written.lines else written.data + b"\n")
            show_fixes(written.fixes)


@click.command("import")
@with_config
@FILE
def import_command(config: Config, file: str) -> None:
    """Restore sessions from the output of `export`: open each, and restore its history. No request is made.

    The current history of a session is replaced. The first line that is no session ends the command with 2; the
    sessions before it are restored.
    """
    run_with_broker(config, lambda: _import(config, file))


async def _import(config: Config, file: str) -> None:
    lines = stdin() if file == "-" else click.open_file(file, "rb")
    with lines as opened:
        async with Turns(config) as turns:
            for number, line in enumerate(opened, start=1):
                try:
                    found = msgspec.json.decode(line, type=Export)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise InputError(
                        "not_exported", f"not what `export` printed: {error}", path=f"line {number}"
                    ) from error
                for record in restoring(found):
                    place = await turns.write(found.session, record)
                write_json({"session": found.session, "record": str(place)})
