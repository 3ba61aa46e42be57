"""Claude Code's queue of prompts: what the user typed while the program worked, and what became of it.

A prompt that waits is in a line ``queue-operation`` with ``enqueue`` and its content; such lines have no parent. The
program's own queue is lost when it is killed. So a prompt is a user turn unless a later line shows that it was taken or
removed. The lines that show it:

- ``popAll`` and, since 2.1.332 at the latest, ``remove`` name the content; ``dequeue`` and earlier ``remove`` do not,
  and take one prompt each: prompts before the program's own notifications, the oldest first (2.0.77, 2.1.50, 2.1.332).
- a message of the user with the same text, alone, as a part, or several prompts in one message;
- an attachment ``queued_command``, with which the program gives a prompt to the model in the middle of a turn;
- a notification about a task is taken by any result or message that names the task (2.1.39 writes no other line);
- a command is taken by the line that says that it ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.history.readers.lines import value_is_blank
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.providers.claude_cli.lines import Line

_QUEUE: Final = "queue-operation"
# A message of more lines is not compared with prompts that were joined in one.
_MOST_LINES: Final = 1000
_NOTIFICATION: Final = "<task-notification>"
_TASK: Final = re.compile(rb"<task[-_]id>([^<]*)</task[-_]id>")
_COMMAND: Final = re.compile(r"<command-name>(/[^<\s]*)</command-name>")
_PARTS: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_STRING: Final = msgspec.json.Decoder(str)


class Waiting(Struct):
    """A prompt of the queue. ``text`` is all its words, None where its line does not have them.

    It waits until a line of the queue takes it, and is said when a message has it.
    """

    line: Line
    index: int
    text: str | None
    state: Literal["waits", "taken", "said"] = "waits"

    @property
    def is_notification(self) -> bool:
        """True if the program wrote it, for the model."""
        return self.text is not None and self.text.startswith(_NOTIFICATION)


def waiting_prompts(lines: Iterable[Line]) -> list[Waiting]:
    """Return the prompts that were queued and never taken or removed, in their order."""
    relevant = [line for line in lines if line.type == _QUEUE or line.is_users or line.subtype == "local_command"]
    queue = _Queue(relevant) if any(line.type == _QUEUE for line in relevant) else None
    return [] if queue is None else queue.left()


class _Queue:
    """The queue after the lines so far."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._texts = [[] if line.type == _QUEUE else _texts(line) for line in lines]
        # Where each text is said for the last time.
        self._last_at = {text: at for at, texts in enumerate(self._texts) for text in texts}
        self._prompts: list[Waiting] = []
        self._by_text: dict[str, list[Waiting]] = {}

    def left(self) -> list[Waiting]:
        for at, line in enumerate(self._lines):
            operation = bytes(line.operation).strip(b'"') if line.type == _QUEUE else b""
            if operation == b"enqueue" and not value_is_blank(line.content):
                self._add(Waiting(line, len(self._prompts), _all_text(line.content)))
            elif operation in (b"dequeue", b"remove", b"popAll"):
                self._remove(_all_text(line.content), at)
            elif self._prompts and not operation:
                self._match(line, self._texts[at])
        return [prompt for prompt in self._prompts if prompt.state == "waits"]

    def _add(self, prompt: Waiting) -> None:
        self._prompts.append(prompt)
        self._by_text.setdefault(prompt.text or "", []).append(prompt)

    def _remove(self, text: str | None, at: int) -> None:
        """Take the prompt that a line names; of a line that names none, the one that the program would take."""
        left = [prompt for prompt in self._prompts if prompt.state == "waits"]
        if text is not None:
            # 2.1.332 names the words of a list of parts when it removes them, and not when it queues them.
            left = [prompt for prompt in left if prompt.text == text] or [each for each in left if each.text is None]
        # A message that follows shows which one it was.
        shown = [prompt for prompt in left if self._last_at.get(prompt.text or "", -1) > at]
        own = [prompt for prompt in left if not prompt.is_notification]
        for prompt in (shown or own or left)[:1]:
            prompt.state = "taken"

    def _match(self, line: Line, texts: Sequence[str]) -> None:
        """Settle the prompts that a message has, or a notice of a command."""
        equal = [prompt for text in texts for prompt in self._by_text.get(text, ()) if prompt.state != "said"]
        # One that a line of the queue has taken is the message's before an equal one that waits.
        for prompt in sorted(equal, key=lambda prompt: prompt.state == "waits")[:1] or self._joined(texts):
            prompt.state = "said"
        tasks = set(_TASK.findall(bytes(line.said[0])))
        for prompt in self._prompts if tasks else ():
            if prompt.is_notification and not tasks.isdisjoint(_TASK.findall((prompt.text or "").encode())):
                prompt.state = "said"

    def _joined(self, texts: Sequence[str]) -> list[Waiting]:
        """Return the prompts, one after the other, that are together one of these texts."""
        for text in texts:
            lines = text.split("\n")[:_MOST_LINES]
            for first in ("\n".join(lines[:count]) for count in range(1, len(lines))):
                for begin in self._by_text.get(first, ()):
                    words = first
                    for end, prompt in enumerate(self._prompts[begin.index + 1 :], start=begin.index + 2):
                        words = f"{words}\n{prompt.text or ''}"
                        if words == text:
                            return self._prompts[begin.index : end]
                        if not text.startswith(words):
                            break
        return []


def _texts(line: Line) -> list[str]:
    """The texts that a line may have of a prompt: the whole, each part, and the name of a command that ran."""
    content = line.said[0] if line.is_users else line.content
    parts = [_string(part.get("text")) for part in decoded(_PARTS, content) or ()]
    texts = [text for text in (*parts, _all_text(content)) if text]
    return [*texts, *(name for text in texts for name in _COMMAND.findall(text))]


def _all_text(content: Raw) -> str | None:
    if starts_with(content, b'"'):
        return _string(content)
    parts = decoded(_PARTS, content) if starts_with(content, b"[") else None
    if parts is None:
        return None
    return "\n".join(text for part in parts if (text := _string(part.get("text"))))


def _string(value: Raw | None) -> str:
    text = None if value is None or not starts_with(value, b'"') else decoded(_STRING, value)
    return (text or "").strip()
