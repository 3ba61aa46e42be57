"""AG-UI's own classes load messages, and the input of a run sends them; run in the environment of pydantic-ai."""

import os

import httpx2
from ag_ui.core import RunAgentInput

from tests.frameworks.rows import each_list

URL = f"{os.environ['ANTHROPIC_BASE_URL']}/agent"


def load(messages):
    given = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    loaded = RunAgentInput.model_validate({**given, "messages": messages})
    assert [message.role for message in loaded.messages] == [each["role"] for each in messages]
    body = loaded.model_dump_json(by_alias=True, exclude_none=True)
    httpx2.post(URL, content=body).raise_for_status()


each_list(load)
