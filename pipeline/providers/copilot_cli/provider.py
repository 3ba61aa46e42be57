"""The description of the Copilot CLI. Its streams are not decoded."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.copilot_cli import rules, writer

PROVIDER = Provider(
    target=Target(writer=writer.CopilotCli(), rules=rules.RULE_SET, catalogue=rules.CATALOGUE, is_prompt=True),
)
