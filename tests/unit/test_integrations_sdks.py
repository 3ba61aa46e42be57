"""The SDKs of Anthropic and OpenAI, unmodified, with the transport and without it.

The provider is a server on the loopback that refuses what the provider's rules refuse.
"""

import asyncio
import json

import anthropic
import httpx2
import openai
import pytest
from loopback import SAID, provider

from reknit.integrations import AsyncRepairTransport, RepairTransport

# A call without its result.
BROKEN = {
    "anthropic": [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}]},
        {"role": "user", "content": "And?"},
    ],
    "openai-chat": [
        {"role": "user", "content": "Read."},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "user", "content": "And?"},
    ],
    "openai-responses": [
        {"role": "user", "content": "Read."},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
        {"role": "user", "content": "And?"},
    ],
}
VALID = [{"role": "user", "content": "Read."}]
TARGETS = tuple(BROKEN)


def asked(client, target, messages):
    """Ask by the SDK's method for a target; what it returns may be a coroutine."""
    if target == "anthropic":
        return client.messages.create(model="claude-test", max_tokens=9, messages=messages)
    if target == "openai-chat":
        return client.chat.completions.create(model="m", messages=messages)
    return client.responses.create(model="gpt-5", input=messages, store=False)


def said(answer, target):
    if target == "anthropic":
        return answer.content[0].text
    return answer.output_text if target == "openai-responses" else answer.choices[0].message.content


def client_of(target, url, transport, kind=""):
    module, base = (anthropic, url) if target == "anthropic" else (openai, f"{url}/v1")
    http = getattr(httpx2, f"{kind}Client")(transport=transport)
    name = f"{kind}{'Anthropic' if target == 'anthropic' else 'OpenAI'}"
    return getattr(module, name)(api_key="k", base_url=base, http_client=http, max_retries=0)


ERRORS = (anthropic.BadRequestError, openai.BadRequestError)


@pytest.mark.parametrize("target", TARGETS)
def test_a_broken_history_is_accepted_only_with_the_transport(target):
    fixes = []
    with provider() as (url, bodies):
        with client_of(target, url, httpx2.HTTPTransport()) as client, pytest.raises(ERRORS):
            asked(client, target, BROKEN[target])
        transport = RepairTransport(httpx2.HTTPTransport(), on_fixes=fixes.extend)
        with client_of(target, url, transport) as client:
            assert said(asked(client, target, BROKEN[target]), target) == SAID
        assert len(bodies) == 2
    assert [fix.code for fix in fixes] == ["result_synthesised"]


@pytest.mark.parametrize("target", TARGETS)
def test_coroutines_are_repaired_too(target):
    async def ask(url):
        transport = AsyncRepairTransport(httpx2.AsyncHTTPTransport())
        async with client_of(target, url, transport, "Async") as client:
            return said(await asked(client, target, BROKEN[target]), target)

    with provider() as (url, _):
        assert asyncio.run(ask(url)) == SAID


@pytest.mark.parametrize("target", TARGETS)
def test_a_valid_request_keeps_its_bytes(target):
    with provider() as (url, bodies):
        for transport in (httpx2.HTTPTransport(), RepairTransport(httpx2.HTTPTransport())):
            with client_of(target, url, transport) as client:
                asked(client, target, VALID)
        assert bodies[0] == bodies[1]


def sent(body, path="/v1/messages", **headers):
    """Return the body that the transport sends for a request."""
    seen = []

    def answer(request):
        seen.append(request.read())
        return httpx2.Response(200, json={})

    with httpx2.Client(transport=RepairTransport(httpx2.MockTransport(answer))) as client:
        client.post(f"https://example.com{path}", content=body, headers=headers)
    return seen[0]


def test_a_request_that_cannot_be_repaired_is_sent_as_it_is():
    broken = json.dumps({"model": "m", "max_tokens": 9, "messages": BROKEN["anthropic"]}).encode()
    assert sent(broken) != broken
    assert sent(broken, path="/v1/files") == broken
    assert sent(broken, authorization="AWS4-HMAC-SHA256 Credential=x") == broken
    assert sent(broken, **{"content-encoding": "gzip"}) == broken
    for body in (b"{", b"[1]", b"\xff", b'{"messages": 5}'):
        assert sent(body) == body
    chained = json.dumps({"previous_response_id": "r", "input": BROKEN["openai-responses"]}).encode()
    assert sent(chained, path="/v1/responses") == chained
