"""Types and bounds of parameters, in the words of both of OpenAI's APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from reknit.pipeline.providers.openai.rules import kind, listing
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule

Types: TypeAlias = Mapping[str, tuple[tuple[type, ...], str]]
"""The types of each parameter, and the provider's words for them."""

Bounds: TypeAlias = Mapping[str, tuple[float | None, float | None]]
"""The least and the greatest value of a number; None where there is no bound."""

NUMBER: Final = ((int, float), "a decimal")
INTEGER: Final = ((int,), "an integer")
BOOLEAN: Final = ((bool,), "a boolean")
STRING: Final = ((str,), "a string")
OBJECT: Final = ((dict,), "an object")

TIERS: Final = ("auto", "default", "fast", "flex", "priority")
TIER: Final = f"Invalid value: '{{value}}'. Supported values are: {listing(TIERS)}."
# The names of the default tier at Anthropic and at Google. The API gets new tiers, so other names are not judged.
_TIERS_OF_OTHERS: Final = ("standard_only", "standard")

OUT_OF_BOUNDS: Final = "Invalid '{at}': {kind} {bound} value. Expected a value {limit}, but got {value} instead."


def judge_types(walk: Walk, head: Mapping[str, Any], types: Types, rule: Rule) -> None:
    """Report the parameters of a wrong type; null is absent, and a boolean is no number."""
    for name, (accepted, wanted) in types.items():
        value = head.get(name)
        if value is not None and (not isinstance(value, accepted) or isinstance(value, bool) is not (bool in accepted)):
            walk.refuse(rule, name, at=name, wanted=wanted, got=kind(value))


def judge_bounds(walk: Walk, head: Mapping[str, Any], bounds: Bounds, rule: Rule) -> None:
    """Report the numbers outside of their bounds."""
    for name, (least, most) in bounds.items():
        value = head.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        words = {"at": name, "kind": "integer" if isinstance(value, int) else "decimal", "value": value}
        if most is not None and value > most:
            walk.refuse(rule, name, **words, bound="above maximum", limit=f"<= {most}")
        elif least is not None and value < least:
            walk.refuse(rule, name, **words, bound="below minimum", limit=f">= {least}")


def judge_metadata(walk: Walk, head: Mapping[str, Any], rule: Rule) -> None:
    """Report values of ``metadata`` other than strings."""
    metadata = head.get("metadata")
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        if not isinstance(value, str):
            at = f"metadata.{name}"
            walk.refuse(rule, at, at=at, wanted="a string", got=kind(value))


def judge_tier(walk: Walk, head: Mapping[str, Any], rule: Rule) -> None:
    """Report another provider's name of a service tier."""
    tier = head.get("service_tier")
    if tier in _TIERS_OF_OTHERS:
        walk.refuse(rule, "service_tier", value=tier)
