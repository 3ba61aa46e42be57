"""The reference sender: published requests to a provider or a program, and what it says back as events.

It shows what a sender of one's own has to do, and is one for demos. A session's requests are sent one after the other,
those of different sessions side by side. A request that a newer one supersedes is not sent, or broken off. What may
pass (429, 5xx, a broken connection) is tried again as late as the provider says, else with growing pauses. A place is
committed once every request before it is done, so after a crash some are sent a second time, under the same run: the
stream side takes that for another attempt, and the first is withdrawn. A refusal goes back whole, with its status and
the request's id, and is compared with the rules there.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Final, Protocol

import aiohttp
import structlog
from msgspec import Struct

from pipeline.client import Events, Place
from pipeline.client.consumers import Request, Requests
from topics.headers import Framing

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
_REFUSED_FROM: Final = 400
_MAY_PASS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# A program prints one event a line; a line may hold a whole message with its images.
_LONGEST_LINE: Final = 64 * 1024 * 1024

log = structlog.get_logger(__name__)


class Answer(Struct, frozen=True):
    """A piece of an answer. ``status`` is that of its HTTP response, None where there is none."""

    data: bytes
    status: int | None = None


class TryAgainError(Exception):
    """The answer did not come, and may if it is asked for again; ``seconds`` is how long the provider wants to rest."""

    def __init__(self, reason: str, seconds: float | None = None, body: Answer | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.seconds = seconds
        self.body = body


class Route(Protocol):
    """A way to whoever answers requests. ``framing`` says whether its pieces are whole events."""

    framing: Framing

    def answer(self, request: Request) -> AsyncIterator[Answer]:
        """Send a request, and give its answer as it comes.

        Raises:
            TryAgainError: there was none, and there may be one later.
        """


class Http:
    """A provider's endpoint; ``{model}`` in the URL is the request's model. ``headers`` go with each request."""

    framing: Framing = "bytes"

    def __init__(self, client: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = {"content-type": "application/json", **headers}

    async def answer(self, request: Request) -> AsyncIterator[Answer]:
        """See ``Route``."""
        model = request.headers.model
        url = self._url.replace("{model}", model if isinstance(model, str) else "")
        try:
            async with self._client.post(url, data=request.body, headers=self._headers) as response:
                if response.status in _MAY_PASS:
                    body = Answer(await response.read(), response.status)
                    raise TryAgainError(f"HTTP {response.status}", _rest(response.headers), body)
                if response.status >= _REFUSED_FROM:
                    # Whole: it is judged by its words, and a piece of it would be another answer.
                    yield Answer(await response.read(), response.status)
                    return
                async for data in response.content.iter_any():
                    yield Answer(data, response.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TryAgainError(type(error).__name__) from error


class Program:
    """A program that reads a request from standard input and prints events, one a line."""

    framing: Framing = "events"

    def __init__(self, command: list[str]) -> None:
        self._command = command

    async def answer(self, request: Request) -> AsyncIterator[Answer]:
        """See ``Route``."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_LONGEST_LINE
        )
        assert process.stdin is not None  # noqa: S101  asked for above
        assert process.stdout is not None  # noqa: S101  as above
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(request.body or b"")
                await process.stdin.drain()
            process.stdin.close()
            async for line in process.stdout:
                if line.strip():
                    yield Answer(line.rstrip(b"\r\n"))
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()


class _Session:
    """What a session waits for: its requests in order, and the one that is being sent."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.sent: str | None = None
        self.task: asyncio.Task[None] | None = None


class Sender:
    """Sends what ``requests`` holds for one target.

    Args:
        requests: where requests are read, in a group of the senders'.
        events: where the answers go.
        route: who answers.
        target: whose requests are sent; those for other targets are passed over.
        rate: requests a second at most, None without a limit.
        attempts: how often one request is tried.
    """

    def __init__(
        self,
        requests: Requests,
        events: Events,
        route: Route,
        *,
        target: str,
        rate: float | None = None,
        attempts: int = 6,
    ) -> None:
        self._requests = requests
        self._events = events
        self._route = route
        self._target = target
        self._interval = 0.0 if rate is None else 1 / rate
        self._attempts = attempts
        self._free_at = 0.0
        self._sessions: dict[str, _Session] = {}
        # Places by partition in the order in which they were read, with whether each is done.
        self._places: dict[int, dict[Place, bool]] = {}

    async def run(self) -> None:
        """Send until cancelled; what is on its way then is broken off, and comes again to the next sender."""
        try:
            async for request in self._requests:
                self._places.setdefault(request.place.partition, {})[request.place] = False
                if request.headers.target == self._target:
                    await self._put(request)
                else:
                    await self._finish(request)
        finally:
            tasks = [each.task for each in self._sessions.values() if each.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, request: Request) -> None:
        """Put a request behind those of its session, in place of the one that it supersedes."""
        session = self._sessions.setdefault(request.session, _Session())
        stale = [each for each in session.waiting if each.headers.request_id == request.headers.supersedes]
        for each in stale:
            session.waiting.remove(each)
            await self._finish(each)
        session.waiting.append(request)
        if session.task is not None and session.sent == request.headers.supersedes:
            session.task.cancel()
        if session.task is None:
            session.task = asyncio.create_task(self._work(request.session, session))

    async def _work(self, name: str, session: _Session) -> None:
        """Send a session's requests until none is left."""
        while session.waiting:
            request = session.waiting.pop(0)
            session.sent = request.headers.request_id
            try:
                ended = request.lost or await self._send(request)
            except asyncio.CancelledError:
                if not session.waiting:
                    raise  # the sender stops
                ended = "superseded"
            await self._events.end_run(name, run=request.headers.request_id, reason=ended)
            await self._finish(request)
        del self._sessions[name]

    async def _send(self, request: Request) -> str:
        """Send a request as often as it takes; why its run ended."""
        for attempt in range(self._attempts):
            await self._pace()
            try:
                async for answer in self._route.answer(request):
                    await self._feed(request, answer)
            except TryAgainError as error:
                last = attempt + 1 == self._attempts
                log.warning("not answered", session=request.session, reason=error.reason, attempt=attempt + 1)
                if last:
                    if error.body is not None:
                        await self._feed(request, error.body)
                    return error.reason
                await asyncio.sleep(_pause(attempt) if error.seconds is None else min(error.seconds, _LONGEST_PAUSE))
            else:
                return "end of stream"
        return "never tried"

    async def _feed(self, request: Request, answer: Answer) -> None:
        await self._events.feed(
            request.session,
            answer.data,
            run=request.headers.request_id,
            framing=self._route.framing,
            request_id=request.headers.request_id,
            status=answer.status,
        )

    async def _pace(self) -> None:
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + self._interval
        await asyncio.sleep(self._free_at - self._interval - now)

    async def _finish(self, request: Request) -> None:
        """Note that a request is done, and commit as far as all are."""
        places = self._places[request.place.partition]
        places[request.place] = True
        behind = None
        while places and places[next(iter(places))]:
            behind = next(iter(places))
            del places[behind]
        if behind is not None:
            await self._requests.commit(behind)


def _pause(attempt: int) -> float:
    """Seconds to wait after the nth attempt: growing, and never the same for all who were refused together."""
    longest: float = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  no secret hangs on it


def _rest(headers: Mapping[str, str]) -> float | None:
    """Seconds that a provider asks to wait: in its own header, or as HTTP has it, a number or a date."""
    given = headers.get("retry-after-ms")
    if given is not None and given.replace(".", "", 1).isdecimal():
        return float(given) / 1000
    given = headers.get("retry-after", "")
    if given.replace(".", "", 1).isdecimal():
        return float(given)
    date = email.utils.parsedate_tz(given)
    return None if date is None else max(email.utils.mktime_tz(date) - time.time(), 0.0)
