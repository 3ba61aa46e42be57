"""The rules of the Gemini CLI on its standard input. Messages are those of version 0.61.0, measured.

The program refuses very little. The rules also refuse what it would send differently from what it was given.
"""

from __future__ import annotations

import re

from reknit.pipeline.providers.programs.rules import Prompt, ends_with_assistant
from reknit.pipeline.rules.base import Catalogue, Violation

CATALOGUE = Catalogue("gemini-cli")
MOST_BYTES = 8_388_608

# fmt: off
# One paragraph a rule.
ENCODING = CATALOGUE.rule("GCL-01", "hard", "the prompt is not valid UTF-8 at byte {byte}, which becomes U+FFFD",
    summary="The prompt is UTF-8 text.",
    repair="encode it again", source="measured: gemini-cli 0.61.0 replaces what is not, without a word")
BLANK = CATALOGUE.rule(
    "GCL-02", "hard",
    "No input provided via stdin. Input can be provided by piping data into gemini or using the --prompt option.",
    summary="The prompt says something.",
    repair="send no prompt", source="measured: gemini-cli 0.61.0, exit code 42; white space alone it sends")
SIZE = CATALOGUE.rule("GCL-03", "hard", "Warning: stdin input truncated to 8388608 bytes.",
    summary="The prompt has at most 8,388,608 bytes: the end of a longer one, which is the current input, is lost.",
    repair="shorten the history", source="measured: gemini-cli 0.61.0")
COMMAND = CATALOGUE.rule("GCL-04", "soft", "`{word}` is taken as a command, if there is one of this name",
    summary="The prompt does not begin with a slash and a word: a command of the project or the user takes its place, "
    "which may run shell commands and read files; so does `/init`.",
    repair="the user's own words are left; put something before the slash", source="measured: gemini-cli 0.61.0")
MENTIONS = CATALOGUE.rule(
    "GCL-06", "soft", "{count} mentions: the workspace is searched once for each that names no file",
    summary="The prompt has at most 100 mentions (an `@` in front of anything but white space), which count after a "
    "U+200B as well. In a workspace of 5,000 files, 300 took 17 s and 1,000 took 63 s.",
    repair="set `context.fileFiltering.enableRecursiveFileSearch` to false in the program's settings.json, or shorten "
    "the history",
    source="measured: gemini-cli 0.61.0")
# fmt: on
MOST_MENTIONS = 100
ends_with_assistant(CATALOGUE, "GCL-05")

# A comment does not match: a command's name has no further slash.
_COMMAND = re.compile(r"/[^\s/*]+(?=\s|\Z)")
_MENTION = re.compile(r"@(?!\s|@|\Z)")


class GeminiCli(Prompt):
    target = "gemini-cli"
    encoding, blank = ENCODING, BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        found = [SIZE.broken("")] if len(body) > MOST_BYTES else []
        mentions = len(_MENTION.findall(text)) if text.count("@") > MOST_MENTIONS else 0
        if mentions > MOST_MENTIONS:
            found.append(MENTIONS.broken("", count=mentions))
        command = _COMMAND.match(text)
        return found if command is None else [*found, COMMAND.broken("", word=command[0])]

    def inert(self, piece: bytes) -> bool:
        """Return True if a piece is text without an ``@``: mentions are counted over the whole prompt."""
        return b"@" not in piece and super().inert(piece)

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something and are no command, by its size."""
        if (opening + ending).startswith(b"/") or not self.say_something(opening, ending):
            return None
        return [SIZE.broken("")] if len(opening) + inner + len(ending) > MOST_BYTES else []


RULE_SET = GeminiCli()
