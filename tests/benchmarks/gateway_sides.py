"""The other processes of bench_gateway: a provider, and the proxy that is the base line.

    python tests/benchmarks/gateway_sides.py {provider|bare} PORT [UPSTREAM]

The provider answers at once: an answer of 2 kB, or a stream with one write for each event. The bare proxy is the least
that a streaming proxy on aiohttp does: it drops hop-by-hop headers and passes everything else on as it comes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys

import aiohttp
import uvloop
from aiohttp import web

EVENTS = 200
# Each event arrives alone, as from a model. Faster events arrive several at once while other processes run.
_PAUSE_SECONDS = 0.004
_TEXT = "The second step fails, since the cache key names a file that the first step has moved. " * 20
_DROPPED = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "proxy-connection"),
    }
)


def _document(answer):
    data = json.dumps(answer).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_MESSAGE = _document(
    {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": _TEXT}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
)  # fmt: skip
_COMPLETION = _document(
    {
        "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o", "usage": _USAGE,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": _TEXT}}],
    }
)  # fmt: skip
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class _Provider(asyncio.Protocol):
    """Answers requests of one connection, one after the other."""

    def __init__(self, events):
        self._chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events] + [b"0\r\n\r\n"]
        self._data = bytearray()
        self._tasks = set()

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._data += data
        head, found, body = bytes(self._data).partition(b"\r\n\r\n")
        if not found:
            return
        names = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(names.get(b"content-length", 0)):
            return
        self._data.clear()
        if b'"stream":true' in body:
            task = asyncio.ensure_future(self._stream())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._transport.write(_COMPLETION if b"/chat/" in head.partition(b"\r\n")[0] else _MESSAGE)

    async def _stream(self):
        self._transport.write(_STREAM_HEAD)
        for chunk in self._chunks:
            self._transport.write(chunk)
            await asyncio.sleep(_PAUSE_SECONDS)


async def provider(port):
    from bench_streams import made

    events = made("anthropic", EVENTS)
    await asyncio.get_running_loop().create_server(lambda: _Provider(events), "127.0.0.1", port)
    await asyncio.Event().wait()


async def bare(port, upstream):
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
    )

    async def handle(request):
        body = await request.read()
        url = upstream + request.path_qs
        async with client.request(
            request.method, url, data=body, headers=_kept(request.headers), allow_redirects=False
        ) as answer:
            headers = _kept(answer.headers)
            length = answer.headers.get("content-length")
            if length is not None:
                headers["content-length"] = length
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


def _kept(headers):
    return {name: value for name, value in headers.items() if name.lower() not in _DROPPED}


if __name__ == "__main__":
    _, role, number, *more = sys.argv
    uvloop.run({"provider": provider, "bare": bare}[role](int(number), *more))
