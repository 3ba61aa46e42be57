"""Tool ids in the length of a target. The structure repair has seen to the alphabet (letters, digits, _ and -).

Both sides of a call get theirs from the same function, which keeps no state: a new id is made of the old one's digest.
That two ids never share one is seen to before they come here: the structure repair gives no id to a call that a target
of the session would write like another's (``pipeline.history.ids.IdTable``).
"""

from __future__ import annotations

import hashlib
import string
from typing import Final

# `Expected a string with maximum length 40` (OAI-03).
LONGEST: Final = 40
_DIGEST: Final = 12

# `must be a-z, A-Z, 0-9, with a length of 9` (VLM-06).
NINE: Final = 9
_ALPHANUMERIC: Final = string.digits + string.ascii_letters


def shortened(call_id: str) -> str:
    """An id of at most 40 characters."""
    if len(call_id) <= LONGEST:
        return call_id
    return f"{call_id[: LONGEST - _DIGEST - 1]}-{hashlib.sha256(call_id.encode()).hexdigest()[:_DIGEST]}"


def nine(call_id: str) -> str:
    """An id of nine letters and digits."""
    if len(call_id) == NINE and call_id.isalnum() and call_id.isascii():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:16])
    digits = []
    for _ in range(NINE):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return "".join(digits)
