"""What every page is made with: what the viewer holds, its templates, and the addresses of what pages show."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from aiohttp import web
from jinja2 import Environment
from markupsafe import Markup
from msgspec import Struct

from pipeline import __version__, pages
from pipeline.errors import InputError
from pipeline.pages import shown
from pipeline.settings import Config
from pipeline.viewer.guard import FIELD, HEADER, LOGIN, Guard
from pipeline.viewer.index import Index, search
from pipeline.viewer.index.reading import Follower, Values
from pipeline.viewer.index.search import SessionRow

_HERE = Path(__file__).parent
# What browsers ask for, by name: all of it is inside the wheel.
STATIC = {
    **{file.name: file for file in (_HERE / "static").iterdir() if file.suffix in {".js", ".css"}},
    pages.STYLE.name: pages.STYLE,
}
# A name that browsers would take for a way through folders, or for none, stands behind this mark.
_MARK = "~"
# A session's page as a route. aiohttp's own placeholders take no braces, which a name may have.
SESSION = "/sessions/{name:[^/]+}"


class Viewer(Struct, frozen=True):
    """What the pages of one viewer are made of.

    Attributes:
        config: the cluster, the prefix, and how they are reached.
        guard: who may see and do what.
        templates: the templates of all pages.
        index: what was read from the topics.
        follower: what reads on.
        values: what records hold, wherever they stand.
        allow_retry: whether pages may write to the topics.
    """

    config: Config
    guard: Guard
    templates: Environment
    index: Index
    follower: Follower
    values: Values
    allow_retry: bool = False


VIEWER: web.AppKey[Viewer] = web.AppKey("viewer", Viewer)


def templates() -> Environment:
    made = pages.environment(_HERE / "templates")
    made.auto_reload = False
    made.filters["marked"] = marked
    made.globals |= {
        "session_path": session_path,
        "with_query": with_query,
        "static": static_path,
        "version": __version__,
        "token_field": FIELD,
        "token_header": HEADER,
        "login_path": LOGIN,
    }
    return made


def page(request: web.Request, template: str, /, *, status: int = 200, **values: object) -> web.Response:
    """A page, or a part of one, of this folder's templates; every value that it names must be given."""
    viewer = request.app[VIEWER]
    text = viewer.templates.get_template(template).render(
        **values,
        path=request.path,
        token=viewer.guard.form_token(request),
        allow_retry=viewer.allow_retry,
        has_login=bool(viewer.guard.login),
        inside=viewer.guard.logged_in(request),
    )
    return web.Response(text=text, status=status, content_type="text/html", headers={"Cache-Control": "no-store"})


def marked(excerpt: str) -> Markup:
    """An excerpt as HTML, in which a search has put what it found between U+0002 and U+0003."""
    pieces = [shown(excerpt.partition("\x02")[0])]
    for found in excerpt.split("\x02")[1:]:
        word, _, rest = found.partition("\x03")
        pieces += [Markup("<mark>{}</mark>").format(shown(word)), shown(rest)]
    return Markup().join(pieces)


def is_part(request: web.Request) -> bool:
    """Whether a script of ours asks for what stands on a page that is open, and not for a page."""
    return "HX-Request" in request.headers


def session_path(session: str, *more: str, **query: object) -> str:
    """The address of a session's page, or of one below it; whatever characters the session's id has."""
    name = _MARK + session if session in {"", ".", ".."} or session.startswith(_MARK) else session
    path = "/".join(quote(part, safe="", errors="replace") for part in ("sessions", name, *more))
    return "/" + with_query(path, **query)


def with_query(path: str, **query: object) -> str:
    """An address with the values that are not empty."""
    given = urlencode({name: str(value) for name, value in query.items() if value not in {None, ""}}, errors="replace")
    return f"{path}?{given}" if given else path


def session_of(request: web.Request) -> str:
    """The session's id that a request's address names, as ``session_path`` wrote it."""
    name = request.match_info["name"]
    return name[1:] if name.startswith(_MARK) else name


@cache
def static_path(name: str) -> str:
    """The address of a file of ours; another one whenever it has other bytes, so that browsers may keep it."""
    if name not in STATIC:
        raise InputError("file_unknown", f"there is no file {name}")
    return f"/static/{name}?{hashlib.sha256(STATIC[name].read_bytes()).hexdigest()[:12]}"


async def row_of(viewer: Viewer, session: str) -> SessionRow:
    """What the index has of a session; where it has none, there is no page."""
    found = await asyncio.to_thread(search.session, viewer.index.reader, session)
    if found is None:
        raise web.HTTPNotFound
    return found
