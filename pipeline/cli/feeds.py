"""What feeds the pipeline: ``reknit ingest`` from a file or stdin, ``reknit send`` with the answers to its requests.

Turns, provider events and requests to providers are piped into their topic; published requests are sent to a provider
or a program, whose events come back.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING

import click
import msgspec

from pipeline.cli import Group, fail, say
from pipeline.cli.broker import run_with_broker, sender, unless_stopped
from pipeline.cli.config import with_config
from pipeline.cli.offline import FILE, SOURCE_NAMES, TARGET_NAMES
from pipeline.cli.requests import Conversations, Places, read_line
from pipeline.errors import InputError, ReknitError
from pipeline.registry import target_named
from pipeline.session import Session
from pipeline.settings import Config
from pipeline.stages.base import Record
from pipeline.stages.defaults import Defaults
from pipeline.stages.records import decoded
from pipeline.streams.sources import find_source, source_of_transcript
from topics import AGENT_TURNS, PROVIDER_EVENTS
from topics import headers as names
from topics.records import HistoryRestored, SessionOpened, TurnAppended

if TYPE_CHECKING:
    from pipeline.client.sender import Route

SESSION = click.option("--session", required=True, help="The session's id, the key of its records.")

# What a history document may say beside its messages, as the record that opens a session says it.
_OPENING = ("model", "system", "tools", "params", "targets", "policy")
# Reasons why lines were passed over that are told, the most frequent ones.
_MOST_REASONS = 10
# So many bytes of a stream are one record at most.
_PIECE = 1 << 16


@click.group("ingest", cls=Group)
def ingest_group() -> None:
    """Pipe turns, provider events or requests to providers into their topic."""


@ingest_group.command("events")
@with_config
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
@click.option(
    "--transcript",
    default=None,
    type=click.Path(dir_okay=False),
    help="Where the program keeps its own transcript of the run: it is sent when the input has ended, and turns are "
    "recorded as it has them.",
)
@FILE
def ingest_events(
    config: Config,
    session: str,
    source: str,
    run: str | None,
    framing: names.Framing,
    transcript: str | None,
    file: str,
) -> None:
    """Pipe provider events as they come, and end the run with the input.

    claude -p … --output-format stream-json --include-partial-messages --verbose
    | reknit ingest events --source claude-cli --session S
    """
    try:
        beside = "" if source_of_transcript(source) else find_source(source).transcript
        if transcript is not None and not beside:
            raise InputError("no_transcript", f"of {source} no transcript is read")
    except ReknitError as error:
        fail(error)
    # The run only has to differ from the session's other runs; nothing downstream is derived from it.
    named = (names.RUN, (run or uuid.uuid4().hex).encode())
    headers = [(names.SOURCE, source.encode()), named]
    kept = None if transcript is None else (transcript, [(names.SOURCE, beside.encode()), named])
    run_with_broker(config, lambda: _send_events(config, session, file, headers, framing, kept))


async def _send_events(
    config: Config,
    session: str,
    file: str,
    headers: list[tuple[str, bytes]],
    framing: names.Framing,
    transcript: tuple[str, list[tuple[str, bytes]]] | None,
) -> None:
    """Send the events; ``transcript`` is the file of the program's own one, and the headers of its lines."""
    framed = [*headers, (names.FRAMING, b"bytes")] if framing == "bytes" else headers
    framed = framed if transcript is None else [*framed, (names.TRANSCRIPT, b"expected")]
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
        if transcript is not None:
            path, described = transcript
            try:
                async for line in _pieces(path, "events"):
                    await sending.send(line.rstrip(b"\r\n"), described)
            except FileNotFoundError:
                say(f"reknit: there is no transcript {path}; turns are recorded as the stream told them")
        await sending.send(None, [*headers, (names.EXIT, ended)])
        await sending.delivered()
        say(f"{sending.count - 1} records to {PROVIDER_EVENTS}, session {session}")


@ingest_group.command("turns")
@with_config
@SESSION
@FILE
def ingest_turns(config: Config, session: str, file: str) -> None:
    """Pipe turns: records of agent.turns.v1, bare messages, or a whole history, on a line each or over several.

    What has a record's `type` goes as it is, a message becomes `turn.appended`; a history ({"messages": [...]} or a
    list) opens the session, restores the history and wants a request. Each record is looked at before it is sent; the
    first one that a worker could not use ends the command with 2 and its line's number.
    """
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


@ingest_group.command("requests")
@with_config
@click.option("--target", default="", help=f"Whose requests they are, where no URL says it: {TARGET_NAMES}.")
@click.option("--session-from", default="", metavar="PLACE", help="Where a line names the session: a.dotted.name.")
@click.option("--producer", default="", help="The program that sent them, as name/version.")
@click.option("--producer-from", default="", metavar="PLACE", help="Where a line names that program.")
@FILE
def ingest_requests(
    config: Config, target: str, session_from: str, producer: str, producer_from: str, file: str
) -> None:
    """Pipe requests that a platform sends to its providers: a log of HTTP as JSON lines, one request a line.

    A line has the `body` (also `request.body`, `request_body`, or is the body itself) and the `url` (also
    `request.url`, `uri`, `path` with `host`), which says whose request it is. What goes on from a session's last body
    appends what is new, anything else restores its history. Lines that are no request to a model are passed over, and
    counted by reason.
    """
    places = Places(session=session_from, producer=producer_from, target=target)
    try:
        if target:
            target_named(target)
    except ReknitError as error:
        fail(error)
    run_with_broker(config, lambda: _send_requests(config, places, producer, file))


async def _send_requests(config: Config, places: Places, producer: str, file: str) -> None:
    conversations, passed, taken, again = Conversations(), Counter[str](), 0, 0
    async with sender(config, AGENT_TURNS, "") as sending:
        async for line in _pieces(file, "events"):
            if not line.strip():
                continue
            try:
                logged = read_line(line, places)
                session, records = conversations.records_of(logged)
            except ReknitError as error:
                passed[f"{error.code}: {error.message}"] += 1
                continue
            taken, again = taken + bool(records), again + (not records)
            named = logged.producer or producer
            headers = [(names.PRODUCER, named.encode())] if named else []
            for number, record in enumerate(records, 1):
                judged = [(names.JUDGED, logged.judged)] if number == len(records) else []
                await sending.send(msgspec.json.encode(record), [*headers, *judged], session.encode())
        await sending.delivered()
        said = f"{taken} requests of {len(conversations.sessions)} sessions to {AGENT_TURNS}, {again} sent again"
        say(f"{said}; {passed.total()} lines passed over")
        for why, count in passed.most_common(_MOST_REASONS):
            say(f"{count:>8}  {why}")


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


# Published requests out, and their answers in.


@click.command("send")
@with_config
@click.option("--to", "url", metavar="URL", help="POST requests there; {model} is the request's model.")
@click.option("--exec", "program", metavar="COMMAND", help="Write each request to this program's standard input.")
@click.option("--target", default="anthropic", show_default=True, help=f"Whose requests are sent: {TARGET_NAMES}.")
@click.option(
    "--source",
    default=None,
    help=f"Whose events come back: {SOURCE_NAMES}; the target's own where it is not given.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="Goes with each request.")
@click.option(
    "--secret-header", "secrets", multiple=True, metavar="NAME=VARIABLE", help="As --header, from the environment."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests a second at most.")
@click.option("--attempts", type=click.IntRange(min=1), default=6, show_default=True, help="Tries of one request.")
@click.option("--group", default="reknit-send", show_default=True, help="The consumer group of the senders.")
def send_command(
    config: Config,
    url: str | None,
    program: str | None,
    target: str,
    source: str | None,
    headers: tuple[str, ...],
    secrets: tuple[str, ...],
    rate: float | None,
    attempts: int,
    group: str,
) -> None:
    """Send published requests, and feed the answers back, until Ctrl-C.

    The loop closes: a turn becomes a request, the request an answer, the answer items on a screen and, where the policy
    says so, a turn of the session.
    """
    # Imported here: `ingest` needs no client of HTTP.
    from pipeline.client import Events
    from pipeline.client.consumers import Requests
    from pipeline.client.sender import Sender

    async def run() -> None:
        async with (
            _route(url, program, _headers(headers, secrets)) as route,
            Events(config, source or target) as events,
            Requests(config, group=group) as requests,
        ):
            say(f"sending requests for {target} to {url or program}; Ctrl-C ends it")
            sending = Sender(requests, events, route, target=target, rate=rate, attempts=attempts)
            if not await unless_stopped(sending.run()):
                say("stopped")

    try:
        target_named(target)
        find_source(source or target)
    except ReknitError as error:
        fail(error)
    run_with_broker(config, run)


@asynccontextmanager
async def _route(url: str | None, program: str | None, headers: dict[str, str]) -> AsyncIterator[Route]:
    from pipeline.client.sender import Http, Program

    if (url is None) == (program is None):
        raise InputError("no_route", "say where requests go: --to URL, or --exec COMMAND")
    if program is not None:
        yield Program(shlex.split(program))
        return
    import aiohttp

    # An answer takes as long as it takes; only silence ends it.
    patience = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=600)
    async with aiohttp.ClientSession(timeout=patience) as client:
        yield Http(client, url or "", headers)


def _headers(given: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon:
            raise InputError("bad_header", f"expected NAME: VALUE, got {header!r}", path="--header")
        found[name.strip()] = value.strip()
    for secret in secrets:
        name, equals, variable = secret.partition("=")
        if not equals or variable not in os.environ:
            raise InputError("bad_header", f"{variable or secret!r} is not set", path="--secret-header")
        found[name.strip()] = os.environ[variable]
    return found
