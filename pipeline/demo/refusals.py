"""What the provider would have said without Reknit: the client's own request, judged by the provider's rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct

from pipeline.demo.recordings import Input, Recording, Wait, inputs
from pipeline.rules import Violation, validate
from topics import AGENT_TURNS

# The worker's default, which a session that names no target gets.
_DEFAULT_TARGETS = ("anthropic",)

# JSON is read with the standard library here: a client's own request may hold what msgspec refuses, such as half of a
# surrogate pair, and is to be judged with it.
Json = dict[str, Any]


class Refusal(Struct, frozen=True, kw_only=True):
    """The first thing that a target finds wrong. Where ``tolerated``, it lets it pass, and stricter ones do not."""

    target: str
    rule: str
    message: str
    tolerated: bool = False


class _Request(Struct, kw_only=True):
    """What a client without Reknit would send: its log as it is."""

    targets: Sequence[str] = _DEFAULT_TARGETS
    head: Json = {}
    messages: list[Json] = []


def refusals(recording: Recording) -> list[Refusal]:
    """What each target of the session finds wrong with the history as its client has it; nothing for one that takes it.

    A session whose log is also written from its stream has no history of the client's own to judge.
    """
    if any(isinstance(step, Wait) for step in recording.feed):
        return []
    request = _unmended(recording)
    found = ((target, _first(_judged(target, request))) for target in request.targets if request.messages)
    return [
        Refusal(target=target, rule=worst.rule, message=worst.message, tolerated=worst.severity == "soft")
        for target, worst in found
        if worst is not None
    ]


def _unmended(recording: Recording) -> _Request:
    request = _Request()
    for record in _log(recording):
        match record["type"]:
            case "session.opened":
                _open(request, record)
            case "history.restored":
                request.messages = record["messages"]
            case "turn.appended":
                request.messages.append(record["message"])
    if recording.sent is not UNSET:
        request.messages = json.loads(bytes(recording.sent))
    return request


def _log(recording: Recording) -> Iterator[Json]:
    for record in inputs(recording):
        if isinstance(record, Input) and record.topic == AGENT_TURNS and record.value is not None:
            try:
                yield json.loads(record.value)
            except json.JSONDecodeError:
                continue  # a torn record never was part of anybody's history


def _open(request: _Request, record: Json) -> None:
    request.targets = record.get("targets", _DEFAULT_TARGETS)
    request.head = {name: record[name] for name in ("model", "system", "tools") if name in record}
    request.head |= record.get("params", {})


def _judged(target: str, request: _Request) -> list[Violation]:
    if target == "claude-cli":
        return [violation for line in _envelopes(request.messages) for violation in validate(line, target)]
    return validate(request.head | {"messages": request.messages}, target)


def _envelopes(messages: Sequence[Json]) -> Iterator[bytes]:
    """A history for the CLI's standard input, as one would first try it: a line a message, its role for a type."""
    for message in messages:
        yield json.dumps({"type": message["role"], "message": message}).encode() + b"\n"


def _first(violations: Sequence[Violation]) -> Violation | None:
    """The one that the provider answers with: the first hard one; without any, the first that it tolerates."""
    hard = (violation for violation in violations if violation.severity == "hard")
    return next(hard, None) or next((v for v in violations if v.severity == "soft"), None)
