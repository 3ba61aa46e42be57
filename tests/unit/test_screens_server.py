"""The server of UI clients: formats, resumption, broken answers, and limits of what waits."""

import asyncio
import json
from pathlib import Path

import aiohttp
import msgspec
import pytest
from screen_clients import AgUiClient, AiSdkClient, shown_by_ag_ui, shown_by_ai_sdk, wanted
from screens_lab import Stream, screens_of

from reknit.pipeline.screen_server import connections
from reknit.pipeline.screen_server.connections import MOST_BYTES, MOST_WAITING, Connection, Plan
from reknit.pipeline.screen_server.formats import DETAILS, Piece
from reknit.topics.items import (
    AnyItem,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    ProcessStderr,
    SessionInit,
    TurnResult,
    TurnStop,
)
from reknit.topics.reducer import reduce

DECODER = msgspec.json.Decoder(AnyItem)
VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "vectors" / "screens.jsonl").read_text(encoding="utf-8").splitlines()
]
SHORT = [vector for vector in VECTORS if set(vector["runs"]) == {"r1"}]


def started(key, **more):
    return ItemStarted(item_id=key, item_type="text", **more)


def delta(key, text, at=0):
    return ItemDelta(item_id=key, delta_type="text_delta", content=text, at=at)


def done(key, **more):
    return ItemCompleted(item_id=key, **more)


HELLO = (started("a"), delta("a", "Hel"), delta("a", "lo", 3), done("a"), TurnStop(stop_reason="end_turn"))


def decoded(events):
    return [DECODER.decode(json.dumps(event)) for event in events]


@pytest.mark.asyncio
async def test_items_are_served_as_they_are_published(tmp_path):
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(*HELLO[:2])
        async with http.get(f"{lab.url}/sessions/s/events?as=items") as answer:
            assert answer.content_type == "text/event-stream"
            stream = Stream(answer)
            found = [await stream.next(), await stream.next()]
            lab.publish(*HELLO[2:])
            found += await stream.until("turn/stop")
    assert [entry.text for entry in reduce(decoded(found)).entries] == ["Hello"]
    assert stream.ids == [f"0/{number}" for number in range(5)]
    assert stream.comments[0] == "open"


@pytest.mark.asyncio
@pytest.mark.parametrize("vector", SHORT[:8], ids=lambda vector: vector["name"])
async def test_items_continue_after_any_position(tmp_path, vector):
    items = [DECODER.decode(json.dumps(item)) for item in vector["items"]]
    async with screens_of(tmp_path, with_details=True) as (lab, http):
        lab.publish(*items)
        lab.publish(started("last"))
        for count in range(1, len(items)):
            headers = {"Last-Event-ID": f"0/{count - 1}"}
            async with http.get(f"{lab.url}/sessions/s/events", headers=headers) as answer:
                stream, found = Stream(answer), []
                while not found or found[-1].get("item_id") != "last":
                    found.append(await stream.next())
            view = reduce([*items[:count], *decoded(found)])
            expected = reduce([*items, started("last")])
            assert [(each.item_id, each.text, each.done) for each in view.entries] == [
                (each.item_id, each.text, each.done) for each in expected.entries
            ]


@pytest.mark.asyncio
@pytest.mark.parametrize("vector", SHORT, ids=lambda vector: vector["name"])
async def test_clients_that_connect_again_show_the_view(tmp_path, vector):
    items = [DECODER.decode(json.dumps(item)) for item in vector["items"]]
    ag_ui, ai_sdk = AgUiClient(), AiSdkClient()
    async with screens_of(tmp_path) as (lab, http):
        for count, item in enumerate(items, start=1):
            lab.publish(item)
            body = {"threadId": "s", "messages": ag_ui.messages, "forwardedProps": {"reknit": {"resume": True}}}
            async with http.post(f"{lab.url}/sessions/s/events", json=body) as answer:
                # The end of an answer that is open does not come here: the snapshot does.
                events = [await Stream(answer).next()]
                stream = Stream(answer)
                while events[-1]["type"] != "MESSAGES_SNAPSHOT":
                    events.append(await stream.next())
                if events[-1]["messages"] and events[-1]["messages"][0]["id"] == "reknit-clear":
                    events += [await stream.next(), await stream.next()]
            ag_ui.respond(events)
            assert shown_by_ag_ui(ag_ui) == wanted(items[:count])
        async with http.get(f"{lab.url}/sessions/s/stream") as answer:
            chunks = await Stream(answer).rest() if answer.status == 200 else []
    if chunks:
        assert chunks.pop() == "[DONE]"
        ai_sdk.respond(chunks)
        assert shown_by_ai_sdk(ai_sdk.messages[-1], items) == wanted(items)


@pytest.mark.asyncio
async def test_an_answer_ends_cleanly_only_when_it_is_complete(tmp_path):
    async with screens_of(tmp_path, recent_seconds=10**10) as (lab, http):
        lab.publish(*HELLO[:2])
        async with http.get(f"{lab.url}/sessions/s/stream") as answer:
            assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
            stream = Stream(answer)
            assert [chunk["type"] for chunk in await stream.until("text-delta")] == [
                "start",
                "text-start",
                "text-delta",
            ]
            lab.feeds.stop()
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.rest()
        async with http.get(f"{lab.url}/sessions/s/stream") as answer:
            stream = Stream(answer)
            await stream.until("text-delta")
            lab.publish(*HELLO[2:])
            rest = await stream.rest()
        assert rest[0] == {"type": "text-delta", "id": "a", "delta": "lo"}
        assert rest[-2:] == [{"type": "finish", "finishReason": "stop"}, "[DONE]"]


@pytest.mark.asyncio
async def test_a_stream_of_the_ai_sdk_without_an_open_answer(tmp_path):
    async with screens_of(tmp_path, recent_seconds=0) as (lab, http):
        assert (await http.get(f"{lab.url}/sessions/s/stream")).status == 204
        lab.publish(*HELLO)
        assert (await http.get(f"{lab.url}/sessions/s/stream")).status == 204
    # A client that lost the last chunks gets an answer that has just ended.
    async with screens_of(tmp_path / "later", recent_seconds=10**10) as (lab, http):
        lab.publish(*HELLO)
        async with http.get(f"{lab.url}/sessions/s/stream") as answer:
            chunks = await Stream(answer).rest()
    assert [chunk["type"] for chunk in chunks[:-1]] == ["start", "text-start", "text-delta", "text-end", "finish"]


@pytest.mark.asyncio
async def test_a_client_of_ag_ui_gets_the_answer_that_is_open(tmp_path):
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(*HELLO[:2])
        async with http.post(f"{lab.url}/sessions/s/events", json={"threadId": "s"}) as answer:
            stream = Stream(answer)
            events = await stream.until("TEXT_MESSAGE_START")
            lab.publish(*HELLO[2:])
            events += await stream.rest()
    client = AgUiClient()
    client.respond(events)
    assert shown_by_ag_ui(client) == [("a", "text", "Hello")]
    assert client.ends[-1]["runId"] == "r1#0"


@pytest.mark.asyncio
async def test_a_withdrawn_text_leaves_both_clients(tmp_path):
    ag_ui, ai_sdk = AgUiClient(), AiSdkClient()
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(*HELLO[:2], started("b"), delta("b", "kept"))
        ag_url, ai_url = f"{lab.url}/sessions/s/events?as=ag-ui", f"{lab.url}/sessions/s/events?as=ai-sdk"
        async with http.get(ag_url) as ag_answer, http.get(ai_url) as ai_answer:
            ag_stream, ai_stream = Stream(ag_answer), Stream(ai_answer)
            ag_events = await ag_stream.until("MESSAGES_SNAPSHOT")
            ai_chunks = [await ai_stream.next() for _ in range(5)]
            lab.publish(ItemRetracted(item_id="a"), done("b"), TurnStop())
            ag_events += await ag_stream.until("RUN_FINISHED")
            ai_chunks += await ai_stream.until("finish")
    ag_ui.respond(ag_events)
    ai_sdk.respond(ai_chunks)
    assert shown_by_ag_ui(ag_ui) == [("b", "text", "kept")]
    assert [part["text"] for part in ai_sdk.messages[0]["parts"]] == ["kept"]


@pytest.mark.asyncio
async def test_records_about_the_machine_are_served_only_on_request(tmp_path):
    hidden = (SessionInit(cwd="/home/secret", seq=0), ProcessStderr(text="secret", seq=1))
    result = ItemResult(item_id="c", content=msgspec.Raw(b"[]"), tool_result=msgspec.Raw(b'{"path":"secret"}'))
    call = ItemStarted(item_id="c", item_type="tool_use", name="ls")
    for with_details in (False, True):
        async with screens_of(tmp_path / str(with_details), with_details=with_details) as (lab, http):
            lab.publish(*hidden, call, result, TurnResult(is_error=False, seq=2))
            for form in ("items", "ag-ui", "ai-sdk"):
                async with http.get(f"{lab.url}/sessions/s/events?as={form}") as answer:
                    stream, found = Stream(answer), []
                    while not found or found[-1]["type"] not in {"turn/result", "RUN_FINISHED", "finish"}:
                        found.append(await stream.next())
                assert ("secret" in json.dumps(found)) == (with_details and form == "items")
    assert {"session/init", "process/stderr"} <= DETAILS


@pytest.mark.asyncio
async def test_quiet_streams_have_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "BEAT_SECONDS", 0.01)
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(started("a"))
        async with http.get(f"{lab.url}/sessions/s/events") as answer:
            stream = Stream(answer)
            await stream.next()
            while await answer.content.readline() != b": hb\n":
                pass
            lab.publish(done("a"))
            assert (await stream.next())["type"] == "item/completed"


@pytest.mark.parametrize("data", [[b"x"] * (MOST_WAITING + 1), [b"x" * (MOST_BYTES + 1)]], ids=["frames", "bytes"])
def test_a_client_that_does_not_keep_up_is_broken_off(data):
    connection = Connection(Plan())
    connection.offer([Piece(each) for each in data[:-1]])
    assert not connection.is_broken
    connection.offer([Piece(data[-1])])
    assert connection.is_broken
    assert asyncio.run(connection.frames(0)) == b""
    connection.offer([Piece(b"more")])
    assert asyncio.run(connection.frames(0)) == b""


@pytest.mark.asyncio
async def test_a_client_that_was_broken_off_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MOST_WAITING", 5)
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(started("a"))
        async with http.get(f"{lab.url}/sessions/s/events?as=ag-ui") as answer:
            await Stream(answer).until("TEXT_MESSAGE_START")
            for number in range(20):
                lab.publish(delta("a", "x", number))
            with pytest.raises(aiohttp.ClientPayloadError):
                await Stream(answer).rest()
        async with http.get(f"{lab.url}/sessions/s/events?as=ag-ui") as answer:
            events = await Stream(answer).until("MESSAGES_SNAPSHOT")
    assert events[-1]["messages"][0]["content"] == "x" * 20


@pytest.mark.asyncio
async def test_http_1_0_is_refused(tmp_path):
    async with screens_of(tmp_path) as (lab, _):
        lab.publish(started("a"))
        host, _, port = lab.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /sessions/s/events HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        status = await reader.readline()
        writer.close()
    assert b" 505 " in status


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/sessions/none/events", "/sessions/none/events?as=ag-ui"])
async def test_an_unknown_session_is_not_found(tmp_path, path):
    async with screens_of(tmp_path) as (lab, http):
        assert (await http.get(lab.url + path)).status == 404
        assert (await http.get(f"{lab.url}/sessions/s/events?as=odd")).status == 400


@pytest.mark.asyncio
async def test_feeds_are_loaded_once_and_written_once_per_format(tmp_path):
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(*HELLO[:2])
        url = f"{lab.url}/sessions/s/events?as=ag-ui"
        async with http.get(url) as one, http.get(url) as two:
            streams = [Stream(one), Stream(two)]
            for stream in streams:
                await stream.until("TEXT_MESSAGE_START")
            assert lab.feeds.connections == 2
            lab.publish(*HELLO[2:])
            ends = [await stream.until("RUN_FINISHED") for stream in streams]
        assert ends[0] == ends[1]
