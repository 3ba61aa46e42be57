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
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reknit.pipeline import __version__
from reknit.pipeline.text import code_point, split_invisible, visible
from reknit.pipeline.text.changed_words import Pieces, changed_words

# The number of code points of one text that a page shows, unless its template sets another.
SHOWN = 4000
_HERE = Path(__file__).parent
STYLE = _HERE / "page.css"


def shown(text: str, limit: int = SHOWN) -> Markup:
    """A foreign text as HTML, invisible characters as marks; of a longer one its beginning, and how much is left."""
    pieces = [_mark(piece) if hidden else escape(piece) for piece, hidden in split_invisible(text[:limit])]
    return Markup().join([*pieces, _cut(text, limit)])


def reworded(before: str, after: str, limit: int = SHOWN) -> tuple[Markup, Markup]:
    """Two versions of a foreign text as HTML, in which the words that differ are marked."""
    found = changed_words(before[:limit], after[:limit])
    if found is None:
        return shown(before, limit), shown(after, limit)
    return _marked(found[0], _GONE, before, limit), _marked(found[1], _ADDED, after, limit)


_GONE, _ADDED = Markup("<del>{}</del>"), Markup("<ins>{}</ins>")


def _marked(pieces: Pieces, mark: Markup, text: str, limit: int) -> Markup:
    parts = [
        mark.format(shown(piece, len(piece))) if is_different else shown(piece, len(piece))
        for piece, is_different in pieces
    ]
    return Markup().join([*parts, _cut(text, limit)])


def _cut(text: str, limit: int) -> Markup:
    """What is left of a text beyond its shown beginning, as a number; nothing of a short one."""
    if len(text) <= limit:
        return Markup()
    return Markup('<span class="cut">… {} more characters</span>').format(f"{len(text) - limit:,}")


# The kind of a line of a unified difference, by its first character.
_KINDS = {"-": "gone", "+": "new", "@": "hunk"}


def diff_lines(lines: Sequence[str]) -> list[tuple[str, Markup]]:
    """The lines of a unified difference as HTML, each with its kind; words that differ within a line are marked.

    Lines that were replaced by as many others are compared one by one.
    """
    kinds = [_KINDS.get(line[:1], "same") for line in lines]
    found = [
        (kind, shown(line[1:] if kind != "hunk" and line[:1] in "+- " else line))
        for kind, line in zip(kinds, lines, strict=True)
    ]
    for begin, middle, end in _replacements(kinds):
        for old, new in zip(range(begin, middle), range(middle, end), strict=True):
            before, after = reworded(lines[old][1:], lines[new][1:])
            found[old], found[new] = ("gone", before), ("new", after)
    return found


def _replacements(kinds: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield where removed lines begin, the added ones after them, and their end, if both are as many."""
    runs = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    at = 0
    for (kind, count), (next_kind, next_count) in pairwise([*runs, ("", 0)]):
        if (kind, next_kind) == ("gone", "new") and count == next_count:
            yield at, at + count, at + count + next_count
        at += count


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
    made.filters |= {"shown": shown, "count": _count, "time": _time, "bytes": _bytes, "diff_lines": diff_lines}
    made.globals |= {"reworded": reworded}
    return made


def render(template: str, **values: object) -> str:
    """A page of this folder's template; every value that it names must be given."""
    style = STYLE.read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = environment(_HERE).get_template(template)
    return page.render(**values, style=style, style_sha256=digest, version=__version__)
