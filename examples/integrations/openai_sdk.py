"""A call by OpenAI's SDK with a history in which a function call never got its output.

Needs openai and OPENAI_API_KEY.
"""

import httpx2
from openai import DefaultHttpxClient, OpenAI

from reknit.integrations import RepairTransport

# The items of a program that ended while the tool ran.
HISTORY = [
    {"role": "user", "content": "What is in the archive?"},
    {"type": "function_call", "call_id": "call_1", "name": "list_files", "arguments": '{"path": "/archive"}'},
    {"role": "user", "content": "Are you still there?"},
]

client = OpenAI(
    http_client=DefaultHttpxClient(
        transport=RepairTransport(httpx2.HTTPTransport()),  # without this line, the request is refused
    )
)
print(client.responses.create(model="gpt-5", input=HISTORY, store=False).output_text)
