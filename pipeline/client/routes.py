"""Routes: send one request to a provider's endpoint over HTTP, or to a program, and yield the answer.

A route makes one attempt. The sender decides whether the answer is complete, what to publish, and what follows a
failure.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import re
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final, Protocol
from urllib.parse import parse_qsl, quote, urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from reknit.pipeline.client.consumers import Request
from reknit.pipeline.client.retries import asked_pause
from reknit.pipeline.errors import InputError, ReknitError, error_name
from reknit.pipeline.urls import HIDDEN, host_of
from reknit.topics.headers import Framing
from reknit.topics.trace import CARRIED

# Answers from this status on are refusals. Redirects are among them, since none is followed.
REFUSED_FROM: Final = 300
_REDIRECTS: Final = range(300, 400)
_MAY_PASS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_UNAUTHORIZED: Final = 401
# Bytes of a refusal that are read. The rules use the first 16 KiB.
_LONGEST_REFUSAL: Final = 1024 * 1024
# Keys of providers have 30 characters and more, and a version or a media type is shorter than this.
_SHORTEST_SECRET: Final = 20
# Bytes of one line of a program. A line may hold a whole message with its images.
_LONGEST_LINE: Final = 64 * 1024 * 1024
# An answer has no time limit, but silence has. Providers send a keep-alive several times a minute.
SILENCE_SECONDS: Final = 600.0
# A program may run a tool for long without printing anything.
PROGRAM_SILENCE_SECONDS: Final = 3600.0
_CONNECT_SECONDS: Final = 30.0
# From SIGTERM to SIGKILL.
_END_SECONDS: Final = 5.0
# Start errors that persist. Others, such as too many processes, may pass.
_CANNOT_START: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.EISDIR}
)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a token of RFC 9110, 5.6.2


class Answer(Struct, frozen=True):
    """A piece of an answer.

    Attributes:
        data: bytes as received. A refusal is one piece.
        status: HTTP status; None for a program.
        is_document: the response declares one JSON document, not a stream.
        reason: of a refusal, for the log and the end of the run, without content.
    """

    data: bytes
    status: int | None = None
    is_document: bool = False
    reason: str = ""


class TryAgainError(Exception):
    """No complete answer came, and another attempt may get one; ``seconds`` is the pause that the provider asks for."""

    def __init__(self, reason: str, seconds: float | None = None, body: Answer | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.seconds = seconds
        self.body = body


class RouteError(ReknitError):
    """The route cannot answer any request until a person changes something."""

    fault = "caller"


class Route(Protocol):
    """Sends requests. With ``framing`` ``events`` each piece of an answer is one event; with ``bytes`` any piece.

    ``url`` is that of the endpoint; "" for a program.
    """

    framing: Framing
    url: str

    def answer(self, request: Request) -> AsyncGenerator[Answer, None]:
        """Send a request once and yield its answer as it arrives. A refusal is one piece with its status.

        Raises:
            TryAgainError: the attempt failed; another one may succeed.
            RouteError: no request can be answered until a person helps.
        """


class Http:
    """A provider's endpoint. ``{model}`` in the URL is the request's model. Redirects are not followed.

    The trace of a request goes with it as ``traceparent`` and ``tracestate``.

    Args:
        client: the connections.
        url: of the endpoint.
        headers: sent with each request and never logged.
        silence_seconds: an answer that sends nothing for longer is broken off.

    Raises:
        RouteError: the URL or a header is not valid.
    """

    framing: Framing = "bytes"

    def __init__(
        self,
        client: aiohttp.ClientSession,
        url: str,
        headers: Mapping[str, str],
        *,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._client = client
        self.url = _checked_url(url)
        self._headers = {"content-type": "application/json", **_checked_headers(headers)}
        self._secrets = _words_of(url, self._headers)
        self._patience = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds)

    async def answer(self, request: Request) -> AsyncGenerator[Answer, None]:
        """See ``Route``."""
        model = request.headers.model
        # A model's name comes from a session. It must not add a query or a fragment to the URL.
        url = self.url.replace("{model}", quote(model, safe="/:@") if isinstance(model, str) else "")
        try:
            async with self._client.post(
                url,
                data=io.BytesIO(request.body or b""),
                headers=self._headers | _without(request.trace, self._headers),
                allow_redirects=False,
                timeout=self._patience,
            ) as response:
                if response.status >= REFUSED_FROM:
                    yield await self._refusal(response, url)
                    return
                is_document = response.content_type == "application/json"
                async for data in response.content.iter_any():
                    yield Answer(data, response.status, is_document)
        except aiohttp.InvalidURL as error:
            raise RouteError("bad_url", "the URL cannot be used for the request's model", path="--to") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TryAgainError(error_name(error)) from error

    async def _refusal(self, response: aiohttp.ClientResponse, url: str) -> Answer:
        """Read a refusal.

        Raises:
            TryAgainError: the status is one that may pass.
            RouteError: the provider refuses the credentials.
        """
        status = response.status
        if status in _REDIRECTS:
            target = response.headers.get("location")
            where = f": redirect to {host_of(target, url)}, which is not followed" if target else ""
            reason = f"HTTP {status}{where}"
            # The body of a redirect is a page for browsers, or empty. The event holds the sender's own message.
            error = {"error": {"type": "redirect", "message": reason}}
            return Answer(msgspec.json.encode(error), status, reason=reason)
        if status == _UNAUTHORIZED:
            message = f"{host_of(url)} refuses the credentials (HTTP 401); no request is lost"
            raise RouteError("not_authenticated", message, path="--to")
        body = await _read_bounded(response)
        for secret in self._secrets:
            body = body.replace(secret, HIDDEN.encode())
        refusal = Answer(body, status, reason=f"HTTP {status}")
        if status in _MAY_PASS:
            raise TryAgainError(f"HTTP {status}", asked_pause(response.headers), refusal)
        return refusal


def _without(trace: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a trace that are not set for all requests."""
    given = {name.lower() for name in headers}
    return {name: value for name, value in trace.items() if name not in given}


def _words_of(url: str, headers: Mapping[str, str]) -> list[bytes]:
    """Words that may be credentials, in the URL's user part and query and in headers. A refusal may quote them."""
    parts = urlsplit(url)
    values = [parts.username or "", parts.password or "", *(value for _, value in parse_qsl(parts.query))]
    words = [word for value in (*values, *headers.values()) for word in value.split()]
    return [word.encode() for word in dict.fromkeys(words) if len(word) >= _SHORTEST_SECRET]


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of a refusal up to the limit, or up to where the connection breaks."""
    pieces: list[bytes] = []
    left = _LONGEST_REFUSAL
    with suppress(aiohttp.ClientError, TimeoutError):
        while left and (piece := await response.content.read(left)):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise RouteError("bad_url", "expected a URL that begins with http:// or https:// and names a host", path="--to")
    return url


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Strip white space around values, which is not part of them (RFC 9110, 5.5), and refuse control characters."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise RouteError("bad_header", "a header name has letters, digits and hyphens only", path="--header")
        found[name] = value.strip()
        if any(ord(character) < 0x20 and character != "\t" for character in found[name]):
            raise RouteError("bad_header", f"the value of {name} has a line break or another control character")
    return found


class Program:
    """A program that reads a request from standard input and prints events, one a line.

    The trace of a request is in the environment, as ``TRACEPARENT`` and ``TRACESTATE``: OpenTelemetry's carrier for
    programs.

    Args:
        command: the program and its arguments.
        silence_seconds: a program that prints nothing for longer is ended.

    Raises:
        RouteError: the program does not exist or is not executable.
    """

    framing: Framing = "events"
    url = ""

    def __init__(self, command: list[str], *, silence_seconds: float = PROGRAM_SILENCE_SECONDS) -> None:
        if not command or shutil.which(command[0]) is None:
            named = command[0] if command else "an empty command"
            raise RouteError("program_missing", f"{named} is not an executable program", path="--exec")
        self._command = command
        self._silence = silence_seconds

    async def answer(self, request: Request) -> AsyncGenerator[Answer, None]:
        """See ``Route``."""
        process = await self._start(request.trace)
        # Write while reading: a program may print before it has read everything.
        writing = asyncio.create_task(_write(process, request.body or b""))
        try:
            while line := await self._line(process):
                if line.strip():
                    yield Answer(line.rstrip(b"\r\n"))
            status = await asyncio.wait_for(process.wait(), self._silence)
            if status:
                raise TryAgainError(_ending(status))
        except TimeoutError as error:
            raise TryAgainError("silence") from error
        finally:
            await _end(process)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _start(self, trace: Mapping[str, str]) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_LONGEST_LINE,
                start_new_session=True,
                env=_environment(trace),
            )
        except OSError as error:
            if error.errno in _CANNOT_START:
                said = f"{self._command[0]} cannot be run ({error_name(error)})"
                raise RouteError("program_missing", said, path="--exec") from error
            raise TryAgainError(error_name(error)) from error

    async def _line(self, process: Process) -> bytes:
        assert process.stdout is not None  # noqa: S101  asked for above
        try:
            return await asyncio.wait_for(process.stdout.readline(), self._silence)
        except ValueError as error:
            raise InputError("too_large", f"a line of the program exceeds {_LONGEST_LINE} bytes") from error


def _environment(trace: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: this process's own, with the trace of the request in the place of its."""
    own = {name: value for name, value in os.environ.items() if not trace or name.lower() not in CARRIED}
    return own | {name.upper(): value for name, value in trace.items()}


async def _write(process: Process, body: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  asked for above
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: Process) -> None:
    """End a program and the programs that it started, which would otherwise still act for a finished request."""
    # asyncio reports the end of a process only after its pipes have closed, so the rest is read first.
    draining = asyncio.create_task(_drain(process))
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(draining), _END_SECONDS)
            await asyncio.wait_for(process.wait(), _END_SECONDS)
            return
    draining.cancel()


async def _drain(process: Process) -> None:
    assert process.stdout is not None  # noqa: S101  asked for above
    while await process.stdout.read(_LONGEST_REFUSAL):
        pass


def _ending(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"signal {-status}"
