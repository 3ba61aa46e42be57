"""Prompts for the Gemini CLI."""

from __future__ import annotations

from reknit.pipeline.providers.programs.writer import Prompt
from reknit.pipeline.text.flatten import LINES
from reknit.pipeline.text.neutral import ANY_MENTION, Neutralizer


class GeminiCli(Prompt):
    """The Gemini command line, which takes its prompt on standard input."""

    name = "gemini-cli"
    guard = Neutralizer(LINES, (ANY_MENTION,))
    tail_rule = "GCL-05"
