"""The providers' JavaScript SDKs and the AI SDK, unmodified, through the gateway, as in `test_serve_sdks`."""

import asyncio
import json
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import provider_answers as answers
import pytest
from gateway import Provider, gateway_to, streamed
from msgspec import Struct

SCRIPT = Path(__file__).parents[1] / "js" / "read_stream.mjs"


def _missing():
    if shutil.which("node") is None:
        return "needs Node.js 20"
    return "" if (SCRIPT.parent / "node_modules").is_dir() else "needs the packages of tests/js: run `make sdks`"


if _missing() and os.environ.get("REKNIT_REQUIRE_NODE"):
    raise RuntimeError(_missing())
pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


class Client(Struct):
    """The answers for an SDK, and the names of the errors that it raises for a cut stream."""

    text: object
    call: object
    errors: set[str]


API_ERROR = {"APIError"}
# Before any content the AI SDK reports the provider's error event as a failed call.
AI_ERRORS = {"StreamError", "AI_APICallError"}
CLIENTS = {
    "anthropic create": Client(answers.anthropic_text, answers.anthropic_call, API_ERROR),
    "anthropic stream": Client(answers.anthropic_text, answers.anthropic_call, API_ERROR),
    "openai chat": Client(answers.chat_text, answers.chat_call, API_ERROR),
    "openai responses": Client(answers.responses_text, answers.responses_call, {"OpenAIError"}),
    "google-genai": Client(answers.gemini_text, answers.gemini_call, {"ApiError"}),
    "ai-sdk anthropic": Client(answers.anthropic_text, answers.anthropic_call, AI_ERRORS),
    "ai-sdk chat": Client(answers.chat_text, answers.chat_call, AI_ERRORS),
    "ai-sdk responses": Client(answers.responses_text, answers.responses_call, AI_ERRORS),
    "ai-sdk google": Client(answers.gemini_text, answers.gemini_call, AI_ERRORS),
}
each_client = pytest.mark.parametrize("name", CLIENTS)


@asynccontextmanager
async def node():
    """Yield a call that reads one stream with an SDK and returns its result."""
    process = await asyncio.create_subprocess_exec(
        "node", SCRIPT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )

    async def read(client, url):
        process.stdin.write(json.dumps({"client": client, "url": url}).encode() + b"\n")
        return json.loads(await process.stdout.readline())

    try:
        yield read
    finally:
        process.stdin.close()
        await process.wait()


async def result_of(read, name, answer):
    """Let an SDK read one stream through a gateway; return its result and the number of requests."""
    provider = Provider(answer)
    async with provider.running() as url, gateway_to(url) as (gateway_url, _):
        return await read(name, gateway_url), len(provider.received)


@each_client
async def test_an_sdk_reads_whole_streams(name):
    client = CLIENTS[name]
    async with node() as read:
        text = await result_of(read, name, streamed(client.text()))
        called = await result_of(read, name, streamed(client.call()))
    assert text == ({"text": "".join(answers.WORDS), "arguments": ""}, 1)
    result, requests = called
    assert (json.loads(result["arguments"]), requests) == (json.loads("".join(answers.ARGUMENTS)), 1)


@each_client
@pytest.mark.parametrize("breaks", [False, True], ids=["ends cleanly", "breaks"])
async def test_an_sdk_never_takes_a_cut_stream_for_a_whole_one(name, breaks):
    client = CLIENTS[name]
    results = {}
    async with node() as read:
        for kind in ("text", "call"):
            pieces = getattr(client, kind)()
            last = len(pieces) - 1 if pieces[-1].startswith(b"data: [DONE]") else len(pieces)
            for kept in range(1, last):
                result, _ = await result_of(read, name, streamed(pieces[:kept], breaks=breaks))
                results[kind, kept] = result.get("error", result)
    assert {key: result for key, result in results.items() if result not in client.errors} == {}
