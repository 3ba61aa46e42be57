"""Markdown of generated pages: tables, and text that must not be read as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

WRITTEN = "<!-- Written by `make docs` from the code; not to be edited. -->"
# Inline code is unchanged. Characters of tags, emphasis and links are escaped.
_CODE = re.compile(r"(`[^`]*`)")
_MARKUP = re.compile(r"([<>*_\[\]])")


def code(text: str) -> str:
    """Return inline code, also of text with backticks."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def prose(text: str) -> str:
    """Return text in which only inline code is markup; reStructuredText's double backticks become single ones."""
    parts = _CODE.split(" ".join(text.replace("``", "`").split()))
    return "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\1", part) for part in parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows), ""]
