"""The viewer: how fast its index follows the topics, and the latency of pages with 100,000 sessions in it.

    python tests/benchmarks/bench_viewer.py [--only follow queries pages] [--records 300000] [--sessions 100000]

``follow``: records as the worker publishes them (events, items, turns, requests, fixes, state; in transactions, on a
real Kafka) are read by a follower with an empty index, from its start to the last record. ``queries``: an index that is
filled directly; each query runs many times with other arguments, also for a session of 5,000 turns in comparison with
one of ten. ``pages``: such an index after the demo's fleet, and each page over HTTP, from the first byte sent to the
last one read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from itertools import count, islice
from pathlib import Path

import measure

# isort: split
import aiohttp
import bench_worker
from aiokafka import AIOKafkaProducer
from build import call, result, rounds, said, user
from published_records import OPENED, answers, appended
from viewer_lab import BEGAN_MS, Topics, demo_inputs, filled, index_of, served
from yarl import URL

from reknit.pipeline.config import load_config
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.viewer.addresses import session_path, with_query
from reknit.pipeline.viewer.index import activity, sessions, timeline
from reknit.pipeline.viewer.index.entries import Entry
from reknit.pipeline.viewer.index.reading import Follower, open_index
from reknit.pipeline.viewer.index.search import Search
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS, TURNS_STATE

LEAST_RATE = 20_000
MEDIAN_MS, P99_MS = 50, 200
ROUNDS = 200
PARTS = ("follow", "queries", "pages")
WORDS = [f"{first}{second}" for first in ("read", "file", "test", "plan", "error") for second in range(400)]


def published_records():
    """The worker's inputs and outputs of 40 sessions that talk, call tools and are answered, as topic and record."""
    topics, chance = Topics(), random.Random(1)  # noqa: S311  no secret
    for number in range(40):
        session = f"session-{number}"
        topics.put_turns(session, OPENED)
        for at in range(4):
            words = " ".join(chance.choices(WORDS, k=40))
            turns = user(words), said("let me look", call(f"c{at}", path=words)), user(result(f"c{at}", words * 2))
            topics.put_turns(session, *appended(*turns))
            for record in answers(words[:120], key=session.encode()):
                topics.put(PROVIDER_EVENTS, session, record.value, record.headers)
    return [(topic, record) for (topic, _), log in topics.logs.items() for record in log]


async def publish(bootstrap, prefix, records, wanted):
    """Publish the records repeatedly, each time as other sessions', until there are N; return the sum."""
    sent = 0
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"{prefix}bench", compression_type="zstd", max_batch_size=1 << 20
    ) as producer:
        for copy in count():
            if sent >= wanted:
                break
            async with producer.transaction():
                for topic, record in records:
                    kind, session = (record.key[:1], record.key[1:]) if topic == TURNS_STATE else (b"", record.key)
                    await producer.send(
                        prefix + topic,
                        record.value,
                        key=b"%b%d-%b" % (kind, copy, session),
                        headers=list(record.headers),
                        partition=copy % bench_worker.PARTITIONS,
                    )
                    sent += 1
    return sent


async def follow(bench):
    prefix = bench.fresh()
    bench_worker.apply_topics(bench.bootstrap, prefix)
    records = published_records()
    total = await publish(bench.bootstrap, prefix, records, bench.options.records)
    config = load_config(env={"REKNIT_BOOTSTRAP_SERVERS": bench.bootstrap, "REKNIT_PREFIX": prefix})
    index = await open_index(config, bench.directory / f"{prefix}index")
    follower = Follower(config, index)
    took = []
    began, spent = time.perf_counter(), time.process_time()
    running = asyncio.create_task(follower.run())
    while not follower.caught_up.is_set() and not running.done():
        await asyncio.sleep(0.05)
        since = time.perf_counter()
        await asyncio.to_thread(sessions.sessions, index.reader, Search())
        took.append((time.perf_counter() - since) * 1000)
    seconds, spent = time.perf_counter() - began, time.process_time() - spent
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    (count,) = index.reader.rows("SELECT count(*) FROM sessions")[0]
    index.close()
    rate = total / seconds
    measure.report(
        what=f"the viewer's index follows {total:,} records of {count:,} sessions",
        ours=f"{rate:,.0f} records/s ({spent / total * 1e6:.0f} µs CPU a record)",
        theirs=f"{LEAST_RATE:,} records/s",
        ratio=f"{rate / LEAST_RATE:.2f} times as fast; a list of sessions meanwhile {bench_worker.percentiles(took)}",
        budget=f"at least {LEAST_RATE:,} records/s",
        met=rate >= LEAST_RATE,
    )


LONG, SHORT = "long", "short"
CODES = sorted(FIXES)[:40]


class Filling:
    """Makes the entries of sessions, each with turns, requests, fixes and items; offsets continue by topic."""

    def __init__(self, positions):
        self._chance = random.Random(2)  # noqa: S311  no secret
        self._offsets = {topic: after - 1 for (topic, _), after in positions.items()}
        self._now_ms = BEGAN_MS

    def session(self, name, turns=4):
        chance = self._chance
        for at in range(turns):
            self._now_ms += 7
            words = " ".join(chance.choices(WORDS, k=30))
            cause = yield from self._entry(AGENT_TURNS, name, "turn", role="user", words=words, value=words.encode())
            target = chance.choice(("anthropic", "openai-chat", "gemini"))
            if chance.random() < 0.4:
                code = CODES[int(len(CODES) * chance.random() ** 3)]
                severity = "lossless" if FIXES[code].lossless else "lossy"
                more = {"target": target, "severity": severity, "cause": cause}
                yield from self._entry(HISTORY_FIXES, name, "fix", code=code, words=code, **more)
            more = {"target": target, "cause": cause, "request_id": f"{name}-{at}", "turn": at}
            yield from self._entry(PROVIDER_REQUESTS, name, "request", value=words.encode() * 8, **more)
            item = {"item_id": f"{name}.{at}", "run": f"r{at // 4}"}
            yield from self._entry(SESSION_ITEMS, name, "item/started", role="text", **item)
            yield from self._entry(SESSION_ITEMS, name, "item/completed", words=words, value=b"{}", **item)

    def _entry(self, topic, name, kind, *, words="", value=b"", **more):
        offset = self._offsets[topic] = self._offsets.get(topic, -1) + 1
        entry = Entry(
            topic=topic,
            partition=0,
            offset=offset,
            time_ms=self._now_ms,
            session=name,
            kind=kind,
            words=words,
            summary=words[:300],
            value=value,
            size=len(value),
            **more,
        )
        yield entry
        return entry.place


def filled_index(path, sessions, topics=None):
    """An index of N sessions, after those of the topics."""
    index = index_of(path, topics)
    filling = Filling(index.positions)

    def entries():
        for number in range(sessions - 2):
            if number == sessions // 2:
                yield from filling.session(LONG, 5000)
                yield from filling.session(SHORT, 10)
            yield from filling.session(f"tenant-{number % 50}/session-{number:06d}")

    rest = entries()
    while batch := list(islice(rest, 20_000)):
        index.write(batch, {})
    return index


def queries(directory, sessions):
    """Each query by its name, called with the number of its round."""
    began = time.perf_counter()
    index = filled_index(directory / "index", sessions)
    (entries,) = index.reader.rows("SELECT count(*) FROM entries")[0]
    size = index.path.stat().st_size / entries
    took = time.perf_counter() - began
    measure.say(f"  {entries:,} entries written in {took:.0f} s, {entries / took:,.0f} a second, {size:.0f} bytes each")
    r, chance = index.reader, random.Random(3)  # noqa: S311  no secret
    rare, common = CODES[-1], CODES[0]
    now = r.rows("SELECT max(last_ms) FROM sessions")[0][0]
    middle = sessions.sessions(r, Search(), limit=2000).after

    def name(_):
        return f"tenant-{(number := chance.randrange(sessions // 2)) % 50}/session-{number:06d}"

    def word(_):
        return chance.choice(WORDS)

    found = {
        "sessions": lambda _: sessions.sessions(r, Search()),
        "sessions, part 41": lambda _: sessions.sessions(r, Search(), middle),
        "by a common code": lambda _: sessions.sessions(r, Search(codes=(common,))),
        "by a rare code": lambda _: sessions.sessions(r, Search(codes=(rare,))),
        "by two codes": lambda _: sessions.sessions(r, Search(codes=(CODES[1], CODES[2]))),
        "by code, target and severity": lambda at: sessions.sessions(
            r, Search(codes=(CODES[at % 20],), target="gemini", severity="lossy")
        ),
        "by a beginning of 2,000 names": lambda at: sessions.sessions(r, Search(session=f"tenant-{at % 50}/")),
        "by a name": lambda at: sessions.sessions(r, Search(session=name(at))),
        "parked": lambda _: sessions.sessions(r, Search(parked=True)),
        "by time": lambda _: sessions.sessions(r, Search(until="2025-10-09T08:55")),
        "by a word": lambda at: sessions.sessions(r, Search(words=word(at))),
        "by two words": lambda at: sessions.sessions(r, Search(words=f"{word(at)} {word(at)}")),
        "by three words that meet nowhere": lambda at: sessions.sessions(
            r, Search(words=f"{word(at)} {word(at)} none")
        ),
        "by a word and a rare code": lambda at: sessions.sessions(r, Search(words=word(at), codes=(rare,))),
        "by a word and a common code": lambda at: sessions.sessions(r, Search(words=word(at), codes=(common,))),
        "by a word and a name": lambda at: sessions.sessions(
            r, Search(words=word(at), session="tenant-7/session-0000")
        ),
        "one session": lambda at: sessions.session(r, name(at)),
        "its timeline": lambda at: timeline.timeline(r, name(at)),
        f"timeline of {SHORT}": lambda _: timeline.timeline(r, SHORT),
        f"timeline of {LONG}": lambda _: timeline.timeline(r, LONG),
        f"timeline of {LONG}, only letters": lambda _: timeline.timeline(r, LONG, kinds=("letter",)),
        f"requests of {LONG} to gemini": lambda _: timeline.timeline(r, LONG, kinds=("request",), target="gemini"),
        "one request": lambda at: timeline.request(r, LONG, f"{LONG}-{at * 7 % 5000}"),
        f"what led to a request of {LONG}": lambda _: timeline.led_to(r, f"{AGENT_TURNS}/0/0"),
        f"items of {LONG}": lambda _: timeline.items(r, LONG),
        f"items of a run of {LONG}": lambda at: timeline.items(r, LONG, f"r{at}"),
        f"runs of {LONG}": lambda _: timeline.runs(r, LONG),
        "letters": lambda _: timeline.letters(r, timeline.LetterFilter()),
        "overview of an hour": lambda _: activity.overview(r, now - 3_600_000, now),
        "overview of a month": lambda _: activity.overview(r, now - 30 * 86_400_000, now),
    }
    return index, found


def measure_queries(sessions):
    with tempfile.TemporaryDirectory() as directory:
        index, found = queries(Path(directory), sessions)
        for what, query in found.items():
            took = []
            for at in range(ROUNDS):
                since = time.perf_counter()
                query(at)
                took.append((time.perf_counter() - since) * 1000)
            report_times(f"viewer, {sessions:,} sessions: {what}", took)
        index.close()


def report_times(what, took):
    median, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
    measure.report(
        what=what,
        ours=bench_worker.percentiles(took),
        theirs=f"p50 {MEDIAN_MS} ms, p99 {P99_MS} ms",
        ratio=f"{max(median / MEDIAN_MS, p99 / P99_MS):.2f} of it",
        budget="at most 1",
        met=median <= MEDIAN_MS and p99 <= P99_MS,
    )


# Sessions with one request of N turns each; their names sort before those that fill the index.
LONG_REQUEST, SHORT_REQUEST = "a-request-of-5000-turns", "a-request-of-10-turns"


def whole_topics():
    """The content that pages show whole: the demo's fleet, and two sessions that were restored and then asked
    something.
    """
    topics = filled(demo_inputs())
    for name, turns in ((LONG_REQUEST, 5000), (SHORT_REQUEST, 10)):
        history = rounds(turns // 4)
        topics.put_turns(name, OPENED, {"type": "history.restored", "messages": history}, *appended(user("and now?")))
    return topics


def pages(reader, sessions):
    """The address of each kind of page, by what it is, for the number of a round."""
    chance = random.Random(4)  # noqa: S311  no secret
    further = sessions.sessions(reader, Search(), limit=2000).after

    def any_session(_):
        number = chance.randrange(sessions // 2)
        return session_path(f"tenant-{number % 50}/session-{number:06d}")

    def request(name):
        entry = timeline.timeline(reader, name, kinds=("request",)).entries[-1]
        return lambda _: session_path(name, "requests", entry.request_id)

    def always(address):
        return lambda _: address

    return {
        "overview": always("/?span=30d"),
        "sessions": always("/sessions"),
        "sessions, part 41": always(with_query("/sessions", after=further)),
        "sessions with a word": lambda _: with_query("/sessions", q=chance.choice(WORDS)),
        "sessions with a code": lambda at: with_query("/sessions", code=CODES[at % len(CODES)]),
        "sessions with a loss for a target": always("/sessions?severity=lossy&target=gemini"),
        "a session": any_session,
        f"session of ten turns ({SHORT})": always(session_path(SHORT)),
        f"session of 5,000 turns ({LONG})": always(session_path(LONG)),
        "request of ten turns": request(SHORT_REQUEST),
        "request of 5,000 turns": request(LONG_REQUEST),
        "a mended request of the demo": request("lost-result"),
        "a stream of the demo": always(session_path("sub-agent", "stream")),
        f"stream of ten turns ({SHORT})": always(session_path(SHORT, "stream")),
        f"stream of 5,000 turns ({LONG})": always(session_path(LONG, "stream")),
        "dead letters": always("/letters"),
        "compare": always("/compare"),
        "playground": always("/playground"),
        "explain": always("/explain"),
        "a code explained": lambda at: f"/explain/{CODES[at % len(CODES)]}",
    }


async def measure_pages(sessions):
    with tempfile.TemporaryDirectory() as directory:
        topics = whole_topics()
        index = filled_index(Path(directory) / "index", sessions, topics)
        async with served(topics, None, index=index) as url, aiohttp.ClientSession() as http:
            for what, address in pages(index.reader, sessions).items():
                report_times(
                    f"viewer, {sessions:,} sessions, page: {what}",
                    [await answer_ms(http, url.rstrip("/") + address(at)) for at in range(ROUNDS)],
                )


async def answer_ms(http, url):
    since = time.perf_counter()
    async with http.get(URL(url, encoded=True)) as answer:
        assert answer.status == 200, url
        await answer.read()
    return (time.perf_counter() - since) * 1000


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    options = parser.parse_args()
    if "queries" in options.only:
        measure_queries(options.sessions)
    if "pages" in options.only:
        asyncio.run(measure_pages(options.sessions))
    if "follow" in options.only:
        measure.on_a_broker(lambda server, directory: follow(bench_worker.Bench(server, directory, options)))


if __name__ == "__main__":
    main()
