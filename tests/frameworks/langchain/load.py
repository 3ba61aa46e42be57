"""LangChain loads messages and sends them to a model; run in the environment of LangChain."""

from langchain_core.messages import messages_from_dict, messages_to_dict
from langchain_openai import ChatOpenAI

from tests.frameworks.rows import each_list

model = ChatOpenAI(model="gpt-4.1", max_retries=0)


def load(messages):
    loaded = messages_from_dict(messages)
    again = messages_to_dict(loaded)
    assert [each["type"] for each in again] == [each["type"] for each in messages]
    assert model.invoke(loaded).text


each_list(load)
