"""The providers' own SDKs, unmodified, through the gateway: repaired histories, whole streams and cut streams.

Of 18 ways in which SDKs read a stream, 15 return half an answer without an error after a clean end. Through the gateway
each must raise, wherever the stream is cut.
"""

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import anthropic
import botocore.config
import botocore.exceptions
import botocore.session
import openai
import provider_answers as answers
import pytest
from certificates import make_certificate
from gateway import Provider, gateway_to, streamed
from google import genai
from google.genai import types
from msgspec import Struct

from reknit.pipeline.serve.server import tls_of

CALL = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"path": "/srv"}}


class Client(Struct):
    """An SDK.

    Attributes:
        read: reads one stream to its end and returns its text and the JSON of its calls' arguments.
        text: the pieces of an answer with text.
        call: the pieces of an answer with a call.
        content_type: of the stream.
        errors: that the SDK raises for a cut stream.
        tls: the SDK refuses plain HTTP.
    """

    read: object
    text: object
    call: object
    errors: tuple[type[Exception], ...]
    content_type: str = "text/event-stream"
    tls: bool = False


# Each history has a call without a result, which each provider refuses.


async def anthropic_create(url, _certificate):
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        stream = await client.messages.create(**_anthropic(), stream=True)
        text = arguments = ""
        async for event in stream:
            if event.type == "content_block_delta":
                text += getattr(event.delta, "text", "")
                arguments += getattr(event.delta, "partial_json", "")
        return text, arguments


async def anthropic_stream(url, _certificate):
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        async with client.messages.stream(**_anthropic()) as stream:
            message = await stream.get_final_message()
        text = "".join(each.text for each in message.content if each.type == "text")
        return text, "".join(answers.ARGUMENTS) if any(each.type == "tool_use" for each in message.content) else ""


def _anthropic():
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": "and?"},
    ]
    return {"model": "claude-opus-4-7", "max_tokens": 64, "messages": messages}


async def chat(url, _certificate):
    called = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "user", "content": "and?"},
    ]
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(model="gpt-5", messages=messages, stream=True)
        text = arguments = ""
        async for chunk in stream:
            delta = chunk.choices[0].delta
            text += delta.content or ""
            arguments += "".join(each.function.arguments or "" for each in delta.tool_calls or ())
        return text, arguments


def _input():
    return [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "t1", "name": "f", "arguments": "{}"},
        {"role": "user", "content": "and?"},
    ]


async def responses_create(url, _certificate):
    """Read raw events as a program must: the SDK raises for none of them, so the last one's status decides."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
        stream = await client.responses.create(model="gpt-5", input=_input(), stream=True, store=False)
        text = arguments = ""
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.function_call_arguments.delta":
                arguments += event.delta
            elif event.type == "response.failed":
                raise openai.OpenAIError(event.response.error.message)
        return text, arguments


async def responses_stream(url, _certificate):
    async with (
        openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client,
        client.responses.stream(model="gpt-5", input=_input(), store=False) as stream,
    ):
        response = await stream.get_final_response()
        called = [each.arguments for each in response.output if each.type == "function_call"]
        return response.output_text, "".join(called)


async def gemini(url, _certificate):
    # Its asynchronous client leaves a broken connection open, which is a warning here.
    return await asyncio.to_thread(_gemini, url)


def _gemini(url):
    contents = [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"function_call": {"name": "ls", "args": {"path": "/srv"}}}]},
        {"role": "user", "parts": [{"text": "and?"}]},
    ]
    with genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url)) as client:
        text = arguments = ""
        for chunk in client.models.generate_content_stream(model="gemini-2.5-pro", contents=contents):
            for part in chunk.candidates[0].content.parts or ():
                text += part.text or ""
                arguments += "".join(answers.ARGUMENTS) if part.function_call else ""
        return text, arguments


async def converse(url, certificate):
    return await asyncio.to_thread(_converse, url, certificate)


def _converse(url, certificate):
    client = botocore.session.get_session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        verify=str(certificate / "cert.pem"),
        config=botocore.config.Config(retries={"total_max_attempts": 1}),
    )
    messages = [
        {"role": "user", "content": [{"text": "hi"}]},
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "t1", "name": "ls", "input": {"path": "/srv"}}}],
        },
        {"role": "user", "content": [{"text": "and?"}]},
    ]
    answer = client.converse_stream(modelId="anthropic.claude-sonnet-4-5-20250929-v1:0", messages=messages)
    try:
        deltas = [event["contentBlockDelta"]["delta"] for event in answer["stream"] if "contentBlockDelta" in event]
    finally:
        answer["stream"].close()
        client.close()
    text = "".join(each.get("text", "") for each in deltas)
    return text, "".join(each.get("toolUse", {}).get("input", "") for each in deltas)


FRAMES = "application/vnd.amazon.eventstream"
ANTHROPIC = (answers.anthropic_text, answers.anthropic_call, (anthropic.APIError,))
CONVERSE = (answers.converse_text, answers.converse_call, (botocore.exceptions.EventStreamError,))
RESPONSES = (answers.responses_text, answers.responses_call, (openai.OpenAIError,))
CLIENTS = {
    "anthropic create": Client(anthropic_create, *ANTHROPIC),
    "anthropic stream": Client(anthropic_stream, *ANTHROPIC),
    "openai chat": Client(chat, answers.chat_text, answers.chat_call, (openai.OpenAIError,)),
    "openai responses create": Client(responses_create, *RESPONSES),
    "openai responses stream": Client(responses_stream, *RESPONSES),
    "google-genai": Client(gemini, answers.gemini_text, answers.gemini_call, (genai.errors.APIError,)),
    "botocore": Client(converse, *CONVERSE, FRAMES, tls=True),
}
each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def bearer_key(monkeypatch):
    # Signatures: test_serve_bedrock.py.
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "k")


@asynccontextmanager
async def gateway_for(client, answer, certificate):
    """Yield a provider and a call that lets the SDK read one stream through a gateway."""
    provider = Provider(answer)
    tls = tls_of(certificate / "cert.pem", certificate / "key.pem") if client.tls else None
    async with provider.running() as url, gateway_to(url, tls=tls) as (gateway_url, _):
        yield provider, partial(client.read, gateway_url, certificate)


@each_client
@pytest.mark.parametrize("kind", ["text", "call"])
async def test_an_sdk_with_a_broken_history_reads_a_whole_stream(client, kind, certificate):
    pieces = getattr(client, kind)()
    async with gateway_for(client, streamed(pieces, client.content_type), certificate) as (provider, read):
        text, arguments = await read()
    expected = ("".join(answers.WORDS), "") if kind == "text" else ("", "".join(answers.ARGUMENTS))
    if client.call is answers.gemini_call and kind == "call":
        expected = (answers.WORDS[0], expected[1])
    assert (text, arguments) == expected
    # The provider refuses every history that breaks a hard rule, so the one request that it received was repaired.
    assert len(provider.received) == 1


@each_client
@pytest.mark.parametrize("breaks", [False, True], ids=["ends cleanly", "breaks"])
@pytest.mark.parametrize("kind", ["text", "call"])
async def test_an_sdk_never_takes_a_cut_stream_for_a_whole_one(client, kind, breaks, certificate):
    pieces = getattr(client, kind)()
    # The last piece that can be cut off: all that follows it tells a client nothing about completeness.
    last = len(pieces) - 1 if client.content_type == FRAMES or pieces[-1].startswith(b"data: [DONE]") else len(pieces)
    for kept in range(1, last):
        answer = streamed(pieces[:kept], client.content_type, breaks=breaks)
        async with gateway_for(client, answer, certificate) as (_, read):
            with pytest.raises(client.errors):
                await read()
