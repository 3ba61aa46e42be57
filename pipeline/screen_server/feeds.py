"""The sessions with connections: each is read once and written once per format, for any number of connections."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from reknit.pipeline.screen_server.connections import Connection
from reknit.pipeline.screen_server.formats import PRODUCER, Format, Piece, Writer, writer_of
from reknit.pipeline.screen_server.records import position_of
from reknit.pipeline.viewer.index.entries import FORGOTTEN, Entry
from reknit.pipeline.viewer.live import NOWHERE, by_session
from reknit.topics import AGENT_TURNS, SESSION_ITEMS

# Sessions without connections whose state is kept, because clients that lost a connection come back soon.
MOST_IDLE: Final = 200
# Records that are applied before other tasks run.
_AT_ONCE: Final = 500

Load: TypeAlias = Callable[[str], Awaitable[Sequence[Entry]]]


class Feed:
    """One session in one format.

    Attributes:
        writer: has the state after the record at ``position``.
        position: of the last applied record.
        time_ms: the time of that record.
        connections: those that receive what follows.
    """

    def __init__(self, session: str, form: Format, writer: Writer) -> None:
        self.session, self.form, self.writer = session, form, writer
        self.position = NOWHERE
        self.time_ms = -1
        self.connections: set[Connection] = set()
        # Records that arrived while earlier ones were being read; None once these are applied.
        self.early: list[Entry] | None = []
        self.users = 0
        self.is_dropped = False
        self.loading: asyncio.Task[None] | None = None

    def take(self, entries: Iterable[Entry]) -> list[Piece]:
        """Apply records, and return the frames by which they change a client."""
        found: list[Piece] = []
        for entry in entries:
            is_turn = entry.topic == AGENT_TURNS
            if is_turn or position_of(entry) > self.position:
                found += self.writer.take(entry)
            if not is_turn:
                self.position, self.time_ms = max(self.position, position_of(entry)), entry.time_ms
        return found

    def publish(self, entries: Iterable[Entry]) -> None:
        """Apply new records, and pass them to the connections."""
        if self.early is not None:
            self.early += entries
            return
        found = self.take(entries)
        if found:
            for connection in self.connections:
                connection.offer(found)

    async def load(self, load: Load) -> None:
        """Apply what the index has, and then what arrived in the meantime."""
        entries = await load(self.session)
        for at in range(0, len(entries), _AT_ONCE):
            self.take(entries[at : at + _AT_ONCE])
            await asyncio.sleep(0)
        early, self.early = self.early or [], None
        self.take(early)


class Feeds:
    """All feeds of a server.

    Args:
        load: returns all items of a session that the index has.
        with_details: whether records about the program and its machine are served.
    """

    def __init__(self, load: Load, *, with_details: bool = False) -> None:
        self._load, self._with_details = load, with_details
        self._feeds: dict[str, dict[Format, Feed]] = {}
        self._idle: OrderedDict[tuple[str, Format], Feed] = OrderedDict()

    @property
    def connections(self) -> int:
        """The number of connections."""
        return sum(len(feed.connections) for feeds in self._feeds.values() for feed in feeds.values())

    def take_entries(self, entries: Sequence[Entry]) -> None:
        """Take new entries of the index."""
        for session, found in by_session(entries, self._feeds).items():
            if any(entry.kind == FORGOTTEN for entry in found):
                self._drop(session)
                continue
            items = [entry for entry in found if _is_shown(entry)]
            if items:
                for feed in self._feeds[session].values():
                    feed.publish(items)

    @asynccontextmanager
    async def watching(self, session: str, form: Format) -> AsyncIterator[Feed]:
        """Keep a feed for as long as the block runs; it is loaded when the block begins."""
        feed = self._feeds.get(session, {}).get(form)
        if feed is None:
            feed = Feed(session, form, writer_of(form, session, with_details=self._with_details))
            self._feeds.setdefault(session, {})[form] = feed
        self._idle.pop((session, form), None)
        if feed.loading is None:
            feed.loading = asyncio.create_task(feed.load(self._load))
        feed.users += 1
        try:
            # Others wait for the same; a client that disconnects does not end it for them.
            await asyncio.shield(feed.loading)
            yield feed
        except BaseException:
            if feed.loading.done() and not feed.loading.cancelled() and feed.loading.exception() is not None:
                self._remove(feed)
            raise
        finally:
            feed.users -= 1
            if not feed.users and not feed.is_dropped:
                self._rest(feed)

    def stop(self) -> None:
        """Break all connections off; the clients resume at the next server."""
        for session in list(self._feeds):
            self._drop(session)

    def _rest(self, feed: Feed) -> None:
        if feed.early is not None or feed.position == NOWHERE:
            self._remove(feed)
            return
        self._idle[feed.session, feed.form] = feed
        while len(self._idle) > MOST_IDLE:
            self._remove(next(iter(self._idle.values())))

    def _remove(self, feed: Feed) -> None:
        feed.is_dropped = True
        self._idle.pop((feed.session, feed.form), None)
        of_session = self._feeds.get(feed.session, {})
        if of_session.get(feed.form) is feed:
            del of_session[feed.form]
            if not of_session:
                del self._feeds[feed.session]
        if feed.loading is not None and not feed.loading.done():
            feed.loading.cancel()

    def _drop(self, session: str) -> None:
        for feed in list(self._feeds.get(session, {}).values()):
            for connection in feed.connections:
                connection.break_off()
            self._remove(feed)


def _is_shown(entry: Entry) -> bool:
    return entry.topic == SESSION_ITEMS or (entry.topic == AGENT_TURNS and entry.producer == PRODUCER)
