"""The filter keeps the items of the OpenAI Agents SDK; run in its environment."""

import logging
import sys

from agents import Agent
from agents.run import CallModelData, ModelInputData

from reknit.integrations.openai_agents import repair_input

warnings, fixes = [], []
logging.getLogger("reknit.integrations").addFilter(warnings.append)
process = repair_input(on_fixes=fixes.extend)


def filtered(items):
    """Return the input that the model gets, and whether it is the given object."""
    data = ModelInputData(input=items, instructions="Be short.")
    done = process(CallModelData(model_data=data, agent=Agent(name="a"), context=None))
    assert isinstance(done, ModelInputData)
    assert done.instructions == "Be short."
    return done.input, done is data


question = {"role": "user", "content": "Look."}
calls = [
    {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": "{}", "id": f"fc_{name}"}
    for name in ("a", "b")
]
outputs = [{"type": "function_call_output", "call_id": f"call_{name}", "output": name} for name in ("a", "b")]
said = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
}
reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABx"}
more = {"role": "user", "content": "And?"}

# Valid: the same object. So is an input that answers calls of a conversation which the provider stores.
for valid in ([question], [question, reasoning, *calls, *outputs, said, more], [outputs[0]], [outputs[0], more]):
    assert filtered(valid) == (valid, True)
assert fixes == []

# One output is missing.
given = [question, reasoning, *calls, outputs[0], more]
found, _ = filtered(given)
assert len(found) == 7
assert all(any(item is each for item in found) for each in given)
(made,) = [item for item in found if item not in given]
assert (made["type"], made["call_id"]) == ("function_call_output", "call_b")
assert {fix.code for fix in fixes} == {"result_synthesised"}
assert filtered(found) == (found, True)

# An output without its call.
found, _ = filtered([question, outputs[0], said, more])
assert found == [question, said, more]

# Unreadable: passed on, with a warning.
assert warnings == []
wrong = [question, said, {"role": "user", "content": object()}]
assert filtered(wrong) == (wrong, True)
assert len(warnings) == 1
sys.stdout.write("checked\n")
