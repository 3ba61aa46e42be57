"""The changes of one history as lines of text: for each fix its place, the content before and after, and the loss."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from reknit.pipeline.fixes import FIXES, Fix
from reknit.pipeline.history.pieces import LedgerEntry
from reknit.pipeline.text import visible

Loss: TypeAlias = Literal["lost", "added", "none", "observed"]

_LONGEST: Final = 60
_ABSENT: Final = object()
_TOTALS: Final[Mapping[Loss, str]] = {
    "lost": "lost content",
    "added": "added content",
    "none": "lost nothing",
    "observed": "not made, by policy",
}
_LOSSES: Final[Mapping[Loss, str]] = {
    "lost": "content lost",
    "added": "content added",
    "none": "nothing lost",
    "observed": "not made, by policy",
}


class Change(Struct, frozen=True, kw_only=True):
    """One fix in words.

    Attributes:
        path: the place in the input, or of an addition in the repaired history.
        code: the fix.
        text: the content before and after.
        loss: the kind of loss.
        avoids: the provider's error without the repair; "" where none is known.
    """

    path: str
    code: str
    text: str
    loss: Loss
    avoids: str = ""

    @property
    def line(self) -> str:
        """The change in one line, without its place."""
        avoided = f'; avoids "{self.avoids}"' if self.avoids else ""
        return f"{self.text} ({self.code}, {_LOSSES[self.loss]}{avoided})"


def changes_of(
    fixes: Sequence[Fix], ledger: Sequence[LedgerEntry], document: bytes, body: bytes | None
) -> Iterator[Change]:
    """Describe the fixes of a request.

    Args:
        fixes: the fixes, in their order.
        ledger: the origins of the blocks in the body.
        document: the input, in any shape. Content is shown where it is JSON that has the place of the fix.
        body: the request; None if it was rejected.
    """
    before, after = _as_document(document), _decoded(body)
    outputs: dict[str, list[str]] = defaultdict(list)
    additions: dict[str, list[str]] = defaultdict(list)
    for entry in reversed(ledger):
        (outputs[entry.path] if entry.path else additions[entry.code]).append(entry.output)
    described: set[str] = set()
    for fix in fixes:
        found = FIXES[fix.code]
        is_added = found.fate == "synthesised"
        # Further fixes of one block are described by their details.
        is_first = fix.path not in described
        described.add(fix.path)
        old = value_at(before, fix.path) if is_first and not is_added else _ABSENT
        places = additions[fix.code] if is_added else outputs[fix.path][-1:]
        output = places.pop() if places else ""
        new = value_at(after, output) if output else _ABSENT
        yield Change(
            path=fix.path,
            code=fix.code,
            text=_text(fix, old, new, output),
            loss=_loss(fix),
            avoids="; ".join(found.error.split("\n")),
        )


def with_paths_once(changes: Sequence[Change]) -> Iterator[tuple[str, Change]]:
    """Yield changes by their places, each place once: further changes of it come with as many spaces."""
    by_path: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_path[change.path].append(change)
    for path, found in by_path.items():
        yield path, found[0]
        yield from ((" " * len(path), change) for change in found[1:])


def total_of(fixes: Sequence[Fix]) -> str:
    """Count fixes by their loss, in one line."""
    losses = [_loss(fix) for fix in fixes]
    parts = [f"{losses.count(loss)} {_TOTALS[loss]}" for loss in _TOTALS if loss in losses]
    return f"{len(fixes)} {'repair' if len(fixes) == 1 else 'repairs'}: {', '.join(parts)}"


def value_at(document: Any, path: str) -> Any:  # noqa: ANN401  any JSON
    """Return the value at a path of names and indexes, ``_ABSENT`` if there is none.

    A text that is a message's whole content counts as its block 0.
    """
    value = document
    for step in path.split(".") if path else ():
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif not (isinstance(value, str) and step == "0"):
            return _ABSENT
    return value if path else _ABSENT


def _as_document(data: bytes) -> Any:  # noqa: ANN401  any JSON
    value = _decoded(data)
    return {"messages": value} if isinstance(value, list) else value


def _decoded(data: bytes | None) -> Any:  # noqa: ANN401  any JSON
    try:
        return msgspec.json.decode(data) if data is not None else _ABSENT
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ABSENT


def _loss(fix: Fix) -> Loss:
    if fix.observed:
        return "observed"
    if fix.lossless:
        return "none"
    return "added" if FIXES[fix.code].fate == "synthesised" else "lost"


def _text(fix: Fix, old: object, new: object, output: str) -> str:
    found = FIXES[fix.code]
    detail = f": {visible(fix.detail)}" if fix.detail else ""
    if found.fate == "synthesised" and new is not _ABSENT:
        return f"added {_shown(new)}"
    if old is _ABSENT:
        return f"{found.summary}{detail}"
    if found.fate == "dropped" or new is _ABSENT:
        what = "left out" if found.fate == "dropped" else found.summary
        return f"{what}: {_shown(old)}"
    if new == old:
        return f"{found.summary}: {_shown(old)}, now {output}" if output != fix.path else f"{found.summary}{detail}"
    return _difference(old, new)


def _difference(old: object, new: object) -> str:
    """Show the members that differ, if two objects have any in common; otherwise both."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        changed = [name for name in names if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
        if len(changed) < len(names):
            return ", ".join(f"{name} {_member(old, name)} -> {_member(new, name)}" for name in changed)
    return f"{_shown(old)} -> {_shown(new)}"


def _member(value: Mapping[str, object], name: str) -> str:
    return _shown(value[name]) if name in value else "(absent)"


def _shown(value: object) -> str:
    """Return JSON in one short line, without characters that act on a terminal."""
    text = visible(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 + 1 :]}"
