"""``reknit screens`` with a broker: a restart in the middle of a stream, and a user's message as a turn."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import harness
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from screen_clients import AgUiClient, shown_by_ag_ui, wanted
from screens_lab import Stream

from reknit.pipeline.config import load_config
from reknit.pipeline.screen_server.access import Claims, Signer
from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.screen_server.server import SERVED, run_screens
from reknit.pipeline.viewer.guard import Guard
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


@asynccontextmanager
async def screens(config, tmp_path):
    """Run a server; the value is its URL."""
    url = asyncio.get_running_loop().create_future()
    gate = Gate(Guard(login=KEY), Signer(KEY))
    options = {"index_file": tmp_path / "screens.sqlite", "takes_input": True, "on_start": url.set_result}
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
