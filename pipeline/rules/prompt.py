"""The rules for one prompt of a program that takes no history: plain text, so there is nothing to fold.

Of all of them it is UTF-8, and says something; what else a program has against a prompt is its own.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from pipeline.rules.base import Catalogue, Rule, Violation, WholeBody


class Prompt(WholeBody):
    """The rules of one program; ``encoding`` and ``blank`` are its own words for the two that all have."""

    encoding: ClassVar[Rule]
    blank: ClassVar[Rule]

    @abstractmethod
    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        """What else the program has against a prompt; ``body`` is its text in bytes."""

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        del model
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            return [self.encoding.broken("", byte=error.start)]
        return [*([] if text.strip() else [self.blank.broken("")]), *self.judge_text(text, body)]

    def inert(self, piece: bytes) -> bool:
        """Whether a piece is text."""
        try:
            piece.decode()
        except UnicodeDecodeError:
            return False
        return True

    def say_something(self, opening: bytes, ending: bytes) -> bool:
        """Whether the ends of a prompt are inert and not blank, so that inert pieces between them change nothing."""
        return self.inert(opening) and self.inert(ending) and bool((opening + ending).decode().strip())


def _ends_with_assistant(catalogue: Catalogue, rule_id: str) -> None:
    catalogue.rule(
        rule_id,
        "hard",
        "The last message is the assistant's, so that the prompt would ask for nothing.",
        summary="Under the policy tail=reject, a history does not end with the assistant.",
        repair="append a user turn, or choose another policy",
        source="ours: a prompt is what the user says",
        unchecked="a prompt does not show whose words are its last",
    )


# ``codex exec``, on its standard input. Its words are those of version 0.169.0, measured.

CODEX = Catalogue("codex-cli")
# Code points.
MOST_CHARACTERS = 1_048_576

# fmt: off
# One paragraph a rule.
CODEX_ENCODING = CODEX.rule(
    "CDX-01", "hard",
    "Failed to read prompt from stdin: input is not valid UTF-8 (invalid byte at offset {byte}). "
    "Convert it to UTF-8 and retry",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="measured: codex exec 0.169.0, exit code 1")
CODEX_BLANK = CODEX.rule("CDX-02", "hard", "No prompt provided via stdin.",
    summary="The prompt says something.",
    repair="send no prompt", source="measured: codex exec 0.169.0, exit code 1")
CODEX_SIZE = CODEX.rule("CDX-03", "hard", "Input exceeds the maximum length of 1048576 characters.",
    summary="The prompt has at most 1,048,576 characters, counted in code points.",
    repair="shorten the history", source="measured: codex exec 0.169.0, input_too_large")
# fmt: on
_ends_with_assistant(CODEX, "CDX-04")


class CodexCli(Prompt):
    target = "codex-cli"
    encoding, blank = CODEX_ENCODING, CODEX_BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        del body
        return [CODEX_SIZE.broken("")] if len(text) > MOST_CHARACTERS else []

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something; its characters are counted only where its bytes may be too many."""
        fits = len(opening) + inner + len(ending) <= MOST_CHARACTERS
        return [] if fits and self.say_something(opening, ending) else None


# The Copilot CLI. No recorded traffic shows this target; the rules are those of any program that takes its prompt as
# one argument on Linux (execve(2)), and say no more than that.

COPILOT = Catalogue("copilot-cli")
# MAX_ARG_STRLEN, the longest single argument on Linux: 32 pages of 4 KiB, the ending zero included.
ARGUMENT_BYTES = 131_072

# fmt: off
# One paragraph a rule.
COPILOT_ENCODING = COPILOT.rule("COP-01", "hard", "the prompt is not valid UTF-8 at byte {byte}",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="ours: the prompt is text")
COPILOT_BLANK = COPILOT.rule("COP-02", "hard", "the prompt is blank",
    summary="The prompt says something.",
    repair="send no prompt", source="ours: nothing to ask")
COPILOT_NUL = COPILOT.rule(
    "COP-03", "hard", "the prompt holds a NUL character at byte {byte}, where an argument would end",
    summary="The prompt holds no NUL, which no argument of a program can.",
    repair="drop the character", source="execve(2)")
COPILOT_SIZE = COPILOT.rule("COP-04", "soft", "Argument list too long: {size} bytes, {most} fit in one argument",
    summary="The prompt fits in one argument on Linux; a longer one must come another way, such as standard input.",
    repair="shorten the history, or hand it over by standard input", source="execve(2)")
# fmt: on
_ends_with_assistant(COPILOT, "COP-05")


class CopilotCli(Prompt):
    target = "copilot-cli"
    encoding, blank = COPILOT_ENCODING, COPILOT_BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        del text
        nul = body.find(b"\0")
        return [*([COPILOT_NUL.broken("", byte=nul)] if nul >= 0 else []), *_judge_size(len(body))]

    def inert(self, piece: bytes) -> bool:
        """Whether a piece is text without a NUL."""
        return super().inert(piece) and b"\0" not in piece

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something, by its size."""
        return _judge_size(len(opening) + inner + len(ending)) if self.say_something(opening, ending) else None


def _judge_size(size: int) -> list[Violation]:
    return [COPILOT_SIZE.broken("", size=size, most=ARGUMENT_BYTES - 1)] if size >= ARGUMENT_BYTES else []


# The Gemini CLI, on its standard input. It refuses hardly anything: what it would send otherwise than it was given is
# refused here. Its words are those of version 0.61.0, measured.

GEMINI = Catalogue("gemini-cli")
MOST_BYTES = 8_388_608

# fmt: off
# One paragraph a rule.
GEMINI_ENCODING = GEMINI.rule("GCL-01", "hard", "the prompt is not valid UTF-8 at byte {byte}, which becomes U+FFFD",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="measured: gemini-cli 0.61.0 replaces what is not, without a word")
GEMINI_BLANK = GEMINI.rule(
    "GCL-02", "hard",
    "No input provided via stdin. Input can be provided by piping data into gemini or using the --prompt option.",
    summary="The prompt says something.",
    repair="send no prompt", source="measured: gemini-cli 0.61.0, exit code 42; white space alone it sends")
GEMINI_SIZE = GEMINI.rule("GCL-03", "hard", "Warning: stdin input truncated to 8388608 bytes.",
    summary="The prompt has at most 8,388,608 bytes: the end of a longer one, which is the current input, is lost.",
    repair="shorten the history", source="measured: gemini-cli 0.61.0")
GEMINI_COMMAND = GEMINI.rule("GCL-04", "soft", "`{word}` is taken as a command, if there is one of this name",
    summary="The prompt does not begin with a slash and a word: a command of the project or the user takes its place, "
    "which may run shell commands and read files; so does `/init`.",
    repair="the user's own words are left; put something before the slash", source="measured: gemini-cli 0.61.0")
# fmt: on
_ends_with_assistant(GEMINI, "GCL-05")

# A comment is none: a command's name has no further slash.
_COMMAND = re.compile(r"/[^\s/*]+(?=\s|\Z)")


class GeminiCli(Prompt):
    target = "gemini-cli"
    encoding, blank = GEMINI_ENCODING, GEMINI_BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        found = [GEMINI_SIZE.broken("")] if len(body) > MOST_BYTES else []
        command = _COMMAND.match(text)
        return found if command is None else [*found, GEMINI_COMMAND.broken("", word=command[0])]

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something and are no command, by its size."""
        if (opening + ending).startswith(b"/") or not self.say_something(opening, ending):
            return None
        return [GEMINI_SIZE.broken("")] if len(opening) + inner + len(ending) > MOST_BYTES else []
