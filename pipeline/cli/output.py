"""Changes and violations for people: lines on stderr, in colours on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click
import msgspec

from reknit.pipeline.changes import Change, Loss, changes_of, total_of, with_paths_once
from reknit.pipeline.cli import colour_mode, say
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


def show_violations(violations: Iterable[Violation]) -> None:
    """Write a line to stderr for each violation."""
    for violation in violations:
        say(violation_line(violation))


def violation_line(violation: Violation) -> str:
    severity = click.style(violation.severity, fg=_COLOURS[violation.severity])
    return f"{severity}: {visible(violation.path)}: {visible(violation.message)} [{violation.rule}]"


def show_changes(done: Normalized, document: bytes) -> None:
    """Write a line to stderr for each fix of a request, and their number by loss."""
    if done.fixes:
        changes = list(changes_of(done.fixes, done.ledger, document, done.body))
        show_lines(changes)
        say(f"{total_of(done.fixes)}; {_HINT}")


def show_fixes(fixes: Sequence[Fix]) -> None:
    """Write a line to stderr for each fix of a stream or of a conversion, and their number by loss."""
    if fixes:
        show_lines(list(changes_of(fixes, [], b"", None)))
        say(f"{total_of(fixes)}; {_HINT}")


def show_lines(changes: Sequence[Change]) -> None:
    for place, change in with_paths_once(changes):
        line = click.style(change.line, fg=_COLOURS[change.loss])
        say(f"{visible(place)}{':' if place.strip() else ' '} {line}" if place else line)


def diff_text(document: bytes, done: Normalized) -> str:
    """Return the lines of a history and of its request, those that only one of them has with a mark, for stdout."""
    body = done.unjudged
    before, after = read_document(document), body.decode() if TARGETS[done.target].is_text else read_document(body)
    text = "".join(f"{marked_line(line)}\n" for line in difference_of(before, after))
    return text if sys.stdout.isatty() and colour_mode() is None else click.unstyle(text)


def read_document(data: bytes) -> object:
    """Return a JSON document, or the documents of lines of them; other bytes as text."""
    for text in (data, b"[%b]" % b",".join(line for line in data.split(b"\n") if line.strip())):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return data.decode(errors="replace")


def marked_line(line: Line) -> str:
    """Return a line with its mark, in the colour of the mark."""
    text = f"{line.mark} {visible(line.text)}"
    return click.style(text, fg=_MARKS[line.mark]) if line.mark in _MARKS else text
