"""The limits of tenants, and what each tenant uses of them in one partition.

A tenant is the part of a session's id before the separator. Sizes are the bytes of the received records of a session's
history: a measure of its state that does not depend on batches and restarts.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from reknit.pipeline.errors import ReknitError
from reknit.topics.records import HistoryRestored, SessionOpened, TurnAppended, TurnRecord


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one tenant in one partition; null is unlimited."""

    sessions: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Sessions of one tenant in one partition at most.")
    ] = None
    bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Bytes of the records that they are made of at most, in one partition."),
    ] = None


class Limits(Limit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of every tenant, and exceptions by tenant."""

    separator: Annotated[
        str, Meta(min_length=1, description="The part of a session's id before the first separator is its tenant.")
    ] = "/"
    tenants: Annotated[
        dict[str, Limit], Meta(description="Tenants with limits of their own: `{acme = {sessions = 100}}`.")
    ] = {}


# Of a changelog record that holds a session's size, the first byte of its key.
SIZE = b"z"


class LimitError(ReknitError):
    """A record was refused because of what its tenant has already. ``limit`` is which one, for the letter's header."""

    fault = "caller"

    def __init__(self, code: str, name: str, most: int) -> None:
        self.limit = f"{name}={most}"
        super().__init__(code, f"its tenant has all that it may have: {self.limit}")
        self._given = code, name, most

    def __reduce__(self) -> tuple[object, ...]:
        return LimitError, self._given


class Usage:
    """The usage of the tenants of one partition.

    It has one kind of changelog record, identified by its key's first byte: ``z`` + session holds the session's size.
    None is written while there are no limits; older sessions are counted when their next record arrives.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._separator = limits.separator.encode()
        self._on = bool(limits.tenants) or limits.sessions is not None or limits.bytes is not None
        self._sizes: dict[bytes, int] = {}
        self._sessions: dict[bytes, int] = {}
        self._bytes: dict[bytes, int] = {}
        self._changes: dict[bytes, bytes | None] = {}

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record of this kind, oldest first."""
        self._set_size(key[1:], None if value is None else int(value))

    def admit(self, key: bytes, event: TurnRecord, size: int, *, begins: bool) -> None:
        """Look whether a record of ``size`` bytes may be taken; ``begins`` is whether its session would begin with it.

        Raises:
            LimitError: its tenant has as much as it may have.
        """
        if not self._on:
            return
        tenant = self._tenant(key)
        limit = self._limits.tenants.get(tenant.decode("utf-8", "replace"), self._limits)
        if begins and limit.sessions is not None and self._sessions.get(tenant, 0) >= limit.sessions:
            raise LimitError("limit_sessions", "sessions", limit.sessions)
        before, after = self._sizes.get(key, 0), self._size_after(key, event, size)
        if limit.bytes is not None and after > before and self._bytes.get(tenant, 0) - before + after > limit.bytes:
            raise LimitError("limit_bytes", "bytes", limit.bytes)

    def note_taken(self, key: bytes, event: TurnRecord, size: int) -> None:
        """A record was taken."""
        if self._on:
            self._change_size(key, self._size_after(key, event, size))

    def note_begun(self, key: bytes) -> None:
        """There is a session now, also where none of its records was taken."""
        if self._on:
            self._change_size(key, self._sizes.get(key, 0))

    def note_freed(self, key: bytes) -> None:
        """A session is over."""
        if key in self._sizes:
            self._change_size(key, None)

    def changes(self) -> dict[bytes, bytes | None]:
        """The changelog records since the last call, always in the same order."""
        changes, self._changes = self._changes, {}
        return dict(sorted(changes.items()))

    def _tenant(self, key: bytes) -> bytes:
        tenant, separator, _ = key.partition(self._separator)
        return tenant if separator else b""

    def _size_after(self, key: bytes, event: TurnRecord, size: int) -> int:
        match event:
            case HistoryRestored():
                return size
            case TurnAppended() | SessionOpened():
                return self._sizes.get(key, 0) + size
            case _:
                return self._sizes.get(key, 0)

    def _change_size(self, key: bytes, size: int | None) -> None:
        if self._sizes.get(key) != size:
            self._changes[SIZE + key] = None if size is None else b"%d" % size
            self._set_size(key, size)

    def _set_size(self, key: bytes, size: int | None) -> None:
        tenant, before = self._tenant(key), self._sizes.pop(key, None)
        if size is not None:
            self._sizes[key] = size
        for counts, change in (
            (self._sessions, (size is not None) - (before is not None)),
            (self._bytes, (size or 0) - (before or 0)),
        ):
            counts[tenant] = counts.get(tenant, 0) + change
            if not counts[tenant]:
                del counts[tenant]
