"""The rules of Anthropic's Messages API: a request's parameters here, messages in ``turns`` and ``blocks``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from reknit.pipeline.providers.anthropic.rules import catalogue as rules
from reknit.pipeline.providers.anthropic.rules.blocks import Messages, judge_blank
from reknit.pipeline.providers.anthropic.rules.catalogue import (
    CATALOGUE,
    family_of,
    is_other_vendors,
    reasons_unsigned,
    rule,
)
from reknit.pipeline.providers.anthropic.rules.parameters import judge_values
from reknit.pipeline.providers.anthropic.rules.wire import BETA_PARAMETERS, BETA_TOOLS, PARAMETERS, Block, Message, Text
from reknit.pipeline.rules._fold import BadJSON, Fold
from reknit.pipeline.rules._misfits import Misfit, Spot, fit, fit_with_items
from reknit.pipeline.rules.base import Rule

__all__ = ["CATALOGUE", "RULE_SET", "Anthropic"]

# fmt: off
# One paragraph a rule.
TOOL_NAME = rule("ANT-13b", "hard", "{at}: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
    summary="A tool's name is 1 to 128 letters, digits, _ and -.",
    repair="rewrite it in tools and history together",
    source="home-assistant/core#147760; modelcontextprotocol/modelcontextprotocol#1345")
TOOL_NAME_LENGTH = rule("ANT-13c", "hard", "{at}: String should have at most 128 characters",
    summary="A tool's name has at most 128 characters.",
    repair="shorten with a digest", source="anthropics/claude-code#96152")
SAME_TOOL = rule("ANT-13d", "hard", "tools: Tool names must be unique.",
    summary="Names of tools are unique.",
    repair="rename or drop", source="danny-avila/LibreChat#13162")
TOOL_SCHEMA = rule("ANT-36", "hard", "{at}: {words}",
    summary="A tool's input schema is an object of type object.",
    repair="wrap it", source="recorded")
NO_MODEL = rule("ANT-37", "soft", "model: Field required",
    summary="A request names its model (the sender may add it).",
    repair="set the model", source="the API's own schema", by_sender=True)
NO_MAX_TOKENS = rule("ANT-37b", "soft", "max_tokens: Field required",
    summary="A request has max_tokens (the sender may add it; counting tokens needs none).",
    repair="set max_tokens", source="the API's own schema", by_sender=True)
BUDGET = rule("ANT-38", "hard",
    "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at "
    "https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size",
    summary="The thinking budget is less than max_tokens (unless a beta header interleaves thinking; see --beta).",
    repair="raise max_tokens", source="recorded")
TEMPERATURE = rule("ANT-39", "hard", "temperature: range: 0..1",
    summary="Temperature lies between 0 and 1.",
    repair="clamp it", source="recorded")
FORCED_THINKING = rule("ANT-40", "hard", "Thinking may not be enabled when tool_choice forces tool use.",
    summary="With thinking enabled, tool_choice is auto or none.",
    repair="drop tool_choice", source="the API's documentation")
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
# Where a misfit has a rule of its own: place in the wire structs, and what is wrong there.
_OWN_RULES: dict[tuple[str, Misfit], Rule] = {
    ("role", "type"): rules.ROLE,
    ("tool_use.input", "type"): rules.CALL_INPUT,
    ("tool_result.tool_use_id", "missing"): rules.RESULT_ID,
    ("thinking.signature", "missing"): rules.SIGNATURE,
    ("thinking.thinking", "missing"): rules.THINKING_FIELD,
    ("thinking.cache_control", "extra"): rules.CACHED_THINKING,
}
_RULES: dict[Misfit, Rule] = {
    "missing": rules.SHAPE,
    "type": rules.SHAPE,
    "extra": rules.EXTRA_KEY,
    "tag": rules.BLOCK_TYPE,
}


class Anthropic(Fold[Messages, Message]):
    """A rule set whose provider names positions in the text that it cannot read."""

    target = "anthropic"
    key = "messages"
    not_json = surrogate = rules.BAD_JSON
    items = msgspec.json.Decoder(list[Message])

    def __init__(self, betas: Iterable[str] = ()) -> None:
        """Take the values of the header ``anthropic-beta`` that goes with the bodies, as far as they are known."""
        self._betas = _each(betas)

    def with_betas(self, betas: Iterable[str]) -> Anthropic:
        return Anthropic(betas)

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Messages:
        thinking = head.get("thinking")
        kind = thinking.get("type") if isinstance(thinking, dict) else None
        walk = Messages(
            family=family_of(model),
            other_vendor=is_other_vendors(model),
            unsigned=reasons_unsigned(model),
            thinking=kind if isinstance(kind, str) else "",
            tools=bool(head.get("tools")),
            betas=self._betas | _each(head.get("anthropic_beta")) | _each(head.get("betas")),
        )
        _judge_parameters(head, walk)
        judge_values(head, model, walk)
        _judge_tools(head.get("tools"), walk)
        _judge_system(head.get("system"), walk)
        _judge_thinking(head, walk)
        for name in head:
            if name not in PARAMETERS:
                walk.refuse(rules.EXTRA_PARAMETER, name)
        if walk.betas:
            for path, features in BETA_PARAMETERS.items():
                if _is_set(head, path):
                    walk.judge_beta(features, path, path)
        return walk

    def read_item(self, value: object, path: str, walk: Messages) -> Message | None:
        if not isinstance(value, dict):
            walk.refuse(rules.MESSAGE_SHAPE, path)
            return None

        def report(spot: Spot, misfit: Misfit, words: str) -> None:
            rule = _OWN_RULES.get((spot.place, misfit), _RULES[misfit])
            if rule is rules.SIGNATURE and walk.unsigned:
                return
            walk.refuse(rule, spot.path, at=spot.at, words=words)

        message, blocks = fit_with_items(value, Message, Spot(path, path), report, field="content", item=Block)
        if not isinstance(message, Message):
            return None
        return message if blocks is None else replace(message, content=blocks)

    def judge_no_list(self, walk: Messages, body: dict[str, Any]) -> None:
        words = "Input should be a valid list" if "messages" in body else "Field required"
        walk.refuse(rules.SHAPE, "messages", words=words)
        walk.judge_size()

    def refuse_text(self, walk: Messages, bad: BadJSON | None, before: int) -> None:
        if bad is None:
            walk.refuse(rules.SHAPE, "", at="body", words="Input should be a valid dictionary")
        else:
            walk.refuse(rules.BAD_JSON, "", reason=bad.place(before=before))

    def refuse_half(self, walk: Messages, bad: BadJSON, text: str, path: str, before: int) -> None:
        walk.refuse(rules.BAD_JSON, path, reason=bad.place(text, before))


def _each(betas: object) -> frozenset[str]:
    """Return the names of beta features, from a list or from the comma-separated header."""
    listed = [betas] if isinstance(betas, str) else betas if isinstance(betas, Iterable) else ()
    return frozenset(name.strip() for item in listed if isinstance(item, str) for name in item.split(",") if name)


def _is_set(head: dict[str, Any], path: str) -> bool:
    name, _, inner = path.partition(".")
    value = head.get(name)
    return value is not None and (not inner or (isinstance(value, dict) and value.get(inner) is not None))


def _judge_parameters(head: dict[str, object], walk: Messages) -> None:
    if "model" not in head:
        walk.refuse(NO_MODEL, "model")
    elif not isinstance(head["model"], str):
        walk.refuse(rules.SHAPE, "model", words="Input should be a valid string")
    if "max_tokens" not in head:
        walk.refuse(NO_MAX_TOKENS, "max_tokens")
    elif type(head["max_tokens"]) is not int:
        walk.refuse(rules.SHAPE, "max_tokens", words="Input should be a valid integer")
    temperature = head.get("temperature")
    if isinstance(temperature, int | float) and not 0 <= temperature <= 1:
        walk.refuse(TEMPERATURE, "temperature")
    choice = head.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") not in _CHOICES:
        tags = ", ".join(map(repr, _CHOICES))
        words = f"Input tag '{choice.get('type')}' found using 'type' does not match any of the expected tags: {tags}"
        walk.refuse(rules.BLOCK_TYPE, "tool_choice", words=words)
    elif choice is not None and not isinstance(choice, dict):
        walk.refuse(rules.SHAPE, "tool_choice", words="Input should be a valid dictionary")


def _judge_thinking(head: dict[str, object], walk: Messages) -> None:
    thinking, choice, limit = head.get("thinking"), head.get("tool_choice"), head.get("max_tokens")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if (
        isinstance(budget, int)
        and isinstance(limit, int)
        and budget >= limit
        and not walk.has_beta("interleaved-thinking")
    ):
        walk.refuse(BUDGET, "thinking.budget_tokens")
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        walk.refuse(FORCED_THINKING, "tool_choice")


def _judge_system(system: object, walk: Messages) -> None:
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        walk.refuse(rules.SHAPE, "system", words="Input should be a valid list")
        return

    def report(spot: Spot, misfit: Misfit, words: str) -> None:
        rule = rules.EXTRA_KEY if misfit == "extra" else rules.SHAPE
        walk.refuse(rule, spot.path, at=spot.at, words=words)

    for at, value in enumerate(system):
        path = f"system.{at}"
        block = fit(value, Text, Spot(path, path), report)
        if isinstance(block, Text):
            if block.cache_control is not None:
                walk.mark(block.cache_control.ttl, path)
            if not block.text.strip():
                judge_blank(walk, block, path, path, "system", alone=len(system) == 1)


def _judge_tools(tools: object, walk: Messages) -> None:
    if tools is None:
        return
    if not isinstance(tools, list):
        walk.refuse(rules.SHAPE, "tools", words="Input should be a valid list")
        return
    names: set[str] = set()
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        if not isinstance(tool, dict):
            walk.refuse(rules.SHAPE, path, words="Input should be a valid dictionary")
            continue
        marker = tool.get("cache_control")
        if marker is not None:
            walk.mark(marker.get("ttl") if isinstance(marker, dict) else None, path)
        kind = tool.get("type")
        if kind in (None, "custom"):
            _judge_custom(tool, path, walk)
        elif isinstance(kind, str) and kind in BETA_TOOLS:
            walk.judge_beta(BETA_TOOLS[kind], path, path, kind)
        name = tool.get("name")
        if isinstance(name, str):
            if name in names:
                walk.refuse(SAME_TOOL, f"{path}.name")
            names.add(name)


def _judge_custom(tool: dict[str, object], path: str, walk: Messages) -> None:
    """Judge a tool of the caller's own; the provider's own tools change too often to be judged."""
    at = f"{path}.custom"
    name, schema = tool.get("name"), tool.get("input_schema")
    if "name" not in tool:
        walk.refuse(rules.SHAPE, f"{path}.name", at=f"{at}.name", words="Field required")
    elif not isinstance(name, str):
        walk.refuse(rules.SHAPE, f"{path}.name", at=f"{at}.name", words="Input should be a valid string")
    elif len(name) > _NAME_LENGTH:
        walk.refuse(TOOL_NAME_LENGTH, f"{path}.name", at=f"{at}.name")
    elif _NAME(name) is None:
        walk.refuse(TOOL_NAME, f"{path}.name", at=f"{at}.name")
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
        walk.refuse(TOOL_SCHEMA, f"{path}.{place}", at=f"{at}.{place}", words=words)
    for key in tool:
        if key not in _TOOL_KEYS:
            walk.refuse(rules.EXTRA_KEY, f"{path}.{key}", at=f"{at}.{key}")


RULE_SET = Anthropic()
