"""Docstrings in Google's form as Markdown: paragraphs, lists of names, and examples as code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

from reknit.pipeline.explain.reference.markdown import code, prose

_SECTIONS: Final = ("Args", "Attributes", "Raises", "Returns", "Yields", "Example")
_HEADING = re.compile(rf"^({'|'.join(_SECTIONS)}):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}\w[\w.]*): ", re.MULTILINE)
_TITLES: Final = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Raises", "Example": "Example"}


def markdown_of(docstring: str | None) -> Iterator[str]:
    """Yield the lines of a docstring."""
    text, *sections = _HEADING.split(inspect.cleandoc(docstring or ""))
    yield from _paragraphs(text)
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        inside = inspect.cleandoc(body)
        if name in _TITLES:
            yield from (f"**{_TITLES[name]}**", "")
        if name == "Example":
            yield from ("```pycon", inside, "```", "")
        elif _ENTRY.match(inside):
            yield from _entries(inside)
        else:
            yield from _paragraphs(inside)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in filter(None, text.strip().split("\n\n")):
        yield from (prose(paragraph), "")


def _entries(text: str) -> Iterator[str]:
    _, *parts = _ENTRY.split(text)
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        yield f"- {code(name)}: {prose(said)}"
    yield ""
