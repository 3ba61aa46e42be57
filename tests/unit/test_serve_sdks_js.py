"""The providers' JavaScript SDKs and the AI SDK, unmodified, through the gateway, as in `test_serve_sdks`."""

import asyncio
import gc
import json
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import provider_answers as answers
import pytest
from aiohttp import web
from gateway import Provider, gateway_to, streamed
from msgspec import Struct

from reknit.pipeline.serve.endpoints import endpoint_of

SCRIPT = Path(__file__).parents[1] / "js" / "read_stream.mjs"


def _missing():
    if shutil.which("node") is None:
        return "needs Node.js 20"
    return "" if (SCRIPT.parent / "node_modules").is_dir() else "needs the packages of tests/js: run `make sdks`"


if _missing() and os.environ.get("REQUIRE_NODE"):
    raise RuntimeError(_missing())
pytestmark = [
    pytest.mark.skipif(bool(_missing()), reason=_missing()),
    # Node connects again while the gateway stops: the loop accepts the connection and ends before it reads from it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _collected():
    """Collect connections that were left in the test that left them."""
    yield
    gc.collect()


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


async def test_the_javascript_package_repairs_the_requests_of_sdks():
    answers_by_path = {
        "/v1/messages": {"type": "message", "role": "assistant", "content": []},
        "/v1/chat/completions": {
            "id": "c",
            "created": 1,
            "model": "gpt-5",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}],
        },
        "/v1/models": {"object": "list", "data": []},
    }

    async def answer(request):
        return web.json_response(answers_by_path[request.path])

    provider = Provider(answer)
    async with provider.running() as url, gateway_to(url) as (gateway_url, _):
        process = await asyncio.create_subprocess_exec(
            "node", SCRIPT.parent / "mend.mjs", gateway_url, url, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert json.loads(output) == {
        "results": [["result_synthesised"], ["result_synthesised"], [], "unreachable"],
        "refused": 400,
        "wrong": "unknown_target",
        "roles": ["user", "assistant", "user"],
        "fixes": 1,
    }
    # The gateway only repaired: each request came from its SDK.
    assert [received.headers.get("via") for received in provider.received] == [None] * 5


async def test_the_types_of_the_javascript_package_are_valid(tmp_path):
    use = tmp_path / "use.mts"
    use.write_text(
        f"""
        import {{ mend, mendingFetch, MendError, type MendResult }} from "{SCRIPT.parents[2] / "js" / "index.js"}";
        const result: MendResult<{{ messages: unknown[] }}> = await mend([], {{ target: "anthropic" }});
        const fetch: typeof globalThis.fetch = mendingFetch({{ onResult: (each) => each instanceof MendError }});
        // @ts-expect-error: a target is required
        mend([], {{}});
        export {{ result, fetch }};
        """
    )
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    process = await asyncio.create_subprocess_exec(
        SCRIPT.parent / "node_modules" / ".bin" / "tsc", *options, use, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert (process.returncode, output.decode()) == (0, "")


async def test_the_javascript_package_and_the_gateway_know_the_same_endpoints():
    urls = [
        "https://api.anthropic.com/v1/messages?beta=true",
        "https://api.anthropic.com/v1/messages/count_tokens",
        "https://x-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/anthropic/models/c@1:streamRawPredict",
        "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-v1%3A0/converse-stream",
        "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-v1%3A0/invoke",
        "https://bedrock-runtime.us-east-1.amazonaws.com/model/meta.llama/invoke",
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse",
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-pro:countTokens",
        "https://api.openai.com/v1/chat/completions",
        "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1",
        "http://127.0.0.1:8000/v1/chat/completions",
        "https://api.mistral.ai/v1/chat/completions",
        "https://api.moonshot.cn/v1/chat/completions",
        "https://api.kimi.com/coding/v1/chat/completions",
        "https://api.deepseek.com/chat/completions",
        "https://api.deepseek.com/anthropic/v1/messages",
        "https://notmistral.ai/v1/chat/completions",
        "https://api.openai.com/v1/responses",
        "https://api.openai.com/v1/responses/r/cancel",
    ]
    script = f"""
        import {{ endpointOf }} from "{SCRIPT.parents[2] / "js" / "index.js"}";
        console.log(JSON.stringify({json.dumps(urls)}.map(endpointOf)));
    """
    process = await asyncio.create_subprocess_exec(
        "node", "--input-type=module", "--eval", script, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    parts = [urlsplit(url) for url in urls]
    known = [endpoint_of(part.path, part.netloc) for part in parts]
    assert [each and (each["target"], each.get("model", "")) for each in json.loads(output)] == [
        each and (each.target, each.model) for each in known
    ]
    assert {each.target for each in known if each} > {"anthropic", "vllm"}
