"""`reknit send` on a real broker: two senders of one group, a killed sender, and failing answers."""

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter

import aiohttp
import harness
import pipeline_lab as lab
import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer
from sender_runs import anthropic, request
from stand_in import Provider, serving

from reknit.client import Brokers, Events, Requests, Turns, View
from reknit.pipeline.client.sender import Http, Sender
from reknit.pipeline.stages.base import Record
from reknit.pipeline.streams.session import Recovery
from reknit.topics import PROVIDER_EVENTS, PROVIDER_REQUESTS
from reknit.topics import headers as names

pytestmark = pytest.mark.broker

SECRET = "sk-ant-4711"  # noqa: S105  not a real one
SESSIONS = [f"s{number}" for number in range(12)]


class Endpoint:
    """A provider. A request's body names it, so that a test can script the answers to each request."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.arrived = asyncio.Semaphore(0)
        self.held = asyncio.Event()
        self.answers: dict[str, object] = {}

    async def answer(self, given: web.Request) -> web.StreamResponse:
        asked = (await given.json())["id"]
        self.asked.append(asked)
        self.arrived.release()
        answers = self.answers.get(asked)
        if answers:
            return await answers.pop(0)(given)
        return await self.stream(given, asked)

    async def stream(self, given: web.Request, asked: str, pieces: int = 6) -> web.StreamResponse:
        """Stream an answer, which is held after its first two events."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(given)
        events = anthropic(text=f"answer to {asked}", message_id=f"m-{asked}-{len(self.asked)}")
        for number, event in enumerate(events[:pieces]):
            if number == 2:
                await self.held.wait()
            await response.write(event)
        return response


@contextlib.asynccontextmanager
async def topics(broker, prefix, **settings):
    """Topics of a pipeline, and a function that publishes requests in place of a worker."""
    await harness.make_topics(broker.bootstrap, [prefix + PROVIDER_REQUESTS], lab.PARTITIONS)
    await harness.make_topics(broker.bootstrap, [prefix + PROVIDER_EVENTS], lab.PARTITIONS, **settings)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await producer.start()

    async def publish(*made):
        for each in made:
            body = json.dumps({"id": each.headers.request_id}).encode()
            headers = list(names.encode(each.headers))
            await producer.send_and_wait(prefix + PROVIDER_REQUESTS, body, key=each.session.encode(), headers=headers)

    try:
        yield Brokers(bootstrap_servers=broker.bootstrap, prefix=prefix), publish
    finally:
        await producer.stop()


@contextlib.asynccontextmanager
async def sender(brokers, url, **options):
    """Run a sender of the group in this process; yield its task."""
    async with (
        aiohttp.ClientSession() as http,
        Requests(brokers, group="senders") as requests,
        Events(brokers, "anthropic") as events,
    ):
        route = Http(http, url, {"x-api-key": SECRET})
        running = asyncio.create_task(Sender(requests, events, route, target="anthropic", **options).run())
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def process(brokers, url, *options):
    """Run a sender of the group as a process."""
    environment = {
        "REKNIT_BOOTSTRAP_SERVERS": brokers.bootstrap_servers,
        "REKNIT_PREFIX": brokers.prefix,
        "KEY": SECRET,
    }
    command = (sys.executable, "-m", "reknit", "send", "--to", url, "--group", "senders")
    started = await asyncio.create_subprocess_exec(
        *command, "--secret-header", "x-api-key=KEY", *options, env=os.environ | environment, stdout=-1, stderr=-1
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.communicate()


async def events_of(brokers):
    """Records of provider.events by session, in order."""
    found: dict[str, list[Record]] = {}
    for part in await harness.read_all(brokers.bootstrap_servers, brokers.prefix + PROVIDER_EVENTS, lab.PARTITIONS):
        for record in part:
            found.setdefault(record.key.decode(), []).append(record)
    return found


def ends_of(records):
    return [dict(record.headers)["exit"].decode() for record in records if record.value is None]


def shown(records):
    """Texts on a screen, each with whether it is incomplete."""
    recovery, items = Recovery("anthropic"), []
    for record in records:
        headers = dict(record.headers)
        run = headers["run"].decode()
        items += recovery.end_run("end") if record.value is None else recovery.feed(record.value, run, framing="bytes")
    screen = View()
    for item in items:
        screen.apply(item)
    return [(entry.text, entry.incomplete) for entry in screen.blocks("text")]


async def until_ended(brokers, sessions, runs=1):
    """Wait until this number of runs has ended in each session; return the events by session."""
    async with asyncio.timeout(240):
        while True:
            found = await events_of(brokers)
            if all(len(ends_of(found.get(session, []))) >= runs for session in sessions):
                return found
            await asyncio.sleep(0.1)


async def committed(brokers):
    """The group's committed offsets by partition."""
    name = f"{brokers.prefix}senders"
    return await harness.committed(brokers.bootstrap_servers, name, brokers.prefix + PROVIDER_REQUESTS)


async def until_all_committed(brokers):
    """Wait until the group has committed every request."""
    parts = await harness.read_all(brokers.bootstrap_servers, brokers.prefix + PROVIDER_REQUESTS, lab.PARTITIONS)
    ends = {number: part[-1].offset + 1 for number, part in enumerate(parts) if part}
    async with asyncio.timeout(240):
        while await committed(brokers) != ends:  # noqa: ASYNC110  a broker cannot set an event
            await asyncio.sleep(0.1)


def a_request(name, session, **more):
    return request(name, session, offset=0, **more)


async def test_of_two_senders_each_answers_the_requests_of_its_partitions(broker, prefix):
    provider = Endpoint()
    async with topics(broker, prefix) as (brokers, publish), serving(provider) as url, sender(brokers, url):
        await publish(*(a_request(f"a-{session}", session) for session in SESSIONS))
        for _ in SESSIONS:
            await asyncio.wait_for(provider.arrived.acquire(), 240)
        # All answers have begun when the second sender joins; requests of the partitions that it gets are sent again.
        async with sender(brokers, url):
            await asyncio.wait_for(provider.arrived.acquire(), 240)
            provider.held.set()
            await until_ended(brokers, SESSIONS)
            await publish(*(a_request(f"b-{session}", session) for session in SESSIONS))
            await until_ended(brokers, SESSIONS, 2)
            await until_all_committed(brokers)
        await publish(*(a_request(f"c-{session}", session) for session in SESSIONS))
        found = await until_ended(brokers, SESSIONS, 3)
        await until_all_committed(brokers)
    times = Counter(provider.asked)
    assert {name for name, count in times.items() if count > 1} <= {f"a-{session}" for session in SESSIONS}
    assert max(times.values()) == 2
    assert len(provider.asked) < 4 * len(SESSIONS)  # some partitions stayed, and so did their answers
    for session in SESSIONS:
        assert ends_of(found[session]) == ["end of stream"] * 3
        assert shown(found[session]) == [(f"answer to {name}-{session}", False) for name in "abc"]


async def test_a_sender_that_is_killed_leaves_what_it_was_sending_and_nothing_that_was_done(broker, prefix):
    provider = Endpoint()
    async with topics(broker, prefix) as (brokers, publish), serving(provider) as url:
        done = [f"d{number}" for number in range(8)]
        async with process(brokers, url) as killed:
            # Each partition has requests that wait before requests that are answered.
            await publish(*(a_request(f"a-{session}", session) for session in SESSIONS))
            for _ in SESSIONS:
                await asyncio.wait_for(provider.arrived.acquire(), 240)
            provider.answers = {f"b-{session}": [at_once] for session in done}
            await publish(*(a_request(f"b-{session}", session) for session in done))
            found = await until_ended(brokers, done)
            async with asyncio.timeout(240):
                while any(len(found.get(session, [])) < 1 for session in SESSIONS):
                    found = await events_of(brokers)
            await asyncio.sleep(0.5)  # for the commits
            killed.kill()
            await killed.wait()
        assert not any(ends_of(found[session]) for session in SESSIONS)
        provider.held.set()
        async with process(brokers, url) as following:
            found = await until_ended(brokers, [*SESSIONS, *done])
            await until_all_committed(brokers)
            following.terminate()
            said, words = await asyncio.wait_for(following.communicate(), 240)
    assert (following.returncode, said) == (0, b"")
    assert SECRET.encode() not in words
    assert Counter(provider.asked) == {
        **{f"a-{session}": 2 for session in SESSIONS},
        **{f"b-{session}": 1 for session in done},
    }
    for session in SESSIONS:
        assert shown(found[session]) == [(f"answer to a-{session}", False)]
    for session in done:
        assert shown(found[session]) == [("at once", False)]


async def at_once(given):
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(given)
    await response.write(b"".join(anthropic(text="at once")))
    return response


async def test_no_failure_of_an_answer_leaves_its_session_without_the_next_one(broker, prefix):
    provider, other = Endpoint(), Endpoint()
    provider.held.set()

    async def cut(given):
        return await provider.stream(given, "cut", pieces=4)

    async def cut_early(given):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(given)
        await response.write(anthropic()[0][:30])
        return response

    async def large(_given):
        return web.Response(status=400, body=b"x" * 70_000_000)

    async def later(_given):
        return web.Response(status=429, headers={"retry-after": "300"})

    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    async with topics(broker, prefix) as (brokers, publish), serving(provider) as url, serving(other) as elsewhere:

        async def redirect(_given):
            return web.Response(status=307, headers={"location": f"{elsewhere}?{SECRET}"})

        answers = {"redirect": redirect, "cut": cut, "early": cut_early, "large": large, "later": later}
        provider.answers = {name: [answer] for name, answer in answers.items()}
        async with sender(brokers, url, sleep=sleep):
            await publish(*(a_request(name, name) for name in answers))
            await publish(*(a_request(f"{name}-next", name) for name in answers))
            found = await until_ended(brokers, answers, 2)
            await until_all_committed(brokers)
    host = elsewhere.removeprefix("http://").partition("/")[0]
    assert {name: ends_of(records)[0] for name, records in found.items()} == {
        "redirect": f"HTTP 307: redirect to {host}, which is not followed",
        "cut": "cut: no final event",
        "early": "end of stream",
        "large": "HTTP 400",
        "later": "end of stream",
    }
    assert other.asked == []
    assert max(waits) == 300.0
    assert shown(found["cut"]) == [("answer to cut", True), ("answer to cut-next", False)]
    assert shown(found["early"]) == [("answer to early", False), ("answer to early-next", False)]
    assert all(shown(records)[-1] == (f"answer to {name}-next", False) for name, records in found.items())
    assert not any(SECRET.encode() in (record.value or b"") for records in found.values() for record in records)


async def test_a_topic_that_refuses_an_answer_ends_the_process_with_2(broker, prefix):
    provider = Endpoint()
    provider.held.set()
    async with topics(broker, prefix, **{"max.message.bytes": "100"}) as (brokers, publish), serving(provider) as url:
        await publish(a_request("a", "s"))
        async with process(brokers, url) as running:
            said, words = await asyncio.wait_for(running.communicate(), 240)
        assert (running.returncode, said) == (2, b"")
        assert b"MESSAGE_SIZE_TOO_LARGE" in words or b"MessageSizeTooLargeError" in words
        assert SECRET.encode() not in words
        assert (await committed(brokers)).get(0, 0) == 0


async def test_a_log_that_mirrors_another_program_is_sent_only_what_waits(broker, prefix, tmp_path, free_port):
    provider = Provider()
    provider.refusals = 0
    more = "[requests]\nwithdraw = true\n"
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port, more=more) as fleet:
        await fleet.start().ready(60)
        brokers = Brokers(bootstrap_servers=broker.bootstrap, prefix=prefix)
        said = [{"role": role, "content": f"{role} {number}"} for number in (1, 2) for role in ("user", "assistant")]
        await ingest(brokers, "mirrored", said, "--mirror")
        await ingest(brokers, "answered", said)
        async with Turns(brokers) as turns, serving(provider) as url:
            await turns.append("mirrored", {"role": "user", "content": "by call"}, request=False)
            await turns.append("mirrored", {"role": "user", "content": "and now?"})
            async with Requests(brokers) as reader:
                found = [each async for each in taking(reader, 5)]
            async with sender(brokers, url):
                await until_ended(brokers, ["mirrored"])
                await turns.append("answered", {"role": "user", "content": "and now?"})
                await until_ended(brokers, ["answered"])
    by_session = {name: [each for each in found if each.session == name] for name in ("mirrored", "answered")}
    assert [each.headers.reason for each in by_session["mirrored"]] == ["turn"]
    ids = [each.headers.request_id for each in by_session["answered"]]
    assert [(each.headers.reason, each.body is None, each.headers.supersedes) for each in by_session["answered"]] == [
        *[("turn", False, names.UNSET), ("answered", True, ids[0])],
        *[("turn", False, names.UNSET), ("answered", True, ids[2])],
    ]
    assert [len(body["messages"]) for body in provider.asked] == [6, 5]


async def taking(reader, count):
    async with asyncio.timeout(240):
        async for found in reader:
            yield found
            count -= 1
            if not count:
                return


async def ingest(brokers, session, messages, *options):
    environment = {"REKNIT_BOOTSTRAP_SERVERS": brokers.bootstrap_servers, "REKNIT_PREFIX": brokers.prefix}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "reknit", "ingest", "turns", "--session", session, *options),
        env=os.environ | environment,
        stdin=-1,
        stderr=-1,
    )
    given = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    _, words = await asyncio.wait_for(process.communicate(given), 240)
    assert (process.returncode, f"{len(messages)} records" in words.decode()) == (0, True)
