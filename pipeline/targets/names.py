"""Tool names in the alphabet of a target: the same name gives the same result, and two names never give one."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_LEGAL: Final = re.compile(r"[a-zA-Z0-9_-]+")
_DIGEST: Final = 10


def legal_name(name: str, longest: int) -> str:
    """``name`` where it is of ``[a-zA-Z0-9_-]`` and short enough, else one made from it and a digest."""
    if len(name) <= longest and _LEGAL.fullmatch(name):
        return name
    stem = _ILLEGAL.sub("_", name)[: longest - _DIGEST - 1]
    return f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]}"
