"""Refusals on the request path: the client sees the answer to the narrower request, or the provider's refusal."""

import gzip
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from build import said, user
from gateway import Provider, gateway_to, streamed
from sender_runs import anthropic

from reknit.pipeline.serve import healing
from reknit.pipeline.serve.upstreams import Upstream

MODEL = "claude-sonnet-4-0"
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "EpwBREFUSED1"}
SIGNATURE = "messages.1.content.0: Invalid `signature` in `thinking` block"
TEMPERATURE = "`temperature` is deprecated for this model."
TOP_P = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."


def body(**more):
    answer = said("Fine.")
    answer["content"] = [THOUGHT, *answer["content"]]
    messages = [user("hi"), answer, user("go on")]
    return json.dumps({"model": MODEL, "max_tokens": 64, "messages": messages, **more}).encode()


def refusing(*sentences, then=None, status=400, pack=None):
    """An answer that refuses once with each sentence, then accepts."""
    left = list(sentences)

    async def answer(request):
        if not left:
            return await (then(request) if then else done(request))
        error = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": left.pop(0)}})
        data, encoding = (pack(error.encode()), {"content-encoding": "gzip"}) if pack else (error.encode(), {})
        headers = {"content-type": "application/json", "request-id": "req_1", **encoding}
        return web.Response(body=data, status=status, headers=headers)

    return answer


async def done(_request):
    return web.json_response({"type": "message", "content": []})


@asynccontextmanager
async def serving(answer, heal="on", **options):
    """Yield a provider, and a call that posts a body through the gateway."""
    provider = Provider(answer)
    upstream = {"name": "provider", "heal": heal}
    async with (
        provider.running() as url,
        gateway_to("", upstreams=[Upstream(to=url, **upstream)], **options) as (gateway_url, status_url),
        aiohttp.ClientSession(auto_decompress=False) as client,
    ):

        async def post(data, **headers):
            async with client.post(f"{gateway_url}/v1/messages", data=data, headers=headers) as response:
                return response.status, await response.read(), response.headers

        post.url, post.status_url, post.client = gateway_url, status_url, client
        yield provider, post


async def test_a_refused_block_is_left_out_and_the_client_sees_the_accepted_answer():
    async with serving(refusing(SIGNATURE)) as (provider, post):
        status, data, headers = await post(body())
    assert (status, json.loads(data)["type"], headers["x-reknit-healed"]) == (200, "message", "thinking_signature")
    first, second = provider.received
    assert (first.body, THOUGHT["signature"] in second.body.decode()) == (body(), False)
    assert second.headers["content-length"] == str(len(second.body))
    assert json.loads(second.body)["messages"][2] == json.loads(body())["messages"][2]


async def test_a_stream_follows_a_healed_refusal_unchanged():
    pieces = anthropic()
    async with serving(refusing(SIGNATURE, then=streamed(pieces))) as (provider, post):
        status, data, headers = await post(body(stream=True))
    assert (status, data, headers["content-type"]) == (200, b"".join(pieces), "text/event-stream")
    assert [each.headers["accept-encoding"] for each in provider.received] == ["identity"] * 2


@pytest.mark.parametrize(("heal", "expected"), [("off", (400, 1)), ("once", (400, 2)), ("on", (200, 3))])
async def test_the_setting_limits_the_healings_of_a_request(heal, expected):
    async with serving(refusing(TOP_P, SIGNATURE), heal) as (provider, post):
        status, _, headers = await post(body(temperature=0.5, top_p=0.5))
    assert (status, len(provider.received)) == expected
    names = ["only_one", "thinking_signature"][: expected[1] - 1]
    assert headers.get("x-reknit-healed", "") == ", ".join(names)


async def test_the_fourth_refusal_of_a_request_reaches_the_client():
    sentences = [
        TOP_P,
        SIGNATURE,
        TEMPERATURE,
        "max_tokens: 64 > 32, which is the maximum allowed number of output tokens",
    ]
    async with serving(refusing(*sentences)) as (provider, post):
        status, data, _ = await post(body(temperature=0.5, top_p=0.5))
    assert (status, len(provider.received), "max_tokens" in data.decode()) == (400, 4, True)


@pytest.mark.parametrize(
    ("sentence", "status"),
    [
        ("Your credit balance is too low", 400),
        ("invalid x-api-key", 401),
        ("Overloaded", 529),
        (SIGNATURE + "x" * 99_999, 400),
    ],
    ids=["credit", "key", "overload", "a long answer"],
)
async def test_every_other_refusal_passes_unchanged(sentence, status):
    async with serving(refusing(sentence, status=status)) as (provider, post):
        found, data, headers = await post(body())
    assert (found, len(provider.received), headers["request-id"]) == (status, 1, "req_1")
    assert json.loads(data)["error"]["message"] == sentence
    assert "x-reknit-healed" not in headers


async def test_compressed_requests_and_refusals_are_healed(monkeypatch):
    monkeypatch.setattr("gateway.validate", lambda *_: [])
    async with serving(refusing(SIGNATURE, pack=gzip.compress)) as (provider, post):
        status, _, _ = await post(gzip.compress(body()), **{"content-encoding": "gzip"})
    second = provider.received[1]
    assert (status, "content-encoding" in second.headers) == (200, False)
    assert THOUGHT["signature"] not in second.body.decode()


async def test_a_refusal_of_a_body_without_what_it_names_passes_unchanged():
    data = json.dumps({"model": MODEL, "max_tokens": 64, "messages": [user("hi")]}).encode()
    async with serving(refusing(SIGNATURE)) as (provider, post):
        status, _, headers = await post(data)
    assert (status, len(provider.received), "x-reknit-healed" in headers) == (400, 1, False)


async def test_a_fault_of_healing_never_hides_the_providers_answer(monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("a fault")

    monkeypatch.setattr(healing, "try_remembered", fail)
    async with serving(refusing(SIGNATURE)) as (_, post):
        status, data, _ = await post(body())
    assert (status, json.loads(data)["error"]["message"]) == (400, SIGNATURE)


async def test_healings_are_counted_and_on_the_page():
    async with serving(refusing(TOP_P, SIGNATURE)) as (_, post):
        await post(body(temperature=0.5, top_p=0.5))
        async with post.client.get(post.url + "/") as response:
            page = await response.text()
        async with post.client.get(post.status_url + "/metrics") as response:
            metrics = await response.text()
    assert "<code>only_one</code>, <code>thinking_signature</code>" in page
    row = 'reknit_serve_healed_total{healing="%s",outcome="%s",target="anthropic"} 1.0'
    assert row % ("only_one", "refused") in metrics
    assert row % ("thinking_signature", "accepted") in metrics


def later(*signatures):
    """The request of the next turn: the client has the same history, and more of it."""
    value = json.loads(body())
    for index, signature in enumerate(signatures):
        answer = said(f"Answer {index}.")
        answer["content"] = [{**THOUGHT, "signature": signature}, *answer["content"]]
        value["messages"] += [answer, user(f"turn {index}")]
    return json.dumps(value).encode()


async def test_a_revoked_value_is_refused_once_in_a_conversation():
    async with serving(refusing(SIGNATURE)) as (provider, post):
        await post(body())
        status, _, headers = await post(later("EpwBOTHER"))
    assert (status, len(provider.received)) == (200, 3)
    assert headers["x-reknit-fixes"] == "healed_thinking_signature=1"
    assert "x-reknit-healed" not in headers
    last = json.loads(provider.received[-1].body)
    assert [THOUGHT["signature"] in json.dumps(last), "EpwBOTHER" in json.dumps(last)] == [False, True]
    assert last["messages"][:2] == json.loads(provider.received[1].body)["messages"][:2]


async def test_a_fact_of_a_model_is_remembered_for_that_model():
    async with serving(refusing(TEMPERATURE)) as (provider, post):
        await post(body(temperature=0.5))
        await post(body(temperature=0.5))
        await post(body(temperature=0.5).replace(MODEL.encode(), b"claude-sonnet-4-1"))
    assert ["temperature" in json.loads(each.body) for each in provider.received] == [True, False, False, True]


@pytest.mark.parametrize("headers", [{"x-api-key": "other"}, {"x-claude-code-session-id": "other"}])
async def test_another_key_or_session_is_another_conversation(headers):
    async with serving(refusing(SIGNATURE)) as (provider, post):
        await post(body())
        await post(body(), **headers)
    assert provider.received[-1].body == body()


async def test_what_is_remembered_survives_a_restart_and_holds_no_text(tmp_path):
    for expected in ([True, False], [False]):
        async with serving(refusing(SIGNATURE), state_dir=tmp_path) as (provider, post):
            await post(body(), **{"x-api-key": "sk-secret"})
        assert [THOUGHT["signature"] in each.body.decode() for each in provider.received] == expected
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert [word in kept for word in (b"sk-secret", b"EpwBREFUSED1", b"Invalid", b"go on")] == [False] * 4
    assert {file.stat().st_mode & 0o77 for file in tmp_path.iterdir()} == {0}


async def test_nothing_is_remembered_where_healing_is_off():
    async with serving(refusing(SIGNATURE), heal="off") as (provider, post):
        await post(body())
        await post(body())
    assert [each.body for each in provider.received] == [body()] * 2
