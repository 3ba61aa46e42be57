"""HTML pages whose every value is text. Those of this folder are self-contained: one file, no script, nothing loaded.

A self-contained page is a template in this folder that extends ``base.html``. Every value is escaped, and invisible
characters in it are named; texts of other parties use the filter ``shown``, which also cuts long ones. The page's
Content-Security-Policy allows its own style and nothing else, so injected code would not run. ``environment`` gives
templates of other folders the same values and filters.
"""

from __future__ import annotations

import hashlib
import unicodedata
from base64 import b64encode
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reknit.pipeline import __version__
from reknit.pipeline.text import code_point, split_invisible, visible

# The number of code points of one text that a page shows, unless its template sets another.
SHOWN = 4000
_HERE = Path(__file__).parent
STYLE = _HERE / "page.css"


def shown(text: str, limit: int = SHOWN) -> Markup:
    """A foreign text as HTML, invisible characters as marks; of a longer one its beginning, and how much is left."""
    pieces = [_mark(piece) if hidden else escape(piece) for piece, hidden in split_invisible(text[:limit])]
    if len(text) > limit:
        pieces.append(Markup('<span class="cut">… {} more characters</span>').format(f"{len(text) - limit:,}"))
    return Markup().join(pieces)


@lru_cache(maxsize=4096)
def _mark(character: str) -> Markup:
    name = unicodedata.name(character, "")
    return Markup('<span class="invisible" title="{}">{}</span>').format(name, code_point(character))


def _count(number: int, one: str = "", many: str = "") -> str:
    """A number as people write it, with what is counted: ``1 session``, ``2,000 sessions``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}" if one else f"{number:,}"


def _time(ms: int) -> Markup:
    """Milliseconds since 1970 as a time that people read, in UTC; what no calendar has stays a number."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return escape(ms)
    return Markup('<time datetime="{}">{:%Y-%m-%d %H:%M:%S}</time>').format(moment.isoformat(), moment)


def _bytes(size: int) -> str:
    """A size as people write it: ``512 bytes``, ``1.5 KiB``."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):,.1f} {unit}"
    return _count(size, "byte")


def _named(value: object) -> object:
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def environment(folder: Path) -> Environment:
    """A folder's templates: every value is text, and one that is named must be given."""
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_named,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"shown": shown, "count": _count, "time": _time, "bytes": _bytes}
    return made


def render(template: str, **values: object) -> str:
    """A page of this folder's template; every value that it names must be given."""
    style = STYLE.read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = environment(_HERE).get_template(template)
    return page.render(**values, style=style, style_sha256=digest, version=__version__)
