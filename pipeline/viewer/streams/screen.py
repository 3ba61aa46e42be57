"""What a session's stream shows to somebody who asks what became of it: all that was said, and what was taken back.

The screen of an agent program shows what stands. This one keeps beside it what was withdrawn. What an item is, the
reducer of the contract says (``topics.reducer``); here is only what a record changes of what is seen, so that a page
that is open need not be drawn anew.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.viewer.index.entries import Entry as IndexEntry
from pipeline.viewer.streams.rows import StreamRow, laid_out, text_of
from topics.items import (
    AgentError,
    AgentUnrecognized,
    AnyItem,
    Item,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    TurnDelta,
    TurnDiagnosis,
    TurnResult,
)
from topics.reducer import View

# Sub-agents call sub-agents; deeper ones stand beside their parents, so that a page stays as wide as it is.
DEEPEST = 6
# Code points of one text that a page shows; whoever wants more than that has it from the topic.
TEXT = 20_000
# Deltas of a type that nobody knows are shown as they came; so many of one item.
_MOST_RAW = 20
_decode = msgspec.json.Decoder(AnyItem).decode


class Change(Struct, frozen=True):
    """A row that is ``new`` or is to be drawn anew; or, with ``added``, what its text goes on with.

    ``at`` is how many code points of the text stood before.
    """

    row: StreamRow
    new: bool = False
    added: str = ""
    at: int = 0


class Screen:
    """The rows of a session's records, which come in the order of the log; those that came before may be left out."""

    def __init__(self) -> None:
        self._view = View()
        self._rows: dict[str, StreamRow] = {}
        self._of_items: dict[str, StreamRow] = {}
        self._numbers: set[int] = set()
        self._run = ""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[StreamRow]:
        """All of them, in the order in which they appeared, with their texts."""
        for item_id in self._of_items:
            self._view.find(item_id)
        return list(self._rows.values())

    def apply(self, record: IndexEntry) -> Change | None:
        """Take one record; None where it changes nothing that is seen."""
        try:
            item = _decode(record.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Of a value that is lost, the summary says why.
            text = record.summary if record.value is None else record.value.decode("utf-8", "replace")
            row = _row(record, "unreadable")
            row.raw = [text]
            return self._show(row)
        match item:
            case ItemDelta():
                return self._extend(item)
            case ItemStarted() | ItemCompleted() | ItemRetracted() | ItemResult():
                return self._change_item(item, record)
            case TurnDelta():
                return None
            case _:
                return self._show_record(item, record)

    def _extend(self, item: ItemDelta) -> Change | None:
        row = self._of_items.get(item.item_id)
        at = self._view.length(item.item_id)
        self._view.apply(item)
        if row is None:
            return None
        if isinstance(item.raw, Raw) and len(row.raw) < _MOST_RAW:
            row.raw.append(text_of(item.raw))
            self._view.find(item.item_id)
            return Change(row)
        added = self._view.length(item.item_id) - at
        if not added or at > TEXT:
            return None
        if at + added > TEXT:
            self._view.find(item.item_id)
            return Change(row)
        return Change(row, added=item.content[-added:], at=at)

    def _change_item(
        self, item: ItemStarted | ItemCompleted | ItemRetracted | ItemResult, record: IndexEntry
    ) -> Change | None:
        row = self._of_items.get(item.item_id)
        before = self._view.find(item.item_id)
        self._view.apply(item)
        if isinstance(item, ItemRetracted):
            if row is None or row.withdrawn:
                return None
            # What the reducer lets go is what it was when it was withdrawn; it is kept here.
            row.entry, row.withdrawn = before or row.entry, item.reason or "withdrawn"
            return Change(row)
        entry = self._view.find(item.item_id)
        if item.item_id in self._view.retracted or (entry is None and isinstance(item, ItemCompleted)):
            return None
        if row is None:
            row = self._of_items[item.item_id] = _row(record, "answer" if entry is None else "item")
            row.entry = entry
            row.said_before = self._of_items.get(entry.repeats) if entry is not None else None
            _keep_record(row, item)
            return self._show(row, getattr(item, "parent_tool_use_id", None))
        row.entry, row.kind = entry, "answer" if entry is None else "item"
        _keep_record(row, item)
        return Change(row)

    def _show_record(self, item: Item, record: IndexEntry) -> Change | None:
        number = getattr(item, "seq", -1)
        if number >= 0 and number in self._numbers:
            return None
        self._numbers.add(number)
        match item:
            case AgentError():
                kind = "notice"
            case TurnResult():
                kind = "result"
            case TurnDiagnosis():
                kind = "diagnosis"
            case AgentUnrecognized():
                kind = "unrecognised"
            case _:
                kind = "aside"
        row = _row(record, kind)
        row.record = item
        return self._show(row, getattr(item, "parent_tool_use_id", None))

    def _show(self, row: StreamRow, parent: str | None = None) -> Change:
        above = self._of_items.get(parent) if parent else None
        if above is not None and above is not row:
            row.inside = above if above.depth < DEEPEST else above.inside
            row.depth = min(above.depth + 1, DEEPEST)
        row.begins_run = row.run != self._run
        self._run = row.run
        self._rows[row.place] = row
        return Change(row, new=True)


def _row(record: IndexEntry, kind: str) -> StreamRow:
    place = f"{record.partition}/{record.offset}"
    return StreamRow(place=place, time_ms=record.time_ms, run=record.run, kind=kind)


def _keep_record(row: StreamRow, item: ItemStarted | ItemCompleted | ItemResult) -> None:
    """Keep what the reducer has no place for: the record as a whole, and a block of an unknown type as it came."""
    if not isinstance(item, ItemCompleted):
        row.record = item
    given = getattr(item, "raw", UNSET)
    if isinstance(given, Raw):
        row.raw = [laid_out(given)]
