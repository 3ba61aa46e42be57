"""The rules for one prompt of the Copilot CLI: plain text, given whole.

The CLI takes one prompt and no history, so there is nothing to fold: ``start`` takes the whole text and says it all,
``step`` and ``finish`` add nothing. No recorded traffic shows this target; the rules are those of any program that
takes its prompt as one argument on Linux (execve(2)), and say no more than that.
"""

from __future__ import annotations

from pipeline.rules.base import Catalogue, Violation, WholeBody

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


class CopilotCli(WholeBody):
    target = "copilot-cli"

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        del model
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            return [ENCODING.broken("", byte=error.start)]
        found = [] if text.strip() else [BLANK.broken("")]
        if (nul := body.find(b"\0")) >= 0:
            found.append(NUL.broken("", byte=nul))
        return found + _judge_size(len(body))

    def inert(self, piece: bytes) -> bool:
        """Whether a piece is text without a NUL."""
        return _is_utf8(piece) and b"\0" not in piece

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something, by its size."""
        ends = opening + ending
        if not (self.inert(opening) and self.inert(ending) and ends.decode().strip()):
            return None
        return _judge_size(len(ends) + inner)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _judge_size(size: int) -> list[Violation]:
    return [SIZE.broken("", size=size, most=ARGUMENT_BYTES - 1)] if size >= ARGUMENT_BYTES else []
