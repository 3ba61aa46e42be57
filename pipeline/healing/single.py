"""The healing of one request without a session, and of the later ones of its conversation."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.healing.body import Change, JsonObject, RefusedBody, items_in, objects_in
from reknit.pipeline.healing.claude import drop_unbound
from reknit.pipeline.healing.errors import Refusal, read_error
from reknit.pipeline.healing.later import is_lossless, later_of
from reknit.pipeline.healing.memory import NO_MEMORY, TargetMemory, apply_memory, is_widest, try_repairs
from reknit.pipeline.healing.memory import Healing as HealingMade
from reknit.pipeline.healing.table import IN_SESSIONS, row_for
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
    return _tried(_given(body, name), name, read_error(status, error), NO_MEMORY, model or "", attempt=attempt)[0]


def try_remembered(
    body: bytes, target: str, memory: TargetMemory, *, status: int, error: bytes, model: str = "", limit: int
) -> tuple[Healed | NotHealed, TargetMemory]:
    """Return what ``try_healing`` returns, and the memory of the conversation after it.

    Args:
        body: the refused request.
        target: that it was sent to.
        memory: of the conversation at this target. Its count is that of this request.
        status: of the answer.
        error: its body.
        model: that it was sent to, where the body does not name it.
        limit: the most healings of this request.

    Raises:
        InputError: the body is not a JSON object, or the target takes a text.
    """
    return _tried(_given(body, target), target, read_error(status, error), memory, model, limit=limit)


def recall(body: bytes, target: str, memory: TargetMemory, model: str = "") -> tuple[Healed | None, TargetMemory]:
    """Return a request without what earlier refusals were about, or None if it has nothing of it; and the memory.

    Args:
        body: the request, which was not sent yet.
        target: that it will be sent to.
        memory: of the conversation at this target. It changes where the user speaks.
        model: that it will be sent to, where the body does not name it.

    Raises:
        InputError: the body is not a JSON object, or the target takes a text.
    """
    given = _given(body, target)
    refused = RefusedBody(target, given, model)
    if _user_speaks(refused) and any(fact.is_new for fact in memory.facts):
        memory = memory.spoken()
    changes = apply_memory(refused, memory, refused.model)
    fixes = [_fix(noted.row, is_lossless(noted.row), change, target) for change, noted in changes]
    found = _judged(given, refused, fixes, "") if changes else None
    return found if isinstance(found, Healed) else None, memory


# Members and types of a result, in the shapes of all providers.
_RESULTS: Final = frozenset({"tool_result", "toolResult", "functionResponse", "function_response"})


def _user_speaks(body: RefusedBody) -> bool:
    """Return True if a request ends with words of the user, not with results of calls."""
    last = body.turns[-1] if body.turns else {}
    parts = objects_in(items_in(last.get("content", last.get("parts"))))
    return last.get("role") == "user" and all(_RESULTS.isdisjoint({*part, part.get("type")}) for part in parts)


def _tried(
    given: JsonObject,
    target: str,
    refusal: Refusal,
    memory: TargetMemory,
    model: str,
    *,
    attempt: int = 1,
    limit: int | None = None,
) -> tuple[Healed | NotHealed, TargetMemory]:
    found = row_for(target, refusal)
    if found is None:
        is_known = row_for(target, refusal, IN_SESSIONS) is not None
        return NotHealed("session" if is_known else "unknown", refusal.sentence), memory
    row, words = found
    if row.retry_first and attempt < _SECOND:
        return NotHealed("retry", refusal.sentence), memory
    refused = RefusedBody(target, given, model)
    made = HealingMade(row, words, refusal, "")
    if limit is not None and is_widest(memory, row, limit):
        try_repairs(refused, made, is_widest=True)
    _repair(refused, made)
    own = len(refused.changes)
    if not own:
        return NotHealed("no_change", refusal.sentence), memory
    drop_unbound(refused)
    fixes = [_fix(row.name, not row.loss, change, target) for change in refused.changes]
    healed = _judged(given, refused, fixes, refusal.sentence)
    return healed, memory.with_healing(made, refused, own) if isinstance(healed, Healed) else memory


def _fix(row: str, lossless: bool, change: Change, target: str) -> Fix:  # noqa: FBT001  a member of the fix
    return Fix(code=f"healed_{row}", path=change.path, lossless=lossless, target=target, detail=change.action)


def _repair(refused: RefusedBody, made: HealingMade) -> None:
    """Repair a body by the named place; by kind, where the sentence names none."""
    repair = made.row.repair if made.names_place else later_of(made.row.name).by_kind
    for each in (repair, made.row.alone):
        if each is not None and not refused.changes:
            each(refused, made.words, made.refusal)


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


def _judged(given: JsonObject, refused: RefusedBody, fixes: list[Fix], sentence: str) -> Healed | NotHealed:
    """Return a healed body that breaks no rule which the refused one kept, repaired where that is necessary."""
    body = msgspec.json.encode(refused.value)
    if _hard(body, refused.target) - _hard(msgspec.json.encode(given), refused.target):
        done = normalize(body, refused.target)
        if done.body is None:
            return NotHealed("invalid", sentence)
        body, fixes = done.body, [*fixes, *done.fixes]
    if msgspec.json.decode(body) == given:
        return NotHealed("no_change", sentence)
    return Healed(body, fixes, sentence)


def _hard(body: bytes, target: str) -> set[str]:
    return {violation.rule for violation in validate(body, target) if violation.severity == "hard"}
