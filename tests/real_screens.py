"""Unmodified UI clients in Node.js, HttpAgent 1.0, AI SDK 7 and 6, which show a session of ``reknit screens``."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from screens_lab import screens_of

from reknit.topics.items import ItemStarted

SCRIPT = Path(__file__).parent / "js" / "read_screen.mjs"


def _missing():
    if shutil.which("node") is None:
        return "needs Node.js 20"
    packages = SCRIPT.parent / "node_modules"
    is_there = all((packages / name).is_dir() for name in ("@ag-ui", "ai", "ai-v7"))
    return "" if is_there else "needs the packages of tests/js: run `make sdks`"


if _missing() and os.environ.get("REQUIRE_NODE"):
    raise RuntimeError(_missing())
needs_clients = pytest.mark.skipif(bool(_missing()), reason=_missing())


class Shown:
    """The messages of a client, in the form that the models of the clients have."""

    def __init__(self, messages):
        self.messages = messages


async def client(protocol, lab, *text):
    """Start a client that shows the session ``s``, and sends a text first if one is given."""
    return await asyncio.create_subprocess_exec(
        *("node", str(SCRIPT), protocol, lab.url, "s", *text), stdout=asyncio.subprocess.PIPE
    )


async def connected(lab):
    """Wait until the client has a connection."""
    while not lab.feeds.connections:  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0.005)


async def result_of(process):
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return json.loads(output)


def first_visible(items):
    """Return how many items there are up to the first block; None without one."""
    return next((count for count, item in enumerate(items, start=1) if isinstance(item, ItemStarted)), None)


async def after_breaks(path, protocol, items, breaks=None):
    """Return the result of a client whose connection breaks off after some records, or after each."""
    visible = first_visible(items)
    async with screens_of(path, recent_seconds=10**10) as (lab, _):
        lab.publish(*items[:visible])
        process = await client(protocol, lab)
        for count, item in enumerate(items[visible:], start=visible):
            if breaks is None or count in breaks:
                await connected(lab)
                lab.publish(item)
                await asyncio.sleep(0)
                lab.feeds.stop()
            else:
                lab.publish(item)
        return await result_of(process)
