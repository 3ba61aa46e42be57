"""The client and the reference sender on a real broker: a question goes round, past a provider that fails at first."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import aiohttp
import harness
import pipeline_lab as lab
import pytest
from stand_in import Provider, serving

from reknit.client import Brokers, DeadLetters, Events, Fixes, Items, Requests, Turns, View
from reknit.pipeline.client.sender import Http, Program, Sender
from reknit.pipeline.errors import BrokerDownError, InputError
from reknit.topics import AGENT_TURNS
from reknit.topics.items import TurnStop
from reknit.topics.records import PolicyChange

pytestmark = pytest.mark.broker

OPENING = {"model": "claude-sonnet-4-5", "params": {"max_tokens": 100}, "policy": PolicyChange(record_assistant=True)}


@asynccontextmanager
async def sending(brokers, url, **options):
    async with (
        aiohttp.ClientSession() as http,
        Requests(brokers, group="senders") as requests,
        Events(brokers, "anthropic") as events,
    ):
        running = asyncio.create_task(
            Sender(requests, events, Http(http, url, {}), target="anthropic", **options).run()
        )
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def pipeline(broker, prefix, tmp_path, free_port):
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        await fleet.start().ready(60)
        yield Brokers(bootstrap_servers=broker.bootstrap, prefix=prefix)


async def shown_text(items, session):
    """Return a session's text on the screen once its turn has ended."""
    screen = View()
    async for shown in items:
        if shown.session == session and shown.item is not None:
            screen.apply(shown.item)
            if isinstance(shown.item, TurnStop):
                break
    return "".join(entry.text for entry in screen.blocks("text"))


async def test_a_trace_goes_from_a_turn_to_the_provider_and_to_all_outputs(broker, prefix, tmp_path, free_port):
    provider = Provider()
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
    async with (
        pipeline(broker, prefix, tmp_path, free_port) as brokers,
        serving(provider) as url,
        sending(brokers, url),
        Turns(brokers) as turns,
        Items(brokers) as items,
        Requests(brokers) as requests,
        Fixes(brokers) as fixes,
        DeadLetters(brokers) as letters,
    ):
        await turns.open("s", **OPENING)
        await turns.append("s", {"role": "nobody"}, trace=trace)
        texts = [{"type": "text", "text": words} for words in ("hi", " ")]
        await turns.append("s", {"role": "user", "content": texts}, trace=trace)
        found = [await asyncio.wait_for(anext(aiter(reader)), 240) for reader in (requests, fixes, letters)]
        assert [each.trace for each in found] == [trace] * 3
        shown = aiter(items)
        while type((each := await asyncio.wait_for(anext(shown), 240)).item) is not TurnStop:
            assert each.trace == trace
        assert each.trace == trace
    assert {name: provider.headers[name] for name in trace} == trace


async def test_a_question_goes_round_and_the_next_one_builds_on_its_answer(broker, prefix, tmp_path, free_port):
    provider = Provider()
    async with (
        pipeline(broker, prefix, tmp_path, free_port) as brokers,
        serving(provider) as url,
        sending(brokers, url),
        Turns(brokers, producer="crew/1.4") as turns,
        Items(brokers) as items,
    ):
        await turns.open("s", **OPENING)
        first = await turns.append("s", {"role": "user", "content": "hi"})
        assert first.topic == AGENT_TURNS
        assert await asyncio.wait_for(shown_text(items, "s"), 240) == "1 heard"
        await turns.append("s", {"role": "user", "content": [{"type": "text", "text": "again"}]})
        assert await asyncio.wait_for(shown_text(items, "s"), 240) == "3 heard"
    said = [[message["role"] for message in body["messages"]] for body in provider.asked]
    assert said == [["user"], ["user"], ["user", "assistant", "user"]]


async def test_what_a_provider_refuses_is_compared_with_the_rules_and_sent_again_only_by_hand(
    broker, prefix, tmp_path, free_port
):
    provider = Provider()
    provider.refusal = (400, "invalid_request_error", "no tools on a full moon")
    async with (
        pipeline(broker, prefix, tmp_path, free_port) as brokers,
        serving(provider) as url,
        sending(brokers, url),
        Turns(brokers) as turns,
        Items(brokers) as items,
    ):
        await turns.open("s", **OPENING)
        await turns.append("s", {"role": "user", "content": "hi"})
        async with DeadLetters(brokers) as arriving:
            await asyncio.wait_for(anext(aiter(arriving)), 240)
        letters = await typed(brokers, "feedback", "list")
        assert letters == [
            {
                "letter": letters[0]["letter"],
                "session": "s",
                "outcome": "unknown",
                "target": "anthropic",
                "rule": "",
                "body-sha256": (await published(brokers))["body-sha256"],
                "message": "no tools on a full moon",
                "done": "",
            }
        ]
        counted = {"target": "anthropic", "outcome": "unknown", "rule": "", "message": "no tools on a full moon"}
        assert await typed(brokers, "feedback", "count") == [{**counted, "refusals": 1}]
        assert len(provider.asked) == 1
        await typed(brokers, "dead-letters", "retry", letters[0]["letter"])
        assert await asyncio.wait_for(shown_text(items, "s"), 240) == "1 heard"
        assert await typed(brokers, "feedback", "list") == []
        assert [each["done"] for each in await typed(brokers, "feedback", "list", "--all")] == ["retried"]
    assert provider.asked[0] == provider.asked[1]


async def typed(brokers, *arguments):
    """The lines of JSON that a command prints."""
    environment = {"REKNIT_BOOTSTRAP_SERVERS": brokers.bootstrap_servers, "REKNIT_PREFIX": brokers.prefix}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "reknit", *arguments, "--json"), env=os.environ | environment, stdout=-1
    )
    said, _ = await asyncio.wait_for(process.communicate(), 240)
    return [json.loads(line) for line in said.splitlines()]


async def published(brokers):
    """The headers of the first request."""
    parts = await harness.read_all(brokers.bootstrap_servers, f"{brokers.prefix}provider.requests.v1", lab.PARTITIONS)
    return {name: value.decode() for part in parts for record in part for name, value in record.headers}


async def test_what_is_superseded_is_broken_off(broker, prefix, tmp_path, free_port):
    provider = Provider()
    provider.refusals = 0
    provider.held.clear()
    async with (
        pipeline(broker, prefix, tmp_path, free_port) as brokers,
        serving(provider) as url,
        sending(brokers, url),
        Turns(brokers) as turns,
        Items(brokers) as items,
    ):
        await turns.open("s", **OPENING)
        await turns.append("s", {"role": "user", "content": "hi"})
        await provider.arrived.acquire()
        await turns.append("s", {"role": "user", "content": "wait"})
        await provider.arrived.acquire()
        provider.held.set()
        assert await asyncio.wait_for(shown_text(items, "s"), 240) == "2 heard"


async def test_a_second_sender_continues_where_the_first_was_stopped(broker, prefix, tmp_path, free_port):
    provider = Provider()
    provider.refusals = 0
    provider.held.clear()
    async with (
        pipeline(broker, prefix, tmp_path, free_port) as brokers,
        serving(provider) as url,
        Turns(brokers) as turns,
        Items(brokers) as items,
    ):
        async with sending(brokers, url):
            await turns.open("s", **OPENING)
            await turns.append("s", {"role": "user", "content": "hi"})
            await provider.arrived.acquire()
        provider.held.set()
        async with sending(brokers, url):
            assert await asyncio.wait_for(shown_text(items, "s"), 240) == "1 heard"
    assert len(provider.asked) == 2
    assert provider.asked[0] == provider.asked[1]


async def test_a_program_is_asked_on_its_standard_input(broker, prefix, tmp_path, free_port):
    script = "import sys, json; n = len(json.load(sys.stdin)['messages']); print(json.dumps({'type': 'result', "
    script += "'subtype': 'success', 'is_error': False, 'result': f'{n} heard', 'session_id': 'x'}))"
    async with (
        pipeline(broker, prefix, tmp_path, free_port) as brokers,
        Requests(brokers, group="senders") as requests,
        Events(brokers, "claude-cli") as events,
        Turns(brokers) as turns,
        Items(brokers) as items,
    ):
        route = Program([sys.executable, "-c", script])
        running = asyncio.create_task(Sender(requests, events, route, target="anthropic").run())
        await turns.open("s", **OPENING)
        await turns.append("s", {"role": "user", "content": "hi"})
        async for shown in items:
            if getattr(shown.item, "result", None) is not None or b"1 heard" in shown.value:
                break
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert b"1 heard" in shown.value
    assert shown.headers.request_id == shown.headers.run


async def test_a_retry_under_its_id_changes_nothing_and_fixes_name_the_program(broker, prefix, tmp_path, free_port):
    async with (
        pipeline(broker, prefix, tmp_path, free_port) as brokers,
        Turns(brokers, producer="crew/1.4") as turns,
        Requests(brokers) as requests,
        Fixes(brokers) as fixes,
        DeadLetters(brokers) as letters,
    ):
        await turns.open("s", **OPENING)
        await turns.append("s", {"role": "user", "content": "hi"}, record_id="t1")
        await turns.append("s", {"role": "user", "content": "hi"}, record_id="t1")
        called = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "ls", "input": {}}]}
        await turns.append("s", called, record_id="t2")
        await turns.append("s", {"role": "user", "content": "stop"}, record_id="t3")
        await turns.append("s", {"role": "user", "content": "other"}, record_id="t3")
        found = [request async for request in first(requests, 2)]
        assert [request.headers.reason for request in found] == ["turn", "interrupted"]
        assert [len(json.loads(request.body)["messages"]) for request in found] == [1, 3]
        (fix,) = [fix async for fix in first(fixes, 1)]
        assert (fix.fix.code, fix.headers.producer) == ("result_synthesised", "crew/1.4")
        (letter,) = [letter async for letter in first(letters, 1)]
        assert (letter.headers.code, letter.session) == ("id_reused", "s")


async def first(reader, count):
    async with asyncio.timeout(240):
        async for found in reader:
            yield found
            count -= 1
            if not count:
                return


async def test_a_broker_that_is_away_is_a_typed_error(free_port):
    with pytest.raises(BrokerDownError):
        async with Turns(Brokers(bootstrap_servers=f"127.0.0.1:{free_port()}")):
            pass


async def test_a_session_without_a_name_is_refused(broker):
    async with Turns(Brokers(bootstrap_servers=broker.bootstrap)) as turns:
        with pytest.raises(InputError):
            await turns.append("", {"role": "user", "content": "hi"})
