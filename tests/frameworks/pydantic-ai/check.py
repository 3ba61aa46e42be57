"""The history processor keeps pydantic-ai's objects; run in the environment of pydantic-ai."""

import logging
import sys

from pydantic_ai import BinaryContent
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from reknit.integrations.pydantic_ai import repair_history

warnings, fixes = [], []
logging.getLogger("reknit.integrations").addFilter(warnings.append)
process = repair_history("anthropic", on_fixes=fixes.extend)

image = BinaryContent(b"\x89PNG\r\n\x1a\n" + bytes(range(240, 256)), media_type="image/png")
question = ModelRequest([SystemPromptPart("Be short."), UserPromptPart(["Look.", image])], instructions="Obey.")
asking = ModelResponse(
    [TextPart("I will look."), ToolCallPart("a", {"n": 1.5}, "toolu_a"), ToolCallPart("b", "{}", "toolu_b")],
    usage=RequestUsage(input_tokens=3),
    model_name="claude-sonnet-4-5",
)
both = ModelRequest([ToolReturnPart("a", {"rows": 3}, "toolu_a"), ToolReturnPart("b", "x", "toolu_b")])
more = ModelRequest([UserPromptPart("And?")], instructions="Obey now.")

# Valid: the same list.
for valid in ([question, asking, both, more], [question], [question, asking, both]):
    assert process(valid) is valid
assert fixes == []

# One result is missing.
one = ModelRequest([ToolReturnPart("a", {"rows": 3}, "toolu_a")])
given = [question, asking, one, more]
found = process(given)
assert given == [question, asking, one, more]
assert found[0] is question
assert found[1] is asking
assert found[2] is one
assert found[-1] is more
assert [part.tool_call_id for part in found[3].parts] == ["toolu_b"]
assert {fix.code for fix in fixes} == {"result_synthesised"}
assert process(found) is found

# Ids of another provider: the changed messages keep their usage and their model.
calls = [ToolCallPart("a", {"n": 1}, "a.b:0")]
response = ModelResponse(calls, usage=RequestUsage(output_tokens=7), model_name="kimi-k2.5")
result = ModelRequest([ToolReturnPart("a", "x", "a.b:0")], instructions="Obey.", metadata={"run": 1})
found = process([question, response, result])
assert found[0] is question
assert (found[1].usage.output_tokens, found[1].model_name) == (7, "kimi-k2.5")
assert (found[2].instructions, found[2].metadata) == ("Obey.", {"run": 1})
assert found[1].parts[0].tool_call_id == found[2].parts[0].tool_call_id != "a.b:0"

# The last request has only a result without its call: its instructions stay in force.
done = ModelResponse([TextPart("Done.")])
lost = ModelRequest([ToolReturnPart("a", "x", "toolu_x")], instructions="Obey now.")
found = process([question, done, more, lost])
assert found == [question, done, more]
found = process([question, done, ModelRequest([UserPromptPart("And?")]), lost])
assert found[-1].instructions == "Obey now."

# A request has instructions only, or nothing is left of it: the history ends with a request all the same.
bare = ModelRequest([], instructions="Obey now.")
given = [question, done, bare]
prefilled = repair_history("anthropic", policy={"tail": "prefill"})
assert prefilled(given) is given
assert prefilled([question, done, lost])[:2] == [question, done]
assert prefilled([question, done, lost])[2].instructions == "Obey now."

# Unreadable: passed on, with a warning.
assert warnings == []
wrong = [question, "no message"]
assert process(wrong) is wrong
assert len(warnings) == 1
sys.stdout.write("checked\n")
