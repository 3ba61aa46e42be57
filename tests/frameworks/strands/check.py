"""The hook keeps the messages of a Strands agent; run in the environment of Strands."""

import logging
import sys
from types import SimpleNamespace

from strands.hooks import BeforeModelCallEvent, HookRegistry

from reknit.integrations.strands import RepairHook

warnings, fixes = [], []
logging.getLogger("reknit.integrations").addFilter(warnings.append)
registry = HookRegistry()
registry.add_hook(RepairHook(on_fixes=fixes.extend))


def repaired(messages):
    """Return the agent's messages after the hook; their list is the agent's own."""
    agent = SimpleNamespace(messages=list(messages))
    own = agent.messages
    registry.invoke_callbacks(BeforeModelCallEvent(agent=agent))
    assert agent.messages is own
    return own


def call(name):
    return {"toolUse": {"toolUseId": f"tooluse_{name}", "name": name, "input": {"n": 1.5}}}


def result(name):
    return {"toolResult": {"toolUseId": f"tooluse_{name}", "status": "success", "content": [{"json": {"rows": 3}}]}}


def is_same(found, given):
    return len(found) == len(given) and all(one is other for one, other in zip(found, given, strict=True))


png = b"\x89PNG\r\n\x1a\n" + bytes(range(240, 256))
image = {"image": {"format": "png", "source": {"bytes": png}}}
question = {"role": "user", "content": [{"text": "Look."}, image]}
asking = {"role": "assistant", "content": [{"text": "I will look."}, call("a"), call("b")], "metadata": {"cost": 1}}
both = {"role": "user", "content": [result("a"), result("b")]}
done = {"role": "assistant", "content": [{"text": "Done."}]}
more = {"role": "user", "content": [{"text": "And?"}]}

# Valid: the same objects.
for valid in ([question, asking, both, done, more], [question], [question, asking, both]):
    assert is_same(repaired(valid), valid)
assert fixes == []

# One result is missing: it joins the other one, next to an image that stays bytes.
found = repaired([question, asking, {"role": "user", "content": [result("a"), image]}, done, more])
assert [found[at] is each for at, each in ((0, question), (1, asking), (3, done), (4, more))] == [True] * 4
shown = [next(iter(block)) for block in found[2]["content"]]
assert shown == ["toolResult", "toolResult", "image"]
assert found[2]["content"][2]["image"]["source"]["bytes"] == png
assert {fix.code for fix in fixes} == {"result_synthesised"}
assert is_same(repaired(found), found)

# A result without its call.
found = repaired([question, done, {"role": "user", "content": [result("x"), {"text": "And?"}]}])
assert found[:2] == [question, done]
assert found[2]["content"] == [{"text": "And?"}]

# Unreadable: passed on, with a warning.
assert warnings == []
wrong = [question, {"role": "user"}, object()]
assert is_same(repaired(wrong), wrong)
assert len(warnings) == 1
sys.stdout.write("checked\n")
