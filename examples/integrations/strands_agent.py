"""A Strands agent continues a conversation in which a tool call never got its result.

Needs strands-agents[anthropic] and ANTHROPIC_API_KEY.
"""

from strands import Agent
from strands.models.anthropic import AnthropicModel

from reknit.integrations.strands import RepairHook

# The messages of an agent whose process ended while the tool ran.
HISTORY = [
    {"role": "user", "content": [{"text": "What is in the archive?"}]},
    {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": "toolu_1", "name": "list_files", "input": {"path": "/archive"}}}],
    },
    {"role": "user", "content": [{"text": "Hello?"}]},
    {"role": "assistant", "content": [{"text": "Yes?"}]},
]

agent = Agent(
    AnthropicModel(model_id="claude-sonnet-4-5", max_tokens=1000),
    messages=HISTORY,
    callback_handler=None,
    hooks=[
        RepairHook("anthropic"),  # without this line, the request is refused
    ],
)
print(agent("Are you still there?"))
