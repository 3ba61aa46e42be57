"""Parameters that only some models of the Gemini API take: the facts by model, and their judge.

Rows hold for the Gemini API. Vertex serves the same models and takes more of the parameters, and a body does not show
where it goes: what Vertex is known to take is only warned about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from reknit.pipeline.providers.gemini.rules import catalogue as rules
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule, Severity

Fact: TypeAlias = Literal["penalty", "json", "functions", "system", "speech", "budget", "level", "thinking"]


class Row(Struct, frozen=True, kw_only=True):
    """One fact about models.

    Attributes:
        fact: what the models refuse.
        models: a pattern that the whole name matches.
        least: the smallest thinking budget, besides 0.
        most: the greatest thinking budget.
        off: thinking can be switched off, by a budget of 0.
        severity: of a breach.
        source: where the refusal was seen, with the number of recordings.
    """

    fact: Fact
    models: str
    least: int = 0
    most: int = 0
    off: bool = True
    severity: Severity = "hard"
    source: str


_THINKING: Final = "the API's documentation, Thinking"

# fmt: off
# One paragraph a row.
TABLE: Final = (
    Row(fact="penalty", models=r"gemini-2\.5-flash(-lite)?(-preview.*)?", severity="soft",
        source="recorded refused twice on gemini-2.5-flash; gemini-2.5-pro recorded accepted once"),
    Row(fact="json", models=r"gemini-2\.5-flash-image(-preview)?", source="recorded refused once"),
    Row(fact="json", models=r"gemini-2\.0-flash(-exp|-preview)-image-generation|gemma-3n?-.*", severity="soft",
        source="as recorded on gemini-2.5-flash-image"),
    Row(fact="functions", models=r"gemini-2\.5-flash-image(-preview)?|gemini-.*-tts|gemma-3n?-.*", severity="soft",
        source="the API's documentation, Models"),
    Row(fact="system", models=r"gemma-3n?-.*", source="recorded refused once behind a router, on gemma-3n-e4b-it"),
    Row(fact="system", models=r"gemini-2\.0-flash(-exp|-preview)-image-generation|gemini-.*-tts", severity="soft",
        source="as recorded on gemma-3n-e4b-it"),
    Row(fact="speech", models=r"gemini-.*-tts(-preview)?", source="recorded refused 7 times on two models"),
    Row(fact="budget", models=r"gemini-2\.5-pro(-preview-\d\d-\d\d)?", least=128, most=32768, off=False,
        source=f"vercel/ai#8027; RooCodeInc/Roo-Code#4399; {_THINKING}"),
    Row(fact="budget", models=r"gemini-2\.5-flash", most=24576, source=_THINKING),
    Row(fact="budget", models=r"gemini-2\.5-flash-lite", least=512, most=24576, source=_THINKING),
    Row(fact="level", models=r"gemini-2\..*", source="RooCodeInc/Roo-Code#10700"),
    Row(fact="thinking", models=r"gemini-(1\.5|2\.0)-.*", severity="soft", source=_THINKING),
)
# fmt: on

_RULES: Final[Mapping[Fact, Rule]] = {
    "penalty": rules.PENALTY,
    "json": rules.NO_JSON,
    "functions": rules.NO_FUNCTIONS,
    "system": rules.NO_SYSTEM,
    "speech": rules.SPEECH,
    "budget": rules.BUDGET,
    "level": rules.LEVEL,
    "thinking": rules.NO_THINKING,
}
_PATTERNS: Final = tuple((re.compile(row.models), row) for row in TABLE)
_PENALTIES: Final = ("presencePenalty", "frequencyPenalty")


class Asked(Struct, frozen=True, kw_only=True):
    """The parts of a request that the facts are about, under their names in camel case."""

    config: Mapping[str, Any]
    functions: bool
    system: bool


def rows_of(model: str | None) -> list[Row]:
    """Return the rows of a model, whose name may begin with ``models/``."""
    name = (model or "").lower().removeprefix("models/")
    return [row for pattern, row in _PATTERNS if pattern.fullmatch(name)]


def judge_model(walk: Walk, asked: Asked, model: str | None) -> None:
    """Report what a model does not take."""
    for row in rows_of(model):
        name = (model or "").removeprefix("models/")
        for path, rule, values in _breaches(row, asked):
            walk.found.append(rule.broken(path, row.severity, model=f"models/{name}", **values))


def _breaches(row: Row, asked: Asked) -> Iterator[tuple[str, Rule, dict[str, object]]]:
    config, rule = asked.config, _RULES[row.fact]
    match row.fact:
        case "penalty":
            penalty = next((name for name in _PENALTIES if config.get(name)), None)
            if penalty:
                yield f"generationConfig.{penalty}", rule, {}
        case "json" if config.get("responseMimeType") == "application/json":
            yield "generationConfig.responseMimeType", rule, {}
        case "functions" if asked.functions:
            yield "tools", rule, {}
        case "system" if asked.system:
            yield "systemInstruction", rule, {}
        case "speech":
            yield from _without_speech(config, rule)
        case "budget" | "level" | "thinking":
            yield from _thinking(row, config.get("thinkingConfig"), rule)


def _without_speech(config: Mapping[str, Any], rule: Rule) -> Iterator[tuple[str, Rule, dict[str, object]]]:
    asked = config.get("responseModalities")
    listed = [str(each).upper() for each in asked] if isinstance(asked, list) and asked else ["TEXT"]
    if listed != ["AUDIO"]:
        yield "generationConfig.responseModalities", rule, {"asked": ", ".join(listed)}


def _thinking(row: Row, thinking: object, rule: Rule) -> Iterator[tuple[str, Rule, dict[str, object]]]:
    if not isinstance(thinking, dict):
        return
    path = "generationConfig.thinkingConfig"
    budget = thinking.get("thinkingBudget", thinking.get("thinking_budget"))
    level = thinking.get("thinkingLevel", thinking.get("thinking_level"))
    if row.fact == "level" and level is not None:
        yield f"{path}.thinkingLevel", rule, {}
    if row.fact == "thinking" and (budget or level or thinking.get("includeThoughts")):
        yield path, rule, {}
    if row.fact != "budget" or type(budget) is not int:
        return
    if budget == 0 and not row.off:
        yield f"{path}.thinkingBudget", rules.ALWAYS_THINKS, {}
    elif budget > row.most or 0 < budget < row.least:
        yield f"{path}.thinkingBudget", rule, {"budget": budget, "least": row.least, "most": row.most}
