"""Everything of a chat request but its messages: parameters and tools."""

from __future__ import annotations

from typing import Any

from pipeline.rules._openai import bracketed, kind
from pipeline.rules.base import Violation
from pipeline.rules.models import chat_family
from pipeline.rules.openai_chat import catalogue as rules
from pipeline.rules.openai_chat.state import Head
from pipeline.rules.openai_chat.walk import judge_name
from pipeline.rules.openai_chat.wire import PARAMETERS


def judge_head(head: dict[str, Any], model: str | None) -> tuple[Head, list[Violation]]:
    """Judge the parameters and say what the rules on messages need of them."""
    found: list[Violation] = []
    named = head.get("model")
    family = chat_family(model if model is not None else named if isinstance(named, str) else None)
    if "model" not in head:
        found.append(rules.NO_MODEL.broken("model"))
    elif not isinstance(named, str):
        found.append(_wrong("model", "a string", named))
    if head.get("max_tokens") is not None:
        if head.get("max_completion_tokens") is not None:
            found.append(rules.BOTH_LIMITS.broken("max_tokens"))
        elif family.max_tokens is False:
            found.append(rules.MAX_TOKENS.broken("max_tokens", "hard"))
    found += judge_temperature(head.get("temperature"))
    found += judge_tools(head)
    found += [rules.EXTRA_PARAMETER.broken(key, name=key) for key in head if key not in PARAMETERS]
    thinking = head.get("thinking")
    switch = thinking.get("type") if isinstance(thinking, dict) else None
    return Head(family=family, thinking=switch if isinstance(switch, str) else ""), found


def judge_temperature(value: object) -> list[Violation]:
    """Judge the temperature's range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or 0 <= value <= rules.TEMPERATURE:
        return []
    high = value > rules.TEMPERATURE
    bound, limit = ("above maximum", f"<= {rules.TEMPERATURE}") if high else ("below minimum", ">= 0")
    number = "integer" if isinstance(value, int) else "decimal"
    return [rules.TEMPERATURE_RANGE.broken("temperature", kind=number, bound=bound, limit=limit, value=value)]


def judge_tools(head: dict[str, Any]) -> list[Violation]:
    """Judge the tools, and the parameters that need them."""
    found: list[Violation] = []
    tools = head.get("tools")
    if tools is None:
        return [
            rules.CHOICE.broken(name, name=name)
            for name in ("tool_choice", "parallel_tool_calls")
            if head.get(name) is not None
        ]
    if not isinstance(tools, list):
        return [_wrong("tools", "an array of objects", tools)]
    if not tools:
        found.append(rules.NO_TOOLS.broken("tools"))
    if len(tools) > rules.TOOLS:
        found.append(rules.TOO_MANY_TOOLS.broken("tools", limit=rules.TOOLS, length=len(tools)))
    for at, tool in enumerate(tools):
        found += _judge_tool(tool, f"tools.{at}")
    return found


def _judge_tool(tool: object, path: str) -> list[Violation]:
    if not isinstance(tool, dict):
        return [_wrong(path, "an object", tool)]
    if "type" not in tool:
        return [_missing(f"{path}.type")]
    if tool["type"] != "function":
        return []  # the provider's own tools change too often to be judged
    if "function" not in tool:
        return [_missing(f"{path}.function")]
    function = tool["function"]
    if not isinstance(function, dict):
        return [_wrong(f"{path}.function", "an object", function)]
    if "name" not in function:
        return [_missing(f"{path}.function.name")]
    name = function["name"]
    if not isinstance(name, str):
        return [_wrong(f"{path}.function.name", "a string", name)]
    return judge_name(name, f"{path}.function.name")


def _missing(path: str) -> Violation:
    return rules.MISSING.broken(path, at=bracketed(path))


def _wrong(path: str, wanted: str, value: object) -> Violation:
    return rules.SHAPE.broken(path, at=bracketed(path), wanted=wanted, got=kind(value))
