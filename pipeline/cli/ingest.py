"""``reknit ingest``: turns, provider events and requests to providers, from a file or stdin to their topic."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import click
import msgspec
from aiokafka.errors import MessageSizeTooLargeError

from reknit.pipeline.cli import Group, fail, say
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import with_config
from reknit.pipeline.cli.inputs import documents, pieces
from reknit.pipeline.cli.offline import FILE, SOURCE_NAMES, TARGET_NAMES
from reknit.pipeline.cli.requests import Places, read_line
from reknit.pipeline.cli.turns import holds_transcript, names_a_model, usable_records
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.kafka.partitions import topic_missing
from reknit.pipeline.kafka.sending import Sender, producing
from reknit.pipeline.registry import find_source, source_of_transcript, target_named
from reknit.pipeline.serve.mirrored import Conversations
from reknit.pipeline.settings import Config
from reknit.topics import AGENT_TURNS, LARGEST_INPUT, PROVIDER_EVENTS, qualified
from reknit.topics import headers as names
from reknit.topics.trace import trace_headers

SESSION = click.option("--session", required=True, help="The session's id, the key of its records.")

# Reported reasons for skipped lines: the most frequent ones.
_MOST_REASONS = 10


@click.group("ingest", cls=Group)
def ingest_group() -> None:
    """Pipe turns, provider events or requests to providers into their topic."""


@ingest_group.command("events")
@with_config
@SESSION
@click.option("--source", default="claude-cli", show_default=True, help=f"The source of the events: {SOURCE_NAMES}.")
@click.option("--run", default=None, help="The run's id. Default: a random one.")
@click.option(
    "--framing",
    type=click.Choice(["events", "bytes"]),
    default="events",
    show_default=True,
    help="One record per line, or the bytes in pieces as they are read.",
)
@click.option(
    "--transcript",
    default=None,
    type=click.Path(dir_okay=False),
    help="The program's own transcript of the run. It is sent after the end of the input, and turns are recorded from "
    "it.",
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
    async with _sending(config, PROVIDER_EVENTS, session) as sending:
        ended = b"end of input"
        try:
            async for piece in pieces(file, framing):
                if framing == "bytes":
                    await sending.send(piece, framed)
                elif piece.strip():
                    await sending.send(piece.rstrip(b"\r\n"), framed)
        except asyncio.CancelledError:
            ended = b"interrupted"
        if transcript is not None:
            path, described = transcript
            try:
                async for line in pieces(path, "events"):
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
    ({"messages": [...]}, a list, or the lines of a transcript of Claude Code, Codex or the Gemini CLI) opens the
    session, restores the history and makes a request due. Each record is
    checked before it is sent; the first one that a worker could not use ends the command with 2 and its line number.
    With --mirror a turn gets `request: false` unless it has a `request` already, and a history is restored without a
    request.
    """
    run_with_broker(config, lambda: _send_turns(config, session, file, mirror=mirror))


async def whole_transcripts(found: AsyncIterator[tuple[int, bytes]]) -> AsyncIterator[tuple[int, bytes]]:
    """Yield documents; the lines of a transcript are one, since they have a meaning only together."""
    async for number, document in found:
        more = [each async for _, each in found] if holds_transcript(document) else []
        yield number, b"".join([document, *more])


async def _send_turns(config: Config, session: str, file: str, *, mirror: bool) -> None:
    has_model = config.session.model is not None
    async with _sending(config, AGENT_TURNS, session) as sending:
        try:
            async for number, document in whole_transcripts(documents(file)):
                for record in usable_records(document, number, mirror=mirror):
                    has_model = has_model or names_a_model(record)
                    await sending.send(record)
        finally:
            await sending.delivered()
            say(f"{sending.count} records to {AGENT_TURNS}, session {session}")
            if sending.count and not has_model:
                say(
                    "reknit: neither these records nor `session.model` of this configuration names a model; requests "
                    "of a session without one are rejected (`reknit inspect` shows the reason)"
                )


@ingest_group.command("requests")
@with_config
@click.option("--target", default="", help=f"The target of requests without a known URL: {TARGET_NAMES}.")
@click.option(
    "--session-from", default="", metavar="PLACE", help="The member of a line that names the session: a.dotted.name."
)
@click.option("--producer", default="", help="The program that sent the requests, as name/version.")
@click.option("--producer-from", default="", metavar="PLACE", help="The member of a line that names that program.")
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
    async with _sending(config, AGENT_TURNS, "") as sending:
        async for line in pieces(file, "events"):
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
                record_headers = [*headers, *judged, *logged.trace]
                await sending.send(msgspec.json.encode(record), record_headers, session.encode())
        await sending.delivered()
        said = f"{taken} requests of {len(conversations.sessions)} sessions to {AGENT_TURNS}, {again} sent again"
        say(f"{said}; {passed.total()} lines passed over")
        for why, count in passed.most_common(_MOST_REASONS):
            say(f"{count:>8}  {why}")


class _Sender:
    """Sends records to one topic; a record without a key of its own gets the key of the command's session.

    The records of a session have the trace of the environment (``TRACEPARENT``, ``TRACESTATE``), the carrier that
    OpenTelemetry has for programs. Records of many sessions belong to traces of their own.
    """

    def __init__(self, sender: Sender, topic: str, key: bytes) -> None:
        self._sender = sender
        self._topic = topic
        self._key = key
        self._trace = trace_headers(os.environ) if key else ()
        self.count = 0

    async def send(
        self, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = (), key: bytes | None = None
    ) -> None:
        """Send a record; wait while too many are in flight.

        Raises:
            InputError: the record is larger than the topic allows.
        """
        try:
            await self._sender.send(self._topic, value, key or self._key, [*headers, *self._trace])
        except MessageSizeTooLargeError as error:
            size = len(value or b"")
            raise InputError("record_too_large", f"a record of {size} bytes; {LARGEST_INPUT} is the most") from error
        self.count += 1

    async def delivered(self) -> None:
        await self._sender.flush()


@asynccontextmanager
async def _sending(config: Config, topic: str, session: str) -> AsyncIterator[_Sender]:
    """Yield a sender for one session; every record is delivered when the block ends.

    Raises:
        BrokerError: no broker answers, or it refuses.
        InputError: the topic does not exist.
    """
    name = qualified(topic, config.prefix)
    async with producing(config) as producer:
        # Not partitions_for: for a missing topic it asks without end, or makes the broker create the topic.
        cluster = await producer.client.fetch_all_metadata()
        if not cluster.partitions_for_topic(name):
            raise topic_missing(name)
        sending = _Sender(Sender(config, producer), name, session.encode())
        yield sending
        await sending.delivered()
