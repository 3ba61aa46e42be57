"""The state of a session's screen, and the change that one record makes to it."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Raw, Struct, UnsetType

from reknit.pipeline.screens.content import CALLS, arguments, call_of, decoded, plain_text
from reknit.topics.items import (
    AgentError,
    AgentNotice,
    Item,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    ModelChanged,
    PermissionDenied,
    SessionCompacted,
    SessionReset,
    TurnResult,
)
from reknit.topics.reducer import Entry, View

# Records without an item that a screen shows in their place among the items.
Notice: TypeAlias = AgentError | AgentNotice | ModelChanged | PermissionDenied | SessionCompacted | SessionReset


class Block(Struct):
    """An item on the screen.

    Attributes:
        entry: the view's entry. Its text and result are as of the last ``find``.
        raw: the whole block, if Reknit does not know its type.
        citations: the citations of a text.
        call: the call that the block answers, if the provider ran that call.
        answers: the blocks that answer this call.
    """

    entry: Entry
    raw: Raw | None = None
    citations: list[Any] = []
    call: str = ""
    answers: list[str] = []

    @property
    def id(self) -> str:
        return self.entry.item_id

    @property
    def kind(self) -> str:
        return self.entry.item_type


class Change(Struct, frozen=True):
    """The change that a record makes.

    Attributes:
        item: the record.
        block: the item that it concerns, in its current state; a retracted item in its last one.
        text: the item's text before the record, or the JSON of a call's input.
        added: the text that the record appends.
        again: the record brings a result once more.
        is_replaced: the record replaces a block of a type that Reknit does not know.
    """

    item: Item
    block: Block | None = None
    text: str = ""
    added: str = ""
    again: bool = False
    is_replaced: bool = False


class ScreenState:
    """The screen of one session after the applied records.

    Attributes:
        blocks: the items, by id.
        order: the keys of all that is shown, in the order in which it appeared: ids of items, ``notice-<seq>`` and
            ``result-<seq>``.
        notices: the notices, by key.
        results: the results whose text no item has, by key.
    """

    def __init__(self) -> None:
        self._view = View()
        self._numbers: set[int] = set()
        # Texts of messages that a stream may contain once more.
        self._expected: list[str] = []
        self.blocks: dict[str, Block] = {}
        self.order: dict[str, None] = {}
        self.notices: dict[str, Notice] = {}
        self.results: dict[str, TurnResult] = {}

    def find(self, item_id: str) -> Block | None:
        """Return an item with its text and result, or None."""
        block = self.blocks.get(item_id)
        if block is not None:
            self._view.find(item_id)
        return block

    def apply(self, item: Item) -> Change | None:
        """Apply one record; return None if it changes nothing."""
        match item:
            case ItemStarted():
                return None if self._is_echo(item) else self._start(item)
            case ItemDelta():
                return self._extend(item)
            case ItemCompleted():
                return self._complete(item)
            case ItemRetracted():
                return self._retract(item)
            case ItemResult():
                return self._answer(item)
        number = getattr(item, "seq", -1)
        if number in self._numbers:
            return None
        if number >= 0:
            self._numbers.add(number)
        self._view.apply(item)
        self._note(item)
        return Change(item)

    def apply_turn(self, item: ItemStarted) -> bool:
        """Apply a user's message that is not from a stream; return True if it is new.

        A stream may contain the same message later, under an id of its own. That one is not shown.
        """
        if self._start(item) is None:
            return False
        self._expected.append(plain_text(decoded(item.content)))
        return True

    def is_followed(self, item_id: str) -> bool | None:
        """Return whether anything was shown after an item; None for an unknown item."""
        if item_id not in self.order:
            return None
        return next(reversed(self.order)) != item_id

    def _is_echo(self, item: ItemStarted) -> bool:
        if item.item_type != "user_message" or not self._expected or item.parent_tool_use_id:
            return False
        content = decoded(item.content)
        text = item.text if content is None else plain_text(content)
        if text not in self._expected:
            return False
        self._expected.remove(text)
        return True

    def _note(self, item: Item) -> None:
        match item:
            case TurnResult(unseen=True, result=str(text)) if text:
                key = f"result-{item.seq}"
                self.results[key] = item
            case AgentError() | AgentNotice() | ModelChanged() | PermissionDenied():
                key = f"notice-{item.seq}"
                self.notices[key] = item
            case SessionCompacted() | SessionReset():
                key = f"notice-{item.seq}"
                self.notices[key] = item
            case _:
                return
        self.order[key] = None

    def _start(self, item: ItemStarted) -> Change | None:
        if item.item_id in self.blocks or item.item_id in self._view.retracted:
            return None
        self._view.apply(item)
        entry = self._view.find(item.item_id)
        if entry is None:
            return None
        block = Block(entry, raw=item.raw if isinstance(item.raw, Raw) else None, citations=_citations(item.extras))
        call = self.blocks.get(call_of(block.raw))
        if call is not None and call.kind in CALLS:
            block.call = call.id
            call.answers.append(block.id)
        self.blocks[item.item_id] = block
        self.order[item.item_id] = None
        return Change(item, block, added=entry.text)

    def _extend(self, item: ItemDelta) -> Change | None:
        before = self._view.length(item.item_id)
        self._view.apply(item)
        count = self._view.length(item.item_id) - before
        block = self.blocks.get(item.item_id)
        # A call whose input came whole shows that.
        if not count or block is None or (block.kind in CALLS and block.entry.input is not None):
            return None
        return Change(item, block, added=item.content[-count:])

    def _complete(self, item: ItemCompleted) -> Change | None:
        block = self.find(item.item_id)
        if block is None:
            return None
        entry, before = block.entry, _facts(block)
        is_final = entry.done and not (entry.incomplete or entry.doubtful)
        text = arguments(entry) if block.kind in CALLS else entry.text
        self._view.apply(item)
        self._view.find(item.item_id)
        old = block.raw
        if not is_final or _facts(block) != before:
            block.raw = item.raw if isinstance(item.raw, Raw) else block.raw
            block.citations = _citations(item.extras) or block.citations
        if _facts(block) == before:
            return None
        return Change(item, block, text=text, is_replaced=block.raw != old)

    def _retract(self, item: ItemRetracted) -> Change | None:
        block = self.find(item.item_id)
        self._view.apply(item)
        if block is None:
            return None
        del self.blocks[item.item_id], self.order[item.item_id]
        call = self.blocks.get(block.call)
        if call is not None:
            call.answers.remove(item.item_id)
        return Change(item, block)

    def _answer(self, item: ItemResult) -> Change | None:
        block = self.find(item.item_id)
        before = None if block is None else block.entry.result
        self._view.apply(item)
        self._view.find(item.item_id)
        # A result that arrives before its call is shown with the call.
        if block is None or block.kind not in CALLS or before == item:
            return None
        return Change(item, block, again=before is not None)


def _facts(block: Block) -> tuple[object, ...]:
    entry = block.entry
    shown = entry.done, entry.incomplete, entry.reason, entry.doubtful, entry.text
    return *shown, entry.input and bytes(entry.input), block.raw and bytes(block.raw), block.citations


def _citations(extras: dict[str, Raw] | UnsetType) -> list[Any]:
    found = decoded(extras.get("citations")) if isinstance(extras, dict) else None
    return found if isinstance(found, list) else []
