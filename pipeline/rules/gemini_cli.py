"""The rules for one prompt of the Gemini CLI: plain text, on its standard input.

It refuses hardly anything: what it would send otherwise than it was given is refused here. Its words are those of
version 0.61.0, measured.
"""

from __future__ import annotations

import re

from pipeline.rules._prompt import Prompt
from pipeline.rules.base import Catalogue, Violation

CATALOGUE = Catalogue("gemini-cli")
rule = CATALOGUE.rule
MOST_BYTES = 8_388_608

# fmt: off
# One paragraph a rule.
ENCODING = rule("GCL-01", "hard", "the prompt is not valid UTF-8 at byte {byte}, which becomes U+FFFD",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="measured: gemini-cli 0.61.0 replaces what is not, without a word")
BLANK = rule(
    "GCL-02", "hard",
    "No input provided via stdin. Input can be provided by piping data into gemini or using the --prompt option.",
    summary="The prompt says something.",
    repair="send no prompt", source="measured: gemini-cli 0.61.0, exit code 42; white space alone it sends")
SIZE = rule("GCL-03", "hard", "Warning: stdin input truncated to 8388608 bytes.",
    summary="The prompt has at most 8,388,608 bytes: the end of a longer one, which is the current input, is lost.",
    repair="shorten the history", source="measured: gemini-cli 0.61.0")
COMMAND = rule("GCL-04", "soft", "`{word}` is taken as a command, if there is one of this name",
    summary="The prompt does not begin with a slash and a word: a command of the project or the user takes its place, "
    "which may run shell commands and read files; so does `/init`.",
    repair="the user's own words are left; put something before the slash", source="measured: gemini-cli 0.61.0")
ENDS_WITH_ASSISTANT = rule(
    "GCL-05", "hard", "The last message is the assistant's, so that the prompt would ask for nothing.",
    summary="Under the policy tail=reject, a history does not end with the assistant.",
    repair="append a user turn, or choose another policy", source="ours: a prompt is what the user says",
    unchecked="a prompt does not show whose words are its last")
# fmt: on

# A comment is none: a command's name has no further slash.
_COMMAND = re.compile(r"/[^\s/*]+(?=\s|\Z)")


class GeminiCli(Prompt):
    target = "gemini-cli"
    encoding, blank = ENCODING, BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        found = [SIZE.broken("")] if len(body) > MOST_BYTES else []
        command = _COMMAND.match(text)
        return found if command is None else [*found, COMMAND.broken("", word=command[0])]

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something and are no command, by its size."""
        if (opening + ending).startswith(b"/") or not self.say_something(opening, ending):
            return None
        return [SIZE.broken("")] if len(opening) + inner + len(ending) > MOST_BYTES else []
