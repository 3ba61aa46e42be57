"""Conversations that grow through the gateway: each body begins with the one before, and a restart changes no byte."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from build import text
from gateway import Provider, gateway_to
from gateway_conversations import SIGNED, body_of, conversations
from hypothesis import given, settings
from hypothesis import strategies as st
from input_brokers import InputBrokers, Worker
from strategies import SCALE

from reknit.pipeline.serve.upstreams import Upstream

BAD = "Invalid `signature` in `thinking` block"
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}


def unmarked(value):
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    if isinstance(value, dict):
        return {key: unmarked(each) for key, each in value.items() if key != "cache_control"}
    return value


def sent_messages(body):
    """The messages of a body, without what a provider adds by itself."""
    if "messages" in body:
        return unmarked(body["messages"])
    return [{"type": "message", **each} for each in body["input"]]


async def refuse_bad_signatures(request):
    """Refuse the first block of reasoning whose signature is of another key, as its provider does."""
    body = json.loads(await request.read())
    for at, message in enumerate(body.get("messages", ())):
        for place, block in enumerate(message["content"] if isinstance(message["content"], list) else ()):
            if block["type"] == "thinking" and block["signature"].startswith(SIGNED[1]):
                error = {"type": "invalid_request_error", "message": f"messages.{at}.content.{place}: {BAD}"}
                return web.json_response({"type": "error", "error": error}, status=400)
    return web.json_response({"type": "message", "content": []})


async def run(target, lengths, history, restarts, directory):
    """Send a conversation; return for each request its status, its healings, and the body that was sent last.

    The worker that reads the records is returned as well.
    """
    provider, outcomes, brokers = Provider(refuse_bad_signatures), [], InputBrokers()
    async with provider.running() as to, aiohttp.ClientSession() as client:
        stack, url = AsyncExitStack(), ""
        for number, length in enumerate(lengths):
            if not url or number in restarts:
                await stack.aclose()
                upstreams = [Upstream(name="provider", to=to)]
                options = {"state_dir": directory, "publish": "all", "connect": brokers.connect}
                gateway = gateway_to("", upstreams=upstreams, metrics_port=None, **options)
                url, _ = await stack.enter_async_context(gateway)
            data = json.dumps(body_of(target, history[:length]))
            async with client.post(url + PATHS[target], data=data, headers={"x-api-key": "k"}) as response:
                await response.read()
            outcomes.append((response.status, response.headers.get("x-reknit-healed", ""), provider.received[-1].body))
        await brokers.ends(len(lengths))
        await stack.aclose()
    return outcomes, [each.body for each in provider.received], Worker(brokers)


def begins_with(later, earlier):
    """Return True if messages begin with earlier ones; the last of these may have got more blocks.

    The model continues a last message of the assistant's.
    """
    *before, last = earlier
    if last.get("role") == "assistant":
        return later[: len(before)] == before
    if later[: len(before)] != before or len(later) <= len(before):
        return False
    found = later[len(before)]
    if "content" not in last or found.get("role") != last.get("role"):
        return bool(found == last)
    (blocks, more), (others, rest) = blocks_of(last), blocks_of(found)
    return more == rest and others[: len(blocks)] == blocks


def blocks_of(message):
    content = message["content"]
    blocks = [text(content)] if isinstance(content, str) else content
    return blocks, {key: value for key, value in message.items() if key != "content"}


@pytest.mark.parametrize("target", PATHS)
@settings(max_examples=15 * SCALE, deadline=None)
@given(conversation=conversations(), data=st.data())
def test_a_restart_changes_no_byte_and_each_body_begins_with_the_one_before(target, conversation, data):
    lengths, history = conversation
    restarts = data.draw(st.sets(st.integers(0, len(lengths))))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        outcomes, received, worker = asyncio.run(run(target, lengths, history, set(), Path(one)))
        again, received_again, another = asyncio.run(run(target, lengths, history, restarts, Path(two)))
    assert again == outcomes
    assert received_again == received
    assert (worker.mismatches, another.mismatches, worker.letters, another.letters) == (0, 0, [], [])
    assert [value for _, value in another.requests] == [value for _, value in worker.requests]
    assert len(worker.requests) == len(lengths)
    for number, ((status, _, body), length) in enumerate(zip(outcomes, lengths, strict=True)):
        is_answered = length < len(history) and history[length]["role"] == "assistant"
        if status != web.HTTPOk.status_code or not is_answered:
            continue
        for later_status, healed, later in outcomes[number + 1 :]:
            if healed:  # it may leave out what the provider accepted before
                break
            if later_status == web.HTTPOk.status_code:
                assert begins_with(sent_messages(json.loads(later)), sent_messages(json.loads(body)))
