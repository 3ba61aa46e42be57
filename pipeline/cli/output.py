"""Changes and violations for people: lines on stderr, in colours on a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import click
import msgspec

from reknit.pipeline.changes import Change, Loss, changes_of, losses_of, total_of, with_paths_once
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


def show_violations(violations: Iterable[Violation], *, before: str = "") -> None:
    """Write a line to stderr for each violation, each after the text ``before``."""
    for violation in violations:
        say(f"{before}{violation_line(violation)}")


def violation_line(violation: Violation) -> str:
    severity = click.style(violation.severity, fg=_COLOURS[violation.severity])
    return f"{severity}: {visible(violation.path)}: {visible(violation.message)} [{violation.rule}]"


class ShownFixes:
    """Writes a line to stderr for each fix, and at the end one line with their number by loss."""

    def __init__(self) -> None:
        self._losses: Counter[Loss] = Counter()

    def show_request(self, done: Normalized, document: bytes, *, before: str = "") -> None:
        """Show the fixes of a request. Each line comes after the text ``before``."""
        self._show(list(changes_of(done.fixes, done.ledger, document, done.body)), before)
        self._losses += losses_of(done.fixes)

    def show_fixes(self, fixes: Sequence[Fix]) -> None:
        """Show fixes that have no ledger."""
        self._show(list(changes_of(fixes, [], b"", None)), "")
        self._losses += losses_of(fixes)

    def show_total(self) -> None:
        if self._losses:
            say(f"{total_of(self._losses)}; {_HINT}")

    def _show(self, changes: Sequence[Change], before: str) -> None:
        for place, change in with_paths_once(changes):
            line = click.style(change.line, fg=_COLOURS[change.loss])
            say(f"{before}{visible(place)}{':' if place.strip() else ' '} {line}" if place else f"{before}{line}")


def show_fixes(fixes: Sequence[Fix]) -> None:
    """Write a line to stderr for each fix of a stream or of a conversion, and their number by loss."""
    shown = ShownFixes()
    shown.show_fixes(fixes)
    shown.show_total()


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
