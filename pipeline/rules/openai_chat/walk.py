"""One pass over decoded messages, a step of the fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from pipeline.rules._openai import bracketed, legal_name, unsupported_image
from pipeline.rules._shape import Hole
from pipeline.rules.base import Rule, Severity, Violation
from pipeline.rules.openai_chat import catalogue as rules
from pipeline.rules.openai_chat.state import State
from pipeline.rules.openai_chat.wire import Audio, Call, File, FunctionCall, Image, Message, Text

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Walk:
    """The machine while a step works on it; its containers are its own copies."""

    __slots__ = ("answered", "asked", "asked_at", "calls", "found", "head", "index", "role")

    def __init__(self, state: State, found: list[Violation]) -> None:
        self.head = state.head
        self.calls = state.calls
        self.asked_at = state.asked_at
        # The same ids as a set, since a turn may have very many.
        self.asked = frozenset(state.calls)
        self.answered = set(state.answered)
        self.found = found
        # The message at hand.
        self.index = 0
        self.role = ""

    def message(self, message: Message) -> None:
        """Judge one message."""
        content, role = message.content, message.role
        self.role = role
        if role == "tool":
            self._result(message.tool_call_id)
        elif self.calls:
            self.close()
        if role == "assistant":
            if message.tool_calls is not None:
                self._calls(message, message.tool_calls)
        elif role == "system" and self.head.family.system is False:
            path = f"messages.{self.index}.role"
            self.found.append(rules.SYSTEM.broken(path, "hard", at=bracketed(path)))
        if content.__class__ is list:
            self._parts(content)
        elif content is None or content is UNSET:
            self._no_content(message)

    def close(self) -> None:
        """End the turn of the last calls: what no tool message answered is left open."""
        if len(self.answered) != len(self.calls):
            left = ", ".join(call for call in self.calls if call not in self.answered)
            self.found.append(rules.UNANSWERED.broken(f"messages.{self.asked_at}", ids=left))
        self.calls, self.asked, self.answered = (), frozenset(), set()

    def _result(self, call: str | None) -> None:
        path = f"messages.{self.index}"
        if call is None:
            self.found.append(rules.MISSING.broken(f"{path}.tool_call_id", at=f"{bracketed(path)}.tool_call_id"))
        elif not self.calls:
            self.found.append(rules.ORPHAN.broken(f"{path}.role"))
        elif call not in self.asked:
            self.found.append(rules.STRANGER.broken(f"{path}.tool_call_id", id=call))
        elif call in self.answered:
            self.found.append(rules.SAME_ID.broken(f"{path}.tool_call_id", id=call, index=self.index))
        else:
            self.answered.add(call)

    def _calls(self, message: Message, calls: Sequence[Call | Hole]) -> None:
        path = f"messages.{self.index}"
        if not calls:
            self.found.append(rules.NO_CALLS.broken(f"{path}.tool_calls", at=f"{bracketed(path)}.tool_calls"))
            return
        ids: dict[str, None] = {}
        for at, call in enumerate(calls):
            if isinstance(call, Hole):  # could not be read, and was reported
                continue
            if call.id in ids:
                self.found.append(rules.SAME_ID.broken(f"{path}.tool_calls.{at}.id", id=call.id, index=self.index))
            ids[call.id] = None
            self._call(call, f"{path}.tool_calls.{at}")
        self.calls, self.asked, self.asked_at = tuple(ids), frozenset(ids), self.index
        if self.head.family.echo and message.reasoning_content is UNSET:
            self._no_reasoning(path)

    def _call(self, call: Call, path: str) -> None:
        if len(call.id) > rules.ID_LENGTH:
            self.found.append(too_long(rules.ID_TOO_LONG, f"{path}.id", len(call.id), rules.ID_LENGTH))
        if call.__class__ is FunctionCall:
            self.found.extend(judge_name(call.function.name, f"{path}.function.name"))
            if not is_object(call.function.arguments):
                where = f"{path}.function.arguments"
                self.found.append(rules.ARGUMENTS_JSON.broken(where, at=bracketed(where)))

    def _no_reasoning(self, path: str) -> None:
        """Judge a message with calls that has lost its reasoning, at a provider that wants it back."""
        family, thinking = self.head.family, self.head.thinking
        if thinking == "disabled":
            return
        severity: Severity = "hard" if thinking == "enabled" or family.thinks else "model"
        self.found.append(rules.RULES[family.echo].broken(path, severity, index=self.index))

    def _no_content(self, message: Message) -> None:
        if message.role == "assistant" and (
            message.tool_calls
            or message.function_call is not UNSET
            or message.refusal is not UNSET
            or message.audio is not UNSET
        ):
            return
        if message.role != "function":
            self.found.append(rules.NO_CONTENT.broken(f"messages.{self.index}.content"))

    def _parts(self, parts: Sequence[Any]) -> None:
        path = f"messages.{self.index}.content"
        if not parts and self.role != "assistant":
            self.found.append(rules.NO_PARTS.broken(path, at=bracketed(path)))
        for at, part in enumerate(parts):
            if part.__class__ is not Text:
                judge = _PARTS.get(part.__class__)
                if judge is not None:
                    judge(self, part, f"{path}.{at}")


def _image(walk: Walk, part: Image, path: str) -> None:
    if walk.role != "user":
        message = f"messages[{walk.index}]"
        walk.found.append(rules.IMAGE_ROLE.broken(path, at=message, role=walk.role))
    url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
    if unsupported_image(url):
        walk.found.append(rules.IMAGE_TYPE.broken(f"{path}.image_url"))


def _audio(walk: Walk, _part: Audio, path: str) -> None:
    hears = walk.head.family.audio
    if not hears:
        severity: Severity = "model" if hears is None else "hard"
        walk.found.append(rules.AUDIO.broken(path, severity, at=f"messages[{walk.index}]"))


def _file(walk: Walk, part: File, path: str) -> None:
    data = part.file
    if data.file_id is None and (data.file_data is None or data.filename is None):
        where = f"{path}.file.file_id"
        walk.found.append(rules.MISSING.broken(where, at=bracketed(where)))


_PARTS: dict[type, Callable[[Walk, Any, str], None]] = {Image: _image, Audio: _audio, File: _file}


def too_long(rule: Rule, path: str, length: int, limit: int) -> Violation:
    """Report a string of ``length`` characters where ``limit`` are allowed."""
    return rule.broken(path, at=bracketed(path), limit=limit, length=length)


def judge_name(name: str, path: str) -> list[Violation]:
    """Judge a tool's name, in the tools or in a call."""
    if len(name) > rules.NAME_LENGTH:
        return [too_long(rules.NAME_TOO_LONG, path, len(name), rules.NAME_LENGTH)]
    # Most names are identifiers, which costs less to tell than the pattern.
    if (name.isidentifier() and name.isascii()) or legal_name(name):
        return []
    return [rules.NAME.broken(path, at=bracketed(path))]


def is_object(text: str) -> bool:
    """Tell whether a call's arguments are the JSON text of an object."""
    try:
        _OBJECT.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def walk_messages(state: State, messages: Sequence[Message | None], index: int) -> tuple[State, list[Violation]]:
    """Judge decoded messages; None stands for one that could not be read and was reported already."""
    found: list[Violation] = []
    walk = Walk(state, found)
    for at, message in enumerate(messages, index):
        if message is not None:
            walk.index = at
            walk.message(message)
    after = replace(state, calls=walk.calls, asked_at=walk.asked_at, answered=frozenset(walk.answered))
    return after, found


def judge_end(state: State, count: int) -> list[Violation]:
    """Judge the end of the messages: no call is left open, and there is a message at all."""
    found: list[Violation] = []
    if state.calls:
        Walk(state, found).close()
    if not count:
        found.append(rules.NO_MESSAGES.broken("messages"))
    return found
