"""The reference reducer: builds one view from a stream of items, with or without duplicates.

It is the contract of ``reknit.topics.items`` in executable form, and the reference of the tests. A consumer may have
its own reducer if it produces the same view. Applying a record or a sequence of records again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Raw, Struct

from reknit.topics.items import (
    INTERRUPTED,
    AgentError,
    AgentUnrecognized,
    Doubt,
    Item,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    SessionCompacted,
    SessionReset,
    TurnDiagnosis,
    TurnResult,
)


class Entry(Struct, kw_only=True):
    """One item on the screen.

    ``text`` is its text, or the raw JSON of a call's input as it streamed. ``input`` is the whole input, if a record
    carried it. ``done``: the content has ended. ``incomplete``: it was cut off. ``doubtful``: facts that its program
    leaves open. ``outside``: the program continues without the item, and why.
    """

    item_id: str
    item_type: str
    started: ItemStarted
    text: str = ""
    input: Raw | None = None
    done: bool = False
    incomplete: bool = False
    doubtful: Doubt = ""
    reason: str = ""
    outside: Literal["", "reset", "compacted"] = ""
    result: ItemResult | None = None

    @property
    def origin(self) -> str:
        """Source of its content: delivered by its stream, or promoted."""
        return self.started.origin

    @property
    def repeats(self) -> str:
        """The item of an interrupted attempt with the same content, or empty."""
        return self.started.repeats

    @property
    def parent(self) -> str | None:
        """The call of the sub-agent that the item belongs to, or None."""
        return self.started.parent_tool_use_id


class View:
    """The screen of one session after the applied items.

    Attributes:
        retracted: ids of withdrawn items.
        notices, results, diagnoses, unrecognized: records without an item, by their number.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        # Deltas as received; joined on access, so that a long text takes linear time.
        self._pieces: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}
        # A result may arrive before its call, or without one.
        self._answers: dict[str, ItemResult] = {}
        # Numbers of the applied boundaries: a redelivered one does not affect the items since.
        self._boundaries: set[int] = set()
        self.retracted: set[str] = set()
        self.notices: dict[int, AgentError] = {}
        self.results: dict[int, TurnResult] = {}
        self.diagnoses: dict[int, TurnDiagnosis] = {}
        self.unrecognized: dict[int, AgentUnrecognized] = {}

    @property
    def entries(self) -> list[Entry]:
        """All items that were not withdrawn, in the order in which they started."""
        return [entry for item_id in self._entries if (entry := self.find(item_id)) is not None]

    def find(self, item_id: str) -> Entry | None:
        """Return this item, in time proportional to its own text; None if it has not started, or was withdrawn."""
        entry = self._entries.get(item_id)
        if entry is not None:
            entry.text = "".join(self._pieces[item_id])
            self._pieces[item_id] = [entry.text]
            entry.result = self._answers.get(item_id)
        return entry

    def length(self, item_id: str) -> int:
        """Return the length of an item's text so far, in code points; 0 for an unknown item."""
        return self._lengths.get(item_id, 0)

    def blocks(self, *kinds: str, parent: bool = False) -> list[Entry]:
        """Return the main turn's items of these types; with ``parent``, those of sub-agents instead."""
        return [entry for entry in self.entries if entry.item_type in kinds and (entry.parent is not None) == parent]

    def apply(self, item: Item) -> None:
        """Apply one record; records that do not concern the screen change nothing."""
        match item:
            case ItemStarted():
                self._start_item(item)
            case ItemDelta():
                self._extend(item)
            case ItemCompleted():
                self._complete(item)
            case ItemRetracted():
                self._retract(item)
            case ItemResult():
                self._answers[item.item_id] = item
            case SessionReset():
                self._leave_outside(item.seq, "reset")
            case SessionCompacted():
                self._leave_outside(item.seq, "compacted")
            case AgentError():
                self.notices[item.seq] = item
            case TurnResult():
                self.results[item.seq] = item
            case TurnDiagnosis():
                self.diagnoses[item.seq] = item
            case AgentUnrecognized():
                self.unrecognized[item.seq] = item

    def _start_item(self, item: ItemStarted) -> None:
        if item.item_id in self._entries or item.item_id in self.retracted:
            return
        entry = Entry(item_id=item.item_id, item_type=item.item_type, started=item, doubtful=item.doubtful)
        entry.input = item.input if isinstance(item.input, Raw) else None
        # A user's message arrives whole, in one record.
        entry.done = item.item_type == "user_message"
        self._entries[item.item_id] = entry
        self._write(item.item_id, item.text)

    def _write(self, item_id: str, text: str) -> None:
        self._pieces[item_id] = [text] if text else []
        self._lengths[item_id] = len(text)

    def _extend(self, item: ItemDelta) -> None:
        entry = self._entries.get(item.item_id)
        if entry is None or (entry.done and not entry.incomplete):
            return
        known = self._lengths[item.item_id] - item.at
        if 0 <= known < len(item.content):
            self._pieces[item.item_id].append(item.content[known:])
            self._lengths[item.item_id] += len(item.content) - known

    def _complete(self, item: ItemCompleted) -> None:
        entry = self._entries.get(item.item_id)
        if entry is None or (entry.done and not (entry.incomplete or entry.doubtful or _revokes(item))):
            return
        if isinstance(item.text, str):
            self._write(item.item_id, item.text)
        if isinstance(item.input, Raw):
            entry.input = item.input
        entry.done, entry.incomplete, entry.reason = True, item.incomplete, item.reason
        entry.doubtful = item.doubtful

    def _leave_outside(self, seq: int, why: Literal["reset", "compacted"]) -> None:
        if seq in self._boundaries:
            return
        self._boundaries.add(seq)
        for entry in self._entries.values():
            entry.outside = entry.outside or why

    def _retract(self, item: ItemRetracted) -> None:
        self.retracted.add(item.item_id)
        for kept in (self._entries, self._pieces, self._lengths):
            kept.pop(item.item_id, None)


def _revokes(item: ItemCompleted) -> bool:
    """Return True if the record revokes the completeness of a complete item, or that its program has kept it."""
    return item.doubtful == "kept" or (item.incomplete and item.reason == INTERRUPTED)


def reduce(items: Iterable[Item]) -> View:
    """Return the view of these items, which must begin with the first one of their session."""
    view = View()
    for item in items:
        view.apply(item)
    return view
