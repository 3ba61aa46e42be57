"""A sender of one's own: published requests to a provider, its bytes back as events.

    ANTHROPIC_API_KEY=… python examples/sender.py

``reknit send`` does the same with options; what both do, and what has to be thought of, is in
``reknit.pipeline.client.sender``.
"""

from __future__ import annotations

import asyncio
import os

import aiohttp

from reknit.client import Events, Requests
from reknit.pipeline.client.sender import Http, Sender
from reknit.pipeline.config import load_config

URL = "https://api.anthropic.com/v1/messages"


async def send() -> None:
    """Send requests for ``anthropic`` until the program is stopped."""
    config = load_config(None, env=os.environ, overrides={})
    secret = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
    async with (
        aiohttp.ClientSession() as http,
        Requests(config, group="example-senders") as requests,
        Events(config, "anthropic") as events,
    ):
        await Sender(requests, events, Http(http, URL, secret), target="anthropic", rate=5).run()


if __name__ == "__main__":
    asyncio.run(send())
