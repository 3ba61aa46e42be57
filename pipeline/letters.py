"""Dead letters in three kinds. The viewer, reports, dashboards and alerts count by this definition alone.

A dead letter is a record of ``pipeline.dead-letters.v1`` that is not a note about another one. Its error code decides
its kind, and the kinds add up to all of them. When a letter counts is the time of its record in that topic.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal, TypeAlias

LetterKind: TypeAlias = Literal["failed", "rejected", "refused"]

REJECTED: Final = "rejected"
REFUSED: Final = "refused_"

# The name of each kind on every page and panel.
LETTER_KINDS: Final = MappingProxyType(
    {
        "failed": "records not processed",
        "rejected": "requests rejected",
        "refused": "requests refused by providers",
    }
)
# The same of `reknit_dead_letters_total`, as PromQL selects it.
LETTER_MATCHERS: Final = MappingProxyType(
    {
        "failed": f'code!~"{REJECTED}|{REFUSED}.*"',
        "rejected": f'code="{REJECTED}"',
        "refused": f'code=~"{REFUSED}.*"',
    }
)


def letter_kind(code: str) -> LetterKind:
    """The kind of a dead letter with this ``reknit.error.code``."""
    if code == REJECTED:
        return "rejected"
    return "refused" if code.startswith(REFUSED) else "failed"
