"""Predict a provider's 400: judge a whole request body by the target's rules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from reknit.pipeline.errors import UnknownTargetError, expected_one_of
from reknit.pipeline.rules.base import KnowsBetas, Violation
from reknit.pipeline.rules.sets import RULE_SETS


def validate(
    body: bytes | str | dict[str, Any],
    target: str = "anthropic",
    model: str | None = None,
    betas: Iterable[str] = (),
) -> list[Violation]:
    """Return the target's rules that a request body breaks, in the provider's words; an empty list for a valid body.

    The content of a body never raises: text that is not JSON is a violation itself.

    Args:
        body: the request body, as JSON or as Python objects.
        target: the name of a target.
        model: overrides the model that the body names, for rules that only some models have.
        betas: values of Anthropic's header ``anthropic-beta`` that is sent with the request. If empty, the betas are
            unknown, and no rule depends on them.

    Raises:
        UnknownTargetError: the target does not exist.

    Example:
        >>> body = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": []}
        >>> [(broken.rule, broken.severity, broken.message) for broken in validate(body)]
        [('ANT-01', 'hard', 'messages: at least one message is required')]
    """
    rules = RULE_SETS.get(target)
    if rules is None:
        raise UnknownTargetError("unknown_target", expected_one_of(RULE_SETS, target))
    if betas and isinstance(rules, KnowsBetas):
        rules = rules.with_betas(betas)
    return rules.validate(_encode(body), model)


def _encode(body: bytes | str | dict[str, Any]) -> bytes:
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, dict):
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError):  # lone surrogates among them
            return _encode_slowly(body)
    return bytes(body)


def _encode_slowly(body: dict[str, Any]) -> bytes:
    """Encode what msgspec refuses; what JSON has no place for becomes text that is not JSON."""
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError, RecursionError):
        return b""
