"""Exact differences of two JSON values: members in any order, elements in order, numbers as written.

1 and 1.0 are different here, and so are two that a float would round to one. Lists are aligned before their elements
are compared, so a missing one is one difference and not one at each place after it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

# Any JSON, as ``read_json`` gives it.
Json: TypeAlias = Any


class Number(NamedTuple):
    """A number as it is written. It equals no other spelling, and nothing that is not a number."""

    text: str


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)


def read_json(text: bytes) -> Json:
    """JSON with its numbers as they are written.

    Raises:
        ValueError: it is not JSON, or not UTF-8.
        RecursionError: it is nested too deeply.
    """
    return _DECODER.decode(text.decode())


class _Absent:
    """The value of a side without one."""


ABSENT: Final = _Absent()


class Place(NamedTuple):
    """One place where two values differ, by its path in either; if only one has it, by the neighbour in the other."""

    path_before: str
    path_after: str
    before: Json
    after: Json

    @property
    def path(self) -> str:
        """The path in the first value; of an addition, in the second."""
        return encodable(self.path_after if self.before is ABSENT else self.path_before)


def differing(before: Json, after: Json, path_before: str = "", path_after: str = "") -> Iterator[Place]:
    """The innermost places where two values differ, in the order of the first."""
    if before == after:
        return
    below, there = (f"{path}." if path else "" for path in (path_before, path_after))
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            one, other = before.get(name, ABSENT), after.get(name, ABSENT)
            yield from _differing_member(one, other, f"{below}{name}", f"{there}{name}")
    elif isinstance(before, list) and isinstance(after, list):
        for at, to in aligned(before, after):
            one = ABSENT if at is None else before[at]
            other = ABSENT if to is None else after[to]
            yield from _differing_member(
                one, other, f"{below}{to if at is None else at}", f"{there}{at if to is None else to}"
            )
    else:
        yield Place(path_before, path_after, before, after)


def _differing_member(before: Json, after: Json, path_before: str, path_after: str) -> Iterator[Place]:
    if before is ABSENT or after is ABSENT or _outline(before) != _outline(after):
        if before != after:
            yield Place(path_before, path_after, before, after)
    else:
        yield from differing(before, after, path_before, path_after)


Pairs: TypeAlias = list[tuple[int | None, int | None]]


def aligned(before: Sequence[Json], after: Sequence[Json]) -> Pairs:
    """Which element is which: pairs of positions, None for what one side does not have.

    Equal ones are paired first; between them, what is of the same kind; what is left in order.
    """
    head, at_end, to_end = apart(before, after)
    pairs: Pairs = list(zip(range(head), range(head), strict=True))
    one, other = before[head:at_end], after[head:to_end]
    for equal, at, at_stop, to, to_stop in _matched([_key(each) for each in one], [_key(each) for each in other]):
        if equal:
            pairs += zip(range(head + at, head + at_stop), range(head + to, head + to_stop), strict=True)
            continue
        kinds = [_outline(each) for each in one[at:at_stop]], [_outline(each) for each in other[to:to_stop]]
        for _, first, first_end, second, second_end in _matched(*kinds):
            pairs += _in_order(
                range(head + at + first, head + at + first_end), range(head + to + second, head + to + second_end)
            )
    return [*pairs, *zip(range(at_end, len(before)), range(to_end, len(after)), strict=True)]


def _in_order(before: range, after: range) -> Pairs:
    both = min(len(before), len(after))
    paired: Pairs = list(zip(before, after, strict=False))
    return [*paired, *((at, None) for at in before[both:]), *((None, to) for to in after[both:])]


# Elements on both sides, multiplied, up to which they are aligned; beyond that what is between the equal beginnings
# and the equal ends is compared in order. Aligning takes that many steps at worst.
_MOST_TO_ALIGN = 4_000_000


def _matched(before: Sequence[str], after: Sequence[str]) -> list[tuple[bool, int, int, int, int]]:
    """Return ranges of two lists, in order: whether they are equal, and where each begins and ends."""
    if len(before) * len(after) > _MOST_TO_ALIGN:
        return [(False, 0, len(before), 0, len(after))]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [(tag == "equal", at, at_end, to, to_end) for tag, at, at_end, to, to_end in matcher.get_opcodes()]


def _key(value: Json) -> str:
    """Return a key that is equal for equal values. Values with the same key are still compared once they are paired."""
    return json.dumps(value, sort_keys=True)


def apart(before: Sequence[Json], after: Sequence[Json]) -> tuple[int, int, int]:
    """Return where two lists begin to differ, and after what in each they are equal again."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next((at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head)
    return head, len(before) - tail, len(after) - tail


# The members that say of an element what it is, whatever else it says.
_SAYING = ("type", "role", "name", "id", "tool_use_id", "tool_call_id", "call_id", "item_type")


def _outline(value: Json) -> str:
    """Return a value's structure, without its content."""
    if not isinstance(value, dict):
        return type(value).__name__
    said = [(name, value[name]) for name in _SAYING if isinstance(value.get(name), str)]
    # Blocks of Gemini and Converse have no type: their first member's name says it.
    return str(said) if said else next(iter(value), "")


# For people.

_LINES, _CHARACTERS, _AROUND = 40, 400, 60
# Lines on one side up to which two texts are aligned line by line.
_MOST_LINES = 500


def unified(before: Json, after: Json) -> tuple[str, ...]:
    """Both values in the lines of a unified difference, each beginning with a blank, a minus or a plus.

    Long ones are cut, with how much is left out.
    """
    if before is ABSENT or after is ABSENT:
        sign, text = ("+", _text(after)) if before is ABSENT else ("-", _text(before))
        return _cut([f"{sign}{line}" for line in text.split("\n")])
    one, other = _text(before), _text(after)
    if isinstance(before, str) != isinstance(after, str):
        one, other = _as_json(before), _as_json(after)
    old, new = one.split("\n"), other.split("\n")
    if len(old) == len(new) == 1:
        return _cut([f"{sign}{line}" for sign, line in zip("-+", _around_difference(one, other), strict=True)])
    if max(len(old), len(new)) > _MOST_LINES:
        head, at_end, to_end = apart(old, new)
        return _cut([*(f"-{line}" for line in old[head:at_end]), *(f"+{line}" for line in new[head:to_end])])
    # After the two lines that name the files.
    return _cut(list(difflib.unified_diff(old, new, n=2, lineterm=""))[2:])


def _text(value: Json) -> str:
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: Json, margin: str = "") -> str:
    inner = margin + "  "
    match value:
        case Number():
            return value.text
        case dict() if value:
            members = [f"{inner}{_as_json(name)}: {_as_json(member, inner)}" for name, member in value.items()]
            return "{\n" + ",\n".join(members) + f"\n{margin}}}"
        case list() if value:
            return "[\n" + ",\n".join(inner + _as_json(each, inner) for each in value) + f"\n{margin}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _around_difference(one: str, other: str) -> tuple[str, str]:
    """Two lines without most of what they begin and end alike with."""
    head = _alike(one, other)
    tail = _alike(one[head:][::-1], other[head:][::-1])
    start = max(0, head - _AROUND)
    cut = [line[start : len(line) - max(0, tail - _AROUND)] for line in (one, other)]
    before, after = "…" if start else "", "…" if tail > _AROUND else ""
    return f"{before}{cut[0]}{after}", f"{before}{cut[1]}{after}"


def _alike(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, each as far as it is read."""
    shown = [
        line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}… {len(line) - _CHARACTERS:,} more characters"
        for line in lines[:_LINES]
    ]
    if len(lines) > _LINES:
        shown.append(f" … {len(lines) - _LINES:,} more lines")
    return tuple(map(encodable, shown))


def encodable(text: str) -> str:
    """The text with half of a surrogate pair, which no encoding has, written as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()
