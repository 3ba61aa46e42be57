"""The changes of one repair. Their codes are those of fixes; two changes are made to files only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from reknit.pipeline.fixes import FIXES, Fix
from reknit.pipeline.history.readers.fields import Notes


class FileChange(Struct, frozen=True):
    """A change that no request has."""

    summary: str
    lossless: bool


FILE_CHANGES: Final[Mapping[str, FileChange]] = MappingProxyType(
    {
        "line_restored": FileChange("a line was written again from what it still shows", lossless=False),
        "parent_relinked": FileChange("a line that names a missing line got the one before it", lossless=True),
    }
)


class Changes(Notes):
    """Records changes in order. ``fixes`` has them."""

    __slots__ = ()

    def add_change(self, code: str, path: str, detail: str = "") -> None:
        """Record a change of ``FILE_CHANGES``."""
        self.fixes.append(Fix(code=code, path=path, lossless=FILE_CHANGES[code].lossless, detail=detail))


def summary_of(code: str) -> str:
    """Return what a change of this code does, in one sentence."""
    return FILE_CHANGES[code].summary if code in FILE_CHANGES else FIXES[code].summary
