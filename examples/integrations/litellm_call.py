"""A call by LiteLLM's SDK with a history in which a tool call never got its result.

Needs litellm and OPENAI_API_KEY. In a proxy, `callbacks: proxy_callbacks.repair` in `litellm_settings` names a module
`proxy_callbacks` with `repair = RepairCallback()`.
"""

import asyncio

import litellm

from reknit.integrations.litellm import RepairCallback

# The messages of a program that ended while the tool ran.
CALL = {"id": "call_1", "type": "function", "function": {"name": "list_files", "arguments": '{"path": "/archive"}'}}
HISTORY = [
    {"role": "user", "content": "What is in the archive?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "user", "content": "Are you still there?"},
]

litellm.callbacks = [
    RepairCallback(),  # without this line, the request is refused
]
answer = asyncio.run(litellm.acompletion(model="openai/gpt-4.1", messages=HISTORY, num_retries=0))
print(answer.choices[0].message.content)
