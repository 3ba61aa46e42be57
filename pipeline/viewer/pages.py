"""The basis of every page: the viewer's state and its templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from jinja2 import Environment
from markupsafe import Markup
from msgspec import Struct, field

from reknit.pipeline import __version__, pages
from reknit.pipeline.changes import LOSSES, loss_of
from reknit.pipeline.pages import shown
from reknit.pipeline.settings import Config
from reknit.pipeline.viewer.addresses import session_path, static_path, with_query
from reknit.pipeline.viewer.guard import FIELD, HEADER, LOGIN, Guard
from reknit.pipeline.viewer.index import Index, sessions
from reknit.pipeline.viewer.index.entries import loss_or
from reknit.pipeline.viewer.index.numbers import is_place
from reknit.pipeline.viewer.index.reading import Follower
from reknit.pipeline.viewer.index.sessions import SessionRow
from reknit.pipeline.viewer.index.values import Values
from reknit.pipeline.viewer.pools import Pools, pools
from reknit.pipeline.viewer.progress import Progress


class Viewer(Struct, frozen=True):
    """The state of one viewer.

    Attributes:
        config: the cluster, the prefix, and how they are reached.
        guard: access control.
        templates: the templates of all pages.
        index: the content of the topics.
        follower: reads new records.
        values: the values of records, in the index or in their topic.
        allow_retry: whether pages may write to the topics.
        titles: titles of sessions, by their ids.
        pools: the threads for blocking work.
        progress: whether the pipeline keeps up.
    """

    config: Config
    guard: Guard
    templates: Environment
    index: Index
    follower: Follower
    values: Values
    allow_retry: bool = False
    titles: Mapping[str, str] = {}
    pools: Pools = field(default_factory=pools)
    progress: Progress = field(default_factory=Progress)


VIEWER: web.AppKey[Viewer] = web.AppKey("viewer", Viewer)


def templates() -> Environment:
    made = pages.environment(Path(__file__).parent / "templates")
    made.auto_reload = False
    made.filters |= {"marked": marked, "duration": duration, "loss": loss_words, "losses": losses_of}
    made.tests["place"] = is_place
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
        titles=viewer.titles,
        has_login=bool(viewer.guard.login),
        inside=viewer.guard.logged_in(request),
        cluster=viewer.config.bootstrap_servers,
        prefix=viewer.config.prefix,
        status=viewer.progress.status(),
        as_of=datetime.now(UTC),
    )
    return web.Response(text=text, status=status, content_type="text/html", headers={"Cache-Control": "no-store"})


def marked(excerpt: str) -> Markup:
    """An excerpt as HTML, in which a search has put what it found between U+0002 and U+0003."""
    pieces = [shown(excerpt.partition("\x02")[0])]
    for found in excerpt.split("\x02")[1:]:
        word, _, rest = found.partition("\x03")
        pieces += [Markup("<mark>{}</mark>").format(shown(word)), shown(rest)]
    return Markup().join(pieces)


def loss_words(severity: str, code: str) -> str:
    """Return the loss of a fix in the words of the commands; another severity unchanged."""
    if severity not in {"lossy", "lossless", "observed"}:
        return severity
    return LOSSES[loss_of(code, lossless=severity == "lossless", observed=severity == "observed")]


def losses_of(fixes: Iterable[Any]) -> Counter[str]:
    """Return the numbers of fixes by what they lost: ``lost``, ``added``, or their severity."""
    return Counter(loss_or(fix.severity, fix.code) for fix in fixes)


def duration(seconds: float) -> str:
    """A time span as people say it: ``12 s``, ``4 min``, ``3 h``, ``2 d``."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def is_part(request: web.Request) -> bool:
    """Return True if the viewer's script requests content for an open page, and not a page."""
    return "HX-Request" in request.headers


async def row_of(viewer: Viewer, session: str) -> SessionRow:
    """Return the index's row of a session; raises 404 if there is none."""
    found = await viewer.pools.pages.run(sessions.session, viewer.index.reader, session)
    if found is None:
        raise web.HTTPNotFound
    return found
