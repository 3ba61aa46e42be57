"""The rules of Anthropic's Messages API, as a fold over a request's messages."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from pipeline.rules import _json
from pipeline.rules._json import BadJSON
from pipeline.rules.anthropic import catalogue as rules
from pipeline.rules.anthropic.catalogue import RULES
from pipeline.rules.anthropic.end import judge_end
from pipeline.rules.anthropic.head import judge_head
from pipeline.rules.anthropic.plain import pass_plain
from pipeline.rules.anthropic.shape import read_messages
from pipeline.rules.anthropic.state import State
from pipeline.rules.anthropic.walk import walk
from pipeline.rules.anthropic.wire import PARAMETERS, Body, Message
from pipeline.rules.base import Violation

__all__ = ["RULES", "Anthropic", "State"]

_BODY = msgspec.json.Decoder(Body)
_MESSAGES = msgspec.json.Decoder(list[Message])
_VALUE = msgspec.json.Decoder()
# What a typed decode raises for text that it cannot read. Nesting costs stack, so there is a third.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

# How a body goes on after its head's last key, and how it ends.
_JOINT = ',"messages":['
_END = "]}"


class Anthropic:
    """The rule set of the target ``anthropic``."""

    target = "anthropic"

    def start(self, head: bytes, model: str | None = None) -> tuple[State, list[Violation]]:
        """Judge a request without its messages; positions assume that ``messages`` will be its last key."""
        values, bad = _read(head)
        if not isinstance(values, dict):
            return State(broken=True), [_not_json(bad) if bad else _not_object()]
        facts, found = judge_head({key: values[key] for key in values if key != "messages"}, model)
        joint = len(_JOINT) if values else len(_JOINT) - 1
        chars = len(head) if head.isascii() else len(head.decode())
        state = State(head=facts, chars=chars - 1 + joint, bytes=len(head) - 1 + joint)
        if bad is not None:
            found.append(_not_json(bad, head.decode(), _json.surrogate_path(values)))
            state = replace(state, surrogate=True)
        return state, found

    def step(self, state: State, messages: bytes) -> tuple[State, list[Violation]]:
        """Judge more messages; the cost is theirs alone, however long the history."""
        if state.broken or not messages.strip():
            return state, []
        array = b"".join((b"[", messages, b"]"))
        try:
            chars = len(messages) if messages.isascii() else len(messages.decode())
            decoded = _MESSAGES.decode(array)
        except _UNREADABLE:
            return self._step_slowly(state, messages)
        return _walk(state, decoded, chars + 1, len(messages) + 1)

    def _step_slowly(self, state: State, messages: bytes) -> tuple[State, list[Violation]]:
        values, bad = _read(b"[%b]" % messages)
        if not isinstance(values, list):
            place = bad or BadJSON("unexpected data", 0)
            broken = _not_json(BadJSON(place.reason, max(place.at - 1, 0)), before=state.chars)
            return replace(state, broken=True), [] if state.surrogate else [broken]
        read, found = read_messages(values, state.index)
        text = messages.decode()
        after, more = walk(state, read, len(text) + 1, len(messages) + 1)
        if bad is not None and not state.surrogate:
            path = _json.surrogate_path({"messages": [None] * state.index + values})
            found.append(_not_json(BadJSON(bad.reason, bad.at - 1), text, path, state.chars))
        return replace(after, surrogate=state.surrogate or bad is not None), found + more

    def finish(self, state: State) -> list[Violation]:
        """Judge the end of the request."""
        if state.broken:
            return []
        comma = 1 if state.index else 0
        return judge_end(state) + _judge_size(state.bytes - comma + len(_END))

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        """Judge a whole body."""
        try:
            if not body.isascii():
                body.decode()
            request = _BODY.decode(body)
            head = {name: _VALUE.decode(raw) for name in PARAMETERS if (raw := getattr(request, name)) is not UNSET}
        except _UNREADABLE:
            return self._validate_slowly(body, model)
        facts, found = judge_head(head, model)
        state, more = _walk(State(head=facts), request.messages)
        return [*found, *more, *judge_end(state), *_judge_size(len(body))]

    def _validate_slowly(self, body: bytes, model: str | None) -> list[Violation]:
        values, bad = _read(body)
        if not isinstance(values, dict):
            return [_not_json(bad) if bad else _not_object()]
        facts, found = judge_head({key: values[key] for key in values if key != "messages"}, model)
        if bad is not None:
            found.append(_not_json(bad, body.decode(), _json.surrogate_path(values)))
        messages = values.get("messages")
        if not isinstance(messages, list):
            words = "Input should be a valid list" if "messages" in values else "Field required"
            return [*found, rules.SHAPE.broken("messages", words=words), *_judge_size(len(body))]
        read, misfits = read_messages(messages, 0)
        state, more = walk(State(head=facts), read)
        return [*found, *misfits, *more, *judge_end(state), *_judge_size(len(body))]


def _walk(state: State, messages: list[Message], chars: int = 0, size: int = 0) -> tuple[State, list[Violation]]:
    """Judge messages that were decoded whole, the plain beginning of a request first."""
    if state.index == 0:
        state = pass_plain(state, messages)
        messages = messages[state.index :]
    return walk(state, messages, chars, size)


def _read(data: bytes) -> tuple[object, BadJSON | None]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None, BadJSON("str is not valid UTF-8: surrogates not allowed", 0)
    return _json.read(text)


def _not_json(bad: BadJSON, text: str = "", path: str = "", before: int = 0) -> Violation:
    return rules.BAD_JSON.broken(path, reason=bad.place(text, before))


def _not_object() -> Violation:
    return rules.SHAPE.broken("", at="body", words="Input should be a valid dictionary")


def _judge_size(size: int) -> list[Violation]:
    return [rules.TOO_LARGE.broken("")] if size > rules.REQUEST_BYTES else []
