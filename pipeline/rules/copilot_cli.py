"""The rules for one prompt of the Copilot CLI: plain text, given whole.

No recorded traffic shows this target; the rules are those of any program that takes its prompt as one argument on Linux
(execve(2)), and say no more than that.
"""

from __future__ import annotations

from pipeline.rules._prompt import Prompt
from pipeline.rules.base import Catalogue, Violation

CATALOGUE = Catalogue("copilot-cli")
rule = CATALOGUE.rule
# MAX_ARG_STRLEN, the longest single argument on Linux: 32 pages of 4 KiB, the ending zero included.
ARGUMENT_BYTES = 131_072

# fmt: off
# One paragraph a rule.
ENCODING = rule("COP-01", "hard", "the prompt is not valid UTF-8 at byte {byte}",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="ours: the prompt is text")
BLANK = rule("COP-02", "hard", "the prompt is blank",
    summary="The prompt says something.",
    repair="send no prompt", source="ours: nothing to ask")
NUL = rule("COP-03", "hard", "the prompt holds a NUL character at byte {byte}, where an argument would end",
    summary="The prompt holds no NUL, which no argument of a program can.",
    repair="drop the character", source="execve(2)")
SIZE = rule("COP-04", "soft", "Argument list too long: {size} bytes, {most} fit in one argument",
    summary="The prompt fits in one argument on Linux; a longer one must come another way, such as standard input.",
    repair="shorten the history, or hand it over by standard input", source="execve(2)")
ENDS_WITH_ASSISTANT = rule(
    "COP-05", "hard", "The last message is the assistant's, so that the prompt would ask for nothing.",
    summary="Under the policy tail=reject, a history does not end with the assistant.",
    repair="append a user turn, or choose another policy", source="ours: a prompt is what the user says",
    unchecked="a prompt does not show whose words are its last")
# fmt: on


class CopilotCli(Prompt):
    target = "copilot-cli"
    encoding, blank = ENCODING, BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        del text
        nul = body.find(b"\0")
        return [*([NUL.broken("", byte=nul)] if nul >= 0 else []), *_judge_size(len(body))]

    def inert(self, piece: bytes) -> bool:
        """Whether a piece is text without a NUL."""
        return super().inert(piece) and b"\0" not in piece

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something, by its size."""
        return _judge_size(len(opening) + inner + len(ending)) if self.say_something(opening, ending) else None


def _judge_size(size: int) -> list[Violation]:
    return [SIZE.broken("", size=size, most=ARGUMENT_BYTES - 1)] if size >= ARGUMENT_BYTES else []
