"""The rules of the Copilot CLI.

No recorded traffic shows this target. The rules are those of any program that takes its prompt as one argument on Linux
(execve(2)).
"""

from __future__ import annotations

from reknit.pipeline.providers.programs.rules import Prompt, ends_with_assistant
from reknit.pipeline.rules.base import Catalogue, Violation

CATALOGUE = Catalogue("copilot-cli")
# MAX_ARG_STRLEN, the longest single argument on Linux: 32 pages of 4 KiB, the ending zero included.
ARGUMENT_BYTES = 131_072

# fmt: off
# One paragraph a rule.
ENCODING = CATALOGUE.rule("COP-01", "hard", "the prompt is not valid UTF-8 at byte {byte}",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="Reknit: the prompt is text")
BLANK = CATALOGUE.rule("COP-02", "hard", "the prompt is blank",
    summary="The prompt says something.",
    repair="send no prompt", source="Reknit: nothing to ask")
NUL = CATALOGUE.rule(
    "COP-03", "hard", "the prompt holds a NUL character at byte {byte}, where an argument would end",
    summary="The prompt holds no NUL, which no argument of a program can.",
    repair="drop the character", source="execve(2)")
SIZE = CATALOGUE.rule("COP-04", "soft", "Argument list too long: {size} bytes, {most} fit in one argument",
    summary="The prompt fits in one argument on Linux; a longer one must come another way, such as standard input.",
    repair="shorten the history, or hand it over by standard input", source="execve(2)")
# fmt: on
ends_with_assistant(CATALOGUE, "COP-05")


class CopilotCli(Prompt):
    target = "copilot-cli"
    encoding, blank = ENCODING, BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        del text
        nul = body.find(b"\0")
        return [*([NUL.broken("", byte=nul)] if nul >= 0 else []), *_judge_size(len(body))]

    def inert(self, piece: bytes) -> bool:
        """Return True if a piece is text without a NUL."""
        return super().inert(piece) and b"\0" not in piece

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something, by its size."""
        return _judge_size(len(opening) + inner + len(ending)) if self.say_something(opening, ending) else None


def _judge_size(size: int) -> list[Violation]:
    return [SIZE.broken("", size=size, most=ARGUMENT_BYTES - 1)] if size >= ARGUMENT_BYTES else []


RULE_SET = CopilotCli()
