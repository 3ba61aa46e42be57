"""Searches of sessions, as the query of a URL holds them: words, facets and times.

A condition is evaluated for each row that a query reads, so a search has few conditions, each once.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct
from multidict import MultiMapping

from reknit.pipeline.cli.config import moment
from reknit.pipeline.errors import InputError

# The most words of a search, and the most codes. A sentence fits; 32 words in one million records that all have them
# take 1.4 s to compare.
MOST_WORDS: Final = 32
MOST_CODES: Final = 8
# The numbers by which a list can be sorted, the largest first, and their expressions in the index.
SORTS: Final = {
    "duration": "last_ms - first_ms",
    "turns": "turns",
    "requests": "requests",
    "fixes": "fixes",
    "lost": "lossy - added",
    "added": "added",
    "letters": "letters + rejections",
}
# A word as the index sees it.
_WORD: Final = re.compile(r"[^\W_]+")


class Search(Struct, frozen=True, kw_only=True):
    """Which sessions are meant; a search is the query of a URL. All that is given must hold.

    ``since`` and ``until`` are as the commands take them: so long ago (30m, 2h, 7d), or a time in ISO 8601. ``sort`` is
    one of ``SORTS``; without it the newest records come first, or with words the newest matches.
    """

    words: str = ""
    session: str = ""
    codes: tuple[str, ...] = ()
    target: str = ""
    severity: str = ""
    producer: str = ""
    since: str = ""
    until: str = ""
    parked: bool = False
    rejected: bool = False
    sort: str = ""

    @classmethod
    def from_query(cls, query: MultiMapping[str]) -> Search:
        """Read a URL's query; unknown names and repeated codes are ignored.

        Raises:
            InputError: ``bad_search``, a time cannot be parsed; ``search_too_large``, too many words or codes.
        """
        found = cls(
            words=query.get("q", "").strip(),
            session=query.get("session", "").strip(),
            codes=tuple(dict.fromkeys(code for code in query.getall("code", []) if code)),
            parked=query.get("parked", "") == "1",
            rejected=query.get("rejected", "") == "1",
            **{name: query.get(name, "").strip() for name in _PLAIN},
        )
        for name in ("since", "until"):
            if text := getattr(found, name):
                milliseconds(text, name)
        if found.sort not in {"", *SORTS}:
            raise InputError("bad_search", f"a list is sorted by {', '.join(SORTS)}", path="sort")
        terms_of(found.words)
        if len(found.codes) > MOST_CODES:
            message = f"a search takes at most {MOST_CODES} codes; these are {len(found.codes)}"
            raise InputError("search_too_large", message, path="code")
        return found

    def query(self) -> str:
        """The query that is this search."""
        given = [("q", self.words), ("session", self.session), *(("code", code) for code in self.codes)]
        given += [(name, getattr(self, name)) for name in _PLAIN]
        given += [(name, "1") for name in ("parked", "rejected") if getattr(self, name)]
        return urlencode([(name, value) for name, value in given if value])

    def facets(self) -> list[tuple[str, str]]:
        """The required facets of the sessions."""
        given = [("code", code) for code in self.codes]
        given += [(name, getattr(self, name)) for name in ("target", "severity", "producer")]
        given += [("is", name) for name in ("parked", "rejected") if getattr(self, name)]
        return [(kind, value) for kind, value in given if value]


_PLAIN: Final = ("target", "severity", "producer", "since", "until", "sort")


def terms_of(words: str) -> list[str]:
    """Return the terms of a search, each once: its words, and each quoted phrase as one term.

    Raises:
        InputError: ``search_too_large``, these are too many words.
    """
    found = [quoted or word for quoted, word in re.findall(r'"([^"]*)"|([^\s"]+)', words)]
    terms = {term.casefold(): term for term in found if _WORD.search(term)}
    count = sum(len(_WORD.findall(term)) for term in terms)
    if count > MOST_WORDS:
        message = f"a search takes at most {MOST_WORDS} words; these are {count}. Keep the rarest ones."
        raise InputError("search_too_large", message, path="q")
    return list(terms.values())


def match_of(words: str) -> str:
    """Return the query of FTS5 for texts with all words; "" if there is none."""
    wanted = " AND ".join(f'"{term}"' for term in terms_of(words))
    return f"text : ({wanted})" if wanted else ""


def milliseconds(text: str, name: str) -> int:
    """Return the time in a query under this name.

    Raises:
        InputError: it is not a time.
    """
    try:
        return moment(text)
    except ValueError as error:
        raise InputError("bad_search", str(error), path=name) from error
