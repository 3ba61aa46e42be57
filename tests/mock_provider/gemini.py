"""Checks of Gemini's thought signatures."""

from __future__ import annotations

from typing import Any

from mock_provider.received import Received, listed, members
from mock_provider.sentences import RefusedError
from mock_provider.values import digest_of

PLACEHOLDER = "skip_thought_signature_validator"


def part_digest(part: dict[str, Any]) -> str:
    """Return the digest of a part without its signature."""
    return digest_of({name: value for name, value in part.items() if name != "thoughtSignature"})


def check_signatures(request: Received) -> None:
    """Refuse a signature of another part, model or key; then a step of the current turn without one."""
    contents = [members(content) for content in listed(request.body.get("contents"))]
    for content in contents:
        for part in map(members, listed(content.get("parts"))):
            value = part.get("thoughtSignature")
            if value is None or (value == PLACEHOLDER and "functionCall" in part):
                continue
            found = request.state.issued.get((request.party.platform, "thought", value))
            key = found is not None and (found.boundary, found.family, found.of)
            if key != (request.boundary, request.facts.family, part_digest(part)):
                raise RefusedError("corrupted", value)
    if request.facts.wants_signature:
        _check_steps(contents)


def _check_steps(contents: list[dict[str, Any]]) -> None:
    for at in range(_begin_of_turn(contents), len(contents)):
        if contents[at].get("role") != "model":
            continue
        calls = [part for part in contents[at]["parts"] if "functionCall" in part]
        if calls and "thoughtSignature" not in calls[0]:
            raise RefusedError("missing_signature", name=calls[0]["functionCall"]["name"], position=at + 1)


def _begin_of_turn(contents: list[dict[str, Any]]) -> int:
    said = [
        at
        for at, content in enumerate(contents)
        if content.get("role") == "user" and any("functionResponse" not in part for part in content["parts"])
    ]
    return said[-1] + 1 if said else 0
