"""UUIDs of content, for files whose lines must have some."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def uuid_of(data: str | bytes) -> str:
    """Return a UUID that is the same for the same content (version 8 of RFC 9562)."""
    content = data.encode("utf-8", "replace") if isinstance(data, str) else data
    made = hashlib.sha256(content).hexdigest()
    return f"{made[:8]}-{made[8:12]}-8{made[13:16]}-8{made[17:20]}-{made[20:32]}"


def is_uuid(text: str) -> bool:
    """Return True if a text has the form of a UUID."""
    return _UUID.fullmatch(text) is not None
