"""Compares one session's streams: reduced items, and recorded turns.

The bounds of deltas depend on how events were batched, so items are reduced before they are compared. The rest is
aligned by content: a missing one is one difference, whatever the ids and numbers after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.diff.outputs import Change, How, Published, Repeat, Repeats, Subject, read_value, texts
from reknit.pipeline.diff.values import ABSENT, Json, Number, aligned, differing, read_json, unified
from reknit.topics import headers as names
from reknit.topics.items import AnyItem, Item, ItemCompleted, ItemDelta, ItemResult, ItemRetracted, ItemStarted
from reknit.topics.reducer import Entry, View

_ITEMS: msgspec.json.Decoder[Item] = msgspec.json.Decoder(AnyItem)


class _Piece(Struct, frozen=True):
    """One thing of a sequence."""

    label: str
    id: str
    content: dict[str, Json]


def compare_items(
    before: Sequence[Published], after: Sequence[Published], repeats: tuple[Repeats, Repeats]
) -> Iterator[Change]:
    """Return the differences of the screen, and of the other records of the topic."""
    if [_identity(record) for record in before] == [_identity(record) for record in after]:
        return
    at_least_once = any(counted.at_least_once for counted in repeats)
    one, other = (
        _reduced(side, counted, at_least_once=at_least_once)
        for side, counted in zip((before, after), repeats, strict=True)
    )
    if one == other:
        return
    yield from _compare_sequences("item", one.items(), other.items())
    yield from _compare_sequences("item", one.records(), other.records())


def compare_recorded(
    before: Iterable[Published], after: Iterable[Published], repeats: tuple[Repeats, Repeats]
) -> Iterator[Change]:
    """Turns that a stream finished and that were, or would have been, appended to the session's log."""
    yield from _compare_sequences("recorded", _recorded(before, repeats[0]), _recorded(after, repeats[1]))


def _identity(record: Published) -> tuple[object, ...]:
    return record.digest, record.headers


def _recorded(side: Iterable[Published], repeats: Repeats) -> list[_Piece]:
    found: dict[bytes, _Piece] = {}
    for record in side:
        content = read_value(record, _read_object)
        piece = _Piece(content.get("type", ""), content.pop("id", ""), content)
        if record.digest in found:
            repeats.note(Repeat("recorded", piece.label, piece.id))
        found.setdefault(record.digest, piece)
    return list(found.values())


class _Screen(Struct):
    """The reduced records of items.

    Attributes:
        entries: the items that are on the screen.
        beside: other statements about an item, by its id.
        others: the records without an item, each once, by their identity.
    """

    entries: list[Entry]
    members: dict[str, dict[str, Any]]
    others: list[tuple[object, bytes]]

    def items(self) -> list[_Piece]:
        return [_screen_item(entry, self.members.get(entry.item_id, {})) for entry in self.entries]

    def records(self) -> list[_Piece]:
        return [_other(read_json(value)) for _, value in self.others]


class _Others:
    """The records without an item, each once, although an at-least-once worker may publish a range of them again.

    A record with a number is identified by it. Another one that occurs again is the same if it follows the same record
    as before, or, since a repeated range follows something else, if it precedes a record that is repeated too. Without
    at-least-once delivery nothing is published again, and each is a record of its own.
    """

    def __init__(self, *, at_least_once: bool) -> None:
        self._at_least_once = at_least_once
        self._found: dict[object, bytes] = {}
        self._last: object = None
        self._waiting: list[bytes] = []
        self._before: set[tuple[object, bytes]] = set()

    def pass_by(self, what: object, record: object) -> None:
        """Take note of what a record with an id or a number is of, and which record of it that is."""
        waiting = self._waiting
        while waiting and (record, waiting[-1]) in self._before:
            waiting.pop()
        for value in waiting:
            self._found[self._last, value] = value
            self._before.add((record, value))
        self._last, self._waiting = what, []

    def add_numbered(self, known: object, value: bytes) -> None:
        self.pass_by(known, known)
        self._found[known] = value

    def add_unnumbered(self, value: bytes) -> None:
        if self._at_least_once:
            self._waiting.append(value)
        else:
            self._found[len(self._found), value] = value

    def every(self) -> list[tuple[object, bytes]]:
        self.pass_by(None, None)
        return list(self._found.items())


def _reduced(side: Iterable[Published], repeats: Repeats, *, at_least_once: bool) -> _Screen:
    view = View()
    known: set[object] = set()
    members: dict[str, dict[str, Any]] = defaultdict(dict)
    others = _Others(at_least_once=at_least_once)
    for record in side:
        value = record.read() or b""
        try:
            item = _ITEMS.decode(value)
        except msgspec.DecodeError:
            # Of a type that a later version knows.
            read_value(record, _read_object)
            others.add_unnumbered(value)
            continue
        item_id, number = getattr(item, "item_id", None), getattr(item, "seq", -1)
        # Two equal records with neither an id nor a number may be two things.
        if item_id or number >= 0:
            if _identity(record) in known:
                repeats.note(Repeat("item", str(type(item).__struct_config__.tag), item_id or str(number)))
            known.add(_identity(record))
        if item_id is not None:
            # Where a delta ends depends on how events were batched.
            others.pass_by(item_id, (item_id, item.at) if isinstance(item, ItemDelta) else value)
        view.apply(item)
        match item:
            case ItemStarted():
                said = texts(record)
                members[item.item_id] |= {name: said[name] for name in (names.RUN, names.REQUEST_ID) if name in said}
            case ItemCompleted():
                # Its content, and whether it ended, are in the reduced item.
                rest = structs.replace(item, text=UNSET, input=UNSET, incomplete=False, reason="")
                members[item.item_id]["completed"] = rest
            case ItemDelta() if isinstance(item.raw, Raw):
                members[item.item_id].setdefault("unknown", {})[bytes(item.raw).decode()] = item.raw
            case ItemDelta() | ItemRetracted() | ItemResult():
                pass
            case _ if number >= 0:
                others.add_numbered((type(item), number), value)
            case _:
                others.add_unnumbered(value)
    return _Screen(view.entries, dict(members), others.every())


def _other(content: dict[str, Json]) -> _Piece:
    number = content.pop("seq", None)
    return _Piece(str(content.get("type", "")), number.text if isinstance(number, Number) else "", content)


def _read_object(value: bytes) -> dict[str, Json]:
    found = read_json(value)
    if not isinstance(found, dict):
        raise ValueError("it is no object")  # noqa: TRY004  one error for all that is not a record
    return found


def _screen_item(entry: Entry, members: dict[str, Any]) -> _Piece:
    """An item as the JSON that its records say of it, without its id."""
    shown = {
        **members,
        "text": entry.text,
        "input": entry.input,
        "done": entry.done,
        "incomplete": entry.incomplete,
        "reason": entry.reason,
        "result": entry.result,
        "unknown": list(members.get("unknown", {}).values()),
    }
    started = msgspec.json.encode(structs.replace(entry.started, text="", input=UNSET))
    content = read_json(started) | read_json(msgspec.json.encode(shown))
    for part in (content, content["result"], content.get("completed")):
        if part is not None:
            del part["item_id"]
    # An earlier item's id, which is compared where that item is.
    content["repeats"] = bool(content.get("repeats"))
    return _Piece(entry.item_type, entry.item_id, content)


def _compare_sequences(subject: Subject, before: Sequence[_Piece], after: Sequence[_Piece]) -> Iterator[Change]:
    as_before = True
    for at, to in aligned([piece.content for piece in before], [piece.content for piece in after]):
        if at is None or to is None:
            piece = after[to or 0] if at is None else before[at]
            # Ids and numbers count on from here.
            as_before = False
            how: How = "appeared" if at is None else "vanished"
            lines = unified(ABSENT, piece.content) if at is None else unified(piece.content, ABSENT)
            yield Change(subject=subject, how=how, label=piece.label, place=piece.id, lines=lines)
            continue
        one, other = before[at], after[to]
        if one.content == other.content:
            if as_before and one.id != other.id:
                lines = unified(one.id, other.id)
                yield Change(subject=subject, how="changed", label=f"{one.label} id", place=one.id, lines=lines)
            continue
        for where in differing(one.content, other.content):
            yield Change(
                subject=subject,
                how="changed",
                label=one.label,
                place=one.id,
                path=where.path,
                lines=unified(where.before, where.after),
            )
