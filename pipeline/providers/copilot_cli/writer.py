"""Prompts for the Copilot CLI."""

from __future__ import annotations

from reknit.pipeline.providers.programs.writer import Prompt
from reknit.pipeline.text.flatten import LINES
from reknit.pipeline.text.neutral import MENTION, Neutralizer


class CopilotCli(Prompt):
    """The Copilot command line, which takes its prompt as an argument."""

    name = "copilot-cli"
    guard = Neutralizer(LINES, (MENTION,))
    holds_nul = False
    tail_rule = "COP-05"
