"""The changes of one history as lines of text: for each fix its place, the content before and after, and the loss."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from reknit.pipeline.fixes import FIXES, Fix
from reknit.pipeline.history.pieces import LedgerEntry
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.text import visible
from reknit.pipeline.text.document_lines import shown_json

Loss: TypeAlias = Literal["lost", "added", "none", "observed"]

_JSON: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
_LONGEST: Final = 60
ABSENT: Final = object()
"""A missing value: ``None`` is a value of JSON."""
_TOTALS: Final[Mapping[Loss, str]] = {
    "lost": "lost content",
    "added": "added content",
    "none": "lost nothing",
    "observed": "not made, by policy",
}
LOSSES: Final[Mapping[Loss, str]] = {
    "lost": "content lost",
    "added": "content added",
    "none": "nothing lost",
    "observed": "not made, by policy",
}
"""The kinds of loss in words."""


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
        return f"{self.text} ({self.code}, {LOSSES[self.loss]}{avoided})"


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
    before, after = _as_document(document), None if body is None else decoded(_JSON, body)
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
        old = content_at(before, fix.path) if is_first and not is_added else ABSENT
        places = additions[fix.code] if is_added else outputs[fix.path][-1:]
        output = places.pop() if places else ""
        new = content_at(after, output)
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


def losses_of(fixes: Iterable[Fix]) -> Counter[Loss]:
    """Count fixes by their loss."""
    return Counter(_loss(fix) for fix in fixes)


def total_of(losses: Counter[Loss]) -> str:
    """Return the numbers of fixes by loss in one line."""
    parts = [f"{losses[loss]} {_TOTALS[loss]}" for loss in _TOTALS if loss in losses]
    number = losses.total()
    return f"{number} {'repair' if number == 1 else 'repairs'}: {', '.join(parts)}"


def value_at(document: Any, path: str) -> Any:  # noqa: ANN401  any JSON
    """Return the value at a path of names and indexes; ``ABSENT`` if it is missing, or the path is empty."""
    if not path:
        return ABSENT
    value = document
    try:
        for name in path.split("."):
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (LookupError, TypeError, ValueError):
        return ABSENT
    return value


def content_at(document: object, path: str) -> object:
    """Return what ``value_at`` does; a text that is a message's whole content counts as its block 0."""
    found = value_at(document, path)
    whole = value_at(document, path.removesuffix(".0")) if found is ABSENT and path.endswith(".0") else ABSENT
    return whole if isinstance(whole, str) else found


def _as_document(data: bytes) -> object:
    value = decoded(_JSON, data)
    return {"messages": value} if isinstance(value, list) else value


def loss_of(code: str, *, lossless: bool, observed: bool) -> Loss:
    """Return the loss of a fix: one that is not lossless has lost content, or added some."""
    if observed:
        return "observed"
    if lossless:
        return "none"
    return "added" if code in FIXES and FIXES[code].fate == "synthesised" else "lost"


def _loss(fix: Fix) -> Loss:
    return loss_of(fix.code, lossless=fix.lossless, observed=fix.observed)


def _text(fix: Fix, old: object, new: object, output: str) -> str:
    found = FIXES[fix.code]
    detail = f": {visible(fix.detail)}" if fix.detail else ""
    if found.fate == "synthesised" and new is not ABSENT:
        return f"added {_shown(new)}"
    if old is ABSENT:
        return f"{found.summary}{detail}"
    if found.fate == "dropped" or new is ABSENT:
        what = "left out" if found.fate == "dropped" else found.summary
        return f"{what}: {_shown(old)}"
    if new == old:
        return f"{found.summary}: {_shown(old)}, now {output}" if output != fix.path else f"{found.summary}{detail}"
    return _difference(old, new)


def _difference(old: object, new: object) -> str:
    """Show the members that differ, if two objects have any in common; otherwise both."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        changed = [name for name in names if old.get(name, ABSENT) != new.get(name, ABSENT)]
        if len(changed) < len(names):
            return ", ".join(f"{name} {_member(old, name)} -> {_member(new, name)}" for name in changed)
    return f"{_shown(old)} -> {_shown(new)}"


def _member(value: Mapping[str, object], name: str) -> str:
    return _shown(value[name]) if name in value else "(absent)"


def _shown(value: object) -> str:
    """Return JSON in one short line, without characters that act on a terminal."""
    text = visible(shown_json(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 + 1 :]}"
