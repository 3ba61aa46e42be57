"""The healing of one request without a session."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.healing.body import JsonObject, RefusedBody
from reknit.pipeline.healing.claude import drop_unbound
from reknit.pipeline.healing.errors import Refusal, read_error
from reknit.pipeline.healing.later import later_of
from reknit.pipeline.healing.table import IN_SESSIONS, Healing, row_for
from reknit.pipeline.registry import target_named
from reknit.pipeline.session import normalize
from reknit.pipeline.validation import validate

_SECOND: Final = 2


class Healed(Struct, frozen=True):
    """A narrower request.

    Attributes:
        body: the JSON of the request.
        fixes: the changes, with the code ``healed_`` and the name of the row in the table. A path is the place in
            the refused body. A fix is lossless where the model sees everything that it saw before.
        sentence: the provider's own.
    """

    body: bytes
    fixes: list[Fix]
    sentence: str


class NotHealed(Struct, frozen=True):
    """Why there is no narrower request.

    Attributes:
        reason: ``unknown``: no row of the table has the sentence; ``session``: the repair needs the history, which only
            a session has; ``retry``: the same request may be accepted later; ``no_change``: the request has nothing
            that the sentence names; ``invalid``: the narrower request breaks another rule.
        sentence: the provider's own.
    """

    reason: Literal["unknown", "session", "retry", "no_change", "invalid"]
    sentence: str


def heal(
    body: bytes | dict[str, Any],
    target: str = "anthropic",
    *,
    status: int = 400,
    error: bytes | str | dict[str, Any],
    model: str | None = None,
    attempt: int = 1,
) -> Healed | None:
    """Return a request without what the provider refused, or None if no change is known.

    Args:
        body: the refused request, as it was sent.
        target: that it was sent to.
        status: of the answer.
        error: the body of the answer, or of an error event in a stream.
        model: that it was sent to, where the body does not name it.
        attempt: 2 if the same body was refused with the same sentence before. A cause that may pass by itself, such as
            a download, is healed only then.

    Raises:
        InputError: the body is not a JSON object, or the target takes a text.
        UnknownTargetError: the target does not exist.

    Example:
        >>> reasoning = {"type": "thinking", "thinking": "A greeting.", "signature": "from-another-key"}
        >>> answer = {"role": "assistant", "content": [reasoning, {"type": "text", "text": "Hello."}]}
        >>> asked = [{"role": "user", "content": "Hi."}, answer, {"role": "user", "content": "Go on."}]
        >>> body = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": asked}
        >>> said = {"error": {"message": "messages.1.content.0: Invalid signature in thinking block "}}
        >>> found = heal(body, error=said)
        >>> [fix.code for fix in found.fixes]
        ['healed_thinking_signature']
    """
    found = try_healing(body, target, status=status, error=error, model=model, attempt=attempt)
    return found if isinstance(found, Healed) else None


def try_healing(
    body: bytes | dict[str, Any],
    target: str,
    *,
    status: int,
    error: bytes | str | dict[str, Any],
    model: str | None = None,
    attempt: int = 1,
) -> Healed | NotHealed:
    """Return the same as ``heal``, or the reason why there is no request."""
    name = target_named(target).name
    given = _given(body, name)
    refusal = read_error(status, error)
    found = row_for(name, refusal)
    if found is None:
        return NotHealed("session" if row_for(name, refusal, IN_SESSIONS) else "unknown", refusal.sentence)
    row, words = found
    if row.retry_first and attempt < _SECOND:
        return NotHealed("retry", refusal.sentence)
    refused = RefusedBody(name, given, model or "")
    _repair(refused, row, words, refusal)
    if not refused.changes:
        return NotHealed("no_change", refusal.sentence)
    drop_unbound(refused)
    return _judged(given, refused, row, refusal)


def _repair(refused: RefusedBody, row: Healing, words: dict[str, str], refusal: Refusal) -> None:
    """Repair a body by the named place; by kind, where the sentence names none."""
    names_place = "path" in words or "(?P<path>" not in row.pattern.pattern
    repair = row.repair if names_place else later_of(row.name).by_kind
    for each in (repair, row.alone):
        if each is not None and not refused.changes:
            each(refused, words, refusal)


def _given(body: bytes | JsonObject, target: str) -> JsonObject:
    if target_named(target).is_text:
        raise InputError("not_healable", f"{target} takes a text, which no provider refuses in part")
    try:
        value = msgspec.json.decode(body if isinstance(body, bytes) else msgspec.json.encode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InputError("not_json", f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError("wrong_type", "expected a request body, an object")
    return value


def _judged(given: JsonObject, refused: RefusedBody, row: Healing, refusal: Refusal) -> Healed | NotHealed:
    """Return a healed body that breaks no rule which the refused one kept, repaired where that is necessary."""
    body = msgspec.json.encode(refused.value)
    fixes = [
        Fix(
            code=f"healed_{row.name}",
            path=change.path,
            lossless=not row.loss,
            target=refused.target,
            detail=change.action,
        )
        for change in refused.changes
    ]
    if _hard(body, refused.target) - _hard(msgspec.json.encode(given), refused.target):
        done = normalize(body, refused.target)
        if done.body is None:
            return NotHealed("invalid", refusal.sentence)
        body, fixes = done.body, [*fixes, *done.fixes]
    if msgspec.json.decode(body) == given:
        return NotHealed("no_change", refusal.sentence)
    return Healed(body, fixes, refusal.sentence)


def _hard(body: bytes, target: str) -> set[str]:
    return {violation.rule for violation in validate(body, target) if violation.severity == "hard"}
