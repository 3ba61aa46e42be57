"""An unmodified boto3, in an environment of its own, through the gateway over TLS: with a signature and with a key."""

import asyncio
import json
from functools import partial

import provider_answers as answers
import pytest
from aiohttp import web
from aws_signatures import is_signed
from certificates import make_certificate
from frameworks.environments import ROOT, needs, run
from gateway import Provider, gateway_to, streamed

from reknit.pipeline.serve.server import tls_of

SCRIPT = ROOT / "tests" / "frameworks" / "boto3" / "converse.py"
FRAMES = "application/vnd.amazon.eventstream"
SECRET = "secret-marker"  # noqa: S105  of no account
SIGNED = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET}
STREAMS = {
    "say a text": answers.converse_text(),
    "make a call": answers.converse_call(),
    "cut the text": answers.converse_text()[:3],
    "cut the call": answers.converse_call()[:3],
}
SAID = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello."}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    "metrics": {"latencyMs": 1},
}


def error(status, kind, message):
    return web.json_response({"message": message}, status=status, headers={"x-amzn-errortype": kind})


async def answer(request):
    """Answer as the last words of the history ask for."""
    given = json.loads(await request.read())
    words = given["messages"][-1]["content"][-1]["text"]
    if words in STREAMS:
        return await streamed(STREAMS[words], FRAMES, breaks=words == "cut the call")(request)
    if words == "be throttled":
        return error(429, "ThrottlingException", "Too many requests, please wait before trying again.")
    if "temperature" in given.get("inferenceConfig", {}):
        return error(400, "ValidationException", "temperature is deprecated for this model.")
    return web.json_response(SAID)


@pytest.fixture(autouse=True)
def credentials(monkeypatch, tmp_path):
    """The gateway's; no file of this machine is read."""
    for name in ("AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name, value in SIGNED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "own", [SIGNED, {"AWS_BEARER_TOKEN_BEDROCK": "bearer-marker"}], ids=["signature", "bearer key"]
)
@pytest.mark.parametrize("name", [pytest.param("boto3", marks=needs("boto3"), id="boto3")])
async def test_an_unmodified_boto3_reads_repaired_healed_and_cut_answers(name, own, tmp_path):
    folder = make_certificate(tmp_path)
    provider = Provider(answer)
    tls = tls_of(folder / "cert.pem", folder / "key.pem")
    async with provider.running() as url, gateway_to(url, tls=tls) as (gateway_url, _):
        variables = {
            "AWS_CA_BUNDLE": folder / "cert.pem",
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": gateway_url,
            "AWS_MAX_ATTEMPTS": 1,
            "HOME": tmp_path,
        }
        done = await asyncio.to_thread(partial(run, name, SCRIPT, **own, **variables))
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr
    # Two attempts of the healed request, and one of each other.
    assert len(provider.received) == 8
    for each in provider.received:
        if own is SIGNED:
            assert is_signed(each.method, each.path, each.headers, each.body, SECRET)
        else:
            assert each.headers["authorization"] == "Bearer bearer-marker"
