"""The rules of programs that take one text and no history: plain text, or a line of JSON; so there is nothing to fold.

Of each prompt it is said that it is UTF-8, and says something; what else a program has against one is its own. The
Claude CLI takes an envelope of JSON on one line.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, ClassVar

from reknit.pipeline.rules._fold import read_json
from reknit.pipeline.rules.base import Catalogue, Rule, Violation, WholeBody


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
GEMINI_MENTIONS = GEMINI.rule(
    "GCL-06", "soft", "{count} mentions: the workspace is searched once for each that names no file",
    summary="The prompt has at most 100 mentions (an `@` in front of anything but white space), which count after a "
    "U+200B as well. In a workspace of 5,000 files, 300 took 17 s and 1,000 took 63 s.",
    repair="set `context.fileFiltering.enableRecursiveFileSearch` to false in the program's settings.json, or shorten "
    "the history",
    source="measured: gemini-cli 0.61.0")
# fmt: on
MOST_MENTIONS = 100
_ends_with_assistant(GEMINI, "GCL-05")

# A comment is none: a command's name has no further slash.
_GEMINI_COMMAND = re.compile(r"/[^\s/*]+(?=\s|\Z)")
_GEMINI_MENTION = re.compile(r"@(?!\s|@|\Z)")


class GeminiCli(Prompt):
    target = "gemini-cli"
    encoding, blank = GEMINI_ENCODING, GEMINI_BLANK

    def judge_text(self, text: str, body: bytes) -> list[Violation]:
        found = [GEMINI_SIZE.broken("")] if len(body) > MOST_BYTES else []
        mentions = len(_GEMINI_MENTION.findall(text)) if text.count("@") > MOST_MENTIONS else 0
        if mentions > MOST_MENTIONS:
            found.append(GEMINI_MENTIONS.broken("", count=mentions))
        command = _GEMINI_COMMAND.match(text)
        return found if command is None else [*found, GEMINI_COMMAND.broken("", word=command[0])]

    def inert(self, piece: bytes) -> bool:
        """Whether a piece is text without an ``@``: mentions are counted over the whole prompt."""
        return b"@" not in piece and super().inert(piece)

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a prompt whose ends say something and are no command, by its size."""
        if (opening + ending).startswith(b"/") or not self.say_something(opening, ending):
            return None
        return [GEMINI_SIZE.broken("")] if len(opening) + inner + len(ending) > MOST_BYTES else []


# The Claude CLI, for one line on its standard input (``--input-format stream-json``): one envelope and no history.
# Findings are those measured on five real versions of the CLI, and the API's own refusals of what the CLI passes on.

CLAUDE = Catalogue("claude-cli")
_MEASURED = "measured on CLI 1.0.128 to 2.1.330"

# fmt: off
# One paragraph a rule.
CLAUDE_ROLE = CLAUDE.rule("CLI-01", "hard", "Error: Expected message role 'user', got '{role}'",
    summary="The message's role is user.",
    repair="flatten earlier turns into the user's", source="tinyhumansai/openhuman#5711, #5816")
CLAUDE_LINE = CLAUDE.rule("CLI-02", "hard", "Error parsing streaming input line: {line}: {reason}",
    summary="One JSON object on one line, ended by its only newline.",
    repair="write it on one line", source="public source files")
CLAUDE_THINKING = CLAUDE.rule("CLI-03", "soft", "{at}: `{kind}` blocks can only be in `assistant` messages",
    summary="No thinking: the line is the user's.",
    repair="drop it", source="the API's own refusal")
CLAUDE_BLOCK = CLAUDE.rule(
    "CLI-04", "hard", "{at}: a `{kind}` block does not reach the model: content holds text, image and document blocks",
    summary="Content is text, images and documents; a tool result is sent as an orphan or dropped.",
    repair="flatten it to text", source=_MEASURED)
CLAUDE_EMPTY = CLAUDE.rule("CLI-05", "hard", "{at}: the model would be told (no content)",
    summary="Content is not empty.",
    repair="send no line", source=_MEASURED)
CLAUDE_KIND = CLAUDE.rule("CLI-06", "hard", "Error: Expected message type 'user' or 'control', got '{kind}'",
    summary="The envelope's type is user; later versions put another one before the waiting line.",
    repair="send one user envelope", source=_MEASURED)
CLAUDE_SHAPE = CLAUDE.rule("CLI-07", "hard", "{at}: {words}",
    summary="The envelope has a message, the message a content, blocks their fields.",
    repair="depends on the field", source=_MEASURED)
CLAUDE_EXTRA = CLAUDE.rule("CLI-08", "soft", "{at}: ignored by the CLI",
    summary="Only keys that the CLI reads (a list of messages beside the message is ignored).",
    repair="drop the key", source=_MEASURED)
CLAUDE_COMMAND = CLAUDE.rule("CLI-09", "soft", "{at}: `{word}` is taken as a command, no request is made",
    summary="No text begins with a slash and a word: such a turn is a command, and never reaches the model. Versions "
    "up to 2.1.259 take any word so, later ones their own commands.",
    repair="the user's own words are left; put something before the slash", source=_MEASURED)
# fmt: on

# A path is none: a command's name ends with the text, or in white space.
_CLAUDE_COMMAND = re.compile(r"/[A-Za-z0-9:_-]+(?=\s|\Z)")
_ENVELOPE_KEYS = frozenset({"type", "message", "uuid", "session_id", "parent_tool_use_id", "isSynthetic"})
_THINKING = frozenset({"thinking", "redacted_thinking"})
_MEDIA = frozenset({"image", "document"})
# How much of a line its error quotes; the CLI quotes all of it.
_QUOTED = 200
# What stands for the inside of a line that is judged by its ends: white space, which says nothing by itself, and how
# it is escaped.
_GAP = "\u2028\u2029\u2028"
_GAP_ESCAPES = (b"\\u2028", b"\\u2029")


class ClaudeCli(WholeBody):
    target = "claude-cli"

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        del model
        return _judge_line(body)[1]

    def inert(self, piece: bytes) -> bool:
        try:
            value, bad = read_json(f'"{piece.decode()}"')
        except UnicodeDecodeError:
            return False
        return bad is None and isinstance(value, str)

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a line that is cut inside a text: without a breach at its ends it has none."""
        del inner
        gap = _GAP.encode()
        if any(sign in end for end in (opening, ending) for sign in (gap, *_GAP_ESCAPES)):
            return None
        envelope, found = _judge_line(gap.join((opening, ending)))
        return None if found or not _holds_gap(envelope) else []


def _judge_line(body: bytes) -> tuple[object, list[Violation]]:
    """The envelope, None where the line cannot be read as one, and what is wrong with it."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return None, [_bad_line(body.decode(errors="replace"), f"not valid UTF-8 at byte {error.start}")]
    if not text.endswith("\n") or text.count("\n") != 1:
        reason = "not ended by a newline" if not text.endswith("\n") else "more than one line"
        return None, [_bad_line(text, reason)]
    envelope, bad = read_json(text)
    if bad is not None:
        return None, [_bad_line(text, bad.place(text))]
    return envelope, _judge_envelope(envelope, text)


def _holds_gap(envelope: Any) -> bool:  # noqa: ANN401  any JSON, found valid
    """Whether the gap is in a text that the model would be told, behind words that begin no command."""
    content = envelope["message"]["content"]
    texts = [content] if isinstance(content, str) else [block["text"] for block in content if block["type"] == "text"]
    before = next((text.partition(_GAP)[0] for text in texts if _GAP in text), "")
    return before != "" and not before.startswith("/")


def _bad_line(text: str, reason: str) -> Violation:
    line = text.removesuffix("\n")
    return CLAUDE_LINE.broken("", line=line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…", reason=reason)


def _judge_envelope(envelope: object, text: str) -> list[Violation]:
    if not isinstance(envelope, dict):
        return [_bad_line(text, "expected an object")]
    found = [CLAUDE_EXTRA.broken(key) for key in envelope if key not in _ENVELOPE_KEYS]
    if envelope.get("type") != "user":
        found.append(CLAUDE_KIND.broken("type", kind=envelope.get("type")))
    message = envelope.get("message")
    if not isinstance(message, dict):
        return [*found, CLAUDE_SHAPE.broken("message", words="expected an object")]
    if "role" not in message:
        found.append(_bad_line(text, "message.role is missing"))
    elif message["role"] != "user":
        found.append(CLAUDE_ROLE.broken("message.role", role=message["role"]))
    return found + _judge_content(message.get("content"))


def _judge_content(content: object) -> list[Violation]:
    path = "message.content"
    if isinstance(content, str):
        return _judge_text(content, path) if content.strip() else [CLAUDE_EMPTY.broken(path)]
    if not isinstance(content, list):
        return [CLAUDE_SHAPE.broken(path, words="expected a string or a list of blocks")]
    found: list[Violation] = []
    for at, block in enumerate(content):
        found += _judge_block(block, f"{path}.{at}")
    if not any(_says_something(block) for block in content):
        found.append(CLAUDE_EMPTY.broken(path))
    return found


def _judge_block(block: object, path: str) -> list[Violation]:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        return [CLAUDE_SHAPE.broken(path, words="expected an object with a type")]
    if kind in _THINKING:
        return [CLAUDE_THINKING.broken(path, kind=kind)]
    if kind == "text":
        text = block.get("text")
        return (
            _judge_text(text, path)
            if isinstance(text, str)
            else [CLAUDE_SHAPE.broken(f"{path}.text", words="expected a string")]
        )
    if kind in _MEDIA:
        well = isinstance(block.get("source"), dict)
        return [] if well else [CLAUDE_SHAPE.broken(f"{path}.source", words="expected an object")]
    return [CLAUDE_BLOCK.broken(path, kind=kind)]


def _judge_text(text: str, path: str) -> list[Violation]:
    command = _CLAUDE_COMMAND.match(text)
    return [CLAUDE_COMMAND.broken(path, word=command[0])] if command else []


def _says_something(block: object) -> bool:
    """Tell whether a block puts anything before the model; what could not be read gets the benefit of the doubt."""
    if not isinstance(block, dict):
        return True
    text = block.get("text")
    return block.get("type") != "text" or not isinstance(text, str) or bool(text.strip())
