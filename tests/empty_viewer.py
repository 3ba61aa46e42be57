"""A viewer with empty topics, for pages that need no index. A request returns the status and the page."""

import html
import re
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from viewer_lab import Topics, served

from reknit.pipeline.viewer.guard import HEADER


@asynccontextmanager
async def serving_nothing():
    """Yield the URL of a viewer whose topics are empty."""
    with tempfile.TemporaryDirectory() as folder:
        async with served(Topics(), Path(folder) / "index") as url:
            yield url


@asynccontextmanager
async def page_getter():
    """Yield ``get(path, form=None, part=False)``: a form has the page's token, ``part`` sends the script's header."""
    async with serving_nothing() as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}explain/size") as answer:
            token = re.search(f'<meta name="{HEADER}" content="([^"]+)">', await answer.text())[1]

        async def get(path, form=None, *, part=False):
            headers = {HEADER: token} | ({"HX-Request": "true"} if part else {})
            method = "GET" if form is None else "POST"
            async with http.request(method, url.rstrip("/") + path, data=form, headers=headers) as answer:
                return answer.status, await answer.text()

        yield get


def words(page):
    """Return the text of a page without its markup."""
    return html.unescape(re.sub(r"<[^>]+>", "", page))
