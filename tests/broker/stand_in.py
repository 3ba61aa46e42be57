"""A provider on this machine, which replaces Anthropic's where requests are really sent."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web


def sse(words: str) -> list[bytes]:
    """A streamed answer, cut where no event ends."""
    message = {"id": f"msg_{words}", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    events = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    whole = b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)
    return [whole[at : at + 90] for at in range(0, len(whole), 90)]


class Provider:
    """A provider that refuses at first, overloaded, and then answers with how many messages it was sent."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.headers: dict[str, str] = {}
        self.arrived = asyncio.Semaphore(0)
        self.refusals = 1
        self.refusal = (529, "overloaded_error", "Overloaded")
        self.held = asyncio.Event()
        self.held.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.headers = dict(request.headers)
        self.arrived.release()
        if self.refusals:
            self.refusals -= 1
            status, kind, words = self.refusal
            error = {"type": "error", "error": {"type": kind, "message": words}}
            return web.json_response(error, status=status, headers={"retry-after-ms": "20"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await self.held.wait()
        for piece in sse(f"{len(body['messages'])} heard"):
            await response.write(piece)
        return response


@asynccontextmanager
async def serving(provider: Provider):
    application = web.Application()
    application.router.add_post("/v1/messages", provider.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/messages"
    finally:
        await runner.cleanup()
