"""Everything of a request but its messages: parameters, system, tools."""

from __future__ import annotations

import re
from typing import Final

from pipeline.rules._shape import Misfit, Spot, fit
from pipeline.rules.anthropic import catalogue as rules
from pipeline.rules.anthropic.blocks import judge_blank
from pipeline.rules.anthropic.catalogue import rule
from pipeline.rules.anthropic.state import Head
from pipeline.rules.anthropic.wire import PARAMETERS, Text
from pipeline.rules.base import Violation
from pipeline.rules.models import family

# fmt: off
# One paragraph a rule.
TOOL_NAME = rule(
    "ANT-13b", "hard", "{at}: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
    summary="A tool's name is 1 to 128 letters, digits, _ and -.",
    repair="rewrite it in tools and history together",
    source="home-assistant/core#147760; modelcontextprotocol/modelcontextprotocol#1345",
)
TOOL_NAME_LENGTH = rule(
    "ANT-13c", "hard", "{at}: String should have at most 128 characters",
    summary="A tool's name has at most 128 characters.",
    repair="shorten with a digest", source="anthropics/claude-code#96152",
)
SAME_TOOL = rule(
    "ANT-13d", "hard", "tools: Tool names must be unique.",
    summary="Names of tools are unique.",
    repair="rename or drop", source="danny-avila/LibreChat#13162",
)
TOOL_SCHEMA = rule(
    "ANT-36", "hard", "{at}: {words}",
    summary="A tool's input schema is an object of type object.",
    repair="wrap it", source="recorded",
)
NO_MODEL = rule(
    "ANT-37", "soft", "model: Field required",
    summary="A request names its model (the sender may add it).",
    repair="set the model", source="the API's own schema", by_sender=True,
)
NO_MAX_TOKENS = rule(
    "ANT-37b", "soft", "max_tokens: Field required",
    summary="A request has max_tokens (the sender may add it; counting tokens needs none).",
    repair="set max_tokens", source="the API's own schema", by_sender=True,
)
BUDGET = rule(
    "ANT-38", "soft",
    "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at "
    "https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size",
    summary="The thinking budget is less than max_tokens (unless a beta header interleaves thinking).",
    repair="raise max_tokens", source="recorded",
)
TEMPERATURE = rule(
    "ANT-39", "hard", "temperature: range: 0..1",
    summary="Temperature lies between 0 and 1.",
    repair="clamp it", source="recorded",
)
FORCED_THINKING = rule(
    "ANT-40", "hard", "Thinking may not be enabled when tool_choice forces tool use.",
    summary="With thinking enabled, tool_choice is auto or none.",
    repair="drop tool_choice", source="the API's documentation",
)
# fmt: on

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}").fullmatch
_NAME_LENGTH: Final = 128
_CHOICES: Final = ("any", "auto", "none", "tool")
_TOOL_KEYS: Final = frozenset(
    {
        "type", "name", "description", "input_schema", "cache_control", "allowed_callers", "defer_loading",
        "eager_input_streaming", "input_examples", "strict",
    }
)  # fmt: skip


def judge_head(head: dict[str, object], model: str | None) -> tuple[Head, list[Violation]]:
    """Judge the parameters and say what the rules on messages need of them."""
    found: list[Violation] = []
    named = head.get("model")
    thinking = head.get("thinking")
    tools = head.get("tools")
    _judge_parameters(head, found)
    markers = _judge_system(head.get("system"), found) + _judge_tools(tools, found)
    _judge_thinking(head, found)
    found += [rules.EXTRA_PARAMETER.broken(key) for key in head if key not in PARAMETERS]
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    facts = Head(
        family=family(model if model is not None else named if isinstance(named, str) else None),
        thinking=kind if isinstance(kind, str) else "",
        tools=bool(tools),
        markers=markers,
    )
    return facts, found


def _judge_parameters(head: dict[str, object], found: list[Violation]) -> None:
    if "model" not in head:
        found.append(NO_MODEL.broken("model"))
    elif not isinstance(head["model"], str):
        found.append(rules.SHAPE.broken("model", words="Input should be a valid string"))
    if "max_tokens" not in head:
        found.append(NO_MAX_TOKENS.broken("max_tokens"))
    elif type(head["max_tokens"]) is not int:
        found.append(rules.SHAPE.broken("max_tokens", words="Input should be a valid integer"))
    temperature = head.get("temperature")
    if isinstance(temperature, int | float) and not 0 <= temperature <= 1:
        found.append(TEMPERATURE.broken("temperature"))
    choice = head.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") not in _CHOICES:
        tags = ", ".join(map(repr, _CHOICES))
        words = f"Input tag '{choice.get('type')}' found using 'type' does not match any of the expected tags: {tags}"
        found.append(rules.BLOCK_TYPE.broken("tool_choice", words=words))
    elif choice is not None and not isinstance(choice, dict):
        found.append(rules.SHAPE.broken("tool_choice", words="Input should be a valid dictionary"))


def _judge_thinking(head: dict[str, object], found: list[Violation]) -> None:
    thinking, choice, limit = head.get("thinking"), head.get("tool_choice"), head.get("max_tokens")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if isinstance(budget, int) and isinstance(limit, int) and budget >= limit:
        found.append(BUDGET.broken("thinking.budget_tokens"))
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        found.append(FORCED_THINKING.broken("tool_choice"))


def _judge_system(system: object, found: list[Violation]) -> int:
    """Judge the system prompt; returns how many of its blocks are cached."""
    if system is None or isinstance(system, str):
        return 0
    if not isinstance(system, list):
        found.append(rules.SHAPE.broken("system", words="Input should be a valid list"))
        return 0

    def report(spot: Spot, misfit: Misfit, words: str) -> None:
        rule = rules.EXTRA_KEY if misfit == "extra" else rules.SHAPE
        found.append(rule.broken(spot.path, at=spot.at, words=words))

    markers = 0
    for at, value in enumerate(system):
        path = f"system.{at}"
        block = fit(value, Text, Spot(path, path), report)
        if isinstance(block, Text):
            markers += block.cache_control is not None
            if not block.text.strip():
                found.extend(judge_blank(block, path, path, "system", alone=len(system) == 1))
    return markers


def _judge_tools(tools: object, found: list[Violation]) -> int:
    """Judge the tools; returns how many of them are cached."""
    if tools is None:
        return 0
    if not isinstance(tools, list):
        found.append(rules.SHAPE.broken("tools", words="Input should be a valid list"))
        return 0
    names: set[str] = set()
    markers = 0
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        if not isinstance(tool, dict):
            found.append(rules.SHAPE.broken(path, words="Input should be a valid dictionary"))
            continue
        markers += tool.get("cache_control") is not None
        if tool.get("type") in (None, "custom"):
            _judge_custom(tool, path, found)
        name = tool.get("name")
        if isinstance(name, str):
            if name in names:
                found.append(SAME_TOOL.broken(f"{path}.name"))
            names.add(name)
    return markers


def _judge_custom(tool: dict[str, object], path: str, found: list[Violation]) -> None:
    """Judge a tool of the caller's own; the provider's own tools change too often to be judged."""
    at = f"{path}.custom"
    name, schema = tool.get("name"), tool.get("input_schema")
    if "name" not in tool:
        found.append(rules.SHAPE.broken(f"{path}.name", at=f"{at}.name", words="Field required"))
    elif not isinstance(name, str):
        found.append(rules.SHAPE.broken(f"{path}.name", at=f"{at}.name", words="Input should be a valid string"))
    elif len(name) > _NAME_LENGTH:
        found.append(TOOL_NAME_LENGTH.broken(f"{path}.name", at=f"{at}.name"))
    elif _NAME(name) is None:
        found.append(TOOL_NAME.broken(f"{path}.name", at=f"{at}.name"))
    inner, words = "", ""
    if "input_schema" not in tool:
        words = "Field required"
    elif not isinstance(schema, dict):
        words = "Input should be a valid dictionary"
    elif "type" not in schema:
        inner, words = ".type", "Field required"
    elif schema["type"] != "object":
        inner, words = ".type", "Input should be 'object'"
    if words:
        place = f"input_schema{inner}"
        found.append(TOOL_SCHEMA.broken(f"{path}.{place}", at=f"{at}.{place}", words=words))
    extra = (key for key in tool if key not in _TOOL_KEYS)
    found += [rules.EXTRA_KEY.broken(f"{path}.{key}", at=f"{at}.{key}") for key in extra]
