"""Item ids: unique in a session, the same whenever the same events come again."""

from __future__ import annotations

import hashlib

from msgspec import Struct


class Ids(Struct):
    """Counters that a session never resets, and which call ids it has seen.

    A call keeps its own id. If the id comes again (some vendors count ``call_0`` from the start in every turn, and a
    withdrawn id must not return) its item gets a suffix. Eight bytes a call are kept for that, not the ids.
    """

    prefix: str
    streamed: int = 0
    promoted: int = 0
    subagent: int = 0
    user: int = 0
    numbered: int = 0
    turns: int = 0
    calls: set[int] = set()
    # The highest suffix of a call id that came more than once.
    again: dict[str, int] = {}

    def for_streamed(self) -> str:
        """The id of a streamed block."""
        self.streamed += 1
        return f"{self.prefix}-block-{self.streamed - 1}"

    def for_promoted(self) -> str:
        """The id of a block that did not stream."""
        self.promoted += 1
        return f"{self.prefix}-promoted-{self.promoted - 1}"

    def for_subagent(self) -> str:
        """The id of a sub-agent's block."""
        self.subagent += 1
        return f"{self.prefix}-subagent-{self.subagent - 1}"

    def for_user(self) -> str:
        """The id of a user's message."""
        self.user += 1
        return f"{self.prefix}-user-{self.user - 1}"

    def number(self) -> int:
        """The next number of records that have no id."""
        self.numbered += 1
        return self.numbered - 1

    def for_call(self, tool_id: str) -> str:
        """The item id of a new call."""
        suffix, item_id = self.again.get(tool_id, 1), tool_id
        while not self._is_new(item_id):
            suffix += 1
            item_id = f"{tool_id}~{suffix}"
        if item_id != tool_id:
            self.again[tool_id] = suffix
        return item_id

    def of_call(self, tool_id: str) -> str:
        """The item id of the last call with this id."""
        suffix = self.again.get(tool_id)
        return tool_id if suffix is None else f"{tool_id}~{suffix}"

    def _is_new(self, item_id: str) -> bool:
        mark = int.from_bytes(hashlib.blake2b(item_id.encode("utf-8", "replace"), digest_size=8).digest(), "little")
        if mark in self.calls:
            return False
        self.calls.add(mark)
        return True
