"""The addresses of pages, sessions and static files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from aiohttp import web

from reknit.pipeline import pages
from reknit.pipeline.errors import InputError

# The static files by name: all of them are inside the wheel.
STATIC = {
    **{file.name: file for file in (Path(__file__).parent / "static").iterdir() if file.suffix in {".js", ".css"}},
    pages.STYLE.name: pages.STYLE,
}
# A name that browsers would treat as a path segment such as "..", or as empty, follows this mark.
_MARK = "~"
# A session's page as a route. aiohttp's own placeholders take no braces, which a name may have.
SESSION = "/sessions/{name:[^/]+}"


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
    """Return the address of a static file; it changes with the content, so browsers may cache it."""
    if name not in STATIC:
        raise InputError("file_unknown", f"there is no file {name}")
    return f"/static/{name}?{hashlib.sha256(STATIC[name].read_bytes()).hexdigest()[:12]}"
