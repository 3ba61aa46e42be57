"""Values that a provider makes: signatures, encrypted content and ids, in the forms of the real ones."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Return a digest of the canonical JSON of a value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Mint:
    """Makes values with an HMAC of a seed, so that they are reproducible and cannot be guessed."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode()

    def _mac(self, parts: tuple[object, ...]) -> bytes:
        message = json.dumps([str(part) for part in parts]).encode()
        return hmac.new(self._seed, message, hashlib.sha512).digest()

    def claude_signature(self, platform: str, *parts: object) -> str:
        """Return base64 of a field in a field, whose first number is 11; Vertex writes ``claude#`` before it."""
        inner = b"\n\x42\x08\x0b" + self._mac(("claude", platform, *parts))
        value = base64.b64encode(b"\x12" + bytes([len(inner)]) + inner).decode()
        return f"claude#{value}" if platform == "vertex" else value

    def gemini_signature(self, platform: str, *parts: object) -> str:
        """Return base64 of a field whose content begins with 1."""
        inner = b"\x01" + self._mac(("gemini", platform, *parts))
        return base64.b64encode(b"\n" + bytes([len(inner)]) + inner).decode()

    def encrypted(self, *parts: object) -> str:
        return "gAAAAAB" + base64.urlsafe_b64encode(self._mac(("encrypted", *parts))).decode()

    def made_id(self, prefix: str, *parts: object) -> str:
        return f"{prefix}_{self._mac((prefix, *parts)).hex()[:24]}"
