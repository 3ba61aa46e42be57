"""``reknit ingest``: pipe turns or provider events from a file or stdin into their topic."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator

import click
import msgspec

from pipeline.cli.broker import broker_options, configured, sender
from pipeline.cli.output import fail, say
from pipeline.config import Config
from pipeline.errors import InputError, ReknitError
from topics import AGENT_TURNS, PROVIDER_EVENTS
from topics import headers as names

SESSION = click.option("--session", required=True, help="The session's id, the key of its records.")
FILE = click.argument("file", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))

# What a history document may say beside its messages, as the record that opens a session says it.
_OPENING = ("model", "system", "tools", "params", "targets", "policy")


@click.group("ingest")
def ingest_group() -> None:
    """Pipe turns or provider events into their topic."""


@ingest_group.command("events")
@broker_options
@SESSION
@click.option("--source", default="claude-cli", show_default=True, help="Whose events they are.")
@click.option("--run", default=None, help="The run's id; a random one where it is not given.")
@FILE
def ingest_events(
    session: str, source: str, run: str | None, file: str, config_file: str | None, **options: str | None
) -> None:
    """Pipe provider events, a line at a time as they come, and end the run with the input.

    claude -p … --output-format stream-json --include-partial-messages --verbose
    | reknit ingest events --source claude-cli --session S
    """
    config = configured(config_file, **options)
    # The run only has to differ from the session's other runs; nothing downstream is derived from it.
    headers = [(names.SOURCE, source.encode()), (names.RUN, (run or uuid.uuid4().hex).encode())]
    _run(_send_events(config, session, file, headers))


async def _send_events(config: Config, session: str, file: str, headers: list[tuple[str, bytes]]) -> None:
    async with sender(config, PROVIDER_EVENTS, session) as sending:
        ended = b"end of input"
        try:
            async for line in _lines(file):
                if line.strip():
                    await sending.send(line.rstrip(b"\r\n"), headers)
        except asyncio.CancelledError:
            ended = b"interrupted"
        await sending.send(None, [*headers, (names.EXIT, ended)])
        await sending.delivered()
        say(f"{sending.count - 1} records to {PROVIDER_EVENTS}, session {session}")


@ingest_group.command("turns")
@broker_options
@SESSION
@FILE
def ingest_turns(session: str, file: str, config_file: str | None, **options: str | None) -> None:
    """Pipe turns: records of agent.turns.v1, bare messages, or a whole history.

    A line with a record's `type` goes as it is, a message becomes `turn.appended`; a history ({"messages": [...]} or
    a list, on one line or as the whole file) opens the session, restores the history and wants a request.
    """
    config = configured(config_file, **options)
    _run(_send_turns(config, session, file))


async def _send_turns(config: Config, session: str, file: str) -> None:
    async with sender(config, AGENT_TURNS, session) as sending:
        if file == "-":
            async for line in _lines(file):
                for record in records_of(line):
                    await sending.send(record)
        else:
            for record in _records_of_file(file):
                await sending.send(record)
        await sending.delivered()
        say(f"{sending.count} records to {AGENT_TURNS}, session {session}")


def _records_of_file(file: str) -> Iterator[bytes]:
    """A file is one document if it reads as one; else each line is."""
    with click.open_file(file, "rb") as opened:
        data = opened.read()
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        documents = [data]
    except msgspec.DecodeError:
        documents = data.split(b"\n")
    for document in documents:
        yield from records_of(document)


def records_of(document: bytes) -> list[bytes]:
    """The records of ``agent.turns`` that stand for a record, a message or a history; none for a blank line.

    Raises:
        InputError: the document is none of these.
    """
    if not document.strip():
        return []
    try:
        fields = msgspec.json.decode(document, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise InputError("not_json", f"a line is neither a JSON object nor a list of messages: {error}") from error
    if isinstance(fields, list):
        fields = {"messages": msgspec.Raw(document.strip())}
    if "messages" in fields and "type" not in fields:
        return _history_records(fields)
    if "role" in fields:
        return [msgspec.json.encode({"type": "turn.appended", "message": msgspec.Raw(document.strip())})]
    return [document.strip()]


def _history_records(fields: dict[str, msgspec.Raw]) -> list[bytes]:
    opening = {name: fields[name] for name in _OPENING if name in fields}
    others = {name: value for name, value in fields.items() if name not in {*_OPENING, "messages"}}
    if others and "params" not in opening:
        opening["params"] = msgspec.Raw(msgspec.json.encode(others))
    records = [{"type": "session.opened", **opening}] if opening else []
    records += [{"type": "history.restored", "messages": fields["messages"]}, {"type": "request.wanted"}]
    return [msgspec.json.encode(record) for record in records]


async def _lines(file: str) -> AsyncIterator[bytes]:
    """Lines as they come; a pipe is read in a thread, so that records leave while the next line is awaited."""
    with sys.stdin.buffer if file == "-" else click.open_file(file, "rb") as opened:
        while line := await asyncio.to_thread(opened.readline):
            yield line


def _run(work: Coroutine[None, None, None]) -> None:
    try:
        asyncio.run(work)
    except ReknitError as error:
        fail(error)
