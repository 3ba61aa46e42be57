"""Computes the result of a text for a target: request, fixes, violations and both sides, as in `reknit normalize`.

The work runs in another process, because any user may paste the text (``reknit.pipeline.helper_process``). So this
module imports only what the work needs, and its result is no longer than a page shows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from reknit import pipeline
from reknit.pipeline.changes import ABSENT, value_at
from reknit.pipeline.cli.offline import reported
from reknit.pipeline.diff.values import encodable
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.explain import shortened
from reknit.pipeline.fixes import FIXES, Fix, severity_of
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.scaling import scale_if_installed
from reknit.pipeline.session.arguments import POLICY_OPTIONS
from reknit.pipeline.targets import Setting
from reknit.pipeline.text.document_lines import shown_json
from reknit.pipeline.viewer.aligned import Aligned
from reknit.pipeline.viewer.cells import Row

# The maximum shown amounts.
_BODY_SHOWN, _FIXES_SHOWN, _VALUE_SHOWN, _ROWS_SHOWN = 60_000, 200, 300, 200


class Choice(Struct, frozen=True):
    """The conversion of a history, as addresses and forms name it; a policy's options by their names."""

    target: str = "anthropic"
    shape: str = "auto"
    model: str = ""
    policy: dict[str, str] = {}

    @classmethod
    def of(cls, given: Mapping[str, Any], default: Choice | None = None) -> Choice:
        """Return the choice of a query or a form; missing values are those of ``default``."""
        base = default or cls()
        chosen = {name: str(value).strip() for name, value in given.items() if name.partition(".")[0] in POLICY_OPTIONS}
        return cls(
            str(given.get("target") or base.target),
            str(given.get("from") or base.shape),
            str(given.get("model", base.model)).strip(),
            {name: value for name, value in {**base.policy, **chosen}.items() if value},
        )


class Mend(Struct, frozen=True):
    """One fix, what it means, and what stood in its place, where there is one in the input."""

    fix: Fix
    summary: str
    severity: str
    before: str


class Wrong(Struct, frozen=True):
    """Why a history cannot be used: an error, with its line in the text, or the value at its place."""

    code: str
    message: str
    path: str = ""
    rule: str = ""
    line: int = 0
    column: int = 0
    value: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of a text.

    Attributes:
        request: the formatted body; the beginning of a long one. None if nothing would be sent.
        size: the bytes of the body as it would be sent.
        mends, fix_count, codes: the first fixes, the number of all, and the number of each code.
        violations: the violations of the body.
        refused: the violations of the text itself, if it is a body in the target's own shape.
        head, rows, more_rows: both sides: the heads, the first blocks, and the number of further ones.
        wrong: why there is no result.
    """

    request: str | None = None
    size: int = 0
    mends: tuple[Mend, ...] = ()
    fix_count: int = 0
    codes: dict[str, int] = {}
    violations: tuple[Violation, ...] = ()
    refused: tuple[Violation, ...] = ()
    head: Row | None = None
    rows: tuple[Row, ...] = ()
    more_rows: int = 0
    wrong: Wrong | None = None


def outcome_of(text: str, choice: Choice) -> Outcome:
    """Return the result of `reknit normalize` for a text. Runs in the helper's process, since it may take long."""
    try:
        done = pipeline.normalize(
            text,
            to=choice.target,
            source=choice.shape,
            policy=choice.policy,
            model=choice.model or None,
            scale=scale_if_installed(),
        )
        report = reported(done)
    except ReknitError as error:
        return Outcome(wrong=_wrong(error, text))
    found = read(text, choice.shape)
    document = _document(text)
    mends = tuple(_mend(fix, document) for fix in report.fixes[:_FIXES_SHOWN])
    given = found.conversation
    setting = Setting(system=given.system, tools=given.tools, model=given.model, params=given.params)
    aligned = Aligned.of_request(given.turns, done, setting)
    return Outcome(
        request=_laid_out(report.request),
        size=0 if done.body is None else len(done.body),
        mends=mends,
        fix_count=len(report.fixes),
        codes=dict(Counter(fix.code for fix in report.fixes).most_common()),
        violations=tuple(report.violations),
        refused=tuple(_refused(document, choice)) if found.shape == TARGETS[choice.target].shape else (),
        head=structs.replace(aligned.head(), number=-1),
        rows=tuple(aligned.rows(0, _ROWS_SHOWN)),
        more_rows=max(0, len(aligned) - _ROWS_SHOWN),
    )


def _laid_out(request: msgspec.Raw | str | None) -> str | None:
    if isinstance(request, msgspec.Raw):
        # Raw is a view of bytes, which `format` lays out without touching a number's spelling.
        return _beginning(msgspec.json.format(bytes(request), indent=2).decode())
    return None if request is None else _beginning(request)


def _beginning(text: str) -> str:
    more = len(text) - _BODY_SHOWN
    return text if more <= 0 else f"{text[:_BODY_SHOWN]}\n… {more:,} more characters"


def _document(text: str) -> Any:  # noqa: ANN401  any JSON
    """Return the text as JSON, including JSON that msgspec refuses, such as lone surrogates; None for other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {"messages": found} if isinstance(found, list) else found


def _mend(fix: Fix, document: object) -> Mend:
    known = FIXES[fix.code]
    severity = severity_of(lossless=fix.lossless, observed=fix.observed)
    # An addition has a place in the output alone.
    before = "" if known.fate == "synthesised" else _shown_at(document, fix.path)
    return Mend(fix, known.summary, severity, before)


def _shown_at(document: object, path: str) -> str:
    """Return the value at a path for a page; "" if it is missing."""
    value = value_at(document, path)
    text = "" if value is ABSENT else shown_json(shortened(value))
    return encodable(text if len(text) <= _VALUE_SHOWN else f"{text[:_VALUE_SHOWN]}…")


def _refused(document: object, choice: Choice) -> Iterator[Violation]:
    """Return the provider's refusals of the document itself, without soft rules, which it was seen to ignore."""
    if not isinstance(document, dict):
        return
    body = {name: value for name, value in document.items() if name != "params"}
    body |= document["params"] if isinstance(document.get("params"), dict) else {}
    body |= {"model": choice.model} if choice.model else {}
    for violation in pipeline.validate(body, target=choice.target):
        if violation.severity != "soft":
            yield violation


_BYTE = re.compile(r"\bbyte (\d+)")


def _wrong(error: ReknitError, text: str) -> Wrong:
    line = column = 0
    found = _BYTE.search(error.message) if not error.path else None
    if found is not None:
        before = text.encode("utf-8", "surrogatepass")[: int(found[1])].decode("utf-8", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    value = _shown_at(_document(text), error.path)
    rule = error.rule if error.rule in RULES else ""
    return Wrong(error.code, error.message, error.path, rule or "", line, column, value)
