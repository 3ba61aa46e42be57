"""Live streams: each record once for every viewer, through lost connections and slow browsers."""

import asyncio
import html
import json
import re

import pytest
from msgspec import structs
from stream_pages import START, TEMPLATES, Rows, delta, entries, html_of, recorded

from reknit.pipeline.stages.base import Record
from reknit.pipeline.viewer import live
from reknit.pipeline.viewer.index.records import entry_of
from reknit.pipeline.viewer.live import AT_ONCE, NOWHERE
from reknit.pipeline.viewer.streams import Drawing, Live, position_of
from reknit.pipeline.viewer.streams.screen import Screen
from reknit.topics import AGENT_TURNS


class Log:
    """A session's records, as far as they are in the index. ``reads`` counts how often the session was loaded."""

    def __init__(self, *items):
        self.all = list(entries(*items))
        self.indexed, self.reads = [], 0
        self.live = Live(self.load, self.between, Drawing(TEMPLATES).change)

    async def load(self, session, until):
        self.reads += 1
        await asyncio.sleep(0)
        return [entry for entry in self.indexed if until is None or position_of(entry) <= until]

    async def between(self, session, after, until, limit):
        return [entry for entry in self.indexed if after < position_of(entry) <= until][:limit]

    def publish(self, count=None):
        """Add the next records to the index, and notify viewers."""
        batch = self.all[len(self.indexed) :][:count]
        self.indexed += batch
        self.live.take_entries(batch)


class Page:
    """A browser's copy of a stream: rows by their ids, with their words. It does what ``live.js`` does."""

    def __init__(self, screen):
        self.rows, self.seen = {}, []
        for row in Rows(html_of(screen)).rows:
            self.rows[row["id"]] = row

    def take(self, message):
        self.seen.append(message.position)
        change = json.loads(message.change or b"null")
        if change is None:
            return
        row = self.rows.get(change["row"])
        if "at" not in change:
            if row is not None or change["new"]:
                (self.rows[change["row"]],) = Rows(change["html"]).rows
        elif row is not None and row["length"] == change["at"]:
            row["words"] += html.unescape(re.sub("<[^>]*>", "", change["html"]))
            row["length"] = change["to"]

    def shown(self):
        return {name: (row["badges"], row["words"], row["answers"]) for name, row in self.rows.items()}


def screen_of_log(log, until=NOWHERE):
    screen = Screen()
    for entry in log.indexed:
        if position_of(entry) <= until:
            screen.apply(entry)
    return screen


async def follow(page, viewing):
    for message in await viewing.messages(0):
        page.take(message)


@pytest.mark.parametrize("session", ["blackout-tools", "retry", "sub-agent", "killed-in-call"])
async def test_an_open_page_shows_the_same_as_a_page_loaded_now(session):
    log, screen = Log(*recorded(session)), Screen()
    page = Page(screen)
    async with log.live.watching("s") as viewing:
        for entry in log.all:
            log.publish(1)
            screen.apply(entry)
            await follow(page, viewing)
            if entry.kind != "item/delta" or entry.offset % 16 == 0:
                assert page.shown() == Page(screen).shown()
    assert page.seen == [position_of(entry) for entry in log.all]


async def test_after_a_lost_connection_each_record_arrives_once():
    log = Log(*recorded("silent-replacement"))
    log.publish()
    everything = [position_of(entry) for entry in log.all]
    whole = Page(screen_of_log(log, everything[-1])).shown()
    for had in (NOWHERE, *everything):
        page = Page(screen_of_log(log, had))
        async with log.live.watching("s") as viewing:
            for message in await log.live.missed("s", had, viewing.begins):
                page.take(message)
        assert page.seen == [position for position in everything if position > had]
        assert page.shown() == whole


async def test_records_during_a_resume_are_neither_lost_nor_doubled():
    log = Log(*recorded("blackout-tools"))
    log.publish(5)
    page = Page(screen_of_log(log, (0, 2)))
    looks = log.live.watching("s")
    opening = asyncio.create_task(looks.__aenter__())
    await asyncio.sleep(0)
    log.publish(3)  # while the session is loaded
    viewing = await opening
    log.publish(2)  # before the missed records are requested
    for message in await log.live.missed("s", (0, 2), viewing.begins):
        page.take(message)
    log.publish()
    await follow(page, viewing)
    await looks.__aexit__(None, None, None)
    assert page.seen == [position_of(entry) for entry in log.all[3:]]
    assert page.shown() == Page(screen_of_log(log, page.seen[-1])).shown()


async def test_repeated_notifications_change_nothing():
    log = Log(START, delta("once"))
    async with log.live.watching("s") as viewing:
        log.publish()
        log.live.take_entries(log.indexed)
        assert [message.position for message in await viewing.messages(0)] == [(0, 0), (0, 1)]


async def test_a_session_is_loaded_once_for_all_viewers():
    log = Log(START)
    log.publish()
    async with asyncio.TaskGroup() as group:
        looks = [log.live.watching("s") for _ in range(20)]
        viewings = [group.create_task(look.__aenter__()) for look in looks]
    assert (log.reads, log.live.viewings) == (1, 20)
    log.all += entries(START, delta("more"))
    log.publish()
    for viewing in viewings:
        assert len(await viewing.result().messages(0)) == 1
    for look in looks:
        await look.__aexit__(None, None, None)
    assert (log.reads, log.live.viewings, log.live._watched) == (1, 0, {})


async def test_a_slow_reader_is_cut_off_and_delays_no_other(monkeypatch):
    monkeypatch.setattr(live, "_WAITING", 3)
    log = Log(START, *[delta("x", at) for at in range(5)])
    async with log.live.watching("s") as slow, log.live.watching("s") as quick:
        read = 0
        for _ in log.all:
            log.publish(1)
            read += len(await quick.messages(0))
        assert (read, quick.ended) == (6, None)
        assert (await slow.messages(0), slow.ended) == ([], "This browser does not keep up: reload the page.")


async def test_large_unread_texts_are_not_kept(monkeypatch):
    monkeypatch.setattr(live, "_WAITING_BYTES", 1000)
    log = Log(START, delta("x" * 500), delta("x" * 500, 500))
    async with log.live.watching("s") as viewing:
        log.publish()
        assert (await viewing.messages(0), bool(viewing.ended)) == ([], True)


def turn(value):
    return entry_of(AGENT_TURNS, Record(partition=0, offset=7, key=b"s", value=value))


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (lambda log: log.live.take_entries([turn(b'{"type": "session.forgotten"}')]), "The session was forgotten."),
        (lambda log: log.publish(), "Much came at once: reload the page."),
        (lambda log: log.live.stop(), ""),
    ],
)
async def test_a_page_that_cannot_continue_is_notified_and_the_next_one_starts_again(happens, words):
    log = Log(START, *[delta("x", at) for at in range(AT_ONCE)])
    async with log.live.watching("s") as viewing:
        happens(log)
        assert (await viewing.messages(0), viewing.ended) == ([], words)
        async with log.live.watching("s") as other:
            assert (other.ended, log.reads) == (None, 2)


async def test_a_page_that_has_missed_too_much_is_told_to_reload():
    log = Log(*[START | {"item_id": str(number)} for number in range(AT_ONCE + 1)])
    log.indexed = log.all
    assert await log.live.missed("s", NOWHERE, (0, AT_ONCE)) is None
    assert len(await log.live.missed("s", (0, 0), (0, AT_ONCE))) == AT_ONCE


async def test_records_of_other_sessions_and_topics_are_ignored():
    log = Log(START)
    async with log.live.watching("s") as viewing:
        closed = turn(b'{"type": "session.closed"}')
        other = [structs.replace(entry, session="t") for entry in log.all]
        log.live.take_entries([*other, closed])
        assert (await viewing.messages(0), viewing.ended) == ([], None)
