"""Exchanges through a gateway of its own process, with faults of providers and clients that a plan draws from a seed.

A provider on the loopback address answers in this process. It judges each body by the rules, refuses reasoning whose
signature is of another key, and inflicts the fault that the plan has for the exchange. A client compares what it gets.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import signal
import socket
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from aiohttp import web
from build import call, result, said, user
from msgspec import Struct
from sender_runs import anthropic

from reknit.pipeline.validation import validate

ROOT = Path(__file__).parents[1]
MODEL = "claude-sonnet-4-0"
TOOL = {"name": "ls", "input_schema": {"type": "object"}}
REFUSED = "EpwBREFUSED"
NUMBER = "x-exchange"
# A client that left is noticed by far sooner.
LEFT_SECONDS = 30.0
PATIENCE = aiohttp.ClientTimeout(total=60)
# The client gets the provider's bytes, an error of the gateway, or a connection that breaks off.
EXACT, TYPED, BROKEN, LEFT = "exact", "typed", "broken", "left"

STATUSES = {
    "busy": (429, {"retry-after": "7", "x-should-retry": "true"}, "application/json"),
    "overloaded": (529, {"retry-after-ms": "30"}, "application/json"),
    "unavailable": (503, {"retry-after": "1"}, "text/html"),
    "failed": (500, {}, "application/json"),
}
# Each fault with its share, and what the client must get.
FAULTS = {
    "none": (24, EXACT),
    "stream": (24, EXACT),
    "slow stream": (4, EXACT),
    "slow body": (4, EXACT),
    "error in stream": (3, EXACT),
    "busy": (4, EXACT),
    "overloaded": (4, EXACT),
    "unavailable": (4, EXACT),
    "failed": (3, EXACT),
    "reset before": (5, TYPED),
    "reset after head": (4, BROKEN),
    "reset in document": (4, BROKEN),
    "reset in stream": (5, BROKEN),
    "clean end in stream": (5, BROKEN),
    "cut event": (4, BROKEN),
    "client leaves": (4, LEFT),
}


class Planned(Struct, frozen=True):
    """One exchange: its number, its fault, and the client's body."""

    number: int
    fault: str
    body: bytes

    @property
    def expected(self):
        """The outcome for the client if no gateway is killed."""
        return FAULTS[self.fault][1]


class Outcome(Struct):
    """The answer that a client got: ``kind`` is one of the four; ``is_hit``: the gateway was killed meanwhile."""

    kind: str
    status: int = 0
    data: bytes = b""
    request_id: str = ""
    healed: str = ""
    retry_after: str | None = None
    is_hit: bool = False


def content_digest(body):
    """Return a digest of a JSON body that does not depend on white space and the order of members."""
    return hashlib.sha256(json.dumps(json.loads(body), sort_keys=True).encode()).hexdigest()


def is_right(planned, outcome, sent):
    """Return True if a client got what it must, after the fault of its exchange.

    ``sent`` are the status and the bytes of the provider's last answer.
    """
    status, data = sent
    if outcome.kind == EXACT:
        # Only what the provider ended itself may end.
        return planned.expected == EXACT and (outcome.status, outcome.data) == (status, data)
    if outcome.kind == BROKEN:
        # The provider's bytes up to some point, and perhaps an error event.
        is_prefix = data.startswith(outcome.data) or outcome.data.startswith(data)
        return is_prefix and (planned.expected == BROKEN or outcome.is_hit)
    if outcome.kind == TYPED:
        error = json.loads(outcome.data)
        is_typed = outcome.status >= 500 and error["type"] == "error" and bool(error["error"]["type"])
        return is_typed and (planned.expected == TYPED or outcome.is_hit)
    return planned.expected == LEFT


class Conversations:
    """Growing histories with damage of every kind that repair handles, by a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)  # noqa: S311  a plan, no secret
        self.signatures = 0

    def plan(self, count, turns=8):
        """Yield conversations as lists of planned exchanges; their numbers are unique."""
        number = 0
        while number < count:
            history, planned, missing = [user(f"question {number}")], [], []
            for _ in range(min(turns, count - number)):
                planned.append(self._planned(number, history))
                missing = self._grow(history, number, missing)
                number += 1
            yield planned

    def _planned(self, number, history):
        names = list(FAULTS)
        fault = self.random.choices(names, [FAULTS[name][0] for name in names])[0]
        body = {"model": MODEL, "max_tokens": 64, "tools": [TOOL], "messages": history}
        if "stream" in fault or fault in {"cut event", "client leaves"}:
            body["stream"] = True
        return Planned(number, fault, json.dumps(body).encode())

    def _grow(self, history, number, missing):
        """Add an answer and what the user sends after it; about half of it is damaged.

        Some of the ``missing`` results come late. Return the calls of this answer that have no result yet.
        """
        draw = self.random.random
        blocks = []
        if draw() < 0.15:
            self.signatures += 1
            blocks.append({"type": "thinking", "thinking": "Hm.", "signature": f"{REFUSED}{self.signatures}"})
        names = [f"call_{number}_{at}" for at in range(self.random.randint(0, 3))]
        history.append(said(*blocks, f"answer {number}", *(call(name) for name in names)))
        results = [result(name, "done") for name in names if draw() < 0.7]
        missing_now = [name for name in names if name not in {each["tool_use_id"] for each in results}]
        results += [result(name, "late") for name in missing if draw() < 0.3]
        if draw() < 0.2:
            results.append(result(f"unknown_{number}", "orphan"))
        if results and draw() < 0.2:
            results.append(results[0])
        if draw() < 0.3:
            results.reverse()
        history.append(user(*results, *([f"words {number}"] if draw() < 0.6 or not results else [])))
        return missing_now


class FaultyProvider:
    """The provider.

    Attributes:
        plans: the exchanges that it answers, by number.
        sent: by exchange, the status and the bytes of the last answer.
        bodies: by exchange, the digest of the content of the last body that was not refused.
        invalid: bodies that broke a hard rule.
        refused: how often each signature was refused.
        active: the answers in progress.
        not_left: answers that were still written long after their client had left.
    """

    def __init__(self, plans=()):
        self.plans = {planned.number: planned for planned in plans}
        self.sent, self.bodies, self.invalid, self.refused = {}, {}, [], Counter()
        self.active = self.not_left = 0

    @property
    def refused_again(self):
        """How many refusals were of a signature that had been refused before."""
        return self.refused.total() - len(self.refused)

    @asynccontextmanager
    async def running(self):
        """Yield the provider's URL."""
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/messages", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def handle(self, request):
        self.active += 1
        try:
            return await self._answer(request)
        except ConnectionError:  # the gateway was killed, or its client has left
            return web.Response()
        finally:
            self.active -= 1

    async def _answer(self, request):
        planned = self.plans[int(request.headers[NUMBER])]
        body = await request.read()
        if any(each.severity == "hard" for each in validate(body, "anthropic")):
            self.invalid.append(body)
        refused = self._refusal(body)
        if refused is not None:
            return self._whole(planned, 400, refused, {}, "application/json")
        self.bodies[planned.number] = content_digest(body)
        match planned.fault:
            case "none" | "slow body":
                answer = {"type": "message", "role": "assistant", "content": [], "id": f"msg_{planned.number}"}
                return self._whole(planned, 200, json.dumps(answer).encode(), {}, "application/json")
            case "reset before":
                _abort(request)
                return web.Response()
            case "reset after head" | "reset in document":
                return await self._half_document(planned, request)
            case fault if fault in STATUSES:
                status, headers, kind = STATUSES[fault]
                error = {"type": "error", "error": {"type": "api_error", "message": f"{fault} {planned.number}"}}
                data = json.dumps(error).encode() if "json" in kind else b"<html>down</html>"
                return self._whole(planned, status, data, headers, kind)
        return await self._stream(planned, request)

    def _refusal(self, body):
        """Return the refusal of the first block of reasoning with a signature of another key."""
        for at, message in enumerate(json.loads(body)["messages"]):
            for place, block in enumerate(message["content"] if isinstance(message["content"], list) else ()):
                signature = block.get("signature", "")
                if signature.startswith(REFUSED):
                    self.refused[signature] += 1
                    words = f"messages.{at}.content.{place}: Invalid `signature` in `thinking` block"
                    return json.dumps(
                        {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
                    ).encode()
        return None

    def _whole(self, planned, status, data, headers, kind):
        self.sent[planned.number] = status, data
        return web.Response(status=status, body=data, headers=headers, content_type=kind)

    async def _half_document(self, planned, request):
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
        await response.prepare(request)
        data = b"" if planned.fault == "reset after head" else b'{"type": "message", "content": ['
        await response.write(data)
        self.sent[planned.number] = 200, data
        await asyncio.sleep(0.01)
        _abort(request)
        return response

    async def _stream(self, planned, request):
        pieces = anthropic(message_id=f"m{planned.number}", text="words " * 20)
        match planned.fault:
            case "error in stream":
                event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
                pieces = [*pieces[:3], f"event: error\ndata: {json.dumps(event)}\n\n".encode()]
            case "reset in stream" | "clean end in stream":
                pieces = pieces[: 3 + planned.number % (len(pieces) - 3)]
            case "cut event":
                pieces = [*pieces[:3], pieces[3][: len(pieces[3]) // 2]]
        self.sent[planned.number] = 200, b"".join(pieces)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces[:4] if planned.fault == "client leaves" else pieces:
            await response.write(piece)
            if planned.fault == "slow stream":
                await asyncio.sleep(0.01)
        if planned.fault == "client leaves":
            await self._until_left(response)
        elif planned.fault in {"reset in stream", "cut event"}:
            await asyncio.sleep(0.01)
            _abort(request)
        return response

    async def _until_left(self, response):
        """Write until the connection breaks."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LEFT_SECONDS
        with suppress(ConnectionError):
            while loop.time() < end:
                await response.write(b'event: ping\ndata: {"type":"ping"}\n\n')
                await asyncio.sleep(0.02)
            self.not_left += 1


class GatewayProcess:
    """The gateway as a process that is killed and started again, on one port and with one state directory.

    ``settings`` is the text of its configuration file, if it has one.
    """

    def __init__(self, to, directory, settings=""):
        self.directory = directory
        self.port, self.metrics_port = _free_port(), _free_port()
        options = ["--listen", f"127.0.0.1:{self.port}", "--to", to, "--metrics-port", str(self.metrics_port)]
        if settings:
            (directory / "serve.toml").write_text(settings)
            options += ["--config", str(directory / "serve.toml")]
        self.command = [sys.executable, "-m", "reknit", "serve", *options, "--state-dir", str(directory)]
        self.url = f"http://127.0.0.1:{self.port}/v1/messages"
        self.process = None
        # The number of the process; None while it dies and the next one starts.
        self.life, self.lives = None, 0

    @asynccontextmanager
    async def running(self):
        """Start it; no process is left afterwards, whatever happens."""
        await self.start()
        try:
            yield self
        finally:
            if self.process.returncode is None:
                await self.kill()

    async def start(self):
        """Start it, and wait until it accepts connections."""
        with (self.directory / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*self.command, cwd=ROOT, stderr=log, stdout=log)
        while True:
            assert self.process.returncode is None, (self.directory / "log").read_text()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                await writer.wait_closed()
                break
        self.lives += 1
        self.life = self.lives

    async def kill(self):
        """Kill it, without a chance to write anything."""
        self.life = None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self):
        self.process.terminate()
        assert await self.process.wait() == 0

    def resident_kib(self):
        """Return the memory of the process; None where the system does not show it."""
        status = Path(f"/proc/{self.process.pid}/status")
        if not status.exists():
            return None
        lines = (line.split() for line in status.read_text().splitlines())
        return next(int(words[1]) for words in lines if words[0] == "VmRSS:")


class FaultClient:
    """A client that tries again as long as no gateway answers, as SDKs do."""

    def __init__(self, session, gateway, pause=0.05):
        self.session, self.gateway, self.pause = session, gateway, pause

    async def exchange(self, planned):
        """Return the outcome of an exchange."""
        life = self.gateway.life
        while True:
            try:
                outcome = await self._attempt(planned)
            except (aiohttp.ClientConnectionError, ConnectionError):
                assert life is None or self.gateway.life != life, f"no connection for exchange {planned}"
                await asyncio.sleep(self.pause)
                continue
            outcome.is_hit = life is None or self.gateway.life != life
            return outcome

    async def _attempt(self, planned):
        headers = {NUMBER: str(planned.number), "x-api-key": "k", "content-type": "application/json"}
        data = _in_pieces(planned.body) if planned.fault == "slow body" else planned.body
        async with self.session.post(self.gateway.url, data=data, headers=headers, timeout=PATIENCE) as response:
            found = Outcome(EXACT, response.status, healed=response.headers.get("x-reknit-healed", ""))
            found.retry_after = response.headers.get("retry-after")
            found.request_id = response.headers.get("x-reknit-request-id", "")
            try:
                async for piece in response.content.iter_any():
                    found.data += piece
                    if planned.fault == "client leaves" and response.status == web.HTTPOk.status_code:
                        found.kind = LEFT
                        response.close()
                        return found
            except (aiohttp.ClientError, ConnectionError):
                found.kind = BROKEN
        if found.kind == EXACT and b'"Reknit: ' in found.data:
            found.kind = TYPED
        return found


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _abort(request):
    if request.transport is not None:  # the gateway was killed meanwhile
        request.transport.abort()


async def _in_pieces(body):
    for start in range(0, len(body), 1 + len(body) // 3):
        yield body[start : start + 1 + len(body) // 3]
        await asyncio.sleep(0.01)
