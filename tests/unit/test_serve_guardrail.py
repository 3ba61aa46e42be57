"""The gateway as a guardrail of LiteLLM, by LiteLLM's own code and by its requests."""

import asyncio
import json
from functools import partial

import pytest
from frameworks.environments import ROOT, needs, run
from gateway import gateway

from reknit.pipeline.serve import repair
from reknit.pipeline.serve.guardrail import PATH, guard

SCRIPT = ROOT / "tests" / "frameworks" / "litellm" / "guardrail.py"
CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
QUESTION = {"role": "user", "content": "hi"}
ASKING = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."}
BROKEN = [{"role": "system", "content": "Be brief."}, QUESTION, ASKING, {"role": "user", "content": "and?"}]


def asked(messages, **more):
    """Return a request as LiteLLM 1.108 writes it."""
    given = {
        "input_type": "request",
        "litellm_call_id": "c",
        "litellm_trace_id": None,
        "structured_messages": messages,
        "images": None,
        "tools": None,
        "texts": ["hi"],
        "request_data": {"user_api_key_hash": "h"},
        "request_headers": {"authorization": "[present]"},
        "litellm_version": "1.108.7",
        "additional_provider_specific_params": {},
        "tool_calls": None,
        "model": "gpt-5",
        **more,
    }
    return json.dumps(given).encode()


async def answered(url, client, data, **headers):
    async with client.post(url + PATH, data=data, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def test_a_broken_history_gets_other_messages_and_untouched_ones_stay_as_they_are():
    async with gateway() as (provider, url, client):
        status, found = await answered(url, client, asked(BROKEN))
    messages = found["structured_messages"]
    assert (status, found["action"], found["fixes"]) == (200, "GUARDRAIL_INTERVENED", {"result_synthesised": 1})
    assert [*messages[:3], messages[4]] == BROKEN
    assert (messages[3]["role"], messages[3]["tool_call_id"]) == ("tool", "call_1")
    assert provider.received == []
    assert json.loads(guard(asked(messages))[1]) == {"action": "NONE"}


@pytest.mark.parametrize(
    "data",
    [
        asked([QUESTION]),
        asked([]),
        asked(None),
        asked(BROKEN, input_type="response"),
        b"{}",
        asked([{"role": 5}]),
        asked("text"),
    ],
    ids=["valid", "none", "null", "an answer", "no member", "no role", "a text"],
)
async def test_all_else_stays_as_it_is(data):
    async with gateway() as (_, url, client):
        assert await answered(url, client, data) == (200, {"action": "NONE"})


async def test_the_policy_of_the_configuration_is_followed():
    params = {"policy": {"missing_result": "drop"}, "other": 1}
    async with gateway() as (_, url, client):
        _, found = await answered(url, client, asked(BROKEN, additional_provider_specific_params=params))
    assert [each["role"] for each in found["structured_messages"]] == ["system", "user", "user"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not_json"),
        (b"[]", "wrong_type"),
        (asked([QUESTION]).replace(b'"hi"}', b'"\\ud800"}'), "not_json"),
        (asked([QUESTION]).replace(b'"hi"}', b"[" * 100_000), "not_json"),
        (asked([QUESTION], input_type="both"), "wrong_type"),
        (asked([QUESTION], additional_provider_specific_params={"policy": {"tail": "never"}}), "policy"),
    ],
)
async def test_a_request_that_cannot_be_used_is_refused(data, code):
    async with gateway() as (_, url, client):
        status, found = await answered(url, client, data)
    assert (status, found["error"]["code"]) == (400, code)


async def test_a_large_history_is_repaired_in_another_process(monkeypatch):
    monkeypatch.setattr(repair, "LARGE_BYTES", 10)
    async with gateway() as (_, url, client):
        _, found = await answered(url, client, asked(BROKEN))
    assert found["fixes"] == {"result_synthesised": 1}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rebound.example"}, 421),
        ({"Origin": "https://other.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "localhost:1"}, 200),
    ],
)
async def test_pages_of_other_sites_cannot_ask(headers, status):
    async with gateway() as (_, url, client), client.post(url + PATH, data=asked(BROKEN), headers=headers) as response:
        assert response.status == status


async def test_with_a_key_the_key_is_needed():
    async with gateway(key="k" * 20) as (_, url, client), client.post(url + PATH, data=asked(BROKEN)) as response:
        assert response.status == 401


@pytest.mark.parametrize("name", [pytest.param("litellm", marks=needs("litellm"), id="litellm")])
async def test_litellms_proxy_repairs_its_requests_with_the_gateway(name):
    async with gateway(key="k" * 20) as (provider, url, _):
        given = {"REKNIT_GATEWAY": url, "REKNIT_KEY": "k" * 20, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = await asyncio.to_thread(partial(run, name, SCRIPT, **given))
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr
    assert provider.received == []
