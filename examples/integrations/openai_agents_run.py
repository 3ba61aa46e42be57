"""A run of the OpenAI Agents SDK continues a session in which a tool call never got its output.

Needs openai-agents and OPENAI_API_KEY.
"""

from agents import Agent, ModelSettings, RunConfig, Runner

from reknit.integrations.openai_agents import repair_input

# The items of a session whose process ended while the tool ran.
HISTORY = [
    {"role": "user", "content": "What is in the archive?"},
    {"type": "function_call", "call_id": "call_1", "name": "list_files", "arguments": '{"path": "/archive"}'},
    {"role": "user", "content": "Are you still there?"},
]

config = RunConfig(
    call_model_input_filter=repair_input(),  # without this line, the request is refused
    model_settings=ModelSettings(store=False),
    tracing_disabled=True,
)
agent = Agent(name="archivist", model="gpt-5")
print(Runner.run_sync(agent, HISTORY, run_config=config).final_output)
