"""Repairs of Gemini's thought signatures."""

from __future__ import annotations

from typing import Any, Final

from reknit.pipeline.healing.body import RefusedBody, items_in, members_of
from reknit.pipeline.healing.errors import Refusal

Words = dict[str, str]
# Documented for calls of another model: https://ai.google.dev/gemini-api/docs/thought-signatures
PLACEHOLDER: Final = "skip_thought_signature_validator"
_NAMES: Final = ("thoughtSignature", "thought_signature")


def replace_signatures(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Put the placeholder on the signed calls of the current turn, and leave all other signatures out."""
    begin = _begin_of_turn(body)
    for at, turn in enumerate(body.turns):
        for place, part in enumerate(map(members_of, items_in(turn.get("parts")))):
            name = next((each for each in _NAMES if each in part), None)
            if name is None:
                continue
            path = f"contents.{at}.parts.{place}.{name}"
            if "functionCall" in part and at >= begin:
                if part[name] != PLACEHOLDER:
                    part[name] = PLACEHOLDER
                    body.note(path, "placeholder")
            else:
                del part[name]
                body.note(path, "left out")


def sign_calls(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Put the placeholder on the first call of each step of the current turn that has no signature."""
    begin = _begin_of_turn(body)
    for at, turn in enumerate(body.turns):
        if at < begin or turn.get("role") != "model":
            continue
        calls: list[tuple[int, dict[str, Any]]] = [
            (place, part)
            for place, part in enumerate(map(members_of, items_in(turn.get("parts"))))
            if "functionCall" in part
        ]
        if calls and not any(name in calls[0][1] for name in _NAMES):
            calls[0][1]["thoughtSignature"] = PLACEHOLDER
            body.note(f"contents.{at}.parts.{calls[0][0]}.thoughtSignature", "placeholder")


def _begin_of_turn(body: RefusedBody) -> int:
    """Return the first content after the last one in which the user says something."""
    said = [
        at
        for at, turn in enumerate(body.turns)
        if turn.get("role") == "user"
        and any("functionResponse" not in members_of(part) for part in items_in(turn.get("parts")))
    ]
    return said[-1] + 1 if said else 0
