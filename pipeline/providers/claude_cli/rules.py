"""The rules of the Claude CLI for one line on its standard input (``--input-format stream-json``).

A line is one envelope without a history. The findings are measured on five versions of the CLI, and are the API's own
refusals of what the CLI passes on.
"""

from __future__ import annotations

import re
from typing import Any

from reknit.pipeline.rules._fold import read_json
from reknit.pipeline.rules.base import Catalogue, Violation, WholeBody

CATALOGUE = Catalogue("claude-cli")
_MEASURED = "measured on CLI 1.0.128 to 2.1.330"

# fmt: off
# One paragraph a rule.
ROLE = CATALOGUE.rule("CLI-01", "hard", "Error: Expected message role 'user', got '{role}'",
    summary="The message's role is user.",
    repair="flatten earlier turns into the user's", source="tinyhumansai/openhuman#5711, #5816")
LINE = CATALOGUE.rule("CLI-02", "hard", "Error parsing streaming input line: {line}: {reason}",
    summary="One JSON object on one line, ended by its only newline.",
    repair="write it on one line", source="public source files")
THINKING = CATALOGUE.rule("CLI-03", "soft", "{at}: `{kind}` blocks can only be in `assistant` messages",
    summary="No thinking: the line is the user's.",
    repair="drop it", source="the API's own refusal")
BLOCK = CATALOGUE.rule(
    "CLI-04", "hard", "{at}: a `{kind}` block does not reach the model: content holds text, image and document blocks",
    summary="Content is text, images and documents; a tool result is sent as an orphan or dropped.",
    repair="flatten it to text", source=_MEASURED)
EMPTY = CATALOGUE.rule("CLI-05", "hard", "{at}: the model would be told (no content)",
    summary="Content is not empty.",
    repair="send no line", source=_MEASURED)
KIND = CATALOGUE.rule("CLI-06", "hard", "Error: Expected message type 'user' or 'control', got '{kind}'",
    summary="The envelope's type is user; later versions put another one before the waiting line.",
    repair="send one user envelope", source=_MEASURED)
SHAPE = CATALOGUE.rule("CLI-07", "hard", "{at}: {words}",
    summary="The envelope has a message, the message a content, blocks their fields.",
    repair="depends on the field", source=_MEASURED)
EXTRA = CATALOGUE.rule("CLI-08", "soft", "{at}: ignored by the CLI",
    summary="Only keys that the CLI reads (a list of messages next to the message is ignored).",
    repair="drop the key", source=_MEASURED)
COMMAND = CATALOGUE.rule("CLI-09", "soft", "{at}: `{word}` is taken as a command, no request is made",
    summary="No text begins with a slash and a word: such a turn is a command, and never reaches the model. Versions "
    "up to 2.1.259 take any word so, later ones their own commands.",
    repair="the user's own words are left; put something before the slash", source=_MEASURED)
# fmt: on

# A path does not match: a command's name ends with the text, or in white space.
_COMMAND = re.compile(r"/[A-Za-z0-9:_-]+(?=\s|\Z)")
_ENVELOPE_KEYS = frozenset({"type", "message", "uuid", "session_id", "parent_tool_use_id", "isSynthetic"})
_THINKING = frozenset({"thinking", "redacted_thinking"})
_MEDIA = frozenset({"image", "document"})
# How much of a line its error quotes; the CLI quotes all of it.
_QUOTED = 200
# Replaces the inside of a line that is judged by its ends: white space, which has no content, and its escaped form.
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
    """Return True if the gap is in a text for the model, after words that do not begin a command."""
    content = envelope["message"]["content"]
    texts = [content] if isinstance(content, str) else [block["text"] for block in content if block["type"] == "text"]
    before = next((text.partition(_GAP)[0] for text in texts if _GAP in text), "")
    return before != "" and not before.startswith("/")


def _bad_line(text: str, reason: str) -> Violation:
    line = text.removesuffix("\n")
    return LINE.broken("", line=line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…", reason=reason)


def _judge_envelope(envelope: object, text: str) -> list[Violation]:
    if not isinstance(envelope, dict):
        return [_bad_line(text, "expected an object")]
    found = [EXTRA.broken(key) for key in envelope if key not in _ENVELOPE_KEYS]
    if envelope.get("type") != "user":
        found.append(KIND.broken("type", kind=envelope.get("type")))
    message = envelope.get("message")
    if not isinstance(message, dict):
        return [*found, SHAPE.broken("message", words="expected an object")]
    if "role" not in message:
        found.append(_bad_line(text, "message.role is missing"))
    elif message["role"] != "user":
        found.append(ROLE.broken("message.role", role=message["role"]))
    return found + _judge_content(message.get("content"))


def _judge_content(content: object) -> list[Violation]:
    path = "message.content"
    if isinstance(content, str):
        return _judge_text(content, path) if content.strip() else [EMPTY.broken(path)]
    if not isinstance(content, list):
        return [SHAPE.broken(path, words="expected a string or a list of blocks")]
    found: list[Violation] = []
    for at, block in enumerate(content):
        found += _judge_block(block, f"{path}.{at}")
    if not any(_says_something(block) for block in content):
        found.append(EMPTY.broken(path))
    return found


def _judge_block(block: object, path: str) -> list[Violation]:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        return [SHAPE.broken(path, words="expected an object with a type")]
    if kind in _THINKING:
        return [THINKING.broken(path, kind=kind)]
    if kind == "text":
        text = block.get("text")
        return (
            _judge_text(text, path)
            if isinstance(text, str)
            else [SHAPE.broken(f"{path}.text", words="expected a string")]
        )
    if kind in _MEDIA:
        well = isinstance(block.get("source"), dict)
        return [] if well else [SHAPE.broken(f"{path}.source", words="expected an object")]
    return [BLOCK.broken(path, kind=kind)]


def _judge_text(text: str, path: str) -> list[Violation]:
    command = _COMMAND.match(text)
    return [COMMAND.broken(path, word=command[0])] if command else []


def _says_something(block: object) -> bool:
    """Return True if a block has content for the model; a block that could not be read counts as content."""
    if not isinstance(block, dict):
        return True
    text = block.get("text")
    return block.get("type") != "text" or not isinstance(text, str) or bool(text.strip())


RULE_SET = ClaudeCli()
