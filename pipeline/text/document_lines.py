"""Histories and requests as lines of text, one for each block, and the difference of two of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias

from msgspec import Struct

# A mark of the lines that only one side has.
Mark: TypeAlias = Literal[" ", "-", "+"]


class Line(Struct, frozen=True):
    """A line of an example, or a provider's words."""

    text: str
    mark: Mark = " "


def difference_of(before: Any, after: Any) -> Iterator[Line]:  # noqa: ANN401  any JSON
    """Return two histories or requests as one list of lines, those that only one of them has with a mark.

    The role is a line of its own, so that a block is the same line wherever it is in a message.
    """
    old, new = (list(_spread(document)) for document in (before, after))
    for tag, start, end, begin, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from map(Line, old[start:end])
            continue
        yield from (Line(text, "-") for text in old[start:end])
        yield from (Line(text, "+") for text in new[begin:stop])


def _spread(document: Any) -> Iterator[str]:  # noqa: ANN401  any JSON
    for label, text in _blocks(document):
        if label:
            yield f"{label}:"
        yield f"  {text}"


def document_lines(document: Any) -> Iterator[str]:  # noqa: ANN401  any JSON
    """Return a history or a request, one line for each block: the role precedes a message's first one."""
    for label, text in _blocks(document):
        yield text if label is None else f"{label:10} {text}"


def _blocks(document: Any) -> Iterator[tuple[str | None, str]]:  # noqa: ANN401  any JSON
    """Return the blocks of a history or a request, each with its message's role if it is the first one.

    ``""`` for further blocks of a message, None for a line without a message.
    """
    if isinstance(document, str):
        yield from ((None, line) for line in document.splitlines())
        return
    messages = document.get("messages", []) if isinstance(document, dict) else document
    for key, value in document.items() if isinstance(document, dict) else ():
        if key != "messages":
            yield from _elements(key, value)
    for message in messages:
        if not isinstance(message, dict):
            yield None, shown_json(message)
        elif message.keys() == {"role", "content"}:
            yield from _elements(message["role"], message["content"])
        else:
            role = str(message.get("role", "message"))
            yield from _elements(role, {key: value for key, value in message.items() if key != "role"})


def _elements(label: str, value: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401  any JSON
    for at, element in enumerate(value if isinstance(value, list) and value else [value]):
        yield "" if at else label, shown_json(element)


def shown_json(value: Any) -> str:  # noqa: ANN401  any JSON
    """Return JSON in one line, with characters as they are."""
    return json.dumps(value, ensure_ascii=False)
