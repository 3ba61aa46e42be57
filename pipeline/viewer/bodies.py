"""Two published bodies side by side, block by block; what is the same in both folds away.

Bodies in one form are aligned as JSON. Where two providers have each a form of their own, or a body is one text, a
block stands beside the one that was made of the same block that came in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from msgspec import Struct, structs

from pipeline.diff.values import ABSENT, Json, aligned, read_json, unified
from pipeline.registry import TARGETS
from pipeline.targets import Setting
from pipeline.viewer.aligned import Aligned
from pipeline.viewer.cells import Cell, Document, Mark, Row

# Rows that are the same on both sides and stand around others; so many that nothing folds away; rows of one page.
_AROUND, _FEW, _MOST_ROWS = 1, 100, 400
# A text that differs is shown as a diff from so many characters on; shorter ones are read faster side by side.
_LONG = 240


class Side(Struct, frozen=True):
    """A published body, and what it was made from."""

    target: str
    body: bytes
    aligned: Aligned


class Part(Struct, frozen=True):
    """Rows of a comparison, behind so many that are the same on both sides."""

    same: int
    rows: list[Row]


class Compared(Struct, frozen=True, kw_only=True):
    """What differs.

    Attributes:
        head: what stands beside the messages; None where it is the same.
        parts: the blocks; ``same_after`` and ``more`` are how many follow that are the same, or that are too many.
        fixes: those that only one of the sides stands on, the first side's first.
        by_origin: whether blocks were paired by what they were made of.
    """

    head: Row | None
    parts: list[Part]
    same_after: int
    more: int
    fixes: tuple[list[Mark], list[Mark]]
    by_origin: bool


def compared(one: Side, other: Side) -> Compared:
    by_origin = (one.target != other.target or _is_text(one)) and one.aligned.exact and other.aligned.exact
    rows = [*(_by_origin(one, other) if by_origin else _by_content(one, other))]
    # Two forms of few blocks are looked at whole.
    parts, same_after, more = _folded(rows, around=_FEW if by_origin and len(rows) <= _FEW else _AROUND)
    if not by_origin:
        parts = [structs.replace(part, rows=[_marked(row, one, other) for row in part.rows]) for part in parts]
    marks = one.aligned.marks, other.aligned.marks
    return Compared(
        head=_head(one, other),
        parts=parts,
        same_after=same_after,
        more=more,
        fixes=(_beyond(marks[0], marks[1]), _beyond(marks[1], marks[0])),
        by_origin=by_origin,
    )


def _is_text(side: Side) -> bool:
    return side.target in TARGETS and TARGETS[side.target].text


def _by_content(one: Side, other: Side) -> Iterator[Row]:
    """Rows in the order of both: what is equal first, then what is of the same kind, then what is left in order."""
    sides = [_blocks(side) for side in (one, other)]
    for at, to in aligned(*([element for _, element in blocks] for blocks in sides)):
        left = None if at is None else sides[0][at]
        right = None if to is None else sides[1][to]
        yield _row(left and left[0], right and right[0], left and left[1]["raw"], right and right[1]["raw"])


def _blocks(side: Side) -> list[tuple[Cell, dict[str, Json]]]:
    """The cells of a body, each with what says which block it is and what it holds."""
    flat = Aligned.by_position((), side.body, side.target, Setting(), ())
    document = Document(side.body)
    found = []
    for row in flat.rows(0, len(flat)):
        cell = row.right
        if cell is not None:
            raw = document.find(cell.path)[0].decode("utf-8", "replace") if cell.path else cell.text
            outline = {"type": cell.kind, "role": cell.role, "name": cell.name, "id": cell.tool_id}
            found.append((cell, {**outline, "raw": raw}))
    return found


def _row(left: Cell | None, right: Cell | None, before: str | None, after: str | None) -> Row:
    if left is None or right is None:
        return Row(left=left, right=right, how="appeared" if left is None else "vanished")
    if before == after:
        return Row(left=left, right=right)
    lines: Sequence[str] = ()
    if left.text == right.text:
        # What a cell does not show of a block, such as a cache breakpoint.
        lines = unified(_json(before), _json(after))
    elif max(len(left.text), len(right.text)) > _LONG or "\n" in left.text + right.text:
        lines = unified(left.text, right.text)
    return Row(left=left, right=right, how="changed", lines=lines)


def _json(raw: str | None) -> Json:
    try:
        return ABSENT if raw is None else read_json(raw.encode())
    except (ValueError, RecursionError):
        return raw


def _marked(row: Row, one: Side, other: Side) -> Row:
    """A row that differs, with the fixes that stand at its blocks."""
    if row.how == "same":
        return row
    cells = [
        cell and structs.replace(cell, fixes=_marks_at(side.aligned, cell.path))
        for cell, side in ((row.left, one), (row.right, other))
    ]
    return structs.replace(row, left=cells[0], right=cells[1])


def _marks_at(made: Aligned, path: str) -> list[Mark]:
    number = made.number_of(path) if path and made.exact else -1
    return [mark for row in made.rows(number, number + 1) for mark in row.marks] if number >= 0 else []


def _by_origin(one: Side, other: Side) -> Iterator[Row]:
    before, after = _origins(one.aligned), _origins(other.aligned)
    names = [origin for origin, _ in before], [origin for origin, _ in after]
    for tag, at, at_end, to, to_end in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if tag == "equal":
            for (_, left), (_, right) in zip(before[at:at_end], after[to:to_end], strict=True):
                row = _row(left, right, left.text, right.text)
                # In two forms a text may be laid out otherwise, so nobody would read the lines.
                yield row if one.target == other.target else structs.replace(row, lines=())
            continue
        yield from (Row(left=left, right=None, how="vanished") for _, left in before[at:at_end])
        yield from (Row(left=None, right=right, how="appeared") for _, right in after[to:to_end])


def _origins(made: Aligned) -> list[tuple[str, Cell]]:
    """The cells of a body in its order, each with the path of the block it was made of; of an added one, of its fix."""
    found = []
    for row in made.rows(0, len(made)):
        if row.right is not None:
            added = f"+ {row.marks[0].code} {row.marks[0].tool_id}" if row.marks else "+"
            origin = row.left.path if row.left is not None else row.right.to or added
            found.append((origin, structs.replace(row.right, fixes=row.marks, note="", to="")))
    return found


def _head(one: Side, other: Side) -> Row | None:
    left, right = one.aligned.head().right, other.aligned.head().right
    if left is None or right is None:
        return None if left is right else Row(left=left, right=right, how="changed", number=-1)
    if left.text == right.text:
        return None
    lines = unified(left.text, right.text) if one.target == other.target else ()
    return Row(left=left, right=right, how="changed", lines=lines, number=-1)


def _folded(rows: Sequence[Row], around: int) -> tuple[list[Part], int, int]:
    """Rows in parts around what differs, how many the same ones at the end are, and how many rows are left out."""
    keep = [around >= len(rows)] * len(rows)
    for at, row in enumerate(rows):
        if row.how != "same":
            for near in range(max(0, at - around), min(len(rows), at + around + 1)):
                keep[near] = True
    parts: list[Part] = []
    same, shown = 0, 0
    for at, row in enumerate(rows):
        if not keep[at]:
            same += 1
        elif shown == _MOST_ROWS:
            return parts, 0, sum(row.how != "same" for row in rows[at:])
        else:
            shown += 1
            numbered = structs.replace(row, number=at)
            if same or not parts:
                parts.append(Part(same, [_begun(numbered)]))
                same = 0
            else:
                parts[-1].rows.append(numbered)
    return parts, same, 0


def _begun(row: Row) -> Row:
    """The first row of a part, which says whose its blocks are."""
    left = row.left and structs.replace(row.left, begins=True)
    right = row.right and structs.replace(row.right, begins=True)
    return structs.replace(row, left=left, right=right)


def _beyond(marks: Sequence[Mark], others: Sequence[Mark]) -> list[Mark]:
    """The fixes that the other side does not have, wherever it has added what nobody said."""
    known = {(mark.code, mark.path, mark.tool_id) for mark in others}
    return [mark for mark in marks if (mark.code, mark.path, mark.tool_id) not in known]
