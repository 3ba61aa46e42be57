"""The viewer's bounds in seconds: the delay that hostile visitors cause, and the time until a page shows a fault.

    python tests/benchmarks/bench_visitors.py [--only searches connections states] [--sessions 20000]

``searches``: eight visitors search again and again, first with the largest search that is taken, then with one that
never ends by itself, while every other kind of page is asked for. ``connections``: 900 half-open requests.
``states``: on a real Kafka a broker is frozen, and a worker is killed with records that wait, until the header of a
page no longer says that the pipeline keeps up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

import measure

# isort: split
import aiohttp
import bench_worker
import msgspec
from aiokafka import AIOKafkaProducer
from bench_viewer import CODES, LONG, SHORT, WORDS, answer_ms, filled_index, whole_topics
from build import user
from published_records import OPENED, appended
from viewer_lab import served

from reknit.pipeline.config import load_config
from reknit.pipeline.viewer import overview, pools
from reknit.pipeline.viewer.addresses import session_path, with_query
from reknit.pipeline.viewer.guard import Guard
from reknit.pipeline.viewer.index import sessions
from reknit.pipeline.viewer.index.search import MOST_WORDS, Search
from reknit.pipeline.viewer.server import run_viewer
from reknit.pipeline.web import IDLE_SECONDS
from reknit.topics import AGENT_TURNS

PARTS = ("searches", "connections", "states")
VISITORS, HALF_OPEN = 8, 900
# The most that a hostile visitor may cost another page.
DELAY_MS = 200
ROUNDS = 40
NOTICED_SECONDS = 10
ENDLESS = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
OTHERS = {
    "overview": "/?span=30d",
    "sessions": "/sessions",
    "a session": session_path(SHORT),
    "a session of 5,000 turns": session_path(LONG),
    "a stream": session_path("sub-agent", "stream"),
    "dead letters": "/letters",
    "a code explained": f"/explain/{CODES[0]}",
    "the header": "/progress?part=header",
}


def endless(reader, wanted, *rest):
    """A search that ends only by being stopped, in place of the real one."""
    return sessions.sessions(reader, wanted, *rest) if wanted == Search() else reader.rows(ENDLESS)


@contextlib.asynccontextmanager
async def visitors(url, path):
    """Visitors who ask for this again and again."""
    async with aiohttp.ClientSession() as http:

        async def ask():
            while True:
                async with http.get(url + path) as answer:
                    await answer.read()

        asking = [asyncio.create_task(ask()) for _ in range(VISITORS)]
        await asyncio.sleep(0.5)
        try:
            yield
        finally:
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)


async def delays(http, url, alone, what, path):
    """How much later each other page comes while visitors ask for this."""
    async with visitors(url, path):
        for name, page in OTHERS.items():
            took = [await answer_ms(http, url + page) for _ in range(ROUNDS)]
            p99 = statistics.quantiles(took, n=100)[98]
            later = max(statistics.median(took) - alone[name][0], p99 - alone[name][1])
            measure.report(
                what=f"viewer, page beside {VISITORS} visitors with {what}: {name}",
                ours=bench_worker.percentiles(took),
                theirs=f"alone {alone[name][0]:.0f} ms, p99 {alone[name][1]:.0f} ms",
                ratio=f"{later:.0f} ms later",
                budget=f"at most {DELAY_MS} ms",
                met=later <= DELAY_MS,
            )


def report_seconds(what, seconds, budget, theirs=""):
    measure.report(
        what=what,
        ours=f"{seconds:.1f} s",
        theirs=theirs or f"{budget:g} s",
        ratio=f"{seconds / budget:.2f} of it",
        budget="at most 1",
        met=seconds <= budget,
    )


async def searches(sessions):
    largest = with_query("/sessions", q=" ".join(WORDS[:MOST_WORDS]), session="tenant-7/session-00")
    with tempfile.TemporaryDirectory() as directory:
        topics = whole_topics()
        index = filled_index(Path(directory) / "index", sessions, topics)
        async with served(topics, None, index=index) as address, aiohttp.ClientSession() as http:
            url = address.rstrip("/")
            alone = {}
            for name, page in OTHERS.items():
                took = [await answer_ms(http, url + page) for _ in range(ROUNDS)]
                alone[name] = statistics.median(took), statistics.quantiles(took, n=100)[98]
            await delays(http, url, alone, f"a search of {MOST_WORDS} words", largest)
            overview.sessions = endless
            try:
                await delays(http, url, alone, "a search without end", "/sessions?q=a")
                since = time.perf_counter()
                async with http.get(f"{url}/sessions?q=a") as answer:
                    await answer.read()
                report_seconds(
                    "viewer, a search without end is stopped", time.perf_counter() - since, pools.SECONDS * 1.1
                )
            finally:
                overview.sessions = sessions.sessions


async def connections():
    with tempfile.TemporaryDirectory() as directory:
        async with served(whole_topics(), Path(directory) / "index") as address, aiohttp.ClientSession() as http:
            url = address.rstrip("/")
            port = int(url.rpartition(":")[2])
            since = time.perf_counter()
            begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(HALF_OPEN)]
            for _, writing in begun:
                writing.write(b"GET / HTTP/1.1\r\nHo")
            took = [await answer_ms(http, f"{url}/sessions") for _ in range(ROUNDS)]
            await asyncio.gather(*(reading.read() for reading, _ in begun))
            seconds = time.perf_counter() - since
            for _, writing in begun:
                writing.close()
    report_seconds(f"viewer, {HALF_OPEN} half-open requests are closed", seconds, IDLE_SECONDS * 1.2)
    p99 = statistics.quantiles(took, n=100)[98]
    measure.report(
        what=f"viewer, list of sessions beside {HALF_OPEN} half-open requests",
        ours=bench_worker.percentiles(took),
        theirs=f"{DELAY_MS} ms",
        ratio=f"{p99 / DELAY_MS:.2f} of it",
        budget="at most 1",
        met=p99 <= DELAY_MS,
    )


class Header:
    """The header of a page."""

    def __init__(self, http, url):
        self._http, self._url = http, f"{url}progress?part=header"

    async def until(self, holds):
        """Seconds until this holds of its text."""
        since = time.perf_counter()
        while time.perf_counter() - since < 120:
            async with self._http.get(self._url) as answer:
                text = await answer.text()
            if holds(text):
                return time.perf_counter() - since
            await asyncio.sleep(0.05)
        raise bench_worker.FailedError(f"the header does not say it: {text}")


async def states(server, directory, options):
    bench = bench_worker.Bench(server, directory, options)
    prefix = bench.fresh()
    bench_worker.apply_topics(bench.bootstrap, prefix)
    config = load_config(env={}, overrides={"bootstrap_servers": bench.bootstrap, "prefix": prefix})
    url = asyncio.get_running_loop().create_future()
    viewer = asyncio.create_task(
        run_viewer(config, Guard(), index_file=directory / "viewer.sqlite", on_start=url.set_result)
    )
    command = bench_worker.worker_command(bench.bootstrap, prefix, "exactly-once", directory)
    try:
        async with aiohttp.ClientSession() as http:
            header = Header(http, await url)
            with bench_worker.process(command, directory / "worker.log") as worker:
                await send(bench.bootstrap, prefix, 10)
                await header.until(lambda text: "keeps up" in text)
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    frozen = await header.until(lambda text: "keeps up" not in text)
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                await header.until(lambda text: "keeps up" in text)
                worker.kill()
                await send(bench.bootstrap, prefix, 1000)
                dead = await header.until(lambda text: "keeps up" not in text)
                named = dead + await header.until(lambda text: "no worker" in text)
    finally:
        viewer.cancel()
        await asyncio.wait([viewer])
    report_seconds("viewer, from a frozen broker to the header", frozen, NOTICED_SECONDS)
    report_seconds("viewer, from a killed worker with records that wait to the header", dead, NOTICED_SECONDS)
    session = config.session_seconds
    report_seconds(f"the same, until it says that there is none (session of {session:g} s)", named, session + 10)


async def send(bootstrap, prefix, count):
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(count):
            for record in (OPENED, *appended(user("hello"))):
                await producer.send(prefix + AGENT_TURNS, msgspec.json.encode(record), b"s%d" % number)


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sessions", type=int, default=20_000)
    options = parser.parse_args()
    if "searches" in options.only:
        asyncio.run(searches(options.sessions))
    if "connections" in options.only:
        asyncio.run(connections())
    if "states" in options.only:
        measure.on_a_broker(lambda server, directory: states(server, directory, options))


if __name__ == "__main__":
    main()
