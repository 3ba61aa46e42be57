"""Repairs of Gemini's thought signatures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from reknit.pipeline.healing.body import Known, RefusedBody, Revoked, digest_of, items_in, members_of
from reknit.pipeline.healing.errors import Refusal

Words = dict[str, str]
# Documented for calls of another model: https://ai.google.dev/gemini-api/docs/thought-signatures
PLACEHOLDER: Final = "skip_thought_signature_validator"
_NAMES: Final = ("thoughtSignature", "thought_signature")


def replace_signatures(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Put the placeholder on the signed calls of the current turn, and leave all other signatures out."""
    begin = _begin_of_turn(body)
    for at, place, name, part in _signed(body):
        is_call = "functionCall" in part and at >= begin
        _replace(body, f"contents.{at}.parts.{place}.{name}", name, part, PLACEHOLDER if is_call else "")


def drop_cache(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Leave the cache out; the request holds all that it held."""
    if body.value.pop("cachedContent", None) is not None:
        body.note("cachedContent", "left out")


def drop_revoked(body: RefusedBody, known: Known) -> None:
    """Replace the revoked signatures by the same values as before."""
    for at, place, name, part in _signed(body):
        put = known.get(("signature", digest_of(part[name])))
        if put is not None:
            _replace(body, f"contents.{at}.parts.{place}.{name}", name, part, put)


def sign_every(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Put the placeholder on the first call of each step; in earlier turns too, where nothing then changes again."""
    _sign(body, 0)


def _signed(body: RefusedBody) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
    """Yield the places of the parts with a signature, the member's name, and the part."""
    for at, turn in enumerate(body.turns):
        for place, part in enumerate(map(members_of, items_in(turn.get("parts")))):
            name = next((each for each in _NAMES if each in part), None)
            if name is not None:
                yield at, place, name, part


def _replace(body: RefusedBody, path: str, name: str, part: dict[str, Any], put: str) -> None:
    if part[name] == PLACEHOLDER and put:
        return
    revoked = Revoked("signature", digest_of(part[name]), put)
    if put:
        part[name] = put
    else:
        del part[name]
    body.note(path, "placeholder" if put else "left out", revoked)


def sign_calls(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Put the placeholder on the first call of each step of the current turn that has no signature."""
    _sign(body, _begin_of_turn(body))


def _sign(body: RefusedBody, begin: int) -> None:
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
