"""Streams as they go on: what each record of a session changes of a page that is open, for all who look at it.

A session that somebody looks at is reduced once, whoever else does. Each record makes one message, named by its
position: a browser that lost its connection names the last one that it has, and gets those behind it, each once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from pipeline.viewer.index.entries import FORGOTTEN, Entry
from pipeline.viewer.streams.screen import Change, Screen
from pipeline.viewer.viewing import AT_ONCE, NOWHERE, Message, Position, Viewing
from topics import SESSION_ITEMS

# Rows of a page that is open; a browser that got more would only become slow.
_ROWS = 5000


class _Watched:
    """A session that somebody looks at. ``early`` are the records that came while those before them were read."""

    def __init__(self) -> None:
        self.screen: Screen | None = None
        self.position = NOWHERE
        self.early: list[Entry] = []
        self.viewings: set[Viewing] = set()
        self.looked_at = 0
        self.loading: asyncio.Task[None] | None = None

    def end(self, words: str) -> None:
        for viewing in self.viewings:
            viewing.end(words)


class Live:
    """The sessions that are looked at.

    Args:
        load: the records that a page of a session shows, up to a position or, with None, the last.
        between: the records of a session between two positions, the second one included; at most as many as asked for.
        draw: what a change of the screen is for the page.
    """

    def __init__(
        self,
        load: Callable[[str, Position | None], Awaitable[Sequence[Entry]]],
        between: Callable[[str, Position, Position, int], Awaitable[Sequence[Entry]]],
        draw: Callable[[Change], bytes],
    ) -> None:
        self._load, self._between, self._draw = load, between, draw
        self._watched: dict[str, _Watched] = {}

    @property
    def viewings(self) -> int:
        return sum(watched.looked_at for watched in self._watched.values())

    def take_entries(self, entries: Sequence[Entry]) -> None:
        """Hear of entries that are in the index by now."""
        if not self._watched:
            return
        found: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            if entry.session in self._watched:
                if entry.kind == FORGOTTEN:
                    self._drop(entry.session, "The session was forgotten.")
                elif entry.topic == SESSION_ITEMS:
                    found[entry.session].append(entry)
        for session, of_session in found.items():
            watched = self._watched.get(session)
            if watched is None:
                continue
            if watched.screen is None:
                watched.early += of_session
            elif len(of_session) > AT_ONCE:
                self._drop(session, "Much came at once: reload the page.")
            elif len(watched.screen) > _ROWS:
                self._drop(session, "This page has become long: reload it.")
            else:
                self._show(watched, watched.screen, of_session)

    def _show(self, watched: _Watched, screen: Screen, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if position_of(entry) > watched.position:
                watched.position = position_of(entry)
                message = self._message(screen, entry)
                for viewing in watched.viewings:
                    viewing.offer(message)

    def _message(self, screen: Screen, entry: Entry) -> Message:
        change = screen.apply(entry)
        return Message(position_of(entry), None if change is None else self._draw(change), entry.run)

    def _drop(self, session: str, words: str) -> None:
        self._watched.pop(session).end(words)

    def stop(self) -> None:
        """Let everybody go; browsers come back to the next viewer, and go on there."""
        for session in list(self._watched):
            self._drop(session, "")

    @asynccontextmanager
    async def watching(self, session: str) -> AsyncIterator[Viewing]:
        """Look at a session for as long as the block runs."""
        watched = self._watched.setdefault(session, _Watched())
        watched.looked_at += 1
        viewing = None
        try:
            if watched.loading is None:
                watched.loading = asyncio.create_task(self._begin(session, watched))
            # Others wait for the same; who goes away does not end it for them.
            await asyncio.shield(watched.loading)
            viewing = Viewing(watched.position)
            watched.viewings.add(viewing)
            if self._watched.get(session) is not watched:
                viewing.end("The page is out of date: reload it.")
            yield viewing
        finally:
            watched.looked_at -= 1
            if viewing is not None:
                watched.viewings.discard(viewing)
            if not watched.looked_at and self._watched.get(session) is watched:
                del self._watched[session]

    async def _begin(self, session: str, watched: _Watched) -> None:
        loaded = await self._load(session, None)
        watched.screen = Screen()
        for entry in (*loaded, *watched.early):
            if position_of(entry) > watched.position:
                watched.position = position_of(entry)
                watched.screen.apply(entry)
        watched.early.clear()

    async def missed(self, session: str, after: Position, until: Position) -> list[Message] | None:
        """The messages between two positions, the second one included; None where they are too many."""
        if after >= until:
            return []
        entries = await self._between(session, after, until, AT_ONCE + 1)
        if len(entries) > AT_ONCE:
            return None
        screen = Screen()
        for entry in await self._load(session, after):
            screen.apply(entry)
        return [self._message(screen, entry) for entry in entries]


def position_of(entry: Entry) -> Position:
    return entry.partition, entry.offset
