"""A gateway in front of real brokers and a worker: each exchange is in the topics once and in order."""

import asyncio
import contextlib
import hashlib
from collections import Counter
from itertools import chain

import aiohttp
import gateway_topics
import pipeline_lab as lab
import pytest
from aiohttp import web
from build import answered, called, result, said, text, user
from gateway_faults import GatewayProcess, content_digest
from gateway_topics import STOPPED, WHOLE
from sender_runs import anthropic

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
        self.received.append(body)
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


class Clients:
    """Conversations through the gateway, and what each client received."""

    def __init__(self, gateway, http):
        self._url = gateway.url
        self._http = http
        self.has_begun = asyncio.Event()
        self.sessions, self.whole = {}, {}

    async def ask(self, name, messages):
        """Send one request; note its id and its answer if that is whole."""
        body = {"model": "claude-sonnet-4-0", "max_tokens": 64, "stream": True, "messages": messages}
        headers = {"x-api-key": "k", "x-session-id": name}
        async with self._http.post(self._url, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            run = response.headers["x-reknit-request-id"]
            self.sessions[run], self.whole[run] = name, None
            self.has_begun.set()
            self.whole[run] = await response.read()

    async def converse(self, name, turns):
        """Continue a conversation request by request."""
        for length in turns:
            await self.ask(name, history(name)[:length])

    def exchanges(self):
        """Return the exchanges; one without a whole answer was broken by a kill."""
        for run, data in self.whole.items():
            digest, end = ("", STOPPED) if data is None else (hashlib.sha256(data).hexdigest(), WHOLE)
            yield gateway_topics.Exchange(
                session=self.sessions[run], run=run, ends=frozenset({end}), digest=digest, is_hit=data is None, texts=1
            )


def history(name):
    """A conversation; every second one is broken, with a late result, or has a signature that is refused."""
    number = int(name[1:])
    thought = {"type": "thinking", "thinking": "Hm.", "signature": REFUSED if number == 1 else "EpwBFINE"}
    first = {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]}
    after = user("no result") if number % 2 else answered(f"toolu_{number}")
    turns = [
        user(f"hello {name}"),
        first,
        user("go on"),
        called(f"toolu_{number}"),
        after,
        said("Done."),
        user(result(f"toolu_{number}", "late"), text("more")) if number % 2 else user("more"),
    ]
    return [*turns, said("More."), user("last")]


async def test_exchanges_are_in_the_topics_once_and_in_order_across_kills_and_an_outage(
    own_broker, prefix, tmp_path, free_port, provider
):
    bootstrap = own_broker.bootstrap
    state, found = tmp_path / "serve", gateway_topics.Topics()
    state.mkdir()
    async with aiohttp.ClientSession() as http, lab.workers(bootstrap, prefix, tmp_path / "w", free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        settings = gateway_topics.settings(bootstrap, prefix)
        async with GatewayProcess(provider.url, state, settings).running() as gateway:
            clients = Clients(gateway, http)
            await asyncio.gather(*[clients.converse(name, [1, 3]) for name in CONVERSATIONS])
            # Killed while it relays an answer.
            provider.held.clear()
            clients.has_begun.clear()
            broken = asyncio.create_task(clients.ask("c0", history("c0")[:5]))
            await clients.has_begun.wait()
            await until_written(found, bootstrap, prefix, runs=len(clients.whole))
            await gateway.kill()
            with pytest.raises(aiohttp.ClientError):
                await broken
            provider.held.set()
            await gateway.start()
            await asyncio.gather(*[clients.converse(name, [5, 7]) for name in CONVERSATIONS])
            # Killed while no broker answers.
            await lab.drained(bootstrap, prefix)
            await asyncio.to_thread(own_broker.stop)
            await asyncio.gather(*[clients.converse(name, [9]) for name in CONVERSATIONS])
            await gateway.kill()
            await gateway.start()
            await asyncio.to_thread(own_broker.start)
            await clients.ask("c0", [*history("c0"), said("Bye."), user("bye")])
            await until_written(found, bootstrap, prefix, ends=len(clients.whole))
            await gateway.stop()
            await lab.drained(bootstrap, prefix)
            _, counted = worker.ask("/metrics")
    await gateway_topics.read(found, bootstrap, prefix, *gateway_topics.AUDITED)
    check(found, clients, provider, counted)


async def until_written(found, bootstrap, prefix, *, runs=0, ends=0):
    """Wait until the brokers have records of N runs, and the ends of N runs."""
    is_written = await gateway_topics.read_events(
        found, bootstrap, prefix, lambda topics: len(topics.runs) >= runs and topics.ended >= ends
    )
    assert is_written, (len(found.runs), runs, found.ended, ends)


def check(found, clients, provider, counted):
    """Compare the topics with what clients and provider have seen."""
    assert gateway_topics.faults(found, list(clients.exchanges())) == []
    assert Counter(run.end for run in found.runs.values()) == {WHOLE: len(clients.whole) - 1, STOPPED: 1}
    assert Counter(chain.from_iterable(found.published.values())) == Counter(list(clients.whole))
    assert sorted(found.bodies.values()) == sorted(map(content_digest, provider.received))
    assert (len(found.texts), set(found.texts.values())) == (len(clients.whole), {1})
    assert gateway_topics.metric(counted, "reknit_gateway_mismatch_total") == 0
