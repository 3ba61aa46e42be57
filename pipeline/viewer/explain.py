"""What every fix and rule means, with its example as this version runs it; what other pages name leads here."""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache

from aiohttp import web
from markupsafe import Markup, escape

from pipeline.errors import InputError
from pipeline.explain import explain, summaries
from pipeline.explain.telling import Told, told
from pipeline.fixes import FIXES, severity_of
from pipeline.rules import RULES
from pipeline.text.invisible import visible
from pipeline.viewer.pages import page
from pipeline.viewer.playground import EXAMPLES

# What codes look like in a text; a word of everyday language that is also a code is left alone.
_CODE = re.compile(r"\b(?:[a-z]+(?:_[a-z0-9]+)+|[A-Z]{2,}-\d+[a-z]?)\b")


async def _all(request: web.Request) -> web.Response:
    words = request.query.get("q", "").casefold().split()
    groups = {
        group: found
        for group, codes in summaries().items()
        if (found := {code: text for code, text in codes.items() if _has_all(words, f"{code} {text} {group}")})
    }
    return page(request, "explain.html", groups=groups, words=" ".join(words))


def _has_all(words: list[str], text: str) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)


async def _one(request: web.Request) -> web.Response:
    try:
        # Some examples take a third of a second, the first time.
        said = await asyncio.to_thread(_told, request.match_info["code"])
    except InputError as error:
        return page(
            request, "error.html", status=404, title="No such code", message=error.message, code=error.code, number=404
        )
    return page(
        request,
        "explain_code.html",
        said=said,
        severity=_severity(said.code),
        group=next(group for group, codes in summaries().items() if said.code in codes),
        linked=linked,
        has_example=said.code in EXAMPLES,
    )


@lru_cache(maxsize=1024)
def _told(code: str) -> Told:
    return told(explain(code))


def _severity(code: str) -> str:
    """How heavy a fix or a breach of a rule weighs, in one word."""
    if code in RULES:
        return RULES[code].severity
    return severity_of(lossless=FIXES[code].lossless)


def linked(text: str) -> Markup:
    """A text of ours in which every code that it names is a link to its page."""
    pieces: list[Markup] = []
    behind = 0
    for found in _CODE.finditer(text):
        if found[0] in FIXES or found[0] in RULES:
            pieces += [
                escape(visible(text[behind : found.start()])),
                Markup('<a href="/explain/{0}">{0}</a>').format(found[0]),
            ]
            behind = found.end()
    return Markup().join([*pieces, escape(visible(text[behind:]))])


routes = [web.get("/explain", _all), web.get("/explain/{code}", _one)]
