"""Claude Code's queue of prompts, which the user typed while the program worked: those that still wait.

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
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.history.readers.lines import value_is_blank
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.providers.claude_cli.lines import Line

_QUEUE: Final = "queue-operation"
_MOST: Final = 100
# Prompts with which a message may begin that has several.
_MOST_BEGINNINGS: Final = 50
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
    is_lost: bool = False

    @property
    def is_notification(self) -> bool:
        """True if the program wrote it, for the model."""
        return self.text is not None and self.text.startswith(_NOTIFICATION)

    @property
    def is_users(self) -> bool:
        """True for words of the user's own, which are no command."""
        return bool(self.text) and not self.is_notification and not str(self.text).startswith("/")


def waiting_prompts(lines: Iterable[Line]) -> list[Waiting]:
    """Return the prompts that were queued and never taken or removed, in their order.

    They include those that the program took and then wrote no message (``is_lost``).
    """
    lines = list(lines)
    relevant = [line for line in lines if line.type == _QUEUE or line.is_users or line.subtype == "local_command"]
    if not any(line.type == _QUEUE for line in relevant):
        return []
    queue = _Queue(relevant, max((line.number for line in lines if line.is_message), default=-1))
    queue.take_lines()
    return [prompt for prompt in queue.prompts if prompt.state == "waits" or prompt.is_lost]


class _Queue:
    """The queue after the lines so far. No line is compared with more than the first `_MOST` prompts that wait."""

    def __init__(self, lines: Sequence[Line], last_message: int) -> None:
        self._lines = lines
        self._last_message = last_message
        self._texts = [[] if line.type == _QUEUE else _texts(line) for line in lines]
        # Where each text is said for the last time.
        self._last_at = {text: at for at, texts in enumerate(self._texts) for text in texts}
        self.prompts: list[Waiting] = []
        self._waiting: dict[int, Waiting] = {}
        # Those that wait or were taken, and that no message has had yet.
        self._by_text: dict[str, deque[Waiting]] = {}
        self._by_task: dict[bytes, list[Waiting]] = {}

    def take_lines(self) -> None:
        for at, line in enumerate(self._lines):
            operation = bytes(line.operation).strip(b'"') if line.type == _QUEUE else b""
            if operation == b"enqueue" and not value_is_blank(line.content):
                self._add(Waiting(line, len(self.prompts), _all_text(line.content)))
            elif operation in (b"dequeue", b"remove", b"popAll"):
                taken = self._remove(_all_text(line.content), at)
                if taken is not None and operation == b"dequeue":
                    # 2.1.50 writes messages late: of one that was killed, this may be the last line.
                    taken.is_lost = line.number > self._last_message and taken.is_users
            elif self.prompts and not operation:
                self._match(line, self._texts[at])

    def _add(self, prompt: Waiting) -> None:
        self.prompts.append(prompt)
        self._waiting[prompt.index] = prompt
        self._by_text.setdefault(prompt.text or "", deque()).append(prompt)
        for task in _TASK.findall((prompt.text or "").encode()) if prompt.is_notification else ():
            self._by_task.setdefault(task, []).append(prompt)

    def _settle(self, prompt: Waiting, state: Literal["taken", "said"]) -> None:
        prompt.state = state
        self._waiting.pop(prompt.index, None)

    def _remove(self, text: str | None, at: int) -> Waiting | None:
        """Take the prompt that a line names; of a line that names none, the one that the program would take."""
        left = list(islice(self._waiting.values(), _MOST))
        if text is not None:
            # 2.1.332 names the words of a list of parts when it removes them, and not when it queues them.
            wanted = text if text in self._by_text else None
            left = [prompt for prompt in left if prompt.text == wanted]
        # A message that follows shows which one it was.
        shown = [prompt for prompt in left if self._last_at.get(prompt.text or "", -1) > at]
        own = [prompt for prompt in left if not prompt.is_notification]
        taken = next(iter(shown or own or left), None)
        if taken is not None:
            self._settle(taken, "taken")
        return taken

    def _match(self, line: Line, texts: Sequence[str]) -> None:
        """Settle the prompts that a message has, or a notice of a command."""
        for prompt in self._equal(texts) or self._joined(texts):
            self._settle(prompt, "said")
        for task in set(_TASK.findall(bytes(line.said[0]))):
            for prompt in self._by_task.pop(task, ()):
                self._settle(prompt, "said")

    def _equal(self, texts: Sequence[str]) -> list[Waiting]:
        """Return the prompt that is one of these texts: one that a line of the queue took before one that waits."""
        found: list[Waiting] = []
        for text in texts:
            prompts = self._by_text.get(text, deque())
            while prompts and prompts[0].state == "said":
                prompts.popleft()
            found += [prompt for prompt in islice(prompts, _MOST) if prompt.state != "said"]
        return sorted(found, key=lambda prompt: prompt.state == "waits")[:1]

    def _joined(self, texts: Sequence[str]) -> list[Waiting]:
        """Return the prompts, one after the other, that are together one of these texts."""
        for begin in islice(self._waiting.values(), _MOST_BEGINNINGS):
            for text in texts:
                words = begin.text or ""
                for end in range(begin.index + 1, len(self.prompts)):
                    if not words or not text.startswith(words):
                        break
                    words = f"{words}\n{self.prompts[end].text or ''}"
                    if words == text:
                        return self.prompts[begin.index : end + 1]
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
