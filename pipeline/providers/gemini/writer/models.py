"""Thinking as the models of the Gemini API take it: levels from Gemini 3 on, budgets before, within bounds.

Vertex serves the same models within the same bounds. Penalties, which only the Gemini API refuses, go out unchanged,
because a body does not show where it goes; a refusal heals it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from reknit.pipeline.targets.facts import Fitting, member
from reknit.pipeline.targets.head import HeadWriter, Params


class Thinking(Struct, frozen=True, kw_only=True):
    """The thinking of one model.

    Attributes:
        models: a pattern that the model's whole name matches.
        least: the smallest budget; 0 switches thinking off where that is possible.
        most: the greatest budget.
        source: where this was seen.
    """

    models: str
    least: int
    most: int
    source: str


THINKING: Final = (
    Thinking(
        models=r"gemini-2\.5-pro(-preview-\d\d-\d\d)?",
        least=128,
        most=32768,
        source="vercel/ai#8027; earendil-works/pi#3460; RooCodeInc/Roo-Code#4399",
    ),
    Thinking(models=r"gemini-2\.5-flash", least=0, most=24576, source="the API's documentation, Thinking"),
)
# Levels are refused before Gemini 3 (RooCodeInc/Roo-Code#10700); the budgets are those that other libraries choose.
_NO_LEVELS: Final = re.compile(r"gemini-2\.5-(pro|flash)(-lite|-preview.*)?|gemini-2\.0-.*").fullmatch
_BUDGETS: Final[Mapping[str, int]] = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
_CONFIG: Final = "generationConfig.thinkingConfig"
# The parameters that are numbers (GEM-16), in both spellings. A text that reads as a number is one in this API.
_NUMBERS: Final = (
    "temperature", "topP", "top_p", "topK", "top_k", "maxOutputTokens", "max_output_tokens", "candidateCount",
    "candidate_count", "seed", "presencePenalty", "presence_penalty", "frequencyPenalty", "frequency_penalty",
    "logprobs",
)  # fmt: skip
# `The set of character sequences (up to 5) that will stop output generation` (the API's documentation).
_STOPS: Final = 5
_STOP_PLACES: Final = ("generationConfig.stopSequences", "generationConfig.stop_sequences")
# Converse has an object under this name.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {"serviceTier": (str,)}


def fit_to_gemini(writer: HeadWriter, params: Params, body: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request with numbers that are ones, and with thinking that its model takes."""
    name = (writer.setting.model or "").lower().removeprefix("models/")
    fitting = Fitting(writer=writer, params=params)
    for place in (f"generationConfig.{spelled}" for spelled in _NUMBERS):
        value = member(body, place)
        if value is not None and not _is_number(value):
            body = fitting.change(body, place, value, None)
    body = _with_stops(fitting, fitting.fit_types(body, _TYPES))
    config = member(body, _CONFIG)
    return _with_thinking(fitting, body, config, name) if isinstance(config, dict) else body


def _with_stops(fitting: Fitting, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with as many stop sequences as the API takes, without empty ones, and without an empty list."""
    for place in _STOP_PLACES:
        stops = member(body, place)
        if isinstance(stops, list):
            said = [stop for stop in stops if isinstance(stop, str) and stop][:_STOPS]
            if said != stops or not stops:
                body = fitting.change(body, place, stops, said or None)
    return body


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        return not math.isnan(float(value))
    except (ValueError, OverflowError):
        return False


def _with_thinking(fitting: Fitting, body: dict[str, Any], config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a body with a level or a budget of thinking that the model takes."""
    for spelled in ("thinkingLevel", "thinking_level"):
        level = config.get(spelled)
        if level is not None and _NO_LEVELS(name):
            # Older models do not think at all (GEM-26d).
            budget = _BUDGETS.get(str(level).lower()) if "2.5" in name else None
            body = _as_budget(fitting, body, spelled, budget)
    known = next((each for each in THINKING if re.fullmatch(each.models, name)), None)
    for spelled in ("thinkingBudget", "thinking_budget"):
        budget = config.get(spelled)
        if known is not None and isinstance(budget, int) and budget >= 0:
            near = min(max(budget, known.least), known.most)
            if near != budget:
                body = fitting.change(body, f"{_CONFIG}.{spelled}", budget, near)
    return body


def _as_budget(fitting: Fitting, body: dict[str, Any], spelled: str, budget: int | None) -> dict[str, Any]:
    """Return a body with a budget in place of a level of thinking."""
    config = dict(member(body, _CONFIG))
    kept = {key: value for key, value in config.items() if key != spelled}
    if budget is not None:
        kept.setdefault("thinkingBudget", budget)
    return fitting.change(body, _CONFIG, config, kept or None)
