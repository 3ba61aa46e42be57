"""``reknit ingest``: pipe turns or provider events from a file or stdin into their topic."""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from collections.abc import AsyncIterator
from typing import IO

import click
import msgspec

from pipeline.cli import Group
from pipeline.cli.broker import run_with_broker, sender
from pipeline.cli.config import broker_options, configured, wait_option
from pipeline.cli.core import SOURCE_NAMES
from pipeline.cli.output import fail, say
from pipeline.errors import InputError, ReknitError
from pipeline.session import Session
from pipeline.settings import Config
from pipeline.stages.base import Record
from pipeline.stages.defaults import Defaults
from pipeline.stages.records import decoded
from pipeline.streams.sources import find_source
from topics import AGENT_TURNS, PROVIDER_EVENTS
from topics import headers as names
from topics.records import HistoryRestored, SessionOpened, TurnAppended

SESSION = click.option("--session", required=True, help="The session's id, the key of its records.")
FILE = click.argument("file", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))

# What a history document may say beside its messages, as the record that opens a session says it.
_OPENING = ("model", "system", "tools", "params", "targets", "policy")
# So many bytes of a stream are one record at most.
_PIECE = 1 << 16


@click.group("ingest", cls=Group)
def ingest_group() -> None:
    """Pipe turns or provider events into their topic."""


@ingest_group.command("events")
@broker_options
@wait_option
@SESSION
@click.option("--source", default="claude-cli", show_default=True, help=f"Whose events they are: {SOURCE_NAMES}.")
@click.option("--run", default=None, help="The run's id; a random one where it is not given.")
@click.option(
    "--framing",
    type=click.Choice(["events", "bytes"]),
    default="events",
    show_default=True,
    help="A record a line, or the bytes as they come, as from a socket.",
)
@FILE
def ingest_events(
    session: str,
    source: str,
    run: str | None,
    framing: names.Framing,
    file: str,
    config_file: str | None,
    **options: str | None,
) -> None:
    """Pipe provider events as they come, and end the run with the input.

    claude -p … --output-format stream-json --include-partial-messages --verbose
    | reknit ingest events --source claude-cli --session S
    """
    config = configured(config_file, **options)
    try:
        find_source(source)
    except ReknitError as error:
        fail(error)
    # The run only has to differ from the session's other runs; nothing downstream is derived from it.
    headers = [(names.SOURCE, source.encode()), (names.RUN, (run or uuid.uuid4().hex).encode())]
    run_with_broker(config, lambda: _send_events(config, session, file, headers, framing))


async def _send_events(
    config: Config, session: str, file: str, headers: list[tuple[str, bytes]], framing: names.Framing
) -> None:
    framed = [*headers, (names.FRAMING, b"bytes")] if framing == "bytes" else headers
    async with sender(config, PROVIDER_EVENTS, session) as sending:
        ended = b"end of input"
        try:
            async for piece in _pieces(file, framing):
                if framing == "bytes":
                    await sending.send(piece, framed)
                elif piece.strip():
                    await sending.send(piece.rstrip(b"\r\n"), framed)
        except asyncio.CancelledError:
            ended = b"interrupted"
        await sending.send(None, [*headers, (names.EXIT, ended)])
        await sending.delivered()
        say(f"{sending.count - 1} records to {PROVIDER_EVENTS}, session {session}")


@ingest_group.command("turns")
@broker_options
@wait_option
@SESSION
@FILE
def ingest_turns(session: str, file: str, config_file: str | None, **options: str | None) -> None:
    """Pipe turns: records of agent.turns.v1, bare messages, or a whole history, on a line each or over several.

    What has a record's `type` goes as it is, a message becomes `turn.appended`; a history ({"messages": [...]} or a
    list) opens the session, restores the history and wants a request. Each record is looked at before it is sent; the
    first one that a worker could not use ends the command with 2 and its line's number.
    """
    config = configured(config_file, **options)
    run_with_broker(config, lambda: _send_turns(config, session, file))


async def _send_turns(config: Config, session: str, file: str) -> None:
    async with sender(config, AGENT_TURNS, session) as sending:
        try:
            async for number, document in _documents(file):
                for record in _usable(document, number):
                    await sending.send(record)
        finally:
            await sending.delivered()
            say(f"{sending.count} records to {AGENT_TURNS}, session {session}")


def _usable(document: bytes, number: int) -> list[bytes]:
    """The records of a document that begins in this line.

    Raises:
        InputError: a worker could not use one of them.
    """
    try:
        records = records_of(document)
        for record in records:
            _try_out(record)
    except ReknitError as error:
        place = f"line {number}: {error.path}" if error.path else f"line {number}"
        raise InputError(error.code, error.message, path=place) from error
    return records


def _try_out(value: bytes) -> None:
    """Do with a record what a worker does with one that begins a session."""
    _, event = decoded(Record(partition=0, offset=0, key=b"session", value=value))
    session = Session()
    match event:
        case TurnAppended():
            session.append(bytes(event.message))
        case HistoryRestored():
            session.replace(bytes(event.messages))
        case SessionOpened():
            session.configure(**Defaults().changes(event, session.policy))


def records_of(document: bytes) -> list[bytes]:
    """The records of ``agent.turns`` that stand for a record, a message or a history; none for a blank document.

    Raises:
        InputError: the document is none of these.
    """
    if not document.strip():
        return []
    try:
        fields = msgspec.json.decode(document, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("not_json", f"neither a JSON object nor a list of messages: {error}") from error
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


# A string of JSON, which holds no line break; brackets in it open nothing.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


async def _documents(file: str) -> AsyncIterator[tuple[int, bytes]]:
    """Documents as they come, each with the number of its first line: one ends with the line that closes it."""
    begun, depth, number = 0, 0, 0
    lines: list[bytes] = []
    async for line in _pieces(file, "events"):
        number += 1
        begun = begun if lines else number
        lines.append(line)
        bare = _STRING.sub(b"", line)
        depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
        if depth <= 0:
            yield begun, b"".join(lines)
            depth, lines = 0, []
    if lines:
        yield begun, b"".join(lines)


async def _pieces(file: str, framing: names.Framing) -> AsyncIterator[bytes]:
    """Lines, or bytes as they come; read in a thread, so that records leave while the next piece is awaited."""
    with sys.stdin.buffer if file == "-" else click.open_file(file, "rb") as opened:
        while piece := await asyncio.to_thread(_piece, opened, framing):
            yield piece


def _piece(opened: IO[bytes], framing: names.Framing) -> bytes:
    if framing == "events":
        return opened.readline()
    piece: bytes = opened.read1(_PIECE)  # type: ignore[attr-defined] # what is opened here is buffered
    return piece
