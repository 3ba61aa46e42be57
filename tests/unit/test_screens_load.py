"""Many connections of ``reknit screens`` at once: each gets its session's pieces once and in order, whatever others do.

The delays are measured by ``tests/benchmarks/bench_screens.py``.
"""

import asyncio
import random

import pytest
from screen_clients import AgUiClient
from screens_crowd import joined, piece, request_for
from screens_lab import Stream, screens_of

from reknit.pipeline.screen_server import connections
from reknit.pipeline.screen_server.gate import Gate, Limits
from reknit.pipeline.viewer.guard import HostNames
from reknit.topics.items import ItemDelta, ItemStarted

FORMATS = ["ag-ui", "ai-sdk", "items"]
SESSIONS, OF_SESSION, BATCHES, OF_BATCH = 60, 3, 12, 200
MANY = Limits(of_peer=10_000, requests=10_000)


class Texts:
    """The sessions' texts, as they are published."""

    def __init__(self, lab):
        self._lab = lab
        self.of = {}

    def begin(self, *sessions):
        self._lab.publish_batch([(each, ItemStarted(item_id="t", item_type="text")) for each in sessions])
        self.of |= dict.fromkeys(sessions, "")

    def add(self, pieces):
        """Publish ``(session, text)`` as one batch."""
        items = []
        for session, text in pieces:
            at = len(self.of[session])
            items.append((session, ItemDelta(item_id="t", delta_type="text_delta", content=text, at=at)))
            self.of[session] += text
        self._lab.publish_batch(items)


def many():
    return Gate(HostNames(), None, limits=MANY)


def port_of(lab):
    return int(lab.url.rpartition(":")[2])


def request_of(lab, session, form):
    return request_for(f"/sessions/{session}/events?as={form}", {"Host": lab.url.removeprefix("http://")})


async def until(holds):
    while not holds():  # noqa: ASYNC110  these have no event
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_each_connection_gets_its_pieces_once_and_in_order(tmp_path):
    chosen = random.Random(1)  # noqa: S311  the same sessions in every run
    async with screens_of(tmp_path, gate=many()) as (lab, _), asyncio.timeout(60):
        texts, wanted = Texts(lab), {}
        names = [f"session-{number}" for number in range(SESSIONS)]
        texts.begin(*names)
        crowd = {
            (name, each): await joined(port_of(lab), request_of(lab, name, FORMATS[each % 3]))
            for name in names
            for each in range(OF_SESSION)
        }
        assert lab.feeds.connections == len(crowd)
        for batch in range(BATCHES):
            numbers = range(batch * OF_BATCH, (batch + 1) * OF_BATCH)
            of_batch = [(chosen.choice(names), number) for number in numbers]
            texts.add((name, piece(number)) for name, number in of_batch)
            for name, number in of_batch:
                wanted.setdefault(name, []).append(number)
            await asyncio.sleep(0)
        await until(lambda: sum(len(each.numbers) for each in crowd.values()) >= BATCHES * OF_BATCH * OF_SESSION)
        assert {place: member.numbers for place, member in crowd.items()} == {
            (name, each): wanted.get(name, []) for name, each in crowd
        }
        for member in crowd.values():
            member.transport.abort()
        await until(lambda: not lab.feeds.connections)


@pytest.mark.asyncio
async def test_clients_that_do_not_read_are_broken_off_and_delay_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(connections, "SLOW_SECONDS", 0.5)
    held = []
    offer = connections.Connection.offer

    def watched(self, found):
        offer(self, found)
        held.append(sum(map(len, self._waiting)))

    monkeypatch.setattr(connections.Connection, "offer", watched)
    async with screens_of(tmp_path, gate=many()) as (lab, http), asyncio.timeout(60):
        texts = Texts(lab)
        texts.begin("s")
        slow = [await joined(port_of(lab), request_of(lab, "s", form)) for form in FORMATS]
        for member in slow:
            member.transport.pause_reading()
        readers = [await joined(port_of(lab), request_of(lab, "s", form)) for form in FORMATS]
        number = 0
        # More than sockets hold: the server must give the slow ones up.
        while lab.feeds.connections > len(readers):
            texts.add(("s", piece(number + each) + "x" * 50_000) for each in range(10))
            number += 10
            await until(lambda: all(len(each.numbers) == number for each in readers))  # noqa: B023  awaited here
        assert max(held) <= 1 << 20
        for member in slow:
            member.transport.resume_reading()
            await member.is_over.wait()
            assert not member.is_clean
            assert member.numbers == list(range(len(member.numbers)))
            assert len(member.numbers) < number
        # The text continues; the slow client resumes and has all of it.
        texts.add([("s", piece(number))])
        await until(lambda: all(each.numbers == list(range(number + 1)) for each in readers))
        got = slow[FORMATS.index("items")].numbers
        resumed = {"Last-Event-ID": f"0/{len(got)}"}  # the item's start is the record before the first piece
        async with http.get(f"{lab.url}/sessions/s/events", headers=resumed) as answer:
            stream, rest = Stream(answer), []
            while not rest or rest[-1] != number:
                event = await stream.next()
                rest += [int(event["content"].partition("@")[0])] if event["type"] == "item/delta" else []
        assert set(got) | set(rest) == set(range(number + 1))
        for member in readers:
            member.transport.abort()


@pytest.mark.asyncio
async def test_two_servers_serve_any_session(tmp_path):
    """Two processes, each with its own index: a client that moves between them shows one text."""
    async with (
        screens_of(tmp_path / "one", gate=many()) as (one, http),
        screens_of(tmp_path / "two", gate=many()) as (two, _),
    ):
        texts = [Texts(each) for each in (one, two)]
        client, body = AgUiClient(), {"threadId": "s", "messages": [], "forwardedProps": {"reknit": {"resume": True}}}
        for each in texts:
            each.begin("s")
        for number in range(8):
            added = f"{number}, "
            for each in texts:
                each.add([("s", added)])
            lab = (one, two)[number % 2]
            async with http.post(f"{lab.url}/sessions/s/events", json=body | {"messages": client.messages}) as answer:
                stream = Stream(answer)
                client.respond(await stream.until("MESSAGES_SNAPSHOT"))
            assert [each["content"] for each in client.messages] == [texts[0].of["s"]]
