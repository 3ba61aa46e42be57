"""Changes and violations for people: lines on stderr, in colours on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

import click
import msgspec

from reknit.pipeline.changes import Change, Loss, changes_of, total_of, with_paths_once
from reknit.pipeline.cli import say
from reknit.pipeline.fixes import Fix
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Severity, Violation
from reknit.pipeline.session import Normalized
from reknit.pipeline.text import visible
from reknit.pipeline.text.document_lines import Line, difference_of

_COLOURS: dict[Loss | Severity, str] = {
    "lost": "red",
    "added": "yellow",
    "none": "green",
    "observed": "blue",
    "hard": "red",
    "model": "yellow",
    "soft": "yellow",
}
_MARKS = {"-": "red", "+": "green"}
_HINT = "reknit explain CODE explains a repair or a rule"


def has_colours(stream: object) -> bool:
    """Return True if a stream is a terminal and the environment does not refuse colours (https://no-color.org)."""
    is_terminal = getattr(stream, "isatty", None)
    return bool(is_terminal and is_terminal()) and not os.environ.get("NO_COLOR")


def show_violations(violations: Iterable[Violation]) -> None:
    """Write a line to stderr for each violation."""
    for violation in violations:
        say(violation_line(violation, colours=has_colours(sys.stderr)))


def violation_line(violation: Violation, *, colours: bool) -> str:
    severity = _coloured(violation.severity, violation.severity, colours=colours)
    return f"{severity}: {visible(violation.path)}: {visible(violation.message)} [{violation.rule}]"


def show_changes(done: Normalized, document: bytes) -> None:
    """Write a line to stderr for each fix of a request, and their number by loss."""
    if done.fixes:
        changes = list(changes_of(done.fixes, done.ledger, document, done.body))
        show_lines(changes)
        say(f"{total_of(done.fixes)}; {_HINT}")


def show_stream_fixes(fixes: Sequence[Fix]) -> None:
    """Write a line to stderr for each fix of a stream, and their number by loss."""
    if fixes:
        show_lines(list(changes_of(fixes, [], b"", None)))
        say(f"{total_of(fixes)}; {_HINT}")


def show_lines(changes: Sequence[Change]) -> None:
    colours = has_colours(sys.stderr)
    for place, change in with_paths_once(changes):
        line = _coloured(change.line, change.loss, colours=colours)
        say(f"{visible(place)}{':' if place.strip() else ' '} {line}" if place else line)


def diff_lines(document: bytes, done: Normalized) -> Iterator[str]:
    """Yield the lines of a history and of its request, those that only one of them has with a mark."""
    body = done.unjudged
    before, after = read_document(document), body.decode() if TARGETS[done.target].is_text else read_document(body)
    colours = has_colours(sys.stdout)
    for line in difference_of(before, after):
        yield _marked(line, colours=colours)


def read_document(data: bytes) -> object:
    """Return a JSON document, or the documents of lines of them; other bytes as text."""
    for text in (data, b"[%b]" % b",".join(line for line in data.split(b"\n") if line.strip())):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return data.decode(errors="replace")


def _marked(line: Line, *, colours: bool) -> str:
    text = f"{line.mark} {visible(line.text)}"
    return click.style(text, fg=_MARKS[line.mark]) if colours and line.mark in _MARKS else text


def _coloured(text: str, kind: Loss | Severity, *, colours: bool) -> str:
    return click.style(text, fg=_COLOURS[kind]) if colours else text
