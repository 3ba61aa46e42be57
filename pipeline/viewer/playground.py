"""Shows Reknit without a session: any history for any target, and the explanation of every fix and rule.

The playground shows the result of `reknit normalize` while the user types. Pasted text is neither kept nor logged. The
address has the chosen options and never the text, so it can be shared. Every fix and rule is explained by its example,
run by this version; other pages link to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from aiohttp import web
from markupsafe import Markup, escape
from msgspec import Struct
from msgspec.inspect import BoolType

from reknit.pipeline.config import described
from reknit.pipeline.demo.recordings import broken_request, fleet
from reknit.pipeline.diff.values import encodable
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.explain import (
    FIX_EXAMPLES,
    RULE_EXAMPLES,
    FixExample,
    RuleExample,
    explain,
    summaries,
    written_out,
)
from reknit.pipeline.explain.page_text import PageText, as_text
from reknit.pipeline.fixes import FIXES, OBSERVABLE, severity_of
from reknit.pipeline.healing.table import HEALED_CODES
from reknit.pipeline.helper_process import HelperProcess
from reknit.pipeline.history.readers.shapes import SHAPES
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.session.arguments import POLICY_OPTIONS
from reknit.pipeline.text import visible
from reknit.pipeline.viewer.addresses import with_query
from reknit.pipeline.viewer.guard import form_of
from reknit.pipeline.viewer.index.search import MOST_WORDS
from reknit.pipeline.viewer.outcome import Choice, Outcome, Wrong, outcome_of
from reknit.pipeline.viewer.pages import VIEWER, is_part, page

# Text that a person can still read; repairing it takes two seconds at most.
LARGEST: Final = 2 << 20
SECONDS: Final = 10.0


def path_of(choice: Choice) -> str:
    """The address of a playground with this choice."""
    return with_query(
        "/playground", target=choice.target, **{"from": choice.shape}, model=choice.model, **choice.policy
    )


class Example(Struct, frozen=True):
    """A history to try: its subject, its source, its text, and its options."""

    group: str
    title: str
    source: str
    text: str
    choice: Choice


HISTORIES: Final = "Histories as clients keep them"


def _examples() -> Iterator[tuple[str, Example]]:
    """The demo's broken histories by their sessions; then the examples of single fixes and rules by their codes."""
    for recording in fleet():
        sent = broken_request(recording)
        if sent.messages:
            choice = Choice(sent.targets[0], policy={name: str(value) for name, value in sent.policy.items()})
            text = _indented(sent.head | {"messages": sent.messages})
            yield recording.session, Example(HISTORIES, recording.title, recording.source, text, choice)
    for code, fix in FIX_EXAMPLES.items():
        if fix.scaled:
            continue  # its image is no real one
        known, text = FIXES[code], _indented(fix.history)
        yield code, Example("Fixes", known.summary, known.source, text, _choice_of_fix(fix))
    for code, broken in RULE_EXAMPLES.items():
        rule, text = RULES[code], _indented(broken.body)
        if _is_history(broken) and len(text) <= LARGEST:
            yield code, Example("Rules", rule.summary, rule.source, text, Choice(rule.target))


def _choice_of_fix(example: FixExample) -> Choice:
    policy = {name: value if isinstance(value, str) else json.dumps(value) for name, value in example.policy.items()}
    return Choice(example.to, example.source, policy=policy)


def _is_history(example: RuleExample) -> bool:
    """Return True if a body that breaks a rule can be read as a history again."""
    shaped = TARGETS[RULES[example.code].target].shape is not None
    return shaped and isinstance(example.body, dict) and example.encoding == "utf-8"


def _indented(value: Any) -> str:  # noqa: ANN401  any JSON
    written = written_out(value)
    return written if isinstance(written, str) else encodable(json.dumps(written, ensure_ascii=False, indent=2))


EXAMPLES: Final[Mapping[str, Example]] = dict(_examples())


class Option(Struct, frozen=True):
    """An option of a policy, as a form has it: the words that it takes, or none where it takes a number."""

    name: str
    text: str
    default: str
    words: tuple[str, ...]


def _options() -> Iterator[Option]:
    for setting in described():
        table, _, name = setting.key.rpartition(".")
        if table == "session.policy" and name not in ("endpoints", "mend"):
            words = ("true", "false") if isinstance(setting.kind, BoolType) else POLICY_OPTIONS[name]
            default = msgspec.json.encode(setting.default).decode().strip('"')
            yield Option(name, setting.text, default, tuple(map(str, words)))


OPTIONS: Final = tuple(_options())

_helper = HelperProcess(outcome_of)


def setup(app: web.Application) -> None:
    """Have the helper's process end with the application."""

    async def stop(_app: web.Application) -> None:
        _helper.stop()

    app.on_cleanup.append(stop)


async def _open(request: web.Request) -> web.Response:
    _helper.warm()
    name = request.query.get("example", "")
    example = EXAMPLES.get(name)
    choice = Choice.of(request.query, example.choice if example else None)
    outcome = await _helper.run(SECONDS, outcome_of, example.text, choice) if example else None
    return _page(request, choice, outcome, text=example.text if example else "", example=name if example else "")


async def _try(request: web.Request) -> web.Response:
    form = await form_of(request)
    choice = Choice.of(form)
    text = _text_of(form)
    if len(text) > LARGEST or len(text.encode("utf-8", "surrogatepass")) > LARGEST:
        outcome = Outcome(wrong=Wrong("too_large", f"the playground takes {LARGEST >> 20} MiB at most"))
        text = ""
    elif not text.strip():
        outcome = None
    else:
        try:
            outcome = await _helper.run(SECONDS, outcome_of, text, choice)
        except ReknitError as error:
            outcome = Outcome(wrong=Wrong(error.code, error.message))
    if is_part(request):
        return page(request, "parts/playground_outcome.html", choice=choice, link=path_of(choice), outcome=outcome)
    return _page(request, choice, outcome, text=text, example="")


def _text_of(form: Mapping[str, Any]) -> str:
    """Return the pasted text, or the content of an uploaded file."""
    file = form.get("file")
    data = file.file.read(LARGEST + 1) if isinstance(file, web.FileField) else b""
    return data.decode("utf-8", "replace") if data else str(form.get("text", ""))


def _page(request: web.Request, choice: Choice, outcome: Outcome | None, *, text: str, example: str) -> web.Response:
    return page(
        request,
        "playground.html",
        choice=choice,
        link=path_of(choice),
        outcome=outcome,
        text=text,
        example=example,
        examples=EXAMPLES,
        histories=HISTORIES,
        largest=LARGEST,
        targets=sorted(TARGETS),
        shapes=("auto", *SHAPES),
        options=OPTIONS,
        # Chosen options without a box, such as the repair of a single target, stay chosen.
        mends=sorted({*(f"mend.{code}" for code in OBSERVABLE), *(name for name in choice.policy if "." in name)}),
    )


# The form of codes in a text; a code that is also an everyday word does not match.
_CODE = re.compile(r"\b(?:[a-z]+(?:_[a-z0-9]+)+|[A-Z]{2,}-\d+[a-z]?)\b")


async def _all(request: web.Request) -> web.Response:
    words = list(dict.fromkeys(request.query.get("q", "").casefold().split()))
    if len(words) > MOST_WORDS:
        raise InputError("search_too_large", f"a search takes at most {MOST_WORDS} words; these are {len(words)}")
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
        said = await request.app[VIEWER].pools.work.run(_page_text, request.match_info["code"])
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
def _page_text(code: str) -> PageText:
    return as_text(explain(code))


def _severity(code: str) -> str:
    """Return the weight of a fix or a violation in one word."""
    if code in RULES:
        return RULES[code].severity
    if code in HEALED_CODES:
        return severity_of(lossless=not HEALED_CODES[code].loss)
    return severity_of(lossless=FIXES[code].lossless)


def linked(text: str) -> Markup:
    """Return a text of Reknit's in which every code is a link to its page."""
    pieces: list[Markup] = []
    done_to = 0
    for found in _CODE.finditer(text):
        if found[0] in FIXES or found[0] in RULES or found[0] in HEALED_CODES:
            pieces += [
                escape(visible(text[done_to : found.start()])),
                Markup('<a href="/explain/{0}">{0}</a>').format(found[0]),
            ]
            done_to = found.end()
    return Markup().join([*pieces, escape(visible(text[done_to:]))])


routes = [
    web.get("/playground", _open),
    web.post("/playground", _try),
    web.get("/explain", _all),
    web.get("/explain/{code}", _one),
]
