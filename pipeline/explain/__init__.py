"""The explanation of a fix or a rule: its entry in the catalogue, and its example, which is run when it is shown.

``telling`` puts that into words and formats them for a terminal, ``documents`` for docs/, and the viewer for a browser.
A page never claims more than the installed version does, because its before and after are computed on request.

The examples are data, ``fixes.jsonl``, ``streams.jsonl`` and ``rules.jsonl`` in this folder, one in a line: for each
fix a history or a stream that needs it, for each rule a body that breaks it. A long string is written as ``{"repeat":
TEXT, "times": N}``, and so are equal elements of a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import FIXES, Fix, FixCode
from reknit.pipeline.healing.table import HEALED_CODES, healed_summary
from reknit.pipeline.providers.cascade.stream.speech import OutputFilters
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Rule, Violation
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.session import normalize
from reknit.pipeline.session.arguments import tools_from
from reknit.pipeline.streams.session import Recovery
from reknit.pipeline.targets.wrapped_tools import wrapped_tools
from reknit.pipeline.validation import validate
from reknit.topics.items import Item, ItemCompleted


class FixExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """A history that needs the fix ``code`` when it goes to the target ``to``.

    ``source`` is the history's shape (``from`` in the data) and ``policy`` what differs from the default policy. A
    history that is a string is a transcript or JSON text as it is. ``also`` names the fixes that come with it.
    ``scaled`` is the data of the image that each scaled one becomes.
    """

    code: str
    history: Any
    also: tuple[str, ...] = ()
    to: str = "anthropic"
    source: str = "auto"
    policy: dict[str, Any] = {}
    scaled: str = ""

    def scale(self, _data: str) -> msgspec.Raw:
        """Return what an image of the example is scaled to, which does not depend on an installed library."""
        source = {"type": "base64", "media_type": "image/png", "data": self.scaled}
        return msgspec.Raw(msgspec.json.encode(source))


class StreamExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """Events of the source ``from`` that need the fix ``code``, in a session with these ``tools``.

    A planner of text only speaks under the name ``model``.
    """

    code: str
    events: tuple[Any, ...]
    also: tuple[str, ...] = ()
    source: str = "cascade"
    model: str = "claude-sonnet-4-5"
    tools: tuple[Any, ...] = ()


class RuleExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body that breaks the rule ``code``; a string is the body's exact text, written in ``encoding``.

    ``also`` names the other rules that such a body cannot help but break.
    """

    code: str
    body: Any
    also: tuple[str, ...] = ()
    encoding: str = "utf-8"


class _Repeat(Struct, forbid_unknown_fields=True):
    repeat: Any
    times: int


Row = TypeVar("Row", FixExample, StreamExample, RuleExample)


def _load(name: str, kind: type[Row]) -> Mapping[str, Row]:
    lines = files(__package__).joinpath(name).read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=kind) for line in lines]
    return MappingProxyType({row.code: row for row in rows})


def written_out(value: Any) -> Any:  # noqa: ANN401  any JSON
    if isinstance(value, list):
        return [each for element in value for each in _elements(element)]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"repeat", "times"}:
        long = msgspec.convert(value, _Repeat)
        return long.repeat * long.times
    return {key: written_out(element) for key, element in value.items()}


def _elements(element: Any) -> list[Any]:  # noqa: ANN401  any JSON
    """Write out one element of a list; a repeated value that is not text is as many elements."""
    if isinstance(element, dict) and element.keys() == {"repeat", "times"} and not isinstance(element["repeat"], str):
        long = msgspec.convert(element, _Repeat)
        return [written_out(long.repeat)] * long.times
    return [written_out(element)]


FIX_EXAMPLES = _load("fixes.jsonl", FixExample)
STREAM_EXAMPLES = _load("streams.jsonl", StreamExample)
RULE_EXAMPLES = _load("rules.jsonl", RuleExample)

# A string longer than this is shown by its beginning and its length.
MOST_SHOWN = 24
LONGEST_SHOWN = 400
_BEGINNING = 40

Outcome: TypeAlias = Literal["mended", "unchanged", "still broken", "rejected", "unusable"]


class RepairExample(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"source": "from"}):
    """A fix's example, run.

    ``request`` is the body, or the text itself for a target that takes text. ``broken`` names the rules that the
    history would break if it were sent as it is, where it is in the target's own shape.
    """

    to: str
    source: str = "auto"
    policy: dict[str, Any] = {}
    history: Any
    broken: tuple[str, ...] = ()
    request: Any
    fixes: tuple[Fix, ...]


class Retold(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"source": "from"}):
    """A stream's example, run: the events, and the messages that the session's log gets of them.

    In a session with ``tools``, ``inputs`` are those of the calls in the items.
    """

    source: str
    model: str
    events: tuple[Any, ...]
    messages: tuple[Any, ...]
    fixes: tuple[Fix, ...]
    tools: tuple[Any, ...] = ()
    inputs: tuple[Any, ...] = ()


class Broken(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule's example, judged; ``outcome`` is what ``normalize`` makes of the body, ``fixes`` what that takes.

    There is no outcome where the body is no history that could be read again: the one line of a CLI.
    """

    body: Any
    violation: Violation
    also: tuple[str, ...] = ()
    outcome: Outcome | Literal[""] = ""
    fixes: tuple[str, ...] = ()


class FixPage(Struct, frozen=True, kw_only=True, tag_field="kind", tag="fix"):
    code: str
    summary: str
    fate: str
    lossless: bool
    spared: str
    always: str
    error: str
    source: str
    example: RepairExample | Retold


class RulePage(Struct, frozen=True, kw_only=True, tag_field="kind", tag="rule"):
    """The explanation of a rule; one that a body alone cannot show to be broken has no example."""

    code: str
    target: str
    summary: str
    severity: str
    families: tuple[str, ...]
    message: str
    repair: str
    source: str
    unchecked: str
    example: Broken | None


class HealingPage(Struct, frozen=True, kw_only=True, tag_field="kind", tag="healing"):
    """The explanation of a fix that a refusal asks for; ``sentence`` is a regular expression."""

    code: str
    summary: str
    targets: tuple[str, ...]
    sentence: str
    lossless: bool
    source: str


def explain(code: str) -> FixPage | HealingPage | RulePage:
    """Return the page of a fix code or a rule id; case and a leading zero do not matter.

    Raises:
        InputError: the code does not exist; the message names the nearest ones.
    """
    name = _known(code)
    if name in FIXES:
        example = _retell(STREAM_EXAMPLES[name]) if name in STREAM_EXAMPLES else _repair_example(FIX_EXAMPLES[name])
        return FixPage(**structs.asdict(FIXES[name]), example=example)
    if name in HEALED_CODES:
        row = HEALED_CODES[name]
        return HealingPage(
            code=name,
            summary=healed_summary(name),
            targets=tuple(sorted(row.targets)),
            sentence=row.pattern.pattern or f"param: {row.param}",
            lossless=not row.loss,
            source=row.source,
        )
    return _rule_page(RULES[name], RULE_EXAMPLES.get(name))


def summaries() -> Mapping[str, Mapping[str, str]]:
    """Every code with its summary, in groups: fixes by whether they lose or add anything, healings, rules by target."""
    groups: dict[str, dict[str, str]] = {}
    for fix in FIXES.values():
        groups.setdefault(_group(fix), {})[fix.code] = fix.summary
    groups["fixes after a refusal"] = {code: healed_summary(code) for code in HEALED_CODES}
    for rule in RULES.values():
        groups.setdefault(f"rules of {rule.target}", {})[rule.id] = rule.summary
    return groups


def _group(fix: FixCode) -> str:
    if fix.fate == "synthesised":
        return "fixes that add content"
    return "fixes that lose nothing" if fix.lossless else "fixes that lose something"


def _known(code: str) -> str:
    names = {_key(name): name for name in (*FIXES, *HEALED_CODES, *RULES)}
    wanted = _key(code)
    if wanted in names:
        return names[wanted]
    near = [names[match] for match in get_close_matches(wanted, names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`reknit explain` lists all of them"
    raise InputError("unknown_code", f"no fix and no rule is called {code!r}; {hint}")


def _key(code: str) -> str:
    """Return a normal form of the spellings of one code: ``ant-7`` is ``ANT-07``."""
    return code.strip().casefold().replace("-0", "-")


def _repair_example(example: FixExample) -> RepairExample:
    history = written_out(example.history)
    given = history if isinstance(history, str) else msgspec.json.encode(history)
    done = normalize(given, to=example.to, source=example.source, policy=example.policy, scale=example.scale)
    return RepairExample(
        to=example.to,
        source=example.source,
        policy=example.policy,
        history=shortened(history),
        broken=_broken(history, example),
        request=_shown(done.body, text=TARGETS[example.to].is_text),
        fixes=tuple(done.fixes),
    )


def _retell(example: StreamExample) -> Retold:
    items, messages, fixes = retold(example, example.events)
    called = [item.input for item in items if isinstance(item, ItemCompleted) and isinstance(item.input, Raw)]
    return Retold(
        source=example.source,
        model=example.model,
        events=example.events,
        messages=tuple(messages),
        fixes=tuple(fixes),
        tools=example.tools,
        inputs=tuple(map(msgspec.json.decode, called)) if example.tools else (),
    )


def retold(example: StreamExample, events: Sequence[Any]) -> tuple[list[Item], list[Any], list[Fix]]:
    """The items of events in an example's session, the messages that its log gets, and the fixes."""
    recovery = Recovery(example.source)
    recovery.speak(OutputFilters(model=example.model))
    recovery.unwrap(wrapped_tools(tools_from(example.tools)))
    items = [item for event in events for item in recovery.feed(msgspec.json.encode(event))]
    items += recovery.end_run()
    messages = [msgspec.json.decode(turn.message) for turn in recovery.take_finished()]
    return items, messages, recovery.take_fixes()


def _broken(history: Any, example: FixExample) -> tuple[str, ...]:  # noqa: ANN401  any JSON
    if example.source != "auto" or TARGETS[example.to].is_text or isinstance(history, str):
        return ()
    body = history if isinstance(history, dict) else {"messages": history}
    found = validate(body, target=example.to)
    return tuple(dict.fromkeys(violation.rule for violation in found if violation.severity != "soft"))


def _rule_page(rule: Rule, example: RuleExample | None) -> RulePage:
    return RulePage(
        code=rule.id,
        target=rule.target,
        summary=rule.summary,
        severity=rule.severity,
        families=rule.families,
        message=rule.message,
        repair=rule.repair,
        source=rule.source,
        unchecked=rule.unchecked,
        example=_judge(rule, example) if example else None,
    )


def _judge(rule: Rule, example: RuleExample) -> Broken:
    body = written_out(example.body)
    data = body.encode(example.encoding) if isinstance(body, str) else msgspec.json.encode(body)
    violation = next(found for found in validate(data, target=rule.target) if found.rule == rule.id)
    outcome, fixes = _outcome(data, rule)
    return Broken(
        body=shortened(body),
        violation=violation,
        also=example.also,
        outcome=outcome,
        fixes=fixes,
    )


def _outcome(data: bytes, rule: Rule) -> tuple[Outcome | Literal[""], tuple[str, ...]]:
    if rule.target not in TARGETS or TARGETS[rule.target].is_text:
        return "", ()
    try:
        done = normalize(data, to=rule.target)
    except InputError:
        return "unusable", ()
    fixes = tuple(dict.fromkeys(fix.code for fix in done.fixes))
    if done.body is None:
        return "rejected", fixes
    if any(violation.rule == rule.id for violation in done.violations):
        return "still broken", fixes
    return "mended" if fixes else "unchanged", fixes


def _shown(body: bytes | None, *, text: bool) -> Any:  # noqa: ANN401  any JSON
    if body is None or text:
        return body.decode() if body else None
    return shortened(msgspec.json.decode(body))


def shortened(value: Any) -> Any:  # noqa: ANN401  any JSON
    if isinstance(value, str) and len(value) > LONGEST_SHOWN:
        return f"{value[:_BEGINNING]}… ({len(value)} characters)"
    if isinstance(value, list):
        more = [f"… ({len(value)} elements)"] if len(value) > MOST_SHOWN else []
        return [*(shortened(element) for element in value[:MOST_SHOWN]), *more]
    if isinstance(value, dict):
        return {key: shortened(element) for key, element in value.items()}
    return value
