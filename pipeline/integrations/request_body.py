"""Repair of one request's body in the process that sends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.session import normalize
from reknit.pipeline.stages.defaults import chains_in

OnFixes = Callable[[Sequence[Fix]], None]
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])


def repaired_body(body: bytes, endpoint: Endpoint, policy: Policy, on_fixes: OnFixes | None = None) -> bytes:
    """Return a body in which everything is repaired; the same bytes where nothing needs a repair, or can have one.

    Args:
        body: the JSON of a request.
        endpoint: its target, and the model that its path names.
        policy: that of ``normalize``.
        on_fixes: is called with the fixes of a body that is repaired.
    """
    try:
        # Only the provider knows the history of a request that continues another one.
        if chains_in(_MEMBERS.decode(body)):
            return body
        done = normalize(body, endpoint.target, policy=policy, model=endpoint.model or None)
    except (ReknitError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    made = [fix for fix in done.fixes if not fix.observed]
    if done.body is None or not made:
        return body
    if on_fixes is not None:
        on_fixes(made)
    return done.body
