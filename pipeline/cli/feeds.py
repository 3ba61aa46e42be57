"""Inputs of the pipeline: ``reknit ingest`` from a file or stdin, ``reknit send`` with the answers to its requests.

``ingest`` writes turns, provider events and requests to providers to their topic. ``send`` sends published requests to
a provider or a program and writes its events.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING

import click
import msgspec

from reknit.pipeline.cli import Group, configure_logs, fail, say, stdin
from reknit.pipeline.cli.broker import run_with_broker, sender, unless_stopped
from reknit.pipeline.cli.config import with_config
from reknit.pipeline.cli.offline import FILE, SOURCE_NAMES, TARGET_NAMES
from reknit.pipeline.cli.requests import Conversations, Places, read_line
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.history.frameworks import framed, framework_of
from reknit.pipeline.registry import find_source, source_of_transcript, target_named
from reknit.pipeline.session import Session
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.records import decoded
from reknit.pipeline.urls import mask_urls
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS
from reknit.topics import headers as names
from reknit.topics.records import HistoryRestored, SessionOpened, TurnAppended

if TYPE_CHECKING:
    from reknit.pipeline.client.sender import Route

SESSION = click.option("--session", required=True, help="The session's id, the key of its records.")

# Members of a history document besides its messages, as in the record that opens a session.
_OPENING = ("model", "system", "tools", "params", "targets", "policy")
# Reported reasons for skipped lines: the most frequent ones.
_MOST_REASONS = 10
# Most bytes of a stream in one record.
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
    """Pipe provider events unchanged, and end the run with the input.

    claude -p … --output-format stream-json --include-partial-messages --verbose
    | reknit ingest events --source claude-cli --session S
    """
    try:
        beside = "" if source_of_transcript(source) else find_source(source).transcript
        if transcript is not None and not beside:
            raise InputError("no_transcript", f"of {source} no transcript is read")
    except ReknitError as error:
        fail(error)
    # The run only has to differ from the session's other runs; no output depends on it.
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
    """Send the events; ``transcript`` is the program's own transcript file and the headers of its lines."""
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
@click.option(
    "--mirror",
    is_flag=True,
    help="Mirror a conversation that another program has with its model: no turn makes a request due.",
)
@FILE
def ingest_turns(config: Config, session: str, mirror: bool, file: str) -> None:
    """Pipe turns: records of agent.turns.v1, bare messages, or a whole history, on one line each or over several.

    A document with a record's `type` is sent unchanged, a message becomes `turn.appended`. A history
    ({"messages": [...]} or a list) opens the session, restores the history and makes a request due. Each record is
    checked before it is sent; the first one that a worker could not use ends the command with 2 and its line number.
    With --mirror a turn gets `request: false` unless it has a `request` already, and a history is restored without a
    request.
    """
    run_with_broker(config, lambda: _send_turns(config, session, file, mirror=mirror))


async def _send_turns(config: Config, session: str, file: str, *, mirror: bool) -> None:
    has_model = config.session.model is not None
    async with sender(config, AGENT_TURNS, session) as sending:
        try:
            async for number, document in _documents(file):
                for record in _usable(document, number, mirror=mirror):
                    has_model = has_model or _names_a_model(record)
                    await sending.send(record)
        finally:
            await sending.delivered()
            say(f"{sending.count} records to {AGENT_TURNS}, session {session}")
            if sending.count and not has_model:
                say(
                    "reknit: neither these records nor `session.model` of this configuration names a model; requests "
                    "of a session without one are rejected (`reknit inspect` shows the reason)"
                )


def _names_a_model(record: bytes) -> bool:
    _, event = decoded(Record(partition=0, offset=0, key=b"session", value=record))
    return isinstance(event, SessionOpened) and isinstance(event.model, str)


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
    """Pipe requests that a platform sends to its providers: a log of HTTP as JSON lines, one request per line.

    A line has the `body` (also `request.body`, `request_body`, or is the body itself) and the `url` (also
    `request.url`, `uri`, `path` with `host`), which names the provider. A body that continues the last body of a
    session appends the new messages, any other body restores its history. Lines without a request to a model are
    skipped and counted by reason.
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


def _usable(document: bytes, number: int, *, mirror: bool) -> list[bytes]:
    """Return the records of a document that begins in this line.

    Raises:
        InputError: a worker could not use one of them.
    """
    try:
        records = records_of(document, mirror=mirror)
        for record in records:
            _try_out(record)
    except ReknitError as error:
        place = f"line {number}: {error.path}" if error.path else f"line {number}"
        raise InputError(error.code, error.message, path=place) from error
    return records


def _try_out(value: bytes) -> None:
    """Process a record as a worker processes one that begins a session."""
    _, event = decoded(Record(partition=0, offset=0, key=b"session", value=value))
    session = Session()
    match event:
        case TurnAppended():
            session.append(bytes(event.message))
        case HistoryRestored():
            session.replace(bytes(event.messages))
        case SessionOpened():
            session.configure(**Defaults().changes(event, session.policy))


def records_of(document: bytes, *, mirror: bool = False) -> list[bytes]:
    """Return the records of ``agent.turns`` for a record, a message or a history; none for a blank document.

    Args:
        document: JSON.
        mirror: no turn or history makes a request due.

    Raises:
        InputError: the document is of another kind.
    """
    if not document.strip():
        return []
    try:
        fields = msgspec.json.decode(document, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("not_json", f"neither a JSON object nor a list of messages: {error}") from error
    if isinstance(fields, list):
        fields = {"messages": msgspec.Raw(document.strip())}
    if (frame := framed(fields)) is not None:
        _, given = frame
        told = {"system": given.system, "tools": given.tools, "model": given.model, "messages": given.messages}
        members = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in told.items() if value is not None}
        return _history_records(members, wants_request=not mirror)
    if "messages" in fields and "type" not in fields:
        return _history_records(fields, wants_request=not mirror)
    framework = framework_of(fields)
    if "role" in fields or (framework is not None and not framework.lines):
        turn = {"type": "turn.appended", "message": msgspec.Raw(document.strip())}
        return [msgspec.json.encode(turn | ({"request": False} if mirror else {}))]
    if mirror and bytes(fields.get("type", b"")) == b'"turn.appended"' and "request" not in fields:
        return [msgspec.json.encode(fields | {"request": False})]
    return [document.strip()]


def _history_records(fields: dict[str, msgspec.Raw], *, wants_request: bool) -> list[bytes]:
    opening = {name: fields[name] for name in _OPENING if name in fields}
    others = {name: value for name, value in fields.items() if name not in {*_OPENING, "messages"}}
    if others and "params" not in opening:
        opening["params"] = msgspec.Raw(msgspec.json.encode(others))
    records = [{"type": "session.opened", **opening}] if opening else []
    records.append({"type": "history.restored", "messages": fields["messages"]})
    records += [{"type": "request.wanted"}] if wants_request else []
    return [msgspec.json.encode(record) for record in records]


# A JSON string, which has no line break; brackets in it open nothing.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


async def _documents(file: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield documents, each with the number of its first line; a document ends with the line that closes it."""
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
    """Yield lines, or pieces of bytes; reading in a thread lets records be sent while the next piece is awaited."""
    with stdin() if file == "-" else click.open_file(file, "rb") as opened:
        while piece := await asyncio.to_thread(_piece, opened, framing):
            yield piece


def _piece(opened: IO[bytes], framing: names.Framing) -> bytes:
    if framing == "events":
        return opened.readline()
    piece: bytes = opened.read1(_PIECE)  # type: ignore[attr-defined] # what is opened here is buffered
    return piece


# `reknit send`: published requests out, their answers in.


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
@click.option(
    "--longest-wait",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest pause that a provider's retry-after can ask for.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum requests at the same time.",
)
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
    longest_wait: float,
    concurrency: int,
    group: str,
) -> None:
    """Send published requests, and feed the answers back, until Ctrl-C.

    A turn becomes a request, the request an answer, and the answer items and, if the policy says so, a turn of the
    session. The command ends with 2 if only a person can help (the program is missing, the
    provider refuses the credentials, the cluster refuses a right) and with 75 if no broker answers. The next start
    sends the requests that are not answered.
    """
    # Imported here: `ingest` needs no HTTP client.
    from reknit.pipeline.client import Events
    from reknit.pipeline.client.consumers import Requests
    from reknit.pipeline.client.sender import Sender

    configure_logs(config.log_level, config.log_format)

    async def run() -> None:
        async with (
            _route(url, program, _headers(headers, secrets)) as route,
            Events(config, source or target) as events,
            Requests(config, group=group) as requests,
        ):
            say(f"sending requests for {target} to {_shown(url, program)}; Ctrl-C ends it")
            sending = Sender(
                requests,
                events,
                route,
                target=target,
                rate=rate,
                attempts=attempts,
                longest_wait=longest_wait,
                at_once=concurrency,
            )
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
    from reknit.pipeline.client.sender import Http, Program

    if (url is None) == (program is None):
        raise InputError("no_route", "say where requests go: --to URL, or --exec COMMAND")
    if program is not None:
        yield Program(_words(program))
        return
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)  # --concurrency is the limit
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as client:
        yield Http(client, url or "", headers)


def _words(program: str) -> list[str]:
    try:
        return shlex.split(program)
    except ValueError as error:
        raise InputError("bad_command", f"the command cannot be read: {error}", path="--exec") from error


def _shown(url: str | None, program: str | None) -> str:
    """Name the destination without credentials: a masked URL, or a program without its arguments."""
    return mask_urls(url or "") if program is None else _words(program)[0]


def _headers(given: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon:
            # The message omits the header, which may hold a credential.
            raise InputError("bad_header", "expected NAME: VALUE", path="--header")
        found[name.strip()] = value.strip()
    for number, secret in enumerate(secrets, 1):
        name, equals, variable = secret.partition("=")
        if not equals or variable not in os.environ:
            # The message omits both parts: a user may have typed the secret itself.
            where = f"--secret-header {number}" if len(secrets) > 1 else "--secret-header"
            raise InputError("bad_header", "expected NAME=VARIABLE with a variable that is set", path=where)
        found[name.strip()] = os.environ[variable]
    return found
