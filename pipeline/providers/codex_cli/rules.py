"""The rules of ``codex exec`` on its standard input. Messages are those of version 0.169.0, measured."""

from __future__ import annotations

from reknit.pipeline.providers.programs.rules import Prompt, ends_with_assistant
from reknit.pipeline.rules.base import Catalogue, Violation

CATALOGUE = Catalogue("codex-cli")
# Code points.
MOST_CHARACTERS = 1_048_576

# fmt: off
# One paragraph a rule.
ENCODING = CATALOGUE.rule(
    "CDX-01", "hard",
    "Failed to read prompt from stdin: input is not valid UTF-8 (invalid byte at offset {byte}). "
    "Convert it to UTF-8 and retry",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="measured: codex exec 0.169.0, exit code 1")
BLANK = CATALOGUE.rule("CDX-02", "hard", "No prompt provided via stdin.",
    summary="The prompt says something.",
    repair="send no prompt", source="measured: codex exec 0.169.0, exit code 1")
SIZE = CATALOGUE.rule("CDX-03", "hard", "Input exceeds the maximum length of 1048576 characters.",
    summary="The prompt has at most 1,048,576 characters, counted in code points.",
    repair="shorten the history", source="measured: codex exec 0.169.0, input_too_large")
# fmt: on
ends_with_assistant(CATALOGUE, "CDX-04")


class CodexCli(Prompt):
    target = "codex-cli"
    encoding, blank = ENCODING, BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        del body
        return [SIZE.broken("")] if len(text) > MOST_CHARACTERS else []

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something; its characters are counted only where its bytes may be too many."""
        fits = len(opening) + inner + len(ending) <= MOST_CHARACTERS
        return [] if fits and self.say_something(opening, ending) else None


RULE_SET = CodexCli()
