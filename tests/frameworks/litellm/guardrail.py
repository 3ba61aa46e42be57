"""The gateway as a guardrail of LiteLLM's proxy (`REKNIT_GATEWAY` is its URL); run in the environment of LiteLLM."""

import asyncio
import os
import sys

import litellm
from litellm.caching.caching import DualCache
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.guardrails.guardrail_hooks.generic_guardrail_api import initialize_guardrail
from litellm.proxy.utils import ProxyLogging
from litellm.types.guardrails import LitellmParams

litellm.callbacks = []
params = LitellmParams(
    guardrail="generic_guardrail_api",
    mode="pre_call",
    api_base=os.environ["REKNIT_GATEWAY"],
    headers={"x-reknit-key": os.environ["REKNIT_KEY"]},
    default_on=True,
    timeout=60,
)
initialize_guardrail(params, {"guardrail_name": "reknit"})
hooks = ProxyLogging(user_api_key_cache=DualCache())


async def sent(call_type, data):
    """Return the data of a request after the guardrails of the proxy."""
    key = UserAPIKeyAuth()
    return await hooks.pre_call_hook(user_api_key_dict=key, data={"model": "m", **data}, call_type=call_type)


async def check():
    question, more = {"role": "user", "content": "Look."}, {"role": "user", "content": "And?"}
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")
    ]
    asking = {"role": "assistant", "content": None, "tool_calls": calls, "own": {"kept": True}}
    results = [{"role": "tool", "tool_call_id": f"call_{name}", "content": name} for name in ("a", "b")]

    valid = [question, asking, *results, more]
    assert (await sent("acompletion", {"messages": list(valid)}))["messages"] == valid

    found = (await sent("acompletion", {"messages": [question, asking, results[0], more]}))["messages"]
    assert [each["role"] for each in found] == ["user", "assistant", "tool", "tool", "user"]
    assert [each["tool_call_id"] for each in found[2:4]] == ["call_a", "call_b"]
    assert (found[0], found[2], found[4]) == (question, results[0], more)
    again = (await sent("acompletion", {"messages": list(found)}))["messages"]
    assert again == found

    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}}]}
    found = (await sent("anthropic_messages", {"messages": [question, use, more], "max_tokens": 64}))["messages"]
    assert found[1]["content"][0]["id"] == "toolu_1"
    assert found[2]["content"][0]["type"] == "tool_result"
    assert found[2]["content"][0]["tool_use_id"] == "toolu_1"

    called = {"type": "function_call", "call_id": "call_a", "name": "a", "arguments": "{}"}
    found = (await sent("aresponses", {"input": [question, called, more]}))["input"]
    assert [each.get("type") for each in found].count("function_call_output") == 1
    sys.stdout.write("checked\n")


asyncio.run(check())
