"""The fixes that reading makes, collected while it makes them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw

from pipeline import fixes


class Notes:
    """The fixes of one reading, in the order in which they were made.

    ``reveal`` is how the text of the input is shown, where something stands for lone surrogates in it.
    """

    __slots__ = ("_reveal", "fixes")

    def __init__(self, reveal: Callable[[bytes], bytes] | None = None) -> None:
        self._reveal = reveal
        self.fixes: list[fixes.Fix] = []

    def attempt(self) -> Notes:
        """Notes for a reading that may come to nothing; ``fixes`` are to be added if it does not."""
        return Notes(self._reveal)

    def add(self, code: str, path: str, detail: str = "", *, before: bytes = b"", after: bytes = b"") -> None:
        """Record one fix of the catalogue; ``before`` and ``after`` are JSON, as it was written."""
        if self._reveal is not None:
            path, detail = self._reveal(path.encode()).decode(), self._reveal(detail.encode()).decode()
            before, after = self._reveal(before), self._reveal(after)
        self.fixes.append(
            fixes.make(
                code,
                path,
                detail=detail,
                before=Raw(before) if before else None,
                after=Raw(after) if after else None,
            )
        )
