"""Predict the provider's 400: a re-statement of each target's rules, apart from everything that writes requests.

One module or package a target. A rule set is a fold (``RuleSet``), ``RULES`` is the catalogue of all rules by id, and
``validate`` judges one whole body.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from pipeline.errors import UnknownTargetError
from pipeline.rules.anthropic import RULES as _ANTHROPIC_RULES
from pipeline.rules.anthropic import Anthropic
from pipeline.rules.base import Rule, RuleSet, Severity, Violation
from pipeline.rules.bedrock_converse import RULES as _BEDROCK_CONVERSE_RULES
from pipeline.rules.bedrock_converse import BedrockConverse
from pipeline.rules.cascade import RULES as _CASCADE_RULES
from pipeline.rules.cascade import Cascade
from pipeline.rules.claude_cli import RULES as _CLAUDE_CLI_RULES
from pipeline.rules.claude_cli import ClaudeCli
from pipeline.rules.copilot_cli import RULES as _COPILOT_CLI_RULES
from pipeline.rules.copilot_cli import CopilotCli
from pipeline.rules.gemini import RULES as _GEMINI_RULES
from pipeline.rules.gemini import Gemini
from pipeline.rules.openai_chat import RULES as _OPENAI_CHAT_RULES
from pipeline.rules.openai_chat import OpenAIChat
from pipeline.rules.openai_responses import RULES as _OPENAI_RESPONSES_RULES
from pipeline.rules.openai_responses import OpenAIResponses
from pipeline.rules.vllm import RULES as _VLLM_RULES
from pipeline.rules.vllm import Vllm

__all__ = ["RULES", "RULE_SETS", "Rule", "RuleSet", "Severity", "Violation", "rule_set", "validate"]

_SETS: tuple[RuleSet[Any], ...] = (
    Anthropic(),
    Gemini(),
    BedrockConverse(),
    OpenAIChat(),
    OpenAIResponses(),
    Vllm(),
    ClaudeCli(),
    CopilotCli(),
    Cascade(),
)
RULE_SETS: dict[str, RuleSet[Any]] = {rules.target: rules for rules in _SETS}
RULES: dict[str, Rule] = {
    **_ANTHROPIC_RULES,
    **_GEMINI_RULES,
    **_BEDROCK_CONVERSE_RULES,
    **_OPENAI_CHAT_RULES,
    **_OPENAI_RESPONSES_RULES,
    **_VLLM_RULES,
    **_CLAUDE_CLI_RULES,
    **_COPILOT_CLI_RULES,
    **_CASCADE_RULES,
}


def rule_set(target: str) -> RuleSet[Any]:
    """Find the rules of a target.

    Raises:
        UnknownTargetError: no rules are known for it.
    """
    try:
        return RULE_SETS[target]
    except KeyError:
        known = ", ".join(sorted(RULE_SETS))
        raise UnknownTargetError("unknown_target", f"no rules for target {target!r}; known are {known}") from None


def validate(
    body: bytes | str | dict[str, Any], target: str = "anthropic", model: str | None = None
) -> list[Violation]:
    """Say which of the target's rules a request body breaks, in the provider's words; an empty list is a valid body.

    ``model`` overrides the model that the body names, for the rules that only some models have. Nothing raises for
    what a body holds: text that is not JSON is a violation itself.

    Raises:
        UnknownTargetError: no rules are known for ``target``.
    """
    return rule_set(target).validate(_encode(body), model)


def _encode(body: bytes | str | dict[str, Any]) -> bytes:
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, dict):
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError):  # lone surrogates among them
            return _encode_slowly(body)
    return bytes(body)


def _encode_slowly(body: dict[str, Any]) -> bytes:
    """Encode what msgspec refuses; what JSON has no place for becomes text that is not JSON."""
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError, RecursionError):
        return b""
