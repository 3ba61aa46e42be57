"""pydantic-ai loads messages and sends them to a model; run in the environment of pydantic-ai."""

from pydantic_ai.direct import model_request_sync
from pydantic_ai.messages import ModelMessagesTypeAdapter

from tests.frameworks.rows import each_list


def load(messages):
    loaded = ModelMessagesTypeAdapter.validate_python(messages)
    assert [message.kind for message in loaded] == [each["kind"] for each in messages]
    assert model_request_sync("openai-chat:gpt-4.1", loaded).parts


each_list(load)
