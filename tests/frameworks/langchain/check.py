"""The middleware keeps LangChain's objects; run in the environment of LangChain."""

import asyncio
import logging
import sys

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from reknit.integrations.langchain import RepairMiddleware

warnings, fixes = [], []
logging.getLogger("reknit.integrations").addFilter(warnings.append)
middleware = RepairMiddleware("anthropic", on_fixes=fixes.extend)


def repaired(messages):
    """Return the messages of the new state, None where it is not changed."""
    done = middleware.before_model({"messages": messages}, None)
    assert done == asyncio.run(middleware.abefore_model({"messages": messages}, None))
    if done is None:
        return None
    removal, *found = done["messages"]
    assert isinstance(removal, RemoveMessage)
    return found


calls = [{"name": name, "args": {"n": 1.5}, "id": f"toolu_{name}"} for name in ("a", "b")]
usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
asking = AIMessage("I will look.", tool_calls=calls, id="ai-1", usage_metadata=usage)
first, second = (ToolMessage(f"found {name}", tool_call_id=f"toolu_{name}", artifact=[name]) for name in ("a", "b"))
system, question, more = SystemMessage("Be short."), HumanMessage("Look.", id="h-1"), HumanMessage("And?")

# Valid: nothing is changed, artifacts and two messages of the user in a row included.
assert repaired([system, question, more, asking, second, first, AIMessage("Done.")][:6]) is None
assert fixes == []
assert repaired([]) is None

# One result is missing: it is added next to the other one, and all other objects stay.
found = repaired([system, question, asking, first, more])
assert [message.type for message in found] == ["system", "human", "ai", "tool", "tool", "human"]
given = [system, question, asking, first, more]
assert all(one is other for one, other in zip(found[:4] + found[5:], given, strict=True))
assert (found[4].tool_call_id, found[4].status, found[4].name) == ("toolu_b", "error", "b")
assert {fix.code for fix in fixes} == {"result_synthesised"}
assert repaired(found) is None

# A result before its call, one without a call, and a call that was cut.
cut = AIMessage("", id="ai-2", invalid_tool_calls=[{"name": "a", "args": '{"n', "id": "toolu_c", "error": None}])
orphan = ToolMessage("lost", tool_call_id="toolu_x")
found = repaired([question, orphan, asking, first, second, cut, more])
assert orphan not in found
assert cut not in found
assert found[1] is asking

# Messages of nothing go, where the target refuses them.
silent = [question, AIMessage("", id="ai-4"), more, AIMessage("Done."), HumanMessage(""), HumanMessage("Well?")]
assert repaired(silent) == [silent[at] for at in (0, 2, 3, 5)]
assert RepairMiddleware("openai-chat").before_model({"messages": silent}, None) is None

# A changed message keeps what a request does not have.
dotted = AIMessage("", id="ai-3", tool_calls=[calls[0] | {"id": "a.b:0"}], usage_metadata=usage, name="archivist")
answer = ToolMessage("found", tool_call_id="a.b:0", artifact={"rows": 3}, id="t-3")
found = repaired([question, dotted, answer])
assert found[0] is question
assert (found[1].id, found[1].name, found[1].usage_metadata) == ("ai-3", "archivist", usage)
assert (found[2].id, found[2].artifact) == ("t-3", {"rows": 3})
assert found[1].tool_calls[0]["id"] == found[2].tool_call_id != "a.b:0"
assert dotted.tool_calls[0]["id"] == "a.b:0"

# Unreadable: passed on, with a warning.
assert warnings == []
assert middleware.before_model({"messages": [question, "no message"]}, None) is None
assert len(warnings) == 1
sys.stdout.write("checked\n")
