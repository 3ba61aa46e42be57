"""The effect of a refusal on a session's memory: the healing that applies, and its bounds.

The narrowest repair comes first. If the same sentence comes back in the user's turn, the next one is the widest of its
kind where reasoning is left out, and the last one in any case. A healing always changes the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from reknit.pipeline.healing.body import RefusedBody
from reknit.pipeline.healing.errors import Refusal
from reknit.pipeline.healing.memory import Healing, TargetMemory, is_widest, try_repairs
from reknit.pipeline.healing.table import HEALINGS, IN_SESSIONS, row_for
from reknit.pipeline.session.healed import HealedRequest, decoded_body
from reknit.pipeline.session.request import Normalized

LIMITS: Final[Mapping[str, int]] = MappingProxyType({"off": 0, "once": 1, "on": 3})
"""The most healings of one target's requests in one user turn, by policy ``heal``."""


class Refused(Struct, frozen=True, kw_only=True):
    """A refusal of one request.

    Attributes:
        refusal: the provider's statement.
        sha256: the digest of the request's body; empty if it is not known.
        request_id: of the request; empty if it is not known.
        report: identifies the report of the refusal; empty if each one is of another attempt.
        model: of the request.
        limit: the most healings in a user turn.
    """

    refusal: Refusal
    sha256: str
    request_id: str
    report: str
    model: str
    limit: int


def after_refusal(memory: TargetMemory, current: Normalized, refused: Refused) -> TargetMemory:
    """Return the memory after a refusal; with one more healing if one applies.

    Args:
        memory: of the target.
        current: its request as it would be sent now. If it is not the refused one, the repair goes by kind.
        refused: the refusal.
    """
    found = row_for(current.target, refused.refusal, (*IN_SESSIONS, *HEALINGS))
    if found is None or memory.count >= refused.limit:
        return memory
    row, words = found
    if row.retry_first:
        attempt = refused.sha256 or current.sha256, refused.report
        if memory.retried[0] != attempt[0]:
            return structs.replace(memory, retried=attempt)
        if refused.report and memory.retried == attempt:
            return memory  # the same report again
    is_same = current.sha256 == refused.sha256
    if not is_same:
        words = {name: value for name, value in words.items() if name != "path"}
    value = decoded_body(current.unjudged)
    if value is None:
        return memory
    body = RefusedBody(current.target, value, refused.model, is_own=True)
    made = Healing(row, words, refused.refusal, refused.request_id)
    own = try_repairs(body, made, is_widest=is_widest(memory, row, refused.limit))
    if own:
        return memory.with_healing(made, body, own)
    if refused.sha256 and not is_same and isinstance(current, HealedRequest):
        # It was sent before its session learned of an earlier refusal, and is written without its cause now.
        return structs.replace(memory, count=memory.count + 1)
    return memory


_ORPHANS: Final = frozenset({"result_orphan", "result_orphan_text"})


def is_progress(before: Normalized | None, after: Normalized, sha256: str) -> bool:
    """Return True if a request is worth sending after a refusal.

    Args:
        before: the request without the healing, if there was one.
        after: the request.
        sha256: the digest of the refused body; empty if it is not known.
    """
    if after.sha256 == sha256:
        return False
    if before is None:
        return not after.rejected
    if after.sha256 == before.sha256 or (after.rejected and not before.rejected):
        return False
    # The history does not have the calls that the provider stored: without them it would not be the conversation.
    return _orphans(after) <= _orphans(before)


def _orphans(request: Normalized) -> int:
    return sum(fix.code in _ORPHANS for fix in request.fixes)
