"""A gateway in front of a loopback provider that refuses what the rules refuse; both in this process."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from msgspec import Struct

from reknit.pipeline.registry import TARGETS
from reknit.pipeline.serve.endpoints import endpoint_of
from reknit.pipeline.serve.server import Listening, serve
from reknit.pipeline.serve.upstreams import Upstream, Upstreams
from reknit.pipeline.validation import validate


class Received(Struct):
    """A request as the provider received it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Provider:
    """A provider on the loopback address.

    ``answer`` is called with each valid request. A request to a model that breaks a hard rule gets 400.
    """

    def __init__(self, answer=None):
        self.received = []
        self.answer = answer or (lambda _: _done(web.json_response({"ok": True})))

    async def handle(self, request):
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.method, request.raw_path, headers, body))
        endpoint = endpoint_of(request.path)
        if endpoint is not None and request.method == "POST":
            broken = [each for each in validate(body, endpoint.target, endpoint.model) if each.severity == "hard"]
            if broken:
                return web.json_response({"type": "error", "error": {"message": broken[0].message}}, status=400)
        return await self.answer(request)

    @asynccontextmanager
    async def running(self):
        """Yield the provider's URL."""
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, auto_decompress=False, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def _done(response):
    return response


@asynccontextmanager
async def gateway_to(url, *, upstreams=None, tracing=None, **options):
    """Yield the URL of a gateway to a provider, and that of its status."""
    given = upstreams or [Upstream(name="provider", to=url)]
    started = asyncio.get_running_loop().create_future()
    listening = Listening(**{"metrics_port": 0, "drain_seconds": 5.0, **options})
    serving = serve(Upstreams(given, TARGETS), listening, lambda *urls: started.set_result(urls), tracing=tracing)
    work = asyncio.create_task(serving)
    await asyncio.wait([work, started], return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        await work
    try:
        yield started.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@asynccontextmanager
async def gateway(answer=None, **options):
    """Yield a provider, the URL of a gateway to it, and a client."""
    provider = Provider(answer)
    async with (
        provider.running() as url,
        gateway_to(url, **options) as (gateway_url, _),
        aiohttp.ClientSession(auto_decompress=False) as client,
    ):
        yield provider, gateway_url, client


def streamed(pieces, content_type="text/event-stream", *, breaks=False, more=None, pause=0.0, silence=0.0):
    """Return an answer that sends these pieces.

    Args:
        pieces: of the body.
        content_type: of the answer.
        breaks: the connection is aborted after them.
        more: the answer declares its length, which is larger by this number of bytes.
        pause: seconds before each piece.
        silence: seconds after the last piece.
    """
    length = {} if more is None else {"content-length": str(sum(map(len, pieces)) + more)}

    async def answer(request):
        response = web.StreamResponse(headers={"content-type": content_type, **length})
        await response.prepare(request)
        for piece in pieces:
            await asyncio.sleep(pause)
            await response.write(piece)
        await asyncio.sleep(silence)
        if breaks:
            # The client receives all written bytes before the connection ends.
            await asyncio.sleep(0.05)
            request.transport.abort()
        return response

    return answer


def body(*messages, **more):
    """The JSON of a request to Anthropic, with spaces that no serialiser of Reknit writes."""
    return json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": list(messages), **more}).encode()
