"""The viewer's inputs without a broker: in-memory topics filled by the real stages, their index, and the pages."""

import asyncio
import json
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import msgspec
from published_records import OPENED, appended

from reknit import pipeline
from reknit.pipeline.config import load_config
from reknit.pipeline.demo.recordings import Input, fleet, inputs
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.viewer.addresses import session_path
from reknit.pipeline.viewer.guard import Guard
from reknit.pipeline.viewer.index import Index
from reknit.pipeline.viewer.index.reading import Behind
from reknit.pipeline.viewer.index.records import entry_of
from reknit.pipeline.viewer.index.values import Value, Values
from reknit.pipeline.viewer.pages import VIEWER, Viewer, templates
from reknit.pipeline.viewer.server import application, serving
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, SESSION_ITEMS, TURNS_STATE

FLEET = Path(pipeline.__file__).parent / "demo" / "fleet" / "histories.jsonl"
# The demo's histories, by their sessions.
HISTORIES = {told["session"]: told for told in map(json.loads, FLEET.read_text().splitlines())}
BEGAN_MS = 1_760_000_000_000
STEP_MS = 1000


class Topics:
    """Logs by topic and partition. Each input comes a second after the previous one and is processed immediately."""

    def __init__(self, defaults=None):
        self.logs = defaultdict(list)
        self.base = 0  # of inputs that were recreated
        self.now_ms = BEGAN_MS
        self._stages = {
            AGENT_TURNS: TurnsStage(defaults),
            PROVIDER_EVENTS: EventsStage(defaults),
        }

    def put(self, topic, session, value=None, headers=()):
        """Append one input and all outputs of the stages for it. A value that is not bytes is encoded as JSON."""
        self.now_ms += STEP_MS
        if value is not None and not isinstance(value, bytes):
            value = msgspec.json.encode(value)
        self._append(topic, session.encode(), value, headers)

    def put_turns(self, session, *records):
        for record in records:
            self.put(AGENT_TURNS, session, record)

    def put_raw(self, topic, record):
        """Append a record of any topic unchanged, without passing it to a stage."""
        self.logs[topic, record.partition].append(record)

    def _append(self, topic, key, value, headers):
        log = self.logs[topic, 0]
        offset = log[-1].offset + 1 if log else 0
        record = Record(partition=0, offset=offset, key=key, value=value, headers=tuple(headers), timestamp=self.now_ms)
        log.append(record)
        stage = self._stages.get(topic)
        if stage is None:
            return
        result = stage.process([msgspec.structs.replace(record, base=self.base)])
        if stage.state_topic == TURNS_STATE:
            for state_key, kept in result.changes.items():
                self._append(TURNS_STATE, state_key, kept, ())
        for output in result.outputs:
            self._append(output.topic, output.key, output.value, output.headers)

    def record(self, topic, partition, offset):
        return next((each for each in self.logs[topic, partition] if each.offset == offset), None)

    def entries(self):
        return [entry_of(topic, record) for (topic, _), log in self.logs.items() for record in log]

    def positions(self):
        return {place: log[-1].offset + 1 for place, log in self.logs.items() if log}


def filled(inputs=(), raw=(), **options):
    """Topics with these inputs, ``(session, [(topic, value, headers), …])``, and ready-made ``(topic, Record)``s."""
    topics = Topics(**options)
    for session, records in inputs:
        for topic, value, headers in records:
            topics.put(topic, session, value, headers)
    for topic, record in raw:
        topics.put_raw(topic, record)
    return topics


def session_of(session, *messages, defaults=None, **opened):
    """Topics of one session with these messages."""
    topics = Topics(defaults)
    topics.put_turns(session, {**OPENED, **opened}, *appended(*messages))
    return topics


def demo_inputs():
    """The demo's fleet in the form that ``filled`` takes."""
    return [
        (one.session, [(step.topic, step.value, step.headers) for step in inputs(one) if isinstance(step, Input)])
        for one in fleet()
    ]


def index_of(path, topics=None):
    """A new index at this path with everything that is in the topics."""
    index = Index.open(path, cluster="c", prefix="")
    if topics is not None:
        index.write(topics.entries(), topics.positions())
    return index


def contents(index):
    """Return everything in an index except generated numbers."""
    names = dict(index.reader.rows("SELECT id, name FROM sessions"))
    found = {}
    for table in ("sessions", "entries", "deltas", "runs", "facets", "counters", "positions", "forgotten"):
        rows = index.reader.rows(f"SELECT * FROM {table}")  # noqa: S608  named above
        columns = [name for _, name, *_ in index.reader.rows(f"PRAGMA table_info({table})")]
        own = [dict(zip(columns, row, strict=True)) for row in rows]
        for row in own:
            row.pop("id", None)
            row.pop("number", None)
            if "session" in row:
                row["session"] = names[row["session"]]
        found[table] = sorted(own, key=repr)
    found["words"] = sorted(index.reader.rows("SELECT place, text FROM words"))
    return found


class Still:
    """A follower that has read everything."""

    def __init__(self):
        self.subscribers = set()
        self.caught_up = asyncio.Event()
        self.caught_up.set()

    def behind(self):
        return Behind(records=0, by_topic={})


class InMemory(Values):
    """Reads values that are too large for the index from the topics, as in production."""

    def __init__(self, reader, topics):
        super().__init__(load_config(env={}), reader, None)
        self._topics = topics

    async def _of_topic(self, entry, headers):
        record = self._topics.record(entry.topic, entry.partition, entry.offset)
        return Value(None, headers, "expired") if record is None else Value(record.value, tuple(record.headers))


def viewer_of(topics=None, index=None, *, guard=None, follower=None, **more):
    """A viewer of these topics with their index; without arguments, a viewer with nothing to show."""
    return Viewer(
        config=load_config(env={}),
        guard=guard or Guard(),
        templates=templates(),
        index=index,
        follower=follower or Still(),
        values=index and InMemory(index.reader, topics),
        **more,
    )


@asynccontextmanager
async def served(topics, path, routes=(), *, index=None, **options):
    """Yield the URL, ending in a slash, of a viewer of these topics; its index is made at ``path`` unless given."""
    index = index or index_of(path, topics)
    try:
        viewer = viewer_of(topics, index, **options)
        async with serving(application(viewer, routes), "127.0.0.1", 0) as url:
            yield url
    finally:
        index.close()


@asynccontextmanager
async def pages_of(topics, tmp_path, **options):
    """Yield a function that requests pages by address, as the page's script if ``part``; returns status and text."""
    async with served(topics, tmp_path / "index", **options) as url, aiohttp.ClientSession() as http:

        async def ask(path, *, part=False, post=None):
            headers = {"HX-Request": "true"} if part else {}
            more = {} if post is None else {"data": post, "allow_redirects": False}
            asked = http.request("GET" if post is None else "POST", urljoin(url, path), headers=headers, **more)
            async with asked as answer:
                return answer.status, await answer.text()

        ask.url = url
        yield ask


class Followed:
    """A viewer of one session that continues.

    `put` and `publish` write to its index immediately, as its follower does.
    """

    def __init__(self, url, app, session, topics):
        self.url, self.app, self.topics = url.rstrip("/"), app, topics
        self._viewer, self._session = app[VIEWER], session

    def put(self, *records):
        self.topics.put_turns(self._session, *records)
        self._follow()

    def publish(self, *items, run="1"):
        for item in items:
            self.topics.put(SESSION_ITEMS, self._session, item, (("run", run.encode()),) if run else ())
        self._follow()

    def _follow(self):
        new = self._viewer.index.write(self.topics.entries(), self.topics.positions())
        for subscriber in tuple(self._viewer.follower.subscribers):
            subscriber(new)

    def path(self, *more, **query):
        return self.url + session_path(self._session, *more, **query)


@asynccontextmanager
async def followed(topics, session, path):
    index = index_of(path, topics)
    try:
        app = application(viewer_of(topics, index))
        async with serving(app, "127.0.0.1", 0) as url:
            yield Followed(url, app, session, topics)
    finally:
        index.close()


@asynccontextmanager
async def listening(http, url, **headers):
    """Yield a function that reads ``count`` events of a live stream and returns the id and the data of each."""
    async with http.get(url, headers=headers) as answer:
        assert answer.content_type == "text/event-stream"

        async def read(count):
            found, place = [], ""
            while len(found) < count:
                name, _, value = (await answer.content.readline()).decode().rstrip("\n").partition(": ")
                place = value if name == "id" else place
                if name == "data":
                    found.append((place, json.loads(value)))
            return found

        yield read
