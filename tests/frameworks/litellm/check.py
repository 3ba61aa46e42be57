"""The callback keeps the messages of LiteLLM's requests, in its proxy too; run in the environment of LiteLLM."""

import asyncio
import logging
import sys

import litellm
from litellm.caching.caching import DualCache
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.utils import ProxyLogging

from reknit.integrations.litellm import RepairCallback

warnings, fixes = [], []
logging.getLogger("reknit.integrations").addFilter(warnings.append)
callback = RepairCallback(on_fixes=fixes.extend)
litellm.callbacks = [callback]


def repaired(messages, call_type="acompletion"):
    """Return the messages of a request after the hooks of the proxy, and whether they are the given list."""
    cache, data = DualCache(), {"model": "m", "messages": messages}
    hooks = ProxyLogging(user_api_key_cache=cache)
    done = asyncio.run(hooks.pre_call_hook(user_api_key_dict=UserAPIKeyAuth(), data=data, call_type=call_type))
    return done["messages"], done["messages"] is messages


question = {"role": "user", "content": "Look."}
calls = [
    {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")
]
thinking = [{"type": "thinking", "thinking": "Hm.", "signature": "EqQBCg"}]
asking = {"role": "assistant", "content": None, "tool_calls": calls, "thinking_blocks": thinking}
results = [{"role": "tool", "tool_call_id": f"call_{name}", "content": name} for name in ("a", "b")]
more = {"role": "user", "content": [{"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}]}
object_ = litellm.Message(role="assistant", content="Done.")

# Valid: the same list, with LiteLLM's own objects and with members of single providers in it.
for valid in ([question], [question, asking, *results, more], [question, object_, more]):
    assert repaired(valid) == (valid, True)
assert fixes == []

# One result is missing.
found, _ = repaired([question, object_, question, asking, results[0], more])
assert [found[at] is each for at, each in ((1, object_), (3, asking), (4, results[0]), (6, more))] == [True] * 4
assert (found[5]["role"], found[5]["tool_call_id"]) == ("tool", "call_b")
assert {fix.code for fix in fixes} == {"result_synthesised"}
assert repaired(found)[1]

# Messages of Anthropic's API have another shape.
use = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}}]}
found, _ = repaired([question, use, more], "anthropic_messages")
assert found[1] is use
assert found[2]["content"][0]["type"] == "tool_result"
other = [question, use, more]
assert repaired(other, "aembedding") == (other, True)

# Unreadable: passed on, with a warning.
assert warnings == []
wrong = [question, {"role": 5}]
assert repaired(wrong) == (wrong, True)
assert len(warnings) == 1
sys.stdout.write("checked\n")
