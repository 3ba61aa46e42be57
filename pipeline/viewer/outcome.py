"""What becomes of a text for a target: request, fixes, violations and both sides, as `reknit normalize` makes them.

It is worked out in a process of its own (`pipeline.viewer.helper`), so this module imports no more than that takes, and
what it gives is no longer than a page shows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

import pipeline
from pipeline.cli.core import reported
from pipeline.diff.values import encodable
from pipeline.errors import ReknitError
from pipeline.explain.pages import shortened
from pipeline.fixes import FIXES, Fix, severity_of
from pipeline.history.readers import read
from pipeline.registry import TARGETS
from pipeline.rules import RULES, Violation
from pipeline.session.arguments import POLICY_OPTIONS
from pipeline.targets import Setting
from pipeline.viewer.aligned import Aligned
from pipeline.viewer.cells import Row

# Of what can be long, so much is shown.
_BODY_SHOWN, _FIXES_SHOWN, _VALUE_SHOWN, _ROWS_SHOWN = 60_000, 200, 300, 200


class Choice(Struct, frozen=True):
    """What a history is to be made into, as addresses and forms say it; a policy's options by the names they have."""

    target: str = "anthropic"
    shape: str = "auto"
    model: str = ""
    policy: dict[str, str] = {}

    @classmethod
    def of(cls, given: Mapping[str, Any], default: Choice | None = None) -> Choice:
        """What a query or a form names; the rest is as in ``default``."""
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
    """Why a history cannot be used: an error, with its line in the text, or what stands at its place."""

    code: str
    message: str
    path: str = ""
    rule: str = ""
    line: int = 0
    column: int = 0
    value: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a text.

    Attributes:
        request: the body, laid out; of a long one the beginning. None where nothing would be sent.
        size: the body's bytes as they would be sent.
        mends, fix_count, codes: the first fixes, how many there are, and how many of each code.
        violations: what the target's rules say of the body.
        refused: what they say of the text as it is, where it is a body in the target's own shape.
        head, rows, more_rows: both sides: what stands beside the messages, the first blocks, and how many follow.
        wrong: why there is nothing.
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
    """What `reknit normalize` makes of a text; in the helper's process, for it may take long."""
    try:
        done = pipeline.normalize(
            text, to=choice.target, source=choice.shape, policy=choice.policy, model=choice.model or None
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
    """The text as JSON, with what msgspec refuses, such as half of a surrogate pair; None where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {"messages": found} if isinstance(found, list) else found


def _mend(fix: Fix, document: object) -> Mend:
    known = FIXES[fix.code]
    severity = severity_of(lossless=fix.lossless, observed=fix.observed)
    # What was added has a place in the output alone.
    before = "" if known.fate == "synthesised" else _value_at(document, fix.path)
    return Mend(fix, known.summary, severity, before)


def _value_at(document: Any, path: str) -> str:  # noqa: ANN401  any JSON
    value = document
    try:
        for name in path.split("."):
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (LookupError, TypeError, ValueError):
        return ""
    text = json.dumps(shortened(value), ensure_ascii=False) if path else ""
    return encodable(text if len(text) <= _VALUE_SHOWN else f"{text[:_VALUE_SHOWN]}…")


def _refused(document: object, choice: Choice) -> Iterator[Violation]:
    """What the provider would say of the document itself; soft rules apart, which it was seen to let pass."""
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
    value = _value_at(_document(text), error.path)
    rule = error.rule if error.rule in RULES else ""
    return Wrong(error.code, error.message, error.path, rule or "", line, column, value)
