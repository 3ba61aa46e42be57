"""A pydantic-ai agent continues a history that another model began, whose ids of calls Claude refuses.

Needs pydantic-ai-slim[anthropic] and ANTHROPIC_API_KEY.
"""

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from reknit.integrations.pydantic_ai import repair_history

# Kimi K2 wrote the call: its ids have dots and colons.
CALL_ID = "functions.list_files:0"
HISTORY = [
    ModelRequest([UserPromptPart("What is in the archive?")]),
    ModelResponse([ToolCallPart("list_files", {"path": "/archive"}, CALL_ID)], model_name="kimi-k2.5"),
    ModelRequest([ToolReturnPart("list_files", "old.txt", CALL_ID)]),
    ModelResponse([TextPart("A file with the name old.txt.")], model_name="kimi-k2.5"),
]

agent = Agent(
    "anthropic:claude-sonnet-4-5",
    capabilities=[
        ProcessHistory(repair_history("anthropic")),  # without this line, the request is refused
    ],
)
print(agent.run_sync("Delete it.", message_history=HISTORY).output)
