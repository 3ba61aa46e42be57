"""Prompts for ``codex exec``."""

from __future__ import annotations

from reknit.pipeline.providers.programs.writer import Prompt
from reknit.pipeline.text.flatten import LINES
from reknit.pipeline.text.neutral import PLUGIN, SKILL, Neutralizer


class CodexCli(Prompt):
    """``codex exec``, which takes its prompt on standard input."""

    name = "codex-cli"
    guard = Neutralizer(LINES, (SKILL, PLUGIN))
    tail_rule = "CDX-04"
