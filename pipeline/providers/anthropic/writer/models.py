"""The parameters that only some Claude models take, as the writers know them, on each platform that passes them on.

Names of models are those of the lines with their version (``opus-4-7``), in whatever spelling a platform has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from reknit.pipeline.targets.bound import line_and_version
from reknit.pipeline.targets.facts import Fact, Fitting, member
from reknit.pipeline.targets.head import HeadWriter, Params

_ADAPTIVE_ONLY: Final = r"opus-4-[78]|(opus|sonnet|fable)-5-0"
_ONE_SAMPLER: Final = r"opus-4-1|(opus|sonnet|haiku)-4-[56]"
_REMOVED: Final = "anomalyco/models.dev#1468; The-PR-Agent/pr-agent#2456; mnfst/modelparams.dev#238"

# fmt: off
# One paragraph a row.
FACTS: Final = (
    Fact(models=_ADAPTIVE_ONLY, parameter="temperature", takes=(1,), source=_REMOVED),
    Fact(models=_ADAPTIVE_ONLY, parameter="top_p", source=_REMOVED),
    Fact(models=_ADAPTIVE_ONLY, parameter="top_k", source=_REMOVED),
    Fact(models=_ONE_SAMPLER, parameter="top_p", with_other="temperature",
         source="aws-samples/bedrock-chat#979; SalesforceAIResearch/MCP-Universe#49; iOfficeAI/AionUi#912"),
    Fact(models=r"haiku-4-5", parameter="output_config.effort",
         source="Oaklight/llm-rosetta#289; anthropics/claude-code#30760"),
    Fact(models=r"(opus|sonnet)-4-6", parameter="output_config.effort", takes=("low", "medium", "high", "max"),
         source="recorded refused once; SkillfulAgents/SuperAgent#1142"),
    # Levels of other providers (ANT-35).
    Fact(models=r".*", parameter="output_config.effort", takes=("low", "medium", "high", "xhigh", "max"),
         source="the API's documentation, Effort"),
)
# fmt: on
# Thinking with a budget, and without one.
_ENABLED_REFUSED: Final = Fact(
    models=_ADAPTIVE_ONLY, parameter="thinking.type", source="earendil-works/pi#3297; handochan/aelix-ai#258"
)
_ADAPTIVE_REFUSED: Final = Fact(models=r"haiku-4-5", parameter="thinking.type", source="pensarai/apex#890")
# The most tokens that a model writes (ANT-45). Later models take more than a client asks for.
_MOST_OUTPUT: Final[Mapping[str, int]] = {
    r"\w+-3-0": 4096,
    r"\w+-3-5": 8192,
    r"opus-4-[01]": 32_000,
    r"(sonnet|haiku)-4-[0-5]|opus-4-5": 64_000,
}
_LEAST_BUDGET: Final = 1024
_LEAST_TOP_P: Final = 0.95


def fit_to_claude(
    writer: HeadWriter, params: Params, body: dict[str, Any], place: Callable[[str], str] = str
) -> dict[str, Any]:
    """Return the parameters of a request without what its model refuses; ``place`` is where the platform has each."""
    name = _named(writer.setting.model)
    fitting = Fitting(writer=writer, params=params, place=place)
    body = _within_output(fitting, body, name)
    body = _with_thinking(fitting, body, name)
    return fitting.fit(body, (fact for fact in FACTS if fact.holds(name)))


def _named(model: str | None) -> str:
    found = line_and_version(model)
    return "" if found is None else f"{found[0]}-{found[1][0]}-{found[1][1]}"


def _within_output(fitting: Fitting, body: dict[str, Any], name: str) -> dict[str, Any]:
    """Lower the limit of an answer to what the model can write."""
    most = next((most for models, most in _MOST_OUTPUT.items() if re.fullmatch(models, name)), None)
    limit = member(body, fitting.place("max_tokens"))
    over = most is not None and isinstance(limit, int) and limit > most
    return fitting.change(body, "max_tokens", limit, most) if over else body


def _with_thinking(fitting: Fitting, body: dict[str, Any], name: str) -> dict[str, Any]:
    """Make thinking adaptive, or give it a budget, where the model takes only that; fit the samplers to it."""
    thinking = member(body, fitting.place("thinking"))
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind == "enabled" and _ENABLED_REFUSED.holds(name):
        display = {key: value for key, value in thinking.items() if key not in {"type", "budget_tokens"}}
        body = fitting.change(body, "thinking", thinking, {"type": "adaptive", **display})
    elif kind == "adaptive" and _ADAPTIVE_REFUSED.holds(name):
        limit = member(body, fitting.place("max_tokens"))
        fits = isinstance(limit, int) and limit > _LEAST_BUDGET
        budget = {"type": "enabled", "budget_tokens": max(_LEAST_BUDGET, limit // 2)} if fits else None
        body = fitting.change(body, "thinking", thinking, budget)
    elif kind == "enabled":
        body = _within_limit(fitting, body, thinking.get("budget_tokens"))
    if kind in {"enabled", "adaptive"} and member(body, fitting.place("thinking")) is not None:
        body = _sampled(fitting, body)
    return body


def _within_limit(fitting: Fitting, body: dict[str, Any], budget: object) -> dict[str, Any]:
    """Bring a budget between the least one and the limit of the answer (ANT-38), where there is one between them."""
    limit = member(body, fitting.place("max_tokens"))
    if not isinstance(budget, int) or not isinstance(limit, int) or limit <= _LEAST_BUDGET:
        return body
    near = min(max(budget, _LEAST_BUDGET), limit - 1)
    return body if near == budget else fitting.change(body, "thinking.budget_tokens", budget, near)


def _sampled(fitting: Fitting, body: dict[str, Any]) -> dict[str, Any]:
    """Leave out what does not go with thinking (ANT-42c, ANT-42d, ANT-42e)."""
    temperature, top_p, top_k = (member(body, fitting.place(name)) for name in ("temperature", "top_p", "top_k"))
    if isinstance(temperature, int | float) and temperature != 1:
        body = fitting.change(body, "temperature", temperature, None)
    if isinstance(top_p, int | float) and top_p < _LEAST_TOP_P:
        body = fitting.change(body, "top_p", top_p, None)
    return body if top_k is None else fitting.change(body, "top_k", top_k, None)


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "stream": (bool,),
    "stop_sequences": (list,),
    "metadata": (dict,),
    "thinking": (dict,),
}
_TIERS: Final = ("auto", "standard_only")
# OpenAI's names of tiers, by those of the same meaning here.
_OTHER_TIERS: Final = {"default": "standard_only"}


def fit_values(writer: HeadWriter, params: Params, body: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters without values that other providers have, and blank stop sequences (ANT-35, ANT-46)."""
    fitting = Fitting(writer=writer, params=params)
    body = fitting.fit_types(body, _TYPES)
    tier = member(body, "service_tier")
    if tier is not None and tier not in _TIERS:
        better = _OTHER_TIERS.get(tier) if isinstance(tier, str) else None
        body = fitting.change(body, "service_tier", tier, better)
    stops = member(body, "stop_sequences")
    if isinstance(stops, list):
        said = [stop for stop in stops if isinstance(stop, str) and stop.strip()]
        if len(said) < len(stops):
            body = fitting.change(body, "stop_sequences", stops, said or None)
    metadata = member(body, "metadata")
    for key in _others(metadata, {"user_id"}):
        body = fitting.change(body, f"metadata.{key}", metadata[key], None)
    return body


def _others(value: object, known: Collection[str]) -> list[str]:
    # A name with a dot has no place of its own in a path.
    return [key for key in value if key not in known and "." not in key] if isinstance(value, dict) else []
