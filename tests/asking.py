"""A viewer without an index, for pages that need none: who asks it gets the status and the page."""

import html
import re
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.test_utils import make_mocked_request

from pipeline.config import load_config
from pipeline.viewer import explain, playground
from pipeline.viewer.guard import HEADER, Guard
from pipeline.viewer.pages import Viewer, templates
from pipeline.viewer.server import application, serving


@asynccontextmanager
async def asking(**given):
    """``get(path, form=None, part=False)``; a form is posted with the page's token, ``part`` as a script of ours."""
    guard = Guard()
    token = guard.form_token(make_mocked_request("GET", "/"))
    viewer = Viewer(
        **{
            "config": load_config(env={}),
            "guard": guard,
            "templates": templates(),
            "index": None,
            "follower": None,
            "values": None,
            **given,
        }
    )
    app = application(viewer, pages=(explain, playground))
    async with serving(app, "127.0.0.1", 0) as url, aiohttp.ClientSession() as http:

        async def get(path, form=None, *, part=False):
            headers = {HEADER: token} | ({"HX-Request": "true"} if part else {})
            method = "GET" if form is None else "POST"
            async with http.request(method, url.rstrip("/") + path, data=form, headers=headers) as answer:
                return answer.status, await answer.text()

        yield get


def words(page):
    """What a page says, without its marks."""
    return html.unescape(re.sub(r"<[^>]+>", "", page))
