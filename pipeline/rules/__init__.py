"""Predict the provider's 400: a re-statement of each target's rules, apart from everything that writes requests.

One module or package a target. A rule set is a fold (``RuleSet``), ``RULES`` is the catalogue of all rules by id, and
``validate`` judges one whole body.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from pipeline.errors import UnknownTargetError, expected_one_of
from pipeline.rules import (
    anthropic,
    bedrock_converse,
    cascade,
    gemini,
    openai_chat,
    openai_responses,
    programs,
    vllm,
)
from pipeline.rules.base import Catalogue, KnowsBetas, Rule, RuleSet, Severity, Violation

__all__ = ["RULES", "RULE_SETS", "Rule", "RuleSet", "Severity", "Violation", "rule_set", "validate"]

# Each target's rule set, and the catalogue that it reports from. `pipeline.registry` joins them with what writes.
_EVERY: tuple[tuple[RuleSet[Any], Catalogue], ...] = (
    (anthropic.Anthropic(), anthropic.CATALOGUE),
    (gemini.Gemini(), gemini.CATALOGUE),
    (bedrock_converse.BedrockConverse(), bedrock_converse.CATALOGUE),
    (openai_chat.OpenAIChat(), openai_chat.CATALOGUE),
    (openai_responses.OpenAIResponses(), openai_responses.CATALOGUE),
    (vllm.Vllm(), vllm.CATALOGUE),
    (programs.ClaudeCli(), programs.CLAUDE),
    (programs.CopilotCli(), programs.COPILOT),
    (programs.CodexCli(), programs.CODEX),
    (programs.GeminiCli(), programs.GEMINI),
    (cascade.Cascade(), cascade.CATALOGUE),
)
RULE_SETS: dict[str, RuleSet[Any]] = {rules.target: rules for rules, _ in _EVERY}
CATALOGUES: dict[str, Catalogue] = {catalogue.target: catalogue for _, catalogue in _EVERY}
RULES: dict[str, Rule] = {
    rule_id: rule for catalogue in CATALOGUES.values() for rule_id, rule in catalogue.rules.items()
}


def rule_set(target: str) -> RuleSet[Any]:
    """Find the rules of a target.

    Raises:
        UnknownTargetError: no rules are known for it.
    """
    try:
        return RULE_SETS[target]
    except KeyError:
        raise UnknownTargetError("unknown_target", expected_one_of(RULE_SETS, target)) from None


def validate(
    body: bytes | str | dict[str, Any],
    target: str = "anthropic",
    model: str | None = None,
    betas: Iterable[str] = (),
) -> list[Violation]:
    """Say which of the target's rules a request body breaks, in the provider's words; an empty list is a valid body.

    ``model`` overrides the model that the body names, for the rules that only some models have. ``betas`` are the
    values of Anthropic's header ``anthropic-beta`` that is sent along; none says that nothing is known of them. Nothing
    raises for what a body holds: text that is not JSON is a violation itself.

    Raises:
        UnknownTargetError: no rules are known for ``target``.
    """
    rules = rule_set(target)
    if betas and isinstance(rules, KnowsBetas):
        rules = rules.with_betas(betas)
    return rules.validate(_encode(body), model)


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
