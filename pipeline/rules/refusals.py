"""Compare a provider's refusal of a request with the rules: which rule foresaw it, or should have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from reknit.pipeline.rules.base import Catalogue

# The cause of a provider's refusal: one of its rules, or something that the request's shape does not show. The
# refusal's words are compared with the rules: first with those that the request was found to break and was sent
# despite, then with all rules of the target. A rule's message has names in place of indexes and ids.

# foreseen: by a rule that the request broke, and that is not hard. missed: a rule has these words, and found nothing in
# the request. unknown: no rule has them. not_shape: a key, a quota, a model, a length in tokens, the provider's state.
Outcome: TypeAlias = Literal["foreseen", "missed", "unknown", "not_shape"]

# Statuses of refusals that are about the request itself.
_OF_THE_REQUEST: Final = frozenset({400, 413, 422})
# Statuses of keys, rights and models, which some providers use for what a request names: an item that was not stored
# (vercel/ai#7543, 404), the id of another connection (earendil-works/pi#3139, 401). There only a rule's words decide.
_OF_WHAT_IT_NAMES: Final = frozenset({401, 403, 404})
# Providers' own codes for what no shape decides, and words where they give none.
_OTHER_CODES: Final = frozenset({
    "API_KEY_INVALID", "FAILED_PRECONDITION", "PERMISSION_DENIED", "UNAUTHENTICATED", "authentication_error",
    "billing_error", "billing_hard_limit_reached", "insufficient_quota", "invalid_api_key", "organization_restricted",
    "permission_error", "rate_limit_exceeded", "ThrottlingException", "AccessDeniedException",
    "invalid_model", "model_decommissioned", "model_not_found", "unknown_model",
    "context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "too_many_prompt_tokens",
    "content_filter", "content_policy_violation", "invalid_image_url", "tool_use_failed",
})  # fmt: skip
_OTHER_WORDS: Final = re.compile(
    r"api key|credit balance|rate limit|usage limit|quota|throttl"  # the account
    r"|model (identifier )?(not found|is invalid)|invalid model|model id\b|unknown model|no endpoints found"
    r"|model (version )?(has reached|is not available|does not exist)|requested model"
    r"|too long|too many (total|input|tokens)|(token|context)[^.]{0,60}exceed|exceed[^.]{0,60}(token|context)"  # length
    r"|maximum (context|prompt) length"
    r"|(download|fetch)[^.]{0,40}(file|content|url|http|image)|url_"  # content at a URL
    r"|content (management )?policy|usage guidelines|safety|output blocked",  # a filter
    re.IGNORECASE,
)
# The place in the body, where a deserializer gives it after its words (DeepSeek).
_PLACE: Final = re.compile(r" at line \d+ column \d+$")
# Fewer letters than this around the names of a rule's message would fit any sentence.
_LEAST_LETTERS: Final = 12


class Doubt(Struct, frozen=True, array_like=True):
    """A rule that a request broke and that is not hard, with what the provider says where it holds to it."""

    rule: str
    message: str


class Refusal(Struct, frozen=True):
    """The provider's words, the cause of the refusal, and the rule if there is one."""

    outcome: Outcome
    message: str
    rule: str = ""


# A rule, and what its message says between the names in it.
_Said: TypeAlias = tuple[str, tuple[str, ...]]


def read_refusal(catalogue: Catalogue | None, status: int, body: str, doubts: Sequence[Doubt] = ()) -> Refusal:
    """Compare a provider's refusal with the rules.

    Args:
        catalogue: the rules of the target that refused. None if the target is unknown.
        status: the HTTP status.
        body: the provider's answer.
        doubts: the rules, not hard, that the refused request was found to break.
    """
    answer = _decoded(body)
    message = _message_of(answer) or body.strip()
    if status not in _OF_THE_REQUEST | _OF_WHAT_IT_NAMES:
        return Refusal("not_shape", message)
    foreseen = _rule_of(message, [(doubt.rule, (doubt.message,)) for doubt in doubts])
    if foreseen:
        return Refusal("foreseen", message, foreseen)
    known = _rule_of(message, _messages(catalogue)) if catalogue else ""
    if catalogue and known:
        return Refusal("not_shape" if catalogue.rules[known].unchecked else "missed", message, known)
    is_other = not _OTHER_CODES.isdisjoint(_codes_of(answer)) or bool(_OTHER_WORDS.search(message))
    if status in _OF_WHAT_IT_NAMES or is_other:
        return Refusal("not_shape", message)
    return Refusal("unknown", message)


def _rule_of(message: str, rules: Sequence[_Said]) -> str:
    """The first rule that says the message, or its first line where rules say every line; none as a rule."""
    message = _PLACE.sub("", message)
    lines = message.splitlines()
    if found := _saying(message, rules):
        return found
    return _saying(lines[0], rules) if len(lines) > 1 and all(_saying(line, rules) for line in lines) else ""


def _saying(words: str, rules: Sequence[_Said]) -> str:
    # After a comma a provider may repeat the input; a rule does not.
    begun = words.split(",", maxsplit=1)[0]
    return next((rule for rule, pieces in rules if _is_made_of(words, pieces) or _is_made_of(begun, pieces)), "")


def _is_made_of(words: str, pieces: tuple[str, ...]) -> bool:
    """Return True if words are these pieces in this order, with something between each and the next."""
    if len(pieces) == 1:
        return words == pieces[0]
    first, *between, last = pieces
    if not (words.startswith(first) and words.endswith(last)):
        return False
    at = len(first)
    for piece in between:
        found = words.find(piece, at + 1)
        if found < 0:
            return False
        at = found + len(piece)
    return at < len(words) - len(last)


@cache
def _messages(catalogue: Catalogue) -> tuple[_Said, ...]:
    """Return the messages of a target's rules, those with the most words of their own first."""
    found = []
    for rule in catalogue.rules.values():
        pieces = tuple(re.split(r"\{\w+\}", rule.message))
        letters = len(re.findall(r"[A-Za-z]", "".join(pieces)))
        # After a beginning that all errors have, free words would fit any sentence.
        is_free = rule.message.endswith("{words}") and not re.search(r"[A-Za-z]", "".join(pieces[1:]))
        if letters >= _LEAST_LETTERS and not is_free:
            found.append((-letters, rule.id, pieces))
    return tuple((rule, pieces) for _, rule, pieces in sorted(found))


def _decoded(body: str) -> Any:  # noqa: ANN401  whatever the provider answered
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# A router's error holds the provider's, which may be in a list; nothing lies deeper.
_DEEPEST: Final = 6


def _message_of(answer: object, depth: int = 0) -> str:
    """Return the provider's words, or those of the original provider if a router passes them on."""
    match answer:
        case [first, *_] | {"error": Mapping() as first} if depth < _DEEPEST:
            passed_on = first.get("metadata") if isinstance(first, Mapping) else None
            raw = passed_on.get("raw") if isinstance(passed_on, Mapping) else None
            inner = _message_of(_decoded(raw), depth + 1) or raw if isinstance(raw, str) else ""
            return inner or _message_of(first, depth + 1)
        case {"message": str(words)} | {"error": str(words)} | {"detail": str(words)} | {"msg": str(words)}:
            return words.strip()
        case {"message": [*_] | Mapping() as inner} | {"detail": [*_] as inner} if depth < _DEEPEST:
            return _message_of(inner, depth + 1)  # Mistral's list of places, at times in a message
    return ""


def _codes_of(answer: object, depth: int = 0) -> Iterator[str]:
    """The provider's own codes, wherever its error has them."""
    if depth > _DEEPEST:
        return
    if isinstance(answer, list):
        for each in answer:
            yield from _codes_of(each, depth + 1)
    if isinstance(answer, Mapping):
        for name in ("code", "type", "status", "reason", "__type"):
            if isinstance(answer.get(name), str):
                yield answer[name]
        yield from _codes_of(answer.get("error"), depth + 1)
        yield from _codes_of(answer.get("details"), depth + 1)
