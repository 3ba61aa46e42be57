"""The pages of examples/screens: built with esbuild, served, and read in a browser."""

import json
import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from aiohttp import web
from browser import needs_browser
from screen_clients import wanted

from reknit.pipeline.screens.content import compact, decoded
from reknit.pipeline.web import serving
from reknit.topics.items import ItemStarted, TurnResult

EXAMPLES = Path(__file__).parents[1] / "examples" / "screens"
CLIENTS = {"ag-ui": "HttpAgent", "ai-sdk": "useChat"}


def _missing():
    if shutil.which("npm") is None:
        return "needs Node.js 20 and npm"
    return "" if (EXAMPLES / "node_modules" / "esbuild").is_dir() else "needs the packages of the examples: `make sdks`"


if _missing() and "REQUIRE_NODE" in os.environ:
    raise RuntimeError(_missing())
needs_examples = [needs_browser, pytest.mark.skipif(bool(_missing()), reason=_missing())]


def bundle(folder):
    """Build the scripts of the pages as `npm run build` does."""
    command = ["npm", "run", "build", "--silent", "--", f"--outdir={folder}"]
    subprocess.run(command, cwd=EXAMPLES, check=True, timeout=300)


def build(folder):
    """Build the pages into a folder, and return it."""
    bundle(folder / "dist")
    for file in (*EXAMPLES.glob("*.html"), EXAMPLES / "screens.css"):
        shutil.copy(file, folder)
    return folder


@asynccontextmanager
async def served(folder):
    """Serve built pages, and yield their origin."""
    app = web.Application()
    app.add_routes([web.static("/", folder)])
    async with serving(app, "127.0.0.1", 0) as url:
        yield url.rstrip("/")


def address(origin, page, server, session, token=None):
    """Return the address of a page that shows a session."""
    given = {"server": server, "session": session, **({} if token is None else {"token": token})}
    return f"{origin}/{page}.html#{urlencode(given)}"


_SHOWN = """
[...document.querySelectorAll(`[data-client=${%s}] [data-kind]`)].map(block => ({
  id: block.dataset.id,
  kind: block.dataset.kind,
  name: block.querySelector('.name')?.textContent,
  text: block.querySelector('.content, .input').textContent,
  results: [...block.querySelectorAll('.result')].map(each => [
    each.classList.contains('failed') ? 'error' : 'result', each.querySelector('.output').textContent]),
}))
"""


async def blocks(page, protocol):
    """Return the blocks that a client shows."""
    return await page.ask(_SHOWN % json.dumps(CLIENTS[protocol]))


def state(protocol):
    """Return the expression of what a client says of its connection."""
    return f"document.querySelector('[data-client={CLIENTS[protocol]}] [role=status]').textContent"


def content(found):
    """Return texts, calls and results in the form of ``screen_clients.wanted``."""
    shown = []
    for block in found:
        if block["kind"] in {"text", "thinking", "call"}:
            shown.append((block["id"], block["kind"], block["text"]))
        shown += [(block["id"], kind, text) for kind, text in block["results"]]
    return shown


def expected(items):
    """Return what a page must show: the items, results of calls that the provider ran, and results of no item."""
    shown = wanted(items)
    for item in items:
        raw = decoded(item.raw) if isinstance(item, ItemStarted) else None
        if isinstance(raw, dict) and "tool_use_id" in raw:
            at = next(at for at, each in enumerate(shown) if each[:2] == (raw["tool_use_id"], "call"))
            shown.insert(at + 1, (raw["tool_use_id"], "result", compact(item.raw)))
        if isinstance(item, TurnResult) and item.unseen:
            shown.append((f"result-{item.seq}", "text", item.result))
    return shown
