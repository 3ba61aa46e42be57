"""The rule sets of all targets, without their writers.

``validate`` must not load the writers: without this module its import takes three times as long (213 and 650 ms).
`reknit.pipeline.registry` joins each rule set with its writer, and adds the rules of registered targets here.
"""

from __future__ import annotations

from typing import Any, Final

from reknit.pipeline.providers.anthropic import rules as anthropic
from reknit.pipeline.providers.bedrock_converse import rules as bedrock_converse
from reknit.pipeline.providers.cascade import rules as cascade
from reknit.pipeline.providers.claude_cli import rules as claude_cli
from reknit.pipeline.providers.codex_cli import rules as codex_cli
from reknit.pipeline.providers.copilot_cli import rules as copilot_cli
from reknit.pipeline.providers.deepseek import rules as deepseek
from reknit.pipeline.providers.gemini import rules as gemini
from reknit.pipeline.providers.gemini_cli import rules as gemini_cli
from reknit.pipeline.providers.mistral import rules as mistral
from reknit.pipeline.providers.moonshot import rules as moonshot
from reknit.pipeline.providers.openai_chat import rules as openai_chat
from reknit.pipeline.providers.openai_responses import rules as openai_responses
from reknit.pipeline.providers.vllm import rules as vllm
from reknit.pipeline.rules.base import Rule, RuleSet

_PROVIDERS: Final = (
    anthropic,
    gemini,
    bedrock_converse,
    openai_chat,
    openai_responses,
    vllm,
    mistral,
    deepseek,
    moonshot,
    claude_cli,
    copilot_cli,
    codex_cli,
    gemini_cli,
    cascade,
)
RULE_SETS: Final[dict[str, RuleSet[Any]]] = {rules.RULE_SET.target: rules.RULE_SET for rules in _PROVIDERS}
"""Rule sets by target: Reknit's own, then those of registered targets."""
RULES: Final[dict[str, Rule]] = {
    rule_id: rule for rules in _PROVIDERS for rule_id, rule in rules.CATALOGUE.rules.items()
}
"""The rules of all targets by id."""
