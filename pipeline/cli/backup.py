"""``reknit export`` and ``reknit import``: sessions as documents, and back."""

from __future__ import annotations

import sys

import click
import msgspec
from aiokafka import TopicPartition

from pipeline.cli.broker import partitions_of, read_partitions, reader, run_with_broker, usual_partition
from pipeline.cli.config import broker_options, configured, wait_option
from pipeline.cli.ingest import FILE
from pipeline.cli.output import say, write_json
from pipeline.client.producers import Turns
from pipeline.errors import InputError
from pipeline.session.export import Export, export, restoring
from pipeline.settings import Config
from pipeline.stages.defaults import Defaults
from pipeline.stages.turn_state import TurnStates, session_of
from topics import TURNS_STATE, qualified


@click.command("export")
@broker_options
@wait_option
@click.argument("sessions", nargs=-1, required=True)
def export_command(sessions: tuple[str, ...], config_file: str | None, **options: str | None) -> None:
    """Print sessions as documents that restore them, one a line: `document` is what `normalize` takes.

    Ends with 2 where nothing is known of one of them.
    """
    config = configured(config_file, **options)
    run_with_broker(config, lambda: _export(config, sessions))


async def _export(config: Config, sessions: tuple[str, ...]) -> None:
    async with reader(config) as consumer:
        numbers = await partitions_of(consumer, config, TURNS_STATE)
        states: dict[str, TurnStates] = {session: TurnStates(Defaults().session) for session in sessions}
        places = {TopicPartition(qualified(TURNS_STATE, config.prefix), usual_partition(s, numbers)) for s in sessions}
        async for record in read_partitions(consumer, places):
            found = states.get(session_of(record.key or b"").decode("utf-8", "replace"))
            if found is not None:
                found.restore(record.key, record.value)
    for session in sessions:
        entry = states[session].find(session.encode())
        if entry is None:
            raise InputError("unknown_session", f"nothing is known of session {session!r}")
        if entry.parked is not None:
            say(f"reknit: {session} is parked; {len(entry.waiting)} records that wait are not in the document")
        write_json(export(session, entry.session))


@click.command("import")
@broker_options
@wait_option
@FILE
def import_command(file: str, config_file: str | None, **options: str | None) -> None:
    """Restore sessions from what `export` printed: each is opened, and its history restored. No request is made.

    A history that a session has by then is replaced. The first line that is no session ends the command with 2; those
    before it are restored.
    """
    config = configured(config_file, **options)
    run_with_broker(config, lambda: _import(config, file))


async def _import(config: Config, file: str) -> None:
    lines = sys.stdin.buffer if file == "-" else click.open_file(file, "rb")
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
                write_json({"session": found.session, "record": f"{place.topic}/{place.partition}/{place.offset}"})
