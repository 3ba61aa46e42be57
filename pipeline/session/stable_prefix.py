"""The length and the digest of the part of a body that no later request changes.

Both are extended by the chunks that have settled since the last request, so a request costs no more than its new
chunks. All methods take the settled chunks, which only grow, and the number of those before the first breakpoint that
may still be removed (``stable``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from reknit.pipeline.session.settled_state import Mark


class PrefixExtent(Struct, frozen=True, gc=False):
    """How far a prefix was hashed and measured.

    Attributes:
        hashed: the number of hashed chunks, and ``digest`` the hash of them; None before the first.
        measured: the number of measured chunks, and ``length`` their bytes without the dialect's prefix.
    """

    digest: Any = None
    hashed: int = 0
    measured: int = 0
    length: int = 0


BEGINNING: Final = PrefixExtent()


class StablePrefix:
    """The prefix of a target's bodies; ``prefix`` precedes the first chunk, ``separator`` each further one."""

    def __init__(self, prefix: bytes, separator: bytes, extent: PrefixExtent = BEGINNING) -> None:
        self._prefix = prefix
        self._separator = separator
        self._hash = hashlib.sha256(prefix) if extent.digest is None else extent.digest.copy()
        self._hashed, self._measured, self._length = extent.hashed, extent.measured, extent.length

    def extent(self) -> PrefixExtent:
        """Return how far the prefix is."""
        return PrefixExtent(self._hash.copy(), self._hashed, self._measured, self._length)

    def at(self, extent: PrefixExtent) -> StablePrefix:
        """Return the prefix at an earlier extent; this one is not changed."""
        return StablePrefix(self._prefix, self._separator, extent)

    def is_hashed(self) -> bool:
        """Return True if any chunk was hashed."""
        return bool(self._hashed)

    def length(self, chunks: Sequence[bytes], stable: int) -> int:
        """Return the bytes of the prefix of all bodies and of the stable chunks."""
        return len(self._prefix) + self.chunks_length(chunks, stable)

    def chunks_length(self, chunks: Sequence[bytes], stable: int) -> int:
        """Return the bytes of the stable chunks, with the separators between them."""
        if stable > self._measured:
            new = chunks[self._measured : stable]
            separators = len(new) if self._measured else len(new) - 1
            self._length += sum(map(len, new)) + separators * len(self._separator)
            self._measured = stable
        return self._length

    def advance(self, chunks: Sequence[bytes], stable: int) -> None:
        """Hash the stable chunks."""
        if stable > self._hashed:
            self._hash.update(self._after_hashed(chunks[self._hashed : stable]))
            self._hashed = stable

    def digest(
        self, chunks: Sequence[bytes], stable: int, rest: Iterable[bytes], active: Sequence[Mark], suffix: bytes
    ) -> str:
        """Return the SHA-256 of a body, as hexadecimal digits: all chunks, then the ``rest`` and the ``suffix``.

        ``active`` are the breakpoints that the body has; their chunks are replaced by those with the breakpoints.
        """
        self.advance(chunks, stable)
        tail = list(chunks[self._hashed :])
        for mark in active:
            tail[mark.at - self._hashed] = mark.data
        total = self._hash.copy()
        total.update(self._after_hashed([*tail, *rest]) + suffix)
        digest: str = total.hexdigest()
        return digest

    def _after_hashed(self, parts: Sequence[bytes]) -> bytes:
        """Return the parts after the hashed chunks in one piece, because each update of a hash has a fixed cost."""
        return self._separator.join([b"", *parts] if self._hashed and parts else parts)
