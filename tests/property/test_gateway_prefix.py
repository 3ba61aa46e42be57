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
from build import call, result, said, text, user
from gateway import Provider, gateway_to
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE

from reknit.pipeline.serve.upstreams import Upstream

BAD = "Invalid `signature` in `thinking` block"
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}


class Turns:
    """A client that sends its history with each request, as drawn: late results, lost answers, texts over calls."""

    def __init__(self, draw):
        self.draw = draw
        self.history = []
        self.called = []
        self.number = 0

    def ask(self):
        """Add what the user sends next."""
        blocks = []
        if self.called and self.draw(st.integers(0, 3)):
            names = self.draw(st.lists(st.sampled_from(self.called[-5:]), min_size=1, max_size=3, unique=True))
            blocks += [result(name, self.draw(st.sampled_from(["pending", "done"]))) for name in names]
        if not blocks or self.draw(st.booleans()):
            self.number += 1
            blocks.append(text(f"words {self.number}"))
        self.history.append(user(*blocks))

    def answer(self):
        """Add the answer, unless the client lost it."""
        if not self.draw(st.integers(0, 4)):
            return
        self.number += 1
        new = [f"call_{self.number}_{at}" for at in range(self.draw(st.integers(0, 3)))]
        self.called += new
        thought = {
            "type": "thinking",
            "thinking": "Hm.",
            "signature": f"{self.draw(st.sampled_from(SIGNED))}{self.number}",
        }
        blocks = [thought] if self.draw(st.booleans()) else []
        self.history.append(said(*blocks, f"answer {self.number}", *(call(name, "ls") for name in new)))

    def lengths(self):
        """Return the numbers of messages that are sent; the history is complete then."""
        sent = []
        for _ in range(self.draw(st.integers(3, 9))):
            self.ask()
            if self.draw(st.integers(0, 6)):
                sent.append(len(self.history))
            self.answer()
            if not self.draw(st.integers(0, 7)):
                sent.append(len(self.history))
        return sent


SIGNED = ("EpwBGOODsig", "EpwBREFUSEDsig")
TOOL = {"name": "ls", "input_schema": {"type": "object"}}


@st.composite
def conversations(draw):
    turns = Turns(draw)
    return turns.lengths(), turns.history


def chat_messages(messages):
    """The messages in the shape of Chat Completions."""
    written = []
    for message in messages:
        texts = [block["text"] for block in message["content"] if block["type"] == "text"]
        written += [
            {"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]}
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
        calls = [
            {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": "{}"}}
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        if texts or calls:
            more = {"tool_calls": calls} if calls else {}
            written.append({"role": message["role"], "content": "\n".join(texts), **more})
    return written


def response_items(messages):
    """The messages as items of Responses."""
    items = []
    for message in chat_messages(messages):
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **output})
            continue
        if message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
        for each in message.get("tool_calls", ()):
            made = {"call_id": each["id"], "name": "ls", "arguments": "{}"}
            items.append({"type": "function_call", **made})
    return items


def body_of(target, messages):
    """A client's request."""
    match target:
        case "anthropic":
            more = {"messages": marked(messages), "max_tokens": 64, "tools": [TOOL]}
            return {"model": "claude-sonnet-4-5", **more}
        case "openai-chat":
            tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
            return {"model": "gpt-5", "messages": chat_messages(messages), "tools": [tool]}
        case _:
            tool = {"type": "function", "name": "ls", "parameters": {"type": "object"}}
            return {"model": "gpt-5", "input": response_items(messages), "tools": [tool]}


def marked(messages):
    """The messages with a cache breakpoint at the end, as clients move it."""
    *before, last = messages
    *blocks, block = last["content"]
    if block["type"] == "thinking":
        return messages
    return [*before, {**last, "content": [*blocks, {**block, "cache_control": {"type": "ephemeral"}}]}]


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
    """Send a conversation; return for each request its status, its healings, and the body that was sent last."""
    provider, outcomes = Provider(refuse_bad_signatures), []
    async with provider.running() as to, aiohttp.ClientSession() as client:
        stack, url = AsyncExitStack(), ""
        for number, length in enumerate(lengths):
            if not url or number in restarts:
                await stack.aclose()
                upstreams = [Upstream(name="provider", to=to)]
                gateway = gateway_to("", upstreams=upstreams, state_dir=directory, metrics_port=None)
                url, _ = await stack.enter_async_context(gateway)
            data = json.dumps(body_of(target, history[:length]))
            async with client.post(url + PATHS[target], data=data, headers={"x-api-key": "k"}) as response:
                await response.read()
            outcomes.append((response.status, response.headers.get("x-reknit-healed", ""), provider.received[-1].body))
        await stack.aclose()
    return outcomes, [each.body for each in provider.received]


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
        outcomes, received = asyncio.run(run(target, lengths, history, set(), Path(one)))
        again, received_again = asyncio.run(run(target, lengths, history, restarts, Path(two)))
    assert again == outcomes
    assert received_again == received
    for number, ((status, _, body), length) in enumerate(zip(outcomes, lengths, strict=True)):
        is_answered = length < len(history) and history[length]["role"] == "assistant"
        if status != web.HTTPOk.status_code or not is_answered:
            continue
        for later_status, healed, later in outcomes[number + 1 :]:
            if healed:  # it may leave out what the provider accepted before
                break
            if later_status == web.HTTPOk.status_code:
                assert begins_with(sent_messages(json.loads(later)), sent_messages(json.loads(body)))
