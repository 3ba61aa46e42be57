"""Parameters that only some Claude models take: the facts by line and version, and their judge.

The judge reads a request under the names of the Messages API, and reports by rules that its caller gives: platforms
that pass the parameters on have the same refusals behind words of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from reknit.pipeline.providers.anthropic.rules.catalogue import version_of
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule, Severity

Version: TypeAlias = tuple[int, int]
Fact: TypeAlias = Literal["sampling", "samplers", "enabled", "adaptive", "effort", "level", "output", "forced"]


class Row(Struct, frozen=True, kw_only=True):
    """One fact about models; of two that hold for a model, the first counts.

    Attributes:
        fact: what the models refuse.
        lines: the lines of models; none for every line.
        since: the first version.
        until: the last version; None if later ones are the same.
        values: what is taken.
        most: the greatest number that is taken.
        severity: of a breach.
        source: where the refusal was seen.
    """

    fact: Fact
    lines: tuple[str, ...] = ()
    since: Version = (0, 0)
    until: Version | None
    values: tuple[str, ...] = ()
    most: int = 0
    severity: Severity = "hard"
    source: str

    def holds(self, line: str, version: Version) -> bool:
        ends = self.until is None or version <= self.until
        return self.since <= version and ends and (not self.lines or line in self.lines)


_REMOVED: Final = "anomalyco/models.dev#1468; The-PR-Agent/pr-agent#2456; mnfst/modelparams.dev#238"
_ADAPTIVE_ONLY: Final = "earendil-works/pi#3297; handochan/aelix-ai#258"
_EFFORT: Final = "the API's documentation, Effort; SkillfulAgents/SuperAgent#1142"
_LIMITS: Final = "the API's documentation, Models overview"

# fmt: off
# One paragraph a row.
TABLE: Final = (
    Row(fact="sampling", lines=("opus",), since=(4, 7), until=(5, 0), source=_REMOVED),
    Row(fact="sampling", lines=("sonnet", "fable"), since=(5, 0), until=(5, 0), source=_REMOVED),
    Row(fact="sampling", since=(4, 7), until=None, severity="soft", source="as for the models before them"),
    Row(fact="enabled", lines=("opus",), since=(4, 7), until=(5, 0), source=_ADAPTIVE_ONLY),
    Row(fact="enabled", lines=("sonnet", "fable"), since=(5, 0), until=(5, 0), source=_ADAPTIVE_ONLY),
    Row(fact="enabled", since=(4, 7), until=None, severity="soft", source="as for the models before them"),
    Row(fact="samplers", lines=("opus",), since=(4, 1), until=(4, 1), source="aws-samples/bedrock-chat#979"),
    Row(fact="samplers", since=(4, 5), until=(4, 6),
        source="SalesforceAIResearch/MCP-Universe#49; langfuse/langfuse#9882; iOfficeAI/AionUi#912"),
    Row(fact="adaptive", lines=("haiku",), since=(4, 5), until=(4, 5), source="pensarai/apex#890"),
    Row(fact="adaptive", until=(4, 5), severity="soft", source="the API's documentation, Adaptive thinking"),
    Row(fact="effort", lines=("haiku",), since=(4, 5), until=(4, 5),
        source="Oaklight/llm-rosetta#289; anthropics/claude-code#30760; oratis/LISA#218"),
    Row(fact="effort", lines=("sonnet",), until=(4, 5), severity="soft", source=_EFFORT),
    Row(fact="effort", until=(4, 1), severity="soft", source=_EFFORT),
    Row(fact="level", lines=("opus",), since=(4, 5), until=(4, 5), values=("low", "medium", "high"), severity="soft",
        source=_EFFORT),
    Row(fact="level", lines=("opus", "sonnet"), since=(4, 6), until=(4, 6), values=("low", "medium", "high", "max"),
        source="recorded refused once; SkillfulAgents/SuperAgent#1142"),
    Row(fact="output", until=(3, 0), most=4096, source=_LIMITS),
    Row(fact="output", since=(3, 5), until=(3, 5), most=8192, source=_LIMITS),
    Row(fact="output", lines=("opus",), since=(4, 0), until=(4, 1), most=32000, source=_LIMITS),
    Row(fact="output", lines=("sonnet", "haiku"), since=(4, 0), until=(4, 5), most=64000, source=_LIMITS),
    Row(fact="output", lines=("opus",), since=(4, 5), until=(4, 5), most=64000, source=_LIMITS),
    Row(fact="forced", lines=("fable",), since=(5, 1), until=None, severity="soft",
        source="langchain-ai/langchain-aws#1273; anthropics/claude-cookbooks#854"),
)
# fmt: on

LEVELS: Final = ("low", "medium", "high", "xhigh", "max")


class _Breach(Struct, frozen=True):
    fact: Fact
    place: str
    values: dict[str, Any] = {}


def row_of(fact: Fact, model: str | None) -> Row | None:
    """Return the row of a fact for a model; None if nothing is known against it."""
    named = version_of(model)
    if named is None:
        return None
    line, version = named
    return next((row for row in TABLE if row.fact == fact and row.holds(line, version)), None)


def judge_claude(
    walk: Walk,
    request: Mapping[str, Any],
    model: str | None,
    rules: Mapping[Fact, Rule],
    place: Callable[[str], str] = str,
) -> None:
    """Report what a Claude model refuses; ``place`` returns where the body has a parameter."""
    if version_of(model) is None:
        return
    for breach in _breaches(request, model):
        row = row_of(breach.fact, model)
        if row is not None and breach.fact in rules:
            where = place(breach.place)
            rule = rules[breach.fact]
            walk.found.append(rule.broken(where, row.severity, name=breach.place, model=model, **breach.values))


def _breaches(request: Mapping[str, Any], model: str | None) -> Iterator[_Breach]:
    """Yield what a request breaks if the model has such a row."""
    temperature, top_p = request.get("temperature"), request.get("top_p")
    if temperature is not None and temperature != 1:
        yield _Breach("sampling", "temperature")
    yield from (_Breach("sampling", name) for name in ("top_p", "top_k") if request.get(name) is not None)
    if temperature is not None and top_p is not None:
        yield _Breach("samplers", "top_p")
    kind = _member(request, "thinking", "type")
    if kind in ("enabled", "adaptive"):
        yield _Breach(kind, "thinking.type")
    level = _member(request, "output_config", "effort")
    if level in LEVELS:
        yield _Breach("effort", "output_config.effort")
        row = row_of("level", model)
        if row is not None and level not in row.values:
            levels = ", ".join(sorted(row.values))
            yield _Breach("level", "output_config.effort", {"value": level, "levels": levels})
    limit, row = request.get("max_tokens"), row_of("output", model)
    if type(limit) is int and row is not None and limit > row.most:
        yield _Breach("output", "max_tokens", {"value": limit, "most": row.most})
    if _member(request, "tool_choice", "type") in ("any", "tool"):
        yield _Breach("forced", "tool_choice")


def _member(request: Mapping[str, Any], name: str, inner: str) -> Any:  # noqa: ANN401  any JSON
    value = request.get(name)
    value = value.get(inner) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None
