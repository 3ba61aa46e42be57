"""A call by Anthropic's SDK with a history in which a tool call never got its result.

Needs anthropic and ANTHROPIC_API_KEY.
"""

import httpx2
from anthropic import Anthropic, DefaultHttpxClient

from reknit.integrations import RepairTransport

# The messages of a program that ended while the tool ran.
HISTORY = [
    {"role": "user", "content": "What is in the archive?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "list_files", "input": {"path": "/archive"}}],
    },
    {"role": "user", "content": "Are you still there?"},
]

client = Anthropic(
    http_client=DefaultHttpxClient(
        transport=RepairTransport(httpx2.HTTPTransport()),  # without this line, the request is refused
    )
)
answer = client.messages.create(model="claude-sonnet-4-5", max_tokens=1000, messages=HISTORY)
print(answer.content[0].text)
