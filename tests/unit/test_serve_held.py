"""Streams are held until their first content: a refusal before it is healed, and all else passes unchanged."""

import asyncio
import json
from contextlib import suppress

import aiohttp
import pytest
from build import said, user
from gateway import Provider, gateway, gateway_to, streamed
from sender_runs import anthropic

from reknit.pipeline.serve.upstreams import Upstream

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "EpwBREFUSED1"}
SIGNATURE = "messages.1.content.0: Invalid `signature` in `thinking` block"
START = b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","model":"m"}}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def error(kind, message):
    event = {"type": "error", "error": {"type": kind, "message": message}}
    return f"event: error\ndata: {json.dumps(event)}\n\n".encode()


def claude_body():
    answer = said("Fine.")
    answer["content"] = [THOUGHT, *answer["content"]]
    messages = [user("hi"), answer, user("go on")]
    return {"model": "claude-sonnet-4-0", "max_tokens": 64, "stream": True, "messages": messages}


def in_turn(*answers):
    """Answer each request by the next of these."""
    left = list(answers)

    async def answer(request):
        return await left.pop(0)(request)

    return answer


async def post(client, url, path, body):
    async with client.post(f"{url}{path}", json=body) as response:
        return response.status, await response.read(), response.headers


def chat_chunk(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def chat_answer():
    chunks = [chat_chunk({"role": "assistant", "content": "Fine."}), chat_chunk({}, "stop")]
    return [*(f"data: {json.dumps(each)}\n\n".encode() for each in chunks), b"data: [DONE]\n\n"]


def chat_error():
    first = chat_chunk({"role": "assistant", "content": ""})
    message = "Unsupported parameter: 'temperature' is not supported with this model."
    refusal = {"error": {"message": message, "type": "invalid_request_error", "param": "temperature", "code": "400"}}
    return [f"data: {json.dumps(each)}\n\n".encode() for each in (first, refusal)]


def responses_error():
    message = "The encrypted content for item rs_1 could not be verified."
    failed = {"id": "resp_1", "status": "failed", "error": {"code": "invalid_encrypted_content", "message": message}}
    created = {"id": "resp_1", "status": "in_progress", "output": []}
    events = [
        {"type": "response.created", "sequence_number": 0, "response": created},
        {"type": "response.failed", "sequence_number": 1, "response": failed},
    ]
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]


def responses_answer():
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": "Fine.", "annotations": []}]
    whole = {"id": "resp_2", "status": "completed", "model": "gpt-5", "output": [item]}
    events = [
        {
            "type": "response.created",
            "sequence_number": 0,
            "response": {**whole, "status": "in_progress", "output": []},
        },
        {"type": "response.completed", "sequence_number": 1, "response": whole},
    ]
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]


def claude_error():
    return [START + PING, error("invalid_request_error", SIGNATURE)]


CLAUDE = ("/v1/messages", claude_body, claude_error, anthropic, "thinking_signature", THOUGHT["signature"])
CHAT = (
    "/v1/chat/completions",
    lambda: {"model": "house-1", "stream": True, "temperature": 0.5, "messages": [user("hi")]},
    chat_error,
    chat_answer,
    "unsupported",
    "temperature",
)
RESPONSES = (
    "/v1/responses",
    lambda: {
        "model": "gpt-5",
        "stream": True,
        "store": False,
        "input": [
            {"type": "message", "role": "user", "content": "hi"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABREFUSED"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Fine."}]},
            {"type": "message", "role": "user", "content": "go on"},
        ],
    },
    responses_error,
    responses_answer,
    "encrypted_item",
    "gAAAAABREFUSED",
)


@pytest.mark.parametrize("case", [CLAUDE, CHAT, RESPONSES], ids=["anthropic", "chat", "responses"])
async def test_a_refusal_in_a_stream_is_healed_before_the_client_sees_it(case):
    path, body, refusal, accepted, name, gone = case
    async with gateway(in_turn(streamed(refusal()), streamed(accepted()))) as (provider, url, client):
        status, data, headers = await post(client, url, path, body())
    assert (status, data) == (200, b"".join(accepted()))
    assert name in headers["x-reknit-healed"]
    assert [gone in each.body.decode() for each in provider.received] == [True, False]


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "invalid_request_error"])
async def test_an_error_without_a_healing_passes_unchanged(kind):
    pieces = [START, error(kind, "Overloaded")]
    async with gateway(streamed(pieces)) as (provider, url, client):
        status, data, headers = await post(client, url, "/v1/messages", claude_body())
    assert (status, data, len(provider.received)) == (200, b"".join(pieces), 1)
    assert "x-reknit-healed" not in headers


async def test_a_refusal_after_content_passes_unchanged():
    whole = anthropic()
    begin = next(index for index, piece in enumerate(whole, start=1) if b"text_delta" in piece)
    pieces = [b"".join([*whole[:begin], error("invalid_request_error", SIGNATURE)])]
    async with gateway(streamed(pieces)) as (provider, url, client):
        status, data, _ = await post(client, url, "/v1/messages", claude_body())
    assert (status, data, len(provider.received)) == (200, b"".join(pieces), 1)


async def test_a_second_refusal_in_a_stream_reaches_the_client():
    refused = [START, error("invalid_request_error", SIGNATURE)]
    async with gateway(in_turn(streamed(refused), streamed(refused))) as (provider, url, client):
        status, data, headers = await post(client, url, "/v1/messages", claude_body())
    assert (status, data, len(provider.received)) == (200, b"".join(refused), 2)
    assert headers["x-reknit-healed"] == "thinking_signature"


async def test_a_stream_without_content_is_passed_on_when_its_time_has_passed():
    seen = asyncio.Event()

    async def answer(request):
        response = await streamed([START])(request)
        await asyncio.wait_for(seen.wait(), 30)
        for piece in anthropic()[1:]:
            await response.write(piece)
        return response

    async with (
        gateway(answer, hold_seconds=0.05) as (_, url, client),
        client.post(f"{url}/v1/messages", json=claude_body()) as response,
    ):
        data = await response.content.readuntil(b"\n\n")
        seen.set()
        data += await response.read()
    assert data == START + b"".join(anthropic()[1:])


async def test_nothing_is_held_where_healing_is_off():
    seen = asyncio.Event()

    async def answer(request):
        response = await streamed(claude_error())(request)
        await asyncio.wait_for(seen.wait(), 30)
        return response

    provider = Provider(answer)
    async with (
        provider.running() as to,
        gateway_to("", upstreams=[Upstream(name="provider", to=to, heal="off")], hold_seconds=3600.0) as (url, _),
        aiohttp.ClientSession() as client,
        client.post(f"{url}/v1/messages", json=claude_body()) as response,
    ):
        data = await response.content.readuntil(b"\n\n")
        seen.set()
        data += await response.read()
    assert (data, len(provider.received)) == (b"".join(claude_error()), 1)


async def test_a_stream_that_breaks_before_its_content_never_ends_cleanly():
    async with gateway(streamed([START], breaks=True)) as (_, url, client):
        with pytest.raises(aiohttp.ClientError):
            await post(client, url, "/v1/messages", claude_body())


async def test_a_client_that_leaves_while_its_answer_is_held_ends_the_providers_work():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(request):
        begun.set()
        response = await streamed([START])(request)
        with suppress(ConnectionError):
            while True:
                await response.write(PING)
                await asyncio.sleep(0.01)
        ended.set()
        return response

    async with gateway(answer, hold_seconds=3600.0) as (_, url, client):
        held = asyncio.create_task(post(client, url, "/v1/messages", claude_body()))
        await asyncio.wait_for(begun.wait(), 30)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await client.close()
        await asyncio.wait_for(ended.wait(), 30)
