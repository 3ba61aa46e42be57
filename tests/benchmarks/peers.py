"""The peers' side of bench_core, run by a Python that has them: one history in, then one measurement for each line.

    python tests/benchmarks/peers.py PEER TARGET HISTORY.json

The file holds messages in the canonical shape. Each peer gets the same conversation in its own JSON (made before the
measurement), and is measured on its shortest way from those bytes to the bytes of the target's ``messages``: the
functions below are those of its own requests, without head, client and network. None of them validates its output. For
each line on stdin the answer is the seconds of one call; the first line written is the peer's version. Imports nothing
of Reknit but the history and the stop watch.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # prices are of no interest here, and not to be fetched
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from histories import converse, openai_chat
from measure import seconds_a_call

Work = Callable[[], str]

MODEL = "claude-sonnet-4-5"
BEDROCK_MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def litellm(target, history):
    """Its converters read OpenAI's chat messages."""
    from litellm.litellm_core_utils.prompt_templates import factory

    data = json.dumps(openai_chat(history)).encode()
    if target == "anthropic":
        return lambda: json.dumps(
            factory.anthropic_messages_pt(json.loads(data), model=MODEL, llm_provider="anthropic")
        )
    convert = factory._bedrock_converse_messages_pt
    return lambda: json.dumps(convert(json.loads(data), model=BEDROCK_MODEL, llm_provider="bedrock_converse"))


def pydantic_ai(target, history):
    """Its histories are its own, and so is their JSON."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter
    from pydantic_ai.models import ModelRequestParameters

    data = json.dumps([_pydantic_message(message) for message in history]).encode()
    read, parameters = ModelMessagesTypeAdapter.validate_json, ModelRequestParameters()
    convert = _pydantic_model(target)
    return lambda: json.dumps(_result(convert(read(data), parameters, {}))[1])


def _pydantic_model(target):
    if target == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(MODEL, provider=AnthropicProvider(api_key="none"))._map_message
    import boto3
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    provider = BedrockProvider(bedrock_client=boto3.client("bedrock-runtime"))
    return BedrockConverseModel(BEDROCK_MODEL, provider=provider)._map_messages


def _result(made):
    """Return the result of a coroutine that never waits; an event loop would only add to its time."""
    try:
        made.send(None)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("it waits")


def _pydantic_message(message):
    asked = message["role"] == "user"
    parts = [_pydantic_part(block, "user-prompt" if asked else "text") for block in message["content"]]
    return {"parts": parts, "kind": "request" if asked else "response"}


def _pydantic_part(block, text):
    if block["type"] == "tool_use":
        called = {"tool_name": block["name"], "args": block["input"], "tool_call_id": block["id"]}
        return {"part_kind": "tool-call", **called}
    if block["type"] == "tool_result":
        returned = {"tool_name": "read_file", "content": block["content"], "tool_call_id": block["tool_use_id"]}
        return {"part_kind": "tool-return", **returned}
    return {"part_kind": text, "content": block["text"]}


def langchain(target, history):
    """Messages as it keeps them itself; OpenAI's take it as long."""
    from langchain_core.messages import convert_to_messages, messages_from_dict, messages_to_dict

    data = json.dumps(messages_to_dict(convert_to_messages(openai_chat(history)))).encode()
    if target == "anthropic":
        from langchain_anthropic.chat_models import _format_messages

        return lambda: json.dumps(_format_messages(messages_from_dict(json.loads(data)), model=MODEL)[1])
    from langchain_aws.chat_models.bedrock_converse import _messages_to_bedrock

    return lambda: json.dumps(_messages_to_bedrock(messages_from_dict(json.loads(data)))[0])


def strands(target, history):
    """Converse's shape is its own; what it does for Converse is to filter fields."""
    data = json.dumps(converse(history)).encode()
    if target == "anthropic":
        from strands.models.anthropic import AnthropicModel

        made = AnthropicModel(client_args={"api_key": "none"}, model_id=MODEL, max_tokens=9)
        convert = made._format_request_messages
    else:
        from strands.models.bedrock import BedrockModel

        convert = BedrockModel(model_id=BEDROCK_MODEL)._format_bedrock_messages
    return lambda: json.dumps(convert(json.loads(data)))


# The name of each, the package of its version for each target, and its set-up.
PEERS = {
    "LiteLLM": ({"anthropic": "litellm", "bedrock-converse": "litellm"}, litellm),
    "pydantic-ai": ({"anthropic": "pydantic-ai-slim", "bedrock-converse": "pydantic-ai-slim"}, pydantic_ai),
    "LangChain": ({"anthropic": "langchain-anthropic", "bedrock-converse": "langchain-aws"}, langchain),
    "Strands": ({"anthropic": "strands-agents", "bedrock-converse": "strands-agents"}, strands),
}


def main():
    name, target, path = sys.argv[1:]
    packages, ready = PEERS[name]
    history = json.loads(Path(path).read_bytes())
    work = ready(target, history)
    made = json.loads(work())
    assert len(made) == len(history), f"{name} makes {len(made)} messages of {len(history)}"
    sys.stdout.write(version(packages[target]) + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(f"{seconds_a_call(work)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
