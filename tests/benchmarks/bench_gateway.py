"""The gateway's processor time for a request of 25 kB and for an event, compared with a bare proxy and other gateways.

    python tests/benchmarks/bench_gateway.py [--rounds 7] [--peers PYTHON] [--portkey start-server.js]

Provider, proxies and client are processes of their own on the loopback address. The client sends the same requests to
each side in turn; the measure is the processor time of the proxy's processes, so other work on the machine does not
count. ``new``: every request is the first of its conversation and needs no repair. ``known``: conversations that need
repair, each request with two messages more; the first request of each is not counted. ``moving``: the same with cache
breakpoints in the last two messages; the first two requests are not counted. ``event``: of streams whose events arrive
one by one, after a small request. ``published``: another gateway with ``publish = all``, including the time in which it
sends its records to a broker, but not the broker's. LiteLLM translates, checks keys and logs in its time. Latency is
that of requests that arrive at random times at a fixed rate.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import gateway_bodies
import measure
from bench_worker import apply_topics, cpu_seconds, percentiles, process, reknit
from gateway_sides import EVENTS

import broker as kafka_broker  # isort: skip - on the path that measure sets
import gateway_topics  # isort: skip - as above

HERE = Path(__file__).resolve().parent
PORTKEY = "BENCH_PORTKEY"
# One at a time: the requests of agents arrive seconds apart. With several, one wake-up serves several requests.
CONNECTIONS = 1
# Conversations whose requests take turns.
CONVERSATIONS = 8
# Most that the gateway takes, as a multiple of the bare proxy.
MOST_NEW, MOST_KNOWN, MOST_EVENT = 1.3, 2.2, 1.2
LEAST_OF_LITELLM, LEAST_OF_PORTKEY = 20.0, 3.0
# Requests of one measurement.
REQUESTS, REQUESTS_OF_LITELLM, STREAMS = 300, 30, 8
PACED_PER_SECOND, PACED_OF_LITELLM = 60.0, 5.0
# Seconds of a paced load on each side, and the turns in which the sides alternate.
PACED_SECONDS, PACED_TURNS = 8.0, 4
START_SECONDS = 120.0
# A gateway that takes less processor time than this in one such period has sent its records.
IDLE_SECONDS, IDLE_PERIOD_SECONDS = 0.002, 0.3
MESSAGES_PATH, CHAT_PATH = "/v1/messages", "/v1/chat/completions"
KEY = "sk-loopback"
PREFIX = "bench."


class FailedError(Exception):
    pass


class Side:
    """A proxy: its port, its processes, and what its requests need in addition.

    Args:
        port: of the proxy.
        pid: of its first process.
        prefix: of its paths.
        headers: in addition.
        works_later: it also works for a request after its answer.
    """

    def __init__(self, port, pid, prefix="", headers=(), *, works_later=False):
        self.port, self.pid, self.prefix, self.headers = port, pid, prefix, headers
        self._works_later = works_later

    def work(self, requests):
        """Send requests, and wait until its work for them is done."""
        asyncio.run(_closed_loop(self, requests))
        before = self.cpu()
        while self._works_later:
            time.sleep(IDLE_PERIOD_SECONDS)
            before, last = self.cpu(), before
            if before - last < IDLE_SECONDS:
                break

    def cpu(self):
        """Seconds of processor time so far, of all its processes."""
        return sum(_cpu_seconds(pid) for pid in _tree(self.pid))

    def request(self, path, body):
        lines = [
            f"POST {self.prefix}{path} HTTP/1.1", f"host: 127.0.0.1:{self.port}", "content-type: application/json",
            f"authorization: Bearer {KEY}", "anthropic-version: 2023-06-01", "user-agent: bench/1",
            "accept: application/json", f"content-length: {len(body)}", *self.headers, "", "",
        ]  # fmt: skip
        return "\r\n".join(lines).encode() + body


def _cpu_seconds(pid):
    """Return the processor time of a process so far, in steps of nanoseconds where the system counts them."""
    threads = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(thread[0]) for thread in threads) / 1e9 if threads else cpu_seconds(pid)


def _tree(pid):
    """Return a process and those that it has started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    started = [int(child) for file in children for child in file.read_text().split()]
    return [pid, *itertools.chain.from_iterable(map(_tree, started))]


class Connection:
    """One kept connection."""

    def __init__(self, port):
        self._port = port
        self._reader = self._writer = None

    async def ask(self, data):
        """Send a request and read the whole answer.

        Raises:
            FailedError: its status is no 200.
        """
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise FailedError(head.decode("latin-1"))
        if b"transfer-encoding: chunked" in head:
            await self._chunks()
        else:
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await self._reader.readexactly(int(length))
        if b"connection: close" in head:
            self.close()

    async def _chunks(self):
        size = 1
        while size:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            await self._reader.readexactly(size + 2)

    def close(self):
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def _closed_loop(side, requests):
    """Send requests over a few connections; each sends the next one after its answer."""
    waiting = iter(requests)

    async def work():
        connection = Connection(side.port)
        for request in waiting:
            await connection.ask(request)
        connection.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


async def _paced(side, requests, per_second):
    """Send requests at random times; return the milliseconds of each, from the time at which it was due."""
    chance = random.Random(1)  # noqa: S311  the same times for each side
    free = []

    async def one(request, due):
        connection = free.pop() if free else Connection(side.port)
        await connection.ask(request)
        free.append(connection)
        return (time.perf_counter() - due) * 1000

    due, tasks = time.perf_counter(), []
    for request in requests:
        due += chance.expovariate(per_second)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(request, due)))
    took = await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return took


def cpu_of(side, requests):
    """Return the seconds of processor time that a side takes for each of these requests."""
    before = side.cpu()
    side.work(requests)
    return (side.cpu() - before) / len(requests)


# -- loads --------------------------------------------------------------------------------------------------------


class Loads:
    """Requests that no side has got before: a conversation is new to each side once."""

    def __init__(self):
        self._seed = itertools.count()

    def new(self, side, count):
        return [side.request(MESSAGES_PATH, gateway_bodies.whole(next(self._seed))) for _ in range(count)]

    def streams(self, side, count):
        return [side.request(MESSAGES_PATH, gateway_bodies.streaming(next(self._seed))) for _ in range(count)]

    def chat(self, side, count):
        return [side.request(CHAT_PATH, gateway_bodies.chat(next(self._seed))) for _ in range(count)]

    def known(self, side, count, make=gateway_bodies.conversation, path=MESSAGES_PATH, *, first=1):
        """Return the ``first`` requests of a few conversations, and those that follow, the conversations in turn."""
        bodies = [make(next(self._seed)) for _ in range(CONVERSATIONS)]
        while sum(len(each) - first for each in bodies) < count:
            bodies.append(make(next(self._seed)))
        requests = [[side.request(path, body) for body in each] for each in bodies]
        later = itertools.chain.from_iterable(zip(*(each[first:] for each in requests), strict=True))
        return list(itertools.chain.from_iterable(each[:first] for each in requests)), list(later)


def _new(loads, side):
    return cpu_of(side, loads.new(side, REQUESTS))


def _known(loads, side, *make, first=1):
    before, later = loads.known(side, REQUESTS, *make, first=first)
    cpu_of(side, before)
    return cpu_of(side, later)


def _moving(loads, side):
    return _known(loads, side, gateway_bodies.moving_conversation, first=2)


def _known_chat(loads, side):
    return _known(loads, side, gateway_bodies.chat_conversation, CHAT_PATH)


def _event(loads, side):
    return cpu_of(side, loads.streams(side, STREAMS)) / EVENTS


def _chat(loads, side, count=REQUESTS):
    return cpu_of(side, loads.chat(side, count))


# -- sides --------------------------------------------------------------------------------------------------------


@contextmanager
def running(command, log, port, **options):
    """Run a proxy until its port accepts connections, and stop it at the end."""
    with process(command, log) as started:
        until = time.monotonic() + START_SECONDS
        side = Side(port, started.pid, **options)
        while True:
            try:
                asyncio.run(_closed_loop(side, [side.request(CHAT_PATH, gateway_bodies.chat(0))]))
            except (OSError, FailedError, asyncio.IncompleteReadError) as error:
                if time.monotonic() > until or started.poll() is not None:
                    raise FailedError(f"{command[0]} does not answer: {error}; see {log}") from error
                time.sleep(0.2)
            else:
                break
        yield side


def _role(role, log, *more):
    port = kafka_broker.free_port()
    command = [sys.executable, str(HERE / "gateway_sides.py"), role, str(port), *more]
    return running(command, log, port)


def _gateway(directory, url, *more, metrics_port=0, **options):
    port = kafka_broker.free_port()
    command = reknit("serve", "--to", url, "--listen", f"127.0.0.1:{port}", "--metrics-port", str(metrics_port))
    return running(
        [*command, "--state-dir", str(directory / "state"), *more], directory / "reknit.log", port, **options
    )


@contextmanager
def _publishing_gateway(directory, url):
    """A gateway with ``publish = all`` and its broker.

    Raises:
        FailedError: at the end, it has not published everything.
    """
    directory.mkdir()
    server = kafka_broker.Broker(directory / "kafka", heap="1g")
    with ExitStack() as stack:
        stack.callback(server.kill)
        server.start()
        apply_topics(server.bootstrap, PREFIX)
        config = directory / "reknit.toml"
        config.write_text(gateway_topics.settings(server.bootstrap, PREFIX))
        port = kafka_broker.free_port()
        side = stack.enter_context(
            _gateway(directory, url, "--config", str(config), metrics_port=port, works_later=True)
        )
        yield side
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=START_SECONDS) as answer:
            page = answer.read().decode()
    if not gateway_topics.metric(page, "reknit_serve_log_records_total") or "log_lost_total{" in page:
        raise FailedError("the gateway has not published everything")


def _litellm(python, directory, url):
    """LiteLLM's proxy with one worker and no database, from the environment of a Python."""
    port, config = kafka_broker.free_port(), directory / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: gpt-4o\n    litellm_params:\n"
        f"      {{model: openai/gpt-4o, api_base: '{url}/v1', api_key: {KEY}}}\n"
        "litellm_settings: {num_retries: 0, telemetry: false}\n"
        f"general_settings: {{disable_spend_logs: true, master_key: {KEY}}}\n"
    )
    command = [str(Path(python).with_name("litellm")), "--config", str(config), "--host", "127.0.0.1"]
    command = ["env", "LITELLM_LOCAL_MODEL_COST_MAP=True", *command, "--port", str(port), "--num_workers", "1"]
    return running(command, directory / "litellm.log", port)


def _portkey(script, directory, url):
    port = kafka_broker.free_port()
    command = ["env", "NODE_ENV=production", "node", script, f"--port={port}", "--headless"]
    headers = ("x-portkey-provider: openai", f"x-portkey-custom-host: {url}/v1")
    return running(command, directory / "portkey.log", port, headers=headers)


# -- findings -----------------------------------------------------------------------------------------------------


def against_bare(what, work, loads, ours, bare, *, rounds, most=None):
    """Compare the gateway with the bare proxy: the median of the ratios of pairs."""
    pairs = [(work(loads, bare), work(loads, ours)) for _ in range(rounds)]
    ratio = statistics.median(mine / other for other, mine in pairs)
    other, mine = (statistics.median(values) for values in zip(*pairs, strict=True))
    measure.report(
        what=f"gateway, CPU of {what}",
        ours=measure.duration(mine),
        theirs=f"bare aiohttp proxy {measure.duration(other)}",
        ratio=f"{ratio:.2f} times",
        **({} if most is None else {"budget": f"at most {most:g} times", "met": ratio <= most}),
    )


def against_peer(name, loads, ours, peer, *, rounds, count, least):
    """Compare requests per core with those of another gateway, which knows no conversations."""
    _chat(loads, peer, count)
    works = {"known conversations": _known_chat, "new conversations": _chat}
    took = {"peer": [], **{what: [] for what in works}}
    for _ in range(rounds):
        took["peer"].append(_chat(loads, peer, count))
        for what, work in works.items():
            took[what].append(work(loads, ours))
    for what in works:
        other, mine = statistics.median(took["peer"]), statistics.median(took[what])
        measure.report(
            what=f"gateway, requests of 25 kB (Chat Completions, {what}) per core",
            ours=f"{1 / mine:,.0f}/s ({measure.duration(mine)})",
            theirs=f"{name} {1 / other:,.0f}/s ({measure.duration(other)})",
            **measure.as_fast(statistics.median(b / a for a, b in zip(took[what], took["peer"], strict=True)), least),
        )


def latency(name, side, bare, work, *, per_second=PACED_PER_SECOND):
    """Report the latency under a paced load, next to the bare proxy's."""
    count, took = int(per_second * PACED_SECONDS / PACED_TURNS), {bare: [], side: []}
    for _ in range(PACED_TURNS):
        for each in took:
            took[each] += asyncio.run(_paced(each, work(each, count), per_second))
    p50 = statistics.median(took[side]) - statistics.median(took[bare])
    measure.report(
        what=f"{name}, latency at {per_second:g} requests/s",
        ours=percentiles(took[side]),
        theirs=f"bare aiohttp proxy {percentiles(took[bare])}",
        ratio=f"{p50:+.1f} ms (p50)",
    )


def publishing(options, directory, loads, url, bare):
    """Compare a gateway that publishes everything with the bare proxy, where a broker can be started."""
    missing = kafka_broker.missing_tools()
    if missing is not None:
        measure.say(f"nothing is published: {missing}")
        return
    with _publishing_gateway(directory, url) as ours:
        _new(loads, ours)  # warms up
        run = functools.partial(against_bare, loads=loads, ours=ours, bare=bare, rounds=options.rounds)
        run("an unchanged request of a new conversation, published", _new)
        run("a request of a known conversation that needs repair, published", _known)
        run("a stream's event, published", _event)


def _paced_known(loads, side, count):
    first, later = loads.known(side, count)
    cpu_of(side, first)
    return later[:count]


def compare(options, directory):
    loads = Loads()
    with ExitStack() as stack:
        provider = stack.enter_context(_role("provider", directory / "provider.log"))
        url = f"http://127.0.0.1:{provider.port}"
        bare = stack.enter_context(_role("bare", directory / "bare.log", url))
        ours = stack.enter_context(_gateway(directory, url))
        for side in (bare, ours):
            _new(loads, side)  # warms up
        run = functools.partial(against_bare, loads=loads, ours=ours, bare=bare, rounds=options.rounds)
        run("an unchanged request of a new conversation", _new, most=MOST_NEW)
        run("a request of a known conversation that needs repair", _known, most=MOST_KNOWN)
        run("a request of a known conversation whose cache breakpoints move", _moving, most=MOST_KNOWN)
        run("a stream's event", _event, most=MOST_EVENT)
        publishing(options, directory / "published", loads, url, bare)
        latency("gateway, unchanged", ours, bare, loads.new)
        latency("gateway, known conversation", ours, bare, functools.partial(_paced_known, loads))
        if Path(options.peers).with_name("litellm").exists():
            with _litellm(options.peers, directory, url) as peer:
                count = REQUESTS_OF_LITELLM
                against_peer("LiteLLM", loads, ours, peer, rounds=3, count=count, least=LEAST_OF_LITELLM)
                latency("LiteLLM", peer, bare, loads.chat, per_second=PACED_OF_LITELLM)
        if options.portkey:
            with _portkey(options.portkey, directory, url) as peer:
                against_peer("Portkey", loads, ours, peer, rounds=3, count=REQUESTS, least=LEAST_OF_PORTKEY)
                latency("Portkey", peer, bare, loads.chat)


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--portkey",
        default=os.environ.get(PORTKEY, ""),
        help=f"build/start-server.js of @portkey-ai/gateway  [env: {PORTKEY}]",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        compare(options, Path(directory))


if __name__ == "__main__":
    main()
