"""Any history, any target: what `reknit normalize` makes of it, as somebody types. Nothing pasted is kept or logged.

The address has what was chosen and never the text, so a link to a choice can be passed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.inspect import BoolType

from pipeline.config import described
from pipeline.demo.recordings import fleet, unmended
from pipeline.diff.values import encodable
from pipeline.errors import ReknitError
from pipeline.explain import FIX_EXAMPLES, RULE_EXAMPLES, FixExample, RuleExample
from pipeline.explain.pages import written_out
from pipeline.fixes import FIXES, OBSERVABLE
from pipeline.history.readers import SHAPES
from pipeline.registry import TARGETS
from pipeline.rules import RULES
from pipeline.session.arguments import POLICY_OPTIONS
from pipeline.viewer.helper import Helper
from pipeline.viewer.outcome import Choice, Outcome, Wrong, outcome_of
from pipeline.viewer.pages import is_part, page, with_query

# Text that a person can still look through; mending it takes two seconds at worst.
LARGEST: Final = 2 << 20
SECONDS: Final = 10.0


def path_of(choice: Choice) -> str:
    """The address of a playground with this choice."""
    return with_query(
        "/playground", target=choice.target, **{"from": choice.shape}, model=choice.model, **choice.policy
    )


class Example(Struct, frozen=True):
    """A history to try: what it is an example of, where it is from, its text, and the choice to try it by."""

    group: str
    title: str
    source: str
    text: str
    choice: Choice


HISTORIES: Final = "Histories as clients keep them"


def _examples() -> Iterator[tuple[str, Example]]:
    """The demo's broken histories by their sessions; then the examples of single fixes and rules by their codes."""
    for recording in fleet():
        sent = unmended(recording)
        if sent.messages:
            choice = Choice(sent.targets[0], policy={name: str(value) for name, value in sent.policy.items()})
            text = _indented(sent.head | {"messages": sent.messages})
            yield recording.session, Example(HISTORIES, recording.title, recording.source, text, choice)
    for code, fix in FIX_EXAMPLES.items():
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
    """Whether a body that breaks a rule can be read as a history again."""
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
        if table == "session.policy" and name != "mend":
            words = ("true", "false") if isinstance(setting.kind, BoolType) else POLICY_OPTIONS[name]
            default = msgspec.json.encode(setting.default).decode().strip('"')
            yield Option(name, setting.text, default, tuple(map(str, words)))


OPTIONS: Final = tuple(_options())

_helper = Helper(outcome_of, SECONDS)


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
    outcome = await _helper.run(example.text, choice) if example else None
    return _page(request, choice, outcome, text=example.text if example else "", example=name if example else "")


async def _try(request: web.Request) -> web.Response:
    form = await request.post()
    choice = Choice.of(form)
    text = _text_of(form)
    if len(text) > LARGEST or len(text.encode("utf-8", "surrogatepass")) > LARGEST:
        outcome = Outcome(wrong=Wrong("too_large", f"the playground takes {LARGEST >> 20} MiB at most"))
        text = ""
    elif not text.strip():
        outcome = None
    else:
        try:
            outcome = await _helper.run(text, choice)
        except ReknitError as error:
            outcome = Outcome(wrong=Wrong(error.code, error.message))
    if is_part(request):
        return page(request, "playground_outcome.html", choice=choice, link=path_of(choice), outcome=outcome)
    return _page(request, choice, outcome, text=text, example="")


def _text_of(form: Mapping[str, Any]) -> str:
    """What was pasted; or, where a file was given, what it holds."""
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
        # What is chosen and no box shows, such as a mend of a single target, stays chosen.
        mends=sorted({*(f"mend.{code}" for code in OBSERVABLE), *(name for name in choice.policy if "." in name)}),
    )


routes = [web.get("/playground", _open), web.post("/playground", _try)]
