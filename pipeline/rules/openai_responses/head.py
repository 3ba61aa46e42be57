"""Everything of a Responses request but its input: parameters and tools."""

from __future__ import annotations

from typing import Any

from pipeline.rules._openai import bracketed, kind
from pipeline.rules.base import Violation
from pipeline.rules.openai_responses import catalogue as rules
from pipeline.rules.openai_responses.walk import Head, judge_name
from pipeline.rules.openai_responses.wire import PARAMETERS

# Parameters that lead to items outside the request.
CHAINS = ("previous_response_id", "conversation")


def judge_head(head: dict[str, Any]) -> tuple[Head, list[Violation]]:
    """Judge the parameters and say what the rules on items need of them."""
    found: list[Violation] = []
    if "model" not in head:
        found.append(rules.NO_MODEL.broken("model"))
    elif not isinstance(head["model"], str):
        found.append(_wrong("model", "a string", head["model"]))
    limit = head.get("max_output_tokens")
    if type(limit) is int and limit < rules.MIN_OUTPUT_TOKENS:
        found.append(rules.FEW_TOKENS.broken("max_output_tokens", limit=rules.MIN_OUTPUT_TOKENS, value=limit))
    found += _judge_tools(head.get("tools"))
    found += [rules.EXTRA_PARAMETER.broken(key) for key in head if key not in PARAMETERS]
    chained = any(head.get(name) is not None for name in CHAINS)
    return Head(chained=chained, stored=head.get("store") is not False), found


def _judge_tools(tools: object) -> list[Violation]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        return [_wrong("tools", "an array of objects", tools)]
    return [violation for at, tool in enumerate(tools) for violation in _judge_tool(tool, f"tools.{at}")]


def _judge_tool(tool: object, path: str) -> list[Violation]:
    if not isinstance(tool, dict):
        return [_wrong(path, "an object", tool)]
    if "type" not in tool:
        return [_missing(f"{path}.type")]
    if tool["type"] == "file_search" and "vector_store_ids" not in tool:
        return [_missing(f"{path}.vector_store_ids")]
    if tool["type"] not in ("function", "custom"):
        return []  # the provider's own tools change too often to be judged
    if "name" not in tool:
        return [_missing(f"{path}.name")]
    name = tool["name"]
    return judge_name(name, f"{path}.name") if isinstance(name, str) else [_wrong(f"{path}.name", "a string", name)]


def _missing(path: str) -> Violation:
    return rules.MISSING.broken(path, at=bracketed(path))


def _wrong(path: str, wanted: str, value: object) -> Violation:
    return rules.SHAPE.broken(path, at=bracketed(path), wanted=wanted, got=kind(value))
