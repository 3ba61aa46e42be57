"""The state of a provider: the values that it issued, the items that it stored, and the names that have expired."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Issued(Struct, frozen=True, kw_only=True):
    """A value that was given out.

    Attributes:
        family: of the model.
        boundary: of organisations, connections or keys that can read it.
        turn: the id of the answer that had it.
        of: the digest of what it belongs to.
        prefix: the digest of all that came before it.
        item: the id of its item, or "".
        order: its place in the order of all values.
    """

    family: str
    boundary: str
    turn: str = ""
    of: str = ""
    prefix: str = ""
    item: str = ""
    order: int = 0


class Item(Struct, frozen=True, kw_only=True):
    """An item of an answer: its owner, whether it is stored, and the id of the reasoning that it follows."""

    boundary: str
    connection: str
    type: str
    stored: bool
    follows: str = ""


class Stored(Struct, frozen=True, kw_only=True):
    """A stored response: its owner, and the items of its input and output."""

    boundary: str
    items: list[dict[str, Any]]


class State(Struct, kw_only=True):
    """All that a provider knows. ``gone`` names what has expired: files, caches, containers and responses."""

    issued: dict[tuple[str, str, str], Issued] = field(default_factory=dict)
    turns: dict[str, list[str]] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)
    responses: dict[str, Stored] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    undecodable: set[str] = field(default_factory=set)
    timeouts: dict[str, int] = field(default_factory=dict)

    def issue(self, platform: str, kind: str, value: str, issued: Issued) -> None:
        self.issued[platform, kind, value] = issued

    def forget(self, kinds: tuple[str, ...]) -> None:
        """Forget all values of some kinds, as a rotation of keys does."""
        self.issued = {key: value for key, value in self.issued.items() if key[1] not in kinds}

    def drop_items(self) -> None:
        """Lose what was stored: items and responses."""
        self.items.clear()
        self.responses.clear()
