"""A server of ``reknit screens`` without a broker: in-memory topics, their index, and clients that read streams."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from viewer_lab import InMemory, Still, Topics, index_of

from reknit.pipeline.screen_server.feeds import Feeds
from reknit.pipeline.screen_server.formats import PRODUCER
from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.screen_server.handlers import Screens
from reknit.pipeline.screen_server.records import Records
from reknit.pipeline.screen_server.server import application, run_screens
from reknit.pipeline.screen_server.words import Words
from reknit.pipeline.viewer.guard import Guard
from reknit.pipeline.viewer.index.records import entry_of
from reknit.pipeline.web import serving
from reknit.topics import AGENT_TURNS, SESSION_ITEMS
from reknit.topics.headers import PRODUCER as PRODUCER_HEADER
from reknit.topics.records import TurnAppended
from reknit.topics.trace import trace_headers


class WrittenTurns:
    """Takes the users' words as the producer of turns does, and keeps them in the topics of the lab."""

    def __init__(self, lab):
        self.lab, self.all, self.traces = lab, [], []

    async def append(self, session, message, *, record_id, trace):
        self.traces.append(trace_headers(trace))
        await asyncio.sleep(0)
        self.all.append((session, record_id, message))
        record = TurnAppended(message=json.dumps(message).encode(), id=record_id)
        value = {"type": "turn.appended", "id": record.id, "message": message}
        self.lab.put(AGENT_TURNS, session, value, ((PRODUCER_HEADER, PRODUCER.encode()),))


class Lab:
    """The server of some topics. ``publish`` writes items, and passes them to the server."""

    def __init__(self, topics, index, follower):
        self.topics, self._index, self._follower = topics, index, follower
        self._passed = {}  # how many records of each log
        self.url = ""
        self.feeds = None

    def put(self, topic, session, value, headers=()):
        self.topics.put(topic, session, value, headers)
        self._pass_on()

    def publish_batch(self, items):
        """Write ``(session, item)`` as one batch of the consumer."""
        for session, item in items:
            self.topics.put(SESSION_ITEMS, session, item, (("run", b"r1"),))
        self._pass_on()

    def _pass_on(self):
        found = []
        for place, log in self.topics.logs.items():
            found += [entry_of(place[0], record) for record in log[self._passed.get(place, 0) :]]
            self._passed[place] = len(log)
        new = self._index.write(found, self.topics.positions())
        for subscriber in tuple(self._follower.subscribers):
            subscriber(new)

    def publish(self, *items, session="s", run="r1"):
        for item in items:
            self.put(SESSION_ITEMS, session, item, (("run", run.encode()),) if run else ())


@asynccontextmanager
async def screens_of(path, *, gate=None, takes_input=False, with_details=False, topics=None, port=0, **options):
    """Yield the lab of a new server, and an HTTP client. ``topics`` of another lab have its sessions."""
    topics, follower = topics or Topics(), Still()
    index = index_of(path / "index", topics)
    lab = Lab(topics, index, follower)
    records = Records(index.reader, InMemory(index.reader, topics))
    lab.feeds = Feeds(records.all, with_details=with_details)
    lab.turns = WrittenTurns(lab)
    words = Words(lab.turns) if takes_input else None
    gate = gate or Gate(Guard(), None, allow_writing=takes_input)
    screens = Screens(gate, lab.feeds, records, words, **{"answer_seconds": 10, **options})
    try:
        async with serving(application(screens, follower), "127.0.0.1", port) as url, aiohttp.ClientSession() as http:
            lab.url = url.rstrip("/")
            yield lab, http
    finally:
        index.close()


@asynccontextmanager
async def running(config, gate, path, **options):
    """Run a server of a cluster; the value is its URL."""
    url = asyncio.get_running_loop().create_future()
    options = {"index_file": path / "screens.sqlite", "takes_input": True, "on_start": url.set_result, **options}
    task = asyncio.create_task(run_screens(config, gate, **options))
    try:
        await asyncio.wait([task, url], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()  # it could not start
        yield (await url).rstrip("/")
    finally:
        if not task.cancelling():  # a second one would break off its end
            task.cancel()
        await asyncio.wait([task])


class Stream:
    """The events of one answer, read one by one."""

    def __init__(self, answer):
        self.answer = answer
        self.comments = []
        self.ids = []

    async def next(self):
        """Return the next event; None at a clean end."""
        while True:
            line = await self.answer.content.readline()
            if not line:
                return None
            text = line.decode()
            assert text.endswith("\n"), "a frame was cut"
            assert "\r" not in text
            name, _, value = text[:-1].partition(": ")
            if not name and text.startswith(":"):
                self.comments.append(value)
            if name == "id":
                self.ids.append(value)
            if name == "data":
                return value if value == "[DONE]" else json.loads(value)

    async def until(self, kind):
        """Return the events up to the first one of a type."""
        found = []
        while not found or found[-1].get("type") != kind:
            event = await self.next()
            assert event is not None, "the answer ended"
            found.append(event)
        return found

    async def rest(self):
        """Return the events up to a clean end."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found
