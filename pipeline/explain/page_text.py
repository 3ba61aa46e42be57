"""The content of a page, in order: facts, then the example, each line with its sub-lines.

The terminal, the Markdown in docs/ and the viewer show the same content; only the format differs. The terminal's format
is in this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from itertools import groupby
from textwrap import wrap

import msgspec
from msgspec import Struct

from reknit.pipeline.explain import Broken, FixPage, HealingPage, RepairExample, Retold, RulePage
from reknit.pipeline.text.document_lines import Line, Mark, document_lines, shown_json


class Said(Struct, frozen=True):
    """A sentence or a label, and the lines that belong under it."""

    text: str
    lines: tuple[Line, ...] = ()


class PageText(Struct, frozen=True, kw_only=True):
    code: str
    summary: str
    facts: tuple[Said, ...]
    example: tuple[Said, ...]


_WIDTH = 100
_FATES = {
    "moved": "moves content",
    "rewritten": "rewrites content",
    "flattened": "makes text of a block",
    "dropped": "leaves something out",
    "synthesised": "adds content that no party wrote",
}
_SEVERITIES = {
    "hard": "A body that breaks it is refused.",
    "model": "Only some models refuse it: {families}. For a model that is not known it is reported, not fatal.",
    "soft": "A warning: bodies that break it were seen to be accepted, or a body alone is not sufficient.",
}
_OUTCOMES = {
    "mended": "reknit normalize mends it: {fixes}.",
    "unchanged": "reknit normalize writes it so that the rule holds; no content changes, so there is no fix.",
    "still broken": "reknit normalize leaves it to the sender.",
    "rejected": "reknit normalize rejects it: there is nothing to mend it with.",
    "unusable": "reknit normalize cannot read it.",
}


def as_text(page: FixPage | HealingPage | RulePage) -> PageText:
    facts: Iterable[Said]
    example: Iterable[Said] = ()
    if isinstance(page, HealingPage):
        facts = _healing(page)
    elif isinstance(page, FixPage):
        facts = _fix(page)
        example = _repair_text(page.example) if isinstance(page.example, RepairExample) else _retold(page.example)
    else:
        facts = _rule(page)
        example = _unchecked(page) if page.example is None else _broken(page.example)
    return PageText(code=page.code, summary=page.summary, facts=tuple(facts), example=tuple(example))


def _fix(page: FixPage) -> Iterator[Said]:
    yield Said(f"This fix {_FATES[page.fate]}{_loss(page)}.")
    if page.error:
        yield Said("Without it the provider says:", _plainly(page.error.split("; ")))
    if isinstance(page.example, RepairExample) and page.example.broken:
        yield Said(f"Rules that the example would break: {', '.join(page.example.broken)}.")
    if page.source:
        yield Said(f"Seen in {page.source}.")
    observed = f"Made unless a policy observes it (mend.{page.code}=observe)."
    yield Said(f"Always made: {page.always}." if page.always else observed)


def _healing(page: HealingPage) -> Iterator[Said]:
    loss = "loses nothing" if page.lossless else "loses content"
    yield Said(f"A healing after a refusal, which {loss}, for {', '.join(page.targets)}. The provider says:",
               _plainly([page.sentence]))  # fmt: skip
    yield Said(f"Seen in {page.source}.")
    yield Said("Policy `heal` limits it.")


def _loss(page: FixPage) -> str:
    if page.fate == "synthesised":
        return ", which counts as a loss"
    if not page.lossless:
        return " and loses content"
    return f" and loses nothing: {page.spared}" if page.spared else " and loses nothing"


def _repair_text(example: RepairExample) -> Iterator[Said]:
    policy = "".join(f", {name}={_value(value)}" for name, value in example.policy.items())
    before, after = list(document_lines(example.history)), list(document_lines(example.request))
    same = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    shape = "" if example.source == "auto" else f" ({example.source})"
    yield Said(f"Before{shape}:", _marked(before, [(block.a, block.size) for block in same], "-"))
    yield Said(f"After (to {example.to}{policy}):", _marked(after, [(block.b, block.size) for block in same], "+"))
    yield _recorded(example)


def _retold(example: Retold) -> Iterator[Said]:
    yield Said(f"Before (events of {example.source}):", _plainly(map(shown_json, example.events)))
    if example.tools:
        yield Said("The tools:", _plainly(map(shown_json, example.tools)))
        yield Said("After (inputs of the calls in the items):", _plainly(map(shown_json, example.inputs)))
    else:
        yield Said(f"After (speaking as {example.model}):", _plainly(document_lines(list(example.messages))))
    yield _recorded(example)


def _recorded(example: RepairExample | Retold) -> Said:
    return Said("Recorded:", _plainly(shown_json(msgspec.to_builtins(fix)) for fix in example.fixes))


def _rule(page: RulePage) -> Iterator[Said]:
    severity = _SEVERITIES[page.severity].format(families=", ".join(page.families))
    yield Said("\n".join(wrap(f"A rule of {page.target}. {severity}", _WIDTH)))
    yield Said(f"Repair: {page.repair}.")
    yield Said(f"Source: {page.source}.")


def _unchecked(page: RulePage) -> Iterator[Said]:
    yield Said("The provider says:", _plainly([page.message.replace("{at}", "messages.N")]))
    yield Said(f"No example, since no body is judged by it: {page.unchecked}.")


def _broken(example: Broken) -> Iterator[Said]:
    runs = ((line, len(list(run))) for line, run in groupby(document_lines(example.body)))
    yield Said("This body breaks it:", _plainly(f"{line}  ({n} times)" if n > 1 else line for line, n in runs))
    place = example.violation.path or "the whole body"
    yield Said(f"The provider says, of {place}:", _plainly(example.violation.message.split("\n")))
    if example.also:
        yield Said(f"It breaks {', '.join(example.also)} as well.")
    if example.outcome:
        yield Said(_OUTCOMES[example.outcome].format(fixes=", ".join(example.fixes)))


def _plainly(lines: Iterable[str]) -> tuple[Line, ...]:
    return tuple(map(Line, lines))


def _marked(lines: list[str], same: list[tuple[int, int]], mark: Mark) -> tuple[Line, ...]:
    """Lines, marked where the other side does not have them; without marks where nothing is the same."""
    kept = {at for start, size in same for at in range(start, start + size)}
    return tuple(Line(line, mark if kept and at not in kept else " ") for at, line in enumerate(lines))


def _value(value: object) -> str:
    return value if isinstance(value, str) else shown_json(value)


def plain(page: FixPage | HealingPage | RulePage) -> str:
    """A page as text that ends in a newline."""
    said = as_text(page)
    parts = [f"{said.code}: {said.summary}"], written(said.facts), written(said.example)
    return "\n\n".join(filter(None, ("\n".join(lines) for lines in parts))) + "\n"


def written(said: Iterable[Said]) -> Iterator[str]:
    for each in said:
        yield each.text
        yield from (f"{line.mark} {line.text}" if line.text else "" for line in each.lines)


def listing(groups: Mapping[str, Mapping[str, str]]) -> str:
    width = max(len(code) for codes in groups.values() for code in codes)
    blocks = (
        "\n".join([f"{group}:", *(f"  {code:{width}}  {summary}" for code, summary in codes.items())])
        for group, codes in groups.items()
    )
    return "\n\n".join(blocks) + "\n"
