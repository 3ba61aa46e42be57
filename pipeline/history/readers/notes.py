"""The fixes that reading makes, collected while it makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Raw, structs

from pipeline import fixes
from pipeline.history.pieces import block_path, is_whole, tool_id
from pipeline.model import Turn


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


def with_ids(made: list[fixes.Fix], turns: Iterable[Turn]) -> list[fixes.Fix]:
    """The fixes of one reading, those of a tool call or a result, or of something in one, with the call's id."""
    if not made:
        return made
    called = {
        _region(block_path(turn, at)): call
        for turn in turns
        for at, block in enumerate(turn.blocks)
        if (call := tool_id(block))
    }
    return [structs.replace(fix, id=_call_at(fix.path, called)) for fix in made] if called else made


def _region(path: str) -> str:
    """Where a tool block stands in the input; a result that is its message's content is the whole row of a tool."""
    return path.removesuffix(".content") if is_whole(path) else path


def _call_at(path: str, called: dict[str, str]) -> str:
    while path not in called and path:
        path = path.rpartition(".")[0]
    return called.get(path, "")
