"""The fix catalogue: every change that Reknit makes to a history has a code here, and nothing changes without one."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Fate: TypeAlias = Literal["moved", "rewritten", "flattened", "dropped", "synthesised"]


class FixCode(Struct, frozen=True, kw_only=True):
    """One kind of mend. ``code`` is also the metric label and the anchor in the docs."""

    code: str
    summary: str
    fate: Fate
    lossless: bool
    # The provider's refusal that this mend avoids, and where it was seen.
    error: str = ""
    source: str = ""


class Fix(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One mend: what was changed where, and what it was.

    ``path`` is the input's place in the provider's notation (``messages.3.content.1``), or the output's for what was
    synthesised. ``before`` and ``after`` are digests (first 16 hex digits of SHA-256) of the block's canonical JSON.
    """

    code: str
    path: str
    lossless: bool
    target: str = ""
    detail: str = ""
    before: str = ""
    after: str = ""
