"""Strands loads session messages, and an agent sends them; run in the environment of Strands."""

from strands import Agent
from strands.models.anthropic import AnthropicModel
from strands.types.session import SessionMessage

from tests.frameworks.rows import each_list

model = AnthropicModel(model_id="claude-sonnet-4-5", max_tokens=100)


def load(messages):
    loaded = [SessionMessage.from_dict(each).to_message() for each in messages]
    assert [message["role"] for message in loaded] == [each["message"]["role"] for each in messages]
    assert str(Agent(model, messages=loaded, callback_handler=None)("More.")).strip()


each_list(load)
