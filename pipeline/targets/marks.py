"""Cache breakpoints: a provider takes only so many in one request, those on the head and the newest ones.

A breakpoint is an order to one provider's cache and no part of what a block says. Where a provider has none
(it caches by itself, or is given a text) all are left behind, always, so that this is a property of the target and no
fix. Where it has them, one that the request does not set is a fix.

Anthropic sets one in a field of a block, Converse as a block behind it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from pipeline.history.pieces import Book, Piece
from pipeline.model import ToolResult, Unknown

# `A maximum of 4 blocks with cache_control may be provided.` (ANT-28)
MOST_MARKS: Final = 4

_KEY: Final = b'"cache_control"'


class _CacheMark(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Point(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    type: Literal["default"]
    ttl: Literal["5m", "1h"] | None = None


class _PointBlock(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    cache_point: _Point


POINT: Final = "cachePoint"
_mark = msgspec.json.Decoder(_CacheMark | None)
_point = msgspec.json.Decoder(_PointBlock)
_encode = msgspec.json.Encoder().encode


def is_mark(mark: Raw) -> bool:
    """Whether this is a cache breakpoint as Anthropic takes them."""
    try:
        _mark.decode(mark)
    except msgspec.DecodeError:
        return False
    return True


def point_of(mark: Raw) -> Raw | None:
    try:
        found = _mark.decode(mark)
    except msgspec.DecodeError:
        return None
    return None if found is None else Raw(_encode(_PointBlock(_Point("default", found.ttl))))


def mark_of(point: Raw) -> Raw | None:
    try:
        found = _point.decode(point)
    except msgspec.DecodeError:
        return None
    return Raw(_encode(_CacheMark("ephemeral", found.cache_point.ttl)))


def without_mark(piece: Piece, book: Book | None) -> Piece:
    block = piece.block
    if isinstance(block, Unknown) or block.cache_control is UNSET:
        return piece
    bare = structs.replace(block, cache_control=UNSET)
    if book is None:
        return structs.replace(piece, block=bare)
    return book.change("cache_mark_dropped", piece, bare)


def unmarked(blocks: list[Any]) -> tuple[list[Any], int]:
    """The blocks without their cache breakpoints, inner ones included, and how many those were."""
    bare, count = [], 0
    for block in blocks:
        plain, marks = _unmarked(block)
        bare.append(plain)
        count += marks
    return (bare if count else blocks), count


def newest_marks(blocks: list[Any], most: int) -> list[Any]:
    """The blocks with at most the last ``most`` of their breakpoints."""
    kept = []
    for block in reversed(blocks):
        plain, marks = _unmarked(block)
        kept.append(block if marks <= most else plain)
        most -= min(marks, most)
    return kept[::-1]


def _unmarked(block: Any) -> tuple[Any, int]:  # noqa: ANN401  a block's struct or its raw JSON
    if isinstance(block, Raw):
        return raw_unmarked(block)
    count = 0
    if block.cache_control is not UNSET:
        count += bytes(block.cache_control) != b"null"
        block = structs.replace(block, cache_control=UNSET)
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        content, marks = unmarked(list(block.content))
        if marks:
            block = structs.replace(block, content=content)
            count += marks
    return block, count


def raw_unmarked(block: Raw) -> tuple[Raw, int]:
    """A block's JSON without its own cache breakpoint, and whether it had one (0 or 1)."""
    if _KEY not in bytes(block):
        return block, 0
    keys = msgspec.json.decode(block, type=dict[str, Raw])
    mark = keys.pop("cache_control", None)
    if mark is None:
        return block, 0
    return Raw(msgspec.json.encode(keys)), int(bytes(mark) != b"null")
