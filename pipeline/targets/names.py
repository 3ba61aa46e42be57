"""Names of tools and ids of calls as a target takes them, in its alphabet and its length.

The same one gives the same result. Two names never give one. That two ids never do is seen to before they come here:
the structure repair gives no id to a call that a target of the session would write like another's
(``pipeline.history.ids.IdTable``).
"""

from __future__ import annotations

import hashlib
import re
import string
from typing import Final

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_LEGAL: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME_DIGEST: Final = 10


def legal_name(name: str, longest: int) -> str:
    """``name`` where it is of ``[a-zA-Z0-9_-]`` and short enough, else one made from it and a digest."""
    if len(name) <= longest and _LEGAL.fullmatch(name):
        return name
    stem = _ILLEGAL.sub("_", name)[: longest - _NAME_DIGEST - 1]
    return f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGEST]}"


# `Expected a string with maximum length 40` (OAI-03).
LONGEST_ID: Final = 40
_ID_DIGEST: Final = 12

# `must be a-z, A-Z, 0-9, with a length of 9` (VLM-06).
NINE: Final = 9
_ALPHANUMERIC: Final = string.digits + string.ascii_letters


def shortened(call_id: str) -> str:
    if len(call_id) <= LONGEST_ID:
        return call_id
    return f"{call_id[: LONGEST_ID - _ID_DIGEST - 1]}-{hashlib.sha256(call_id.encode()).hexdigest()[:_ID_DIGEST]}"


def nine(call_id: str) -> str:
    if len(call_id) == NINE and call_id.isalnum() and call_id.isascii():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:16])
    digits = []
    for _ in range(NINE):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return "".join(digits)
