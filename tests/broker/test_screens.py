"""``reknit screens`` with a broker: a restart in the middle of a stream, and a user's message as a turn."""

import asyncio
import json

import aiohttp
import harness
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from screen_clients import AgUiClient, shown_by_ag_ui, wanted
from screens_lab import Stream, running

from reknit.pipeline.config import load_config
from reknit.pipeline.screen_server.access import Claims, Signer
from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.screen_server.server import SERVED
from reknit.pipeline.viewer.guard import HostNames
from reknit.topics import AGENT_TURNS, SESSION_ITEMS
from reknit.topics.items import ItemCompleted, ItemDelta, ItemStarted, TurnStop

pytestmark = pytest.mark.broker

KEY = "a key that is long enough"
HEADERS = {"Authorization": f"Bearer {Signer(KEY).token(Claims(sessions=('s',), scope='write', expires=10**11))}"}
ITEMS = (
    ItemStarted(item_id="t", item_type="text"),
    ItemDelta(item_id="t", delta_type="text_delta", content="Hello, "),
    ItemDelta(item_id="t", delta_type="text_delta", content="wörld.", at=7),
    ItemCompleted(item_id="t"),
    TurnStop(stop_reason="end_turn"),
)


def screens(config, path, **options):
    """Run a server; the value is its URL."""
    return running(config, Gate(HostNames(), Signer(KEY)), path, **options)


async def until_found(http, url):
    """Wait until the index has the session."""
    while True:
        async with http.get(url, headers=HEADERS) as answer:
            if answer.status == 200:
                return
        await asyncio.sleep(0.2)


async def test_a_restart_loses_nothing_and_a_message_becomes_a_turn(broker, prefix, tmp_path):
    config = load_config(env={"REKNIT_BOOTSTRAP_SERVERS": broker.bootstrap, "REKNIT_PREFIX": prefix})
    await harness.make_topics(broker.bootstrap, [prefix + topic for topic in SERVED], 1)
    client = AgUiClient()
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer, aiohttp.ClientSession() as http:

        async def publish(*items):
            for item in items:
                await producer.send_and_wait(
                    prefix + SESSION_ITEMS, msgspec.json.encode(item), key=b"s", headers=[("run", b"r1")]
                )

        async with screens(config, tmp_path) as url:
            await publish(*ITEMS[:1])
            await until_found(http, f"{url}/sessions/s/events")
            async with http.get(f"{url}/sessions/s/events?as=ag-ui", headers=HEADERS) as answer:
                stream = Stream(answer)
                events = await stream.until("TEXT_MESSAGE_START")
                await publish(ITEMS[1])
                events += await stream.until("TEXT_MESSAGE_CONTENT")
                client.respond(events)
                assert shown_by_ag_ui(client) == wanted(ITEMS[:2])
                rest = asyncio.create_task(stream.rest())
                await asyncio.sleep(0)
                async with asyncio.timeout(20):
                    # The server ends in the middle of the answer.
                    ending = asyncio.create_task(_end_of(rest))
                    for task in asyncio.all_tasks():
                        if task.get_coro().__name__ == "run_screens":
                            task.cancel()
                    assert await ending is aiohttp.ClientPayloadError
        await publish(*ITEMS[2:])
        async with screens(config, tmp_path) as url:
            body = {"threadId": "s", "messages": client.messages, "forwardedProps": {"reknit": {"resume": True}}}
            while shown_by_ag_ui(client) != wanted(ITEMS):
                async with http.post(f"{url}/sessions/s/events", json=body, headers=HEADERS) as answer:
                    stream = Stream(answer)
                    client.respond(await stream.until("MESSAGES_SNAPSHOT"))
                await asyncio.sleep(0.1)
            message = {"id": "m1", "role": "user", "content": "And now?"}
            body = {"threadId": "s", "messages": [*client.messages, message]}
            async with http.post(f"{url}/sessions/s/events", json=body, headers=HEADERS) as answer:
                assert answer.status == 200
                consumer = AIOKafkaConsumer(
                    prefix + AGENT_TURNS, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
                )
                async with consumer, asyncio.timeout(20):
                    record = await consumer.getone()
    turn = json.loads(record.value)
    assert (record.key, turn["id"], turn["message"]["content"][0]["text"]) == (b"s", "m1", "And now?")


async def _end_of(rest):
    try:
        await rest
    except aiohttp.ClientPayloadError:
        return aiohttp.ClientPayloadError
    return None


async def turns_of(broker, prefix, count):
    """The turns of the topic, once there are as many as this; and all that are there a moment later."""
    topic = prefix + AGENT_TURNS
    async with AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(20):
            found = [await consumer.getone() for _ in range(count)]
        more = await consumer.getmany(timeout_ms=500)
    return [json.loads(record.value)["id"] for record in (*found, *(each for batch in more.values() for each in batch))]


async def test_a_message_that_is_sent_again_is_written_once_and_has_no_answer_in_time(broker, prefix, tmp_path):
    config = load_config(env={"REKNIT_BOOTSTRAP_SERVERS": broker.bootstrap, "REKNIT_PREFIX": prefix})
    await harness.make_topics(broker.bootstrap, [prefix + topic for topic in SERVED], 1)

    def body(key):
        return {"threadId": "s", "messages": [{"id": key, "role": "user", "content": "Hi"}]}

    async def end_of(url, http, key):
        async with http.post(f"{url}/sessions/s/events", json=body(key), headers=HEADERS) as answer:
            (event,) = await Stream(answer).rest()
        return event["type"], event["code"]

    async def until_known(url, http, key):
        """Wait until a server has the message from the topic."""
        while True:
            async with http.get(f"{url}/sessions/s/messages", headers=HEADERS) as answer:
                if key in [message["id"] for message in await answer.json()]:
                    return
            await asyncio.sleep(0.1)

    late = ("RUN_ERROR", "answer_timeout")
    at_once = aiohttp.ClientTimeout(0.001)
    async with (
        aiohttp.ClientSession() as http,
        screens(config, tmp_path / "one", answer_timeout=1) as one,
        screens(config, tmp_path / "two", answer_timeout=1) as two,
        asyncio.timeout(60),
    ):
        # Sent three times before the index has it. The first client disconnects.
        with pytest.raises(TimeoutError):
            await http.post(f"{one}/sessions/s/events", json=body("m1"), headers=HEADERS, timeout=at_once)
        assert await asyncio.gather(*(end_of(one, http, "m1") for _ in range(2))) == [late, late]
        assert await end_of(one, http, "m1") == late
        await until_known(two, http, "m1")
        assert await end_of(two, http, "m1") == late
        assert await end_of(two, http, "m2") == late
    assert await turns_of(broker, prefix, 2) == ["m1", "m2"]


async def test_a_second_process_serves_what_the_first_one_began(broker, prefix, tmp_path):
    config = load_config(env={"REKNIT_BOOTSTRAP_SERVERS": broker.bootstrap, "REKNIT_PREFIX": prefix})
    await harness.make_topics(broker.bootstrap, [prefix + topic for topic in SERVED], 1)
    client = AgUiClient()
    async with (
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
        aiohttp.ClientSession() as http,
        screens(config, tmp_path / "one") as one,
        screens(config, tmp_path / "two") as two,
        asyncio.timeout(60),
    ):
        for number, item in enumerate(ITEMS):
            await producer.send_and_wait(
                prefix + SESSION_ITEMS, msgspec.json.encode(item), key=b"s", headers=[("run", b"r1")]
            )
            url = (one, two)[number % 2]
            await until_found(http, f"{url}/sessions/s/events")
            while shown_by_ag_ui(client) != wanted(ITEMS[: number + 1]):
                body = {"threadId": "s", "messages": client.messages, "forwardedProps": {"reknit": {"resume": True}}}
                async with http.post(f"{url}/sessions/s/events", json=body, headers=HEADERS) as answer:
                    client.respond(await Stream(answer).until("MESSAGES_SNAPSHOT"))
                await asyncio.sleep(0.1)
