"""The targets by name. A new one is a module here and a line in the registry."""

from __future__ import annotations

from pipeline.errors import UnknownTargetError
from pipeline.targets.anthropic import Anthropic
from pipeline.targets.base import Dialect, Encoded, Ending, Setting, Target
from pipeline.targets.bedrock_converse import BedrockConverse
from pipeline.targets.cascade import Cascade
from pipeline.targets.claude_cli import ClaudeCli
from pipeline.targets.copilot_cli import CopilotCli
from pipeline.targets.gemini import Gemini
from pipeline.targets.openai_chat import OpenAIChat
from pipeline.targets.openai_responses import OpenAIResponses
from pipeline.targets.vllm import Vllm

_ALL: tuple[Target, ...] = (
    Anthropic(),
    ClaudeCli(),
    OpenAIChat(),
    OpenAIResponses(),
    Vllm(),
    BedrockConverse(),
    Gemini(),
    CopilotCli(),
    Cascade(),
)
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}


def target_named(name: str) -> Target:
    """The target of a name.

    Raises:
        UnknownTargetError: there is none.
    """
    found = TARGETS.get(name)
    if found is None:
        raise UnknownTargetError("unknown_target", f"expected one of {', '.join(sorted(TARGETS))}, got {name!r}")
    return found


__all__ = ["TARGETS", "Dialect", "Encoded", "Ending", "Setting", "Target", "target_named"]
