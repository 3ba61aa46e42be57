"""A gateway in front of real brokers and a worker: each exchange is in the topics once and in order."""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter, defaultdict

import aiohttp
import harness
import pipeline_lab as lab
import pytest
from aiohttp import web
from build import answered, called, said, user
from sender_runs import anthropic

from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics.headers import RequestHeaders, decode

pytestmark = pytest.mark.broker

CONVERSATIONS = [f"c{number}" for number in range(6)]
REFUSED = "EpwBREFUSED1"
SENTENCE = "messages.1.content.0: Invalid `signature` in `thinking` block"


class Provider:
    """Answers with the number of the request, and refuses one signature."""

    def __init__(self):
        self.received = []
        self.held = asyncio.Event()
        self.held.set()

    async def answer(self, request):
        body = await request.read()
        if REFUSED in body.decode():
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": SENTENCE}}
            return web.json_response(error, status=400)
        self.received.append(json.loads(body))
        number = len(self.received)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events = anthropic(text=f"answer {number}", message_id=f"msg_{number}")
        await response.write(b"".join(events[:3]))
        await self.held.wait()
        with contextlib.suppress(ConnectionError):  # the gateway was killed
            for event in events[3:]:
                await response.write(event)
        return response


@pytest.fixture
async def provider():
    found = Provider()
    application = web.Application()
    application.router.add_post("/v1/messages", found.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


class Gateway(harness.WorkerProcess):
    """A gateway process on a fixed port, which can be started again."""

    def __init__(self, bootstrap, prefix, provider, directory, free_port):
        port, self.url = free_port(), f"http://127.0.0.1:{free_port()}"
        settings = directory / "serve.toml"
        settings.write_text(
            f'bootstrap_servers = "{bootstrap}"\nprefix = "{prefix}"\nstate_dir = "{directory}/serve"\n'
            f'metrics_port = {port}\n[serve]\npublish = "all"\nlisten = "{self.url.removeprefix("http://")}"\n'
        )
        command = [sys.executable, "-m", "reknit", "serve", "--config", str(settings), "--to", provider.url]
        super().__init__("gateway", command, directory / "gateway.log", port)


class Clients:
    """Conversations through the gateway, and what each client received."""

    def __init__(self, gateway, http):
        self._url = gateway.url
        self._http = http
        self.has_begun = asyncio.Event()
        self.whole = {}

    async def ask(self, name, messages):
        """Send one request; note its id and its answer if that is whole."""
        body = {"model": "claude-sonnet-4-0", "max_tokens": 64, "stream": True, "messages": messages}
        headers = {"x-api-key": "k", "x-session-id": name}
        async with self._http.post(f"{self._url}/v1/messages", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            self.whole[response.headers["x-reknit-request-id"]] = None
            self.has_begun.set()
            self.whole[response.headers["x-reknit-request-id"]] = await response.read()

    async def converse(self, name, turns):
        """Continue a conversation request by request."""
        for length in turns:
            await self.ask(name, history(name)[:length])


def history(name):
    """A conversation; every second one is broken or has a signature that is refused."""
    number = int(name[1:])
    thought = {"type": "thinking", "thinking": "Hm.", "signature": REFUSED if number == 1 else "EpwBFINE"}
    first = {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]}
    result = user("no result") if number % 2 else answered(f"toolu_{number}")
    turns = [
        user(f"hello {name}"),
        first,
        user("go on"),
        called(f"toolu_{number}"),
        result,
        said("Done."),
        user("more"),
    ]
    return [*turns, said("More."), user("last")]


async def deduplicated(bootstrap, prefix):
    """The records of each run by session, in order, each number once; with how many came twice."""
    runs, repeated = defaultdict(dict), 0
    for part in await harness.read_all(bootstrap, prefix + PROVIDER_EVENTS, lab.PARTITIONS):
        for record in part:
            headers = dict(record.headers)
            if "seq" not in headers:
                continue  # the worker's own
            run, seq = runs[record.key, headers["run"].decode()], int(headers["seq"])
            repeated += seq in run
            run.setdefault(seq, (record.value, headers.get("exit")))
    return runs, repeated


async def published(bootstrap, prefix):
    parts = await harness.read_all(bootstrap, prefix + PROVIDER_REQUESTS, lab.PARTITIONS)
    return [(decode(record.headers, RequestHeaders), json.loads(record.value)) for part in parts for record in part]


async def values(bootstrap, name):
    return [
        json.loads(record.value)
        for part in await harness.read_all(bootstrap, name, lab.PARTITIONS)
        for record in part
        if record.value is not None
    ]


async def test_exchanges_are_in_the_topics_once_and_in_order_across_kills_and_an_outage(
    own_broker, prefix, tmp_path, free_port, provider
):
    bootstrap = own_broker.bootstrap
    gateway = Gateway(bootstrap, prefix, provider, tmp_path, free_port)
    try:
        async with aiohttp.ClientSession() as http, lab.workers(bootstrap, prefix, tmp_path / "w", free_port) as fleet:
            worker = fleet.start()
            await worker.ready(60)
            gateway.start()
            await gateway.ready()
            clients = Clients(gateway, http)
            await asyncio.gather(*[clients.converse(name, [1, 3]) for name in CONVERSATIONS])
            # Killed while it relays an answer.
            provider.held.clear()
            clients.has_begun.clear()
            broken = asyncio.create_task(clients.ask("c0", history("c0")[:5]))
            await clients.has_begun.wait()
            await until_written(bootstrap, prefix, runs=len(clients.whole))
            gateway.kill()
            with pytest.raises(aiohttp.ClientError):
                await broken
            provider.held.set()
            gateway.start()
            await gateway.ready()
            await asyncio.gather(*[clients.converse(name, [5, 7]) for name in CONVERSATIONS])
            # Killed while no broker answers.
            await lab.drained(bootstrap, prefix)
            await asyncio.to_thread(own_broker.stop)
            await asyncio.gather(*[clients.converse(name, [9]) for name in CONVERSATIONS])
            gateway.kill()
            gateway.start()
            await gateway.ready()
            await asyncio.to_thread(own_broker.start)
            await clients.ask("c0", [*history("c0"), said("Bye."), user("bye")])
            await until_written(bootstrap, prefix, ends=len(clients.whole))
            assert await gateway.stop() == 0
            await lab.drained(bootstrap, prefix)
            _, counted = worker.ask("/metrics")
    finally:
        gateway.end()
    await check(bootstrap, prefix, clients, provider, counted)


async def until_written(bootstrap, prefix, *, runs=0, ends=0, seconds=60):
    """Wait until the brokers have records of N runs, and the ends of N runs."""
    deadline = harness.deadline_after(seconds)
    while True:
        found, _ = await deduplicated(bootstrap, prefix)
        ended = sum(any(end for _, end in records.values()) for records in found.values())
        if len(found) >= runs and ended >= ends:
            return
        assert time.monotonic() < deadline, (len(found), runs, ended, ends)
        await asyncio.sleep(0.5)


async def check(bootstrap, prefix, clients, provider, counted):
    """Compare the topics with what clients and provider have seen."""
    runs, _ = await deduplicated(bootstrap, prefix)
    by_run = {run: [each for _, each in sorted(found.items())] for (_, run), found in runs.items()}
    for (session, run), found in runs.items():
        assert sorted(found) == list(range(len(found))), (session, run)
    ends = Counter(found[-1][1] for found in by_run.values())
    assert ends == {b"end of stream": len(clients.whole) - 1, b"gateway stopped": 1}
    for request_id, data in clients.whole.items():
        written = b"".join(value for value, _ in by_run[request_id][:-1])
        assert written == data if data is not None else by_run[request_id][-1][1] == b"gateway stopped"
    requests = await published(bootstrap, prefix)
    assert Counter(headers.request_id for headers, _ in requests) == Counter(list(clients.whole))
    assert {headers.reason for headers, _ in requests} == {"sent"}

    def by_content(bodies):
        return sorted(json.dumps(body, sort_keys=True) for body in bodies)

    assert by_content(body for _, body in requests) == by_content(provider.received)
    assert await values(bootstrap, prefix + DEAD_LETTERS) == []
    items = [
        (record.key, json.loads(record.value))
        for part in await harness.read_all(bootstrap, prefix + SESSION_ITEMS, lab.PARTITIONS)
        for record in part
    ]
    texts = Counter((session, item["item_id"]) for session, item in items if item["type"] == "item/completed")
    assert (len(texts), set(texts.values())) == (len(clients.whole), {1})
    mismatches = [line for line in counted.splitlines() if line.startswith("reknit_gateway_mismatch_total{")]
    assert mismatches
    assert {line.rpartition(" ")[2] for line in mismatches} == {"0.0"}
    turns = [each for each in await values(bootstrap, prefix + AGENT_TURNS) if each["type"] == "turn.appended"]
    assert {(each["origin"], each["request"]) for each in turns} == {("gateway", False)}
