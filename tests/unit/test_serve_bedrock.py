"""Amazon Bedrock on the request path: signatures, repaired bodies, healed refusals, and streams of InvokeModel."""

import asyncio
import json
import logging
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import aiohttp
import botocore.config
import botocore.exceptions
import botocore.session
import provider_answers as answers
import pytest
import urllib3
from aiohttp import web
from aws_signatures import is_signed, scope_of
from botocore import auth
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from click.testing import CliRunner
from gateway import Provider, gateway, gateway_to, streamed
from multidict import CIMultiDict
from yarl import URL

from reknit.pipeline.cli import main
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.serve import aws
from reknit.pipeline.serve.conversations import conversation_key
from reknit.pipeline.serve.upstreams import Upstream, Upstreams, form_of_errors

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PATH = "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0"
FRAMES = "application/vnd.amazon.eventstream"
KEY = "AKIDEXAMPLE"
SECRET, THEIRS, TOKEN = "secret-marker", "another-secret", "session-token-marker"
VALID = b'{"messages": [ {"role":"user","content":[{"text":"hi"}]} ]}'
CALL = {"toolUse": {"toolUseId": "t1", "name": "ls", "input": {"path": "/srv"}}}
BROKEN = [
    {"role": "user", "content": [{"text": "hi"}]},
    {"role": "assistant", "content": [CALL]},
    {"role": "user", "content": [{"text": "and?"}]},
]
SAID = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello."}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    "metrics": {"latencyMs": 1},
}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Credentials of the gateway, and of clients that have no others; no file of this machine is read."""
    for name in ("AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    return monkeypatch


async def called(url, operation, **given):
    """Call an operation of Bedrock's runtime by botocore's own client."""
    return await asyncio.to_thread(_called, url, operation, **given)


def _called(url, operation, **given):
    client = botocore.session.Session().create_client(
        "bedrock-runtime",
        region_name="eu-west-1",
        endpoint_url=url,
        config=botocore.config.Config(retries={"total_max_attempts": 1}),
    )
    with closing(client):
        answer = getattr(client, operation)(modelId=MODEL, **given)
        for name in ("stream", "body"):
            if name in answer:
                with closing(answer[name]) as stream:
                    answer[name] = list(stream)
        return answer


async def says(_request):
    return web.json_response(SAID)


def signed(url, body, path=f"{PATH}/converse", *, secret=SECRET, key=KEY, method="POST", **headers):
    """Return the headers of a request that was signed for a URL."""
    request = AWSRequest(method=method, url=url + path, data=body, headers=headers)
    SigV4Auth(Credentials(key, secret, TOKEN), "bedrock", "eu-west-1").add_auth(request)
    return dict(request.headers.items())


async def posted(client, url, body, headers, path=f"{PATH}/converse"):
    async with client.post(URL(url + path, encoded=True), data=body, headers=headers) as response:
        return response.status, await response.read(), response.headers


def is_by(received, secret=SECRET):
    return is_signed(received.method, received.path, received.headers, received.body, secret)


INVOKED = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 64,
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}]},
        {"role": "user", "content": "and?"},
    ],
}


# Requests signed with the gateway's own credentials.


@pytest.mark.parametrize("messages", [BROKEN[:1], BROKEN], ids=["valid", "broken"])
async def test_a_request_is_signed_again_for_the_upstream(messages):
    async with gateway(says) as (provider, url, _):
        answer = await called(url, "converse", messages=messages)
    (received,) = provider.received
    assert answer["output"] == SAID["output"]
    assert is_by(received)
    assert received.headers["x-amz-security-token"] == TOKEN
    assert received.headers["host"] not in url
    key, _, region, service = scope_of(received.headers)
    assert (key, region, service) == (KEY, "eu-west-1", "bedrock")
    repaired = "x-reknit-fixes" in answer["ResponseMetadata"]["HTTPHeaders"]
    assert (json.loads(received.body)["messages"] == messages, repaired) == (messages != BROKEN, messages == BROKEN)


async def test_a_body_without_a_fix_is_forwarded_byte_for_byte():
    async with gateway(says) as (provider, url, client):
        assert (await posted(client, url, VALID, signed(url, VALID)))[0] == 200
    assert provider.received[0].body == VALID
    assert is_by(provider.received[0])


async def test_a_signature_that_holds_for_the_upstream_is_kept(environment):
    environment.delenv("AWS_ACCESS_KEY_ID")
    provider = Provider(says)
    async with provider.running() as to, gateway_to(to) as (url, _), aiohttp.ClientSession() as client:
        headers = {**signed(to, VALID, secret=THEIRS), "Host": to.removeprefix("http://")}
        assert (await posted(client, url, VALID, headers))[0] == 200
        broken = json.dumps({"messages": BROKEN}).encode()
        headers = {**signed(to, broken, secret=THEIRS), "Host": to.removeprefix("http://")}
        status, _, answered = await posted(client, url, broken, headers)
    # The gateway cannot sign, so that the provider gets and refuses the request as it is.
    assert (status, "x-reknit-fixes" in answered) == (400, False)
    assert [(each.body, is_by(each, THEIRS)) for each in provider.received] == [(VALID, True), (broken, True)]


async def test_a_signature_for_the_upstream_is_replaced_where_the_body_changes():
    provider = Provider(says)
    async with provider.running() as to, gateway_to(to) as (url, _), aiohttp.ClientSession() as client:
        broken = json.dumps({"messages": BROKEN}).encode()
        headers = {**signed(to, broken), "Host": to.removeprefix("http://"), "x-amz-content-sha256": "0" * 64}
        # The digest is no signed header here, and that of the sent body replaces it.
        status, _, answered = await posted(client, url, broken, headers)
    assert (status, is_by(provider.received[0])) == (200, True)
    assert "result_synthesised=1" in answered["x-reknit-fixes"]


async def test_a_signature_for_another_path_of_the_upstream_is_replaced():
    provider, path = Provider(says), f"/bedrock{PATH}/converse"
    async with provider.running() as to:
        upstream = Upstream(name="bedrock", prefix="/bedrock", to=to)
        async with gateway_to("", upstreams=[upstream]) as (url, _), aiohttp.ClientSession() as client:
            host = {"Host": to.removeprefix("http://")}
            own, other = ({**signed(to, VALID, path, secret=each), **host} for each in (SECRET, THEIRS))
            found = [(await posted(client, url, VALID, headers, path))[0] for headers in (own, other)]
    assert found == [200, 403]
    assert [(each.path, is_by(each)) for each in provider.received] == [(f"{PATH}/converse", True)]


async def test_a_digest_that_the_client_signed_is_that_of_the_sent_body():
    async with gateway(says) as (provider, url, client):
        broken = json.dumps({"messages": BROKEN}).encode()
        digest = aws._sha256(broken)
        headers = signed(url, broken, **{"x-amz-content-sha256": digest})
        assert (await posted(client, url, broken, headers))[0] == 200
        false = signed(url, broken, **{"x-amz-content-sha256": aws._sha256(b"other")})
        assert (await posted(client, url, broken, false))[0] == 403
    (received,) = provider.received
    assert received.headers["x-amz-content-sha256"] == aws._sha256(received.body) != digest
    assert is_by(received)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("bedrock-runtime.us-east-1.amazonaws.com", "us-east-1"),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("vpce-1.bedrock-runtime.ap-southeast-2.vpce.amazonaws.com", "ap-southeast-2"),
        ("bedrock-proxy.example.com", "eu-west-1"),
        ("127.0.0.1", "eu-west-1"),
    ],
)
def test_the_region_of_the_upstream_is_signed(host, region):
    headers = CIMultiDict(signed("http://gateway", VALID))
    client = aws.SignedRequest(aws.signature_in(headers), "POST", "gateway", f"{PATH}/converse", headers)
    signing = aws.Signing(client, VALID, Credentials(KEY, SECRET).get_frozen_credentials())
    done = signing.headers_for(f"https://{host}{PATH}/converse", headers, VALID)
    assert scope_of({"authorization": done["authorization"]})[2] == region
    assert "x-amz-security-token" not in done


# Requests that are to no model.


async def test_other_paths_are_signed_again_with_their_body():
    path, body = f"{PATH}/count-tokens", b'{"input": {"converse": {}}}'
    async with gateway(says) as (provider, url, client):
        assert (await posted(client, url, body, signed(url, body, path), path))[0] == 200
        target = f"{url}/async-invoke?maxResults=3&b=x%20y"
        headers = signed(url, b"", "/async-invoke?maxResults=3&b=x%20y", method="GET")
        async with client.get(URL(target, encoded=True), headers=headers) as response:
            assert response.status == 200
    assert [(each.path, each.body, is_by(each)) for each in provider.received] == [
        (path, body, True),
        ("/async-invoke?maxResults=3&b=x%20y", b"", True),
    ]


# Requests that the gateway does not sign.


async def refused(url, client, headers, body=VALID):
    status, data, answered = await posted(client, url, body, headers)
    return status, answered["x-amzn-errortype"], json.loads(data)["message"]


async def test_a_client_without_the_gateways_credentials_cannot_use_them():
    old = (datetime.now(UTC) - timedelta(minutes=16)).strftime("%Y%m%dT%H%M%SZ")
    async with gateway(says) as (provider, url, client):
        given = signed(url, VALID)
        others = {
            "another secret": signed(url, VALID, secret=THEIRS),
            "another key": {**given, "Authorization": given["Authorization"].replace(KEY, "AKIDOTHER")},
            "another body": signed(url, b"{}"),
            "another path": signed(url, VALID, f"{PATH}/invoke"),
            "another host": signed("http://127.0.0.1:1", VALID),
            "another day": {**given, "Authorization": given["Authorization"].replace("/20", "/19", 1)},
            "no date": {**given, "X-Amz-Date": "now"},
            "an old date": {**given, "X-Amz-Date": old},
        }
        found = {name: (await refused(url, client, headers))[:2] for name, headers in others.items()}
    assert found == dict.fromkeys(others, (403, "AccessDeniedException"))
    assert provider.received == []


async def test_an_old_signature_is_refused_and_a_recent_one_is_not(monkeypatch):
    for minutes, expected in ((16, 403), (14, 200), (-14, 200), (-16, 403)):
        at = datetime.now(UTC) - timedelta(minutes=minutes)
        async with gateway(says) as (_, url, client):
            with monkeypatch.context() as context:
                context.setattr(auth, "get_current_datetime", lambda at=at: at)
                headers = signed(url, VALID)
            assert (await posted(client, url, VALID, headers))[0] == expected


@pytest.mark.parametrize(
    "given",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=x",
        f"AWS4-HMAC-SHA256 Credential=A/20260101/r/s/aws4_request, SignedHeaders=host, Signature={'0' * 64}",
        f"AWS4-HMAC-SHA256 Credential=A/2026/r/s/aws4_request, SignedHeaders=host;x-amz-date, Signature={'0' * 64}",
    ],
)
async def test_a_signature_that_cannot_be_read_is_refused(given):
    async with gateway(says) as (provider, url, client):
        status, kind, message = await refused(url, client, {"authorization": given})
    assert (status, kind, provider.received) == (400, "ValidationException", [])
    assert "bearer key" in message


async def test_a_path_in_no_encoding_is_refused():
    async with gateway(says) as (provider, url, _):
        given = signed(url, VALID)
        head = "".join(f"{name}: {value}\r\n" for name, value in {**given, "Host": url[7:]}.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        writer.write(b"POST /model/\xff/converse HTTP/1.1\r\n" + head.encode())
        writer.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(VALID) + VALID)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert (int(answer.split()[1]), provider.received) == (400, [])


async def test_a_gateway_without_credentials_says_so(environment):
    async with gateway(says) as (_, url, client):
        headers = signed(url, VALID)
        environment.delenv("AWS_ACCESS_KEY_ID")
        status, kind, message = await refused(url, client, headers)
    assert (status, kind, "no AWS credentials" in message) == (403, "AccessDeniedException", True)


async def test_credentials_that_cannot_be_fetched_may_be_there_later(environment, tmp_path, caplog):
    async with gateway(says) as (_, url, client):
        headers = signed(url, VALID)
        environment.setenv("AWS_PROFILE", "secret-profile-marker")
        first = await refused(url, client, headers)
        environment.delenv("AWS_PROFILE")
        again = (await posted(client, url, VALID, headers))[0]
    assert (first[:2], again) == ((503, "ServiceUnavailableException"), 200)
    assert "marker" not in first[2] + caplog.text


async def test_rotated_credentials_are_found_and_the_last_ones_serve_on(environment, monkeypatch):
    async with gateway(says) as (provider, url, client):
        first = signed(url, VALID)
        assert (await posted(client, url, VALID, first))[0] == 200
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIDSECOND")
        second = signed(url, VALID, key="AKIDSECOND")
        statuses = [(await posted(client, url, VALID, headers))[0] for headers in (second, first)]
        # A client with another key cannot make the gateway search for every request.
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIDTHIRD")
        third = signed(url, VALID, key="AKIDTHIRD")
        statuses.append((await posted(client, url, VALID, third))[0])
        monkeypatch.setattr(aws, "monotonic", lambda: time.monotonic() + 60)
        statuses.append((await posted(client, url, VALID, third))[0])
        statuses.append((await posted(client, url, VALID, first))[0])
    assert statuses == [200, 200, 403, 200, 403]
    assert [scope_of(each.headers)[0] for each in provider.received] == [
        KEY,
        *["AKIDSECOND"] * 2,
        "AKIDTHIRD",
    ]


async def test_no_credential_is_logged(caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    broken = json.dumps({"messages": BROKEN}).encode()
    async with gateway(says, state_dir=tmp_path) as (_, url, client):
        headers = signed(url, broken)
        caplog.clear()
        await posted(client, url, broken, headers)
        await posted(client, url, broken, signed(url, broken, secret=THEIRS))
    signing = aws.Signing(None, broken, Credentials(KEY, SECRET, TOKEN).get_frozen_credentials())
    assert repr(signing) == "Signing(can_change=True)"
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [each for each in (TOKEN, SECRET, KEY) if each in caplog.text or each.encode() in kept] == []


# sign = "any", and keys of the gateway.


async def test_all_signed_requests_are_signed_again_where_the_configuration_says_so():
    provider = Provider(says)
    async with provider.running() as to:
        upstream = Upstream(name="bedrock", prefix="/bedrock", to=to + "/base", sign="any")
        async with (
            gateway_to("", upstreams=[upstream], key="k" * 20) as (url, _),
            aiohttp.ClientSession() as client,
        ):
            headers = signed(f"{url}/bedrock", VALID, secret=THEIRS)
            path = f"/bedrock{PATH}/converse"
            without = (await posted(client, url, VALID, headers, path))[0]
            with_key = (await posted(client, url, VALID, {**headers, "x-reknit-key": "k" * 20}, path))[0]
    assert (without, with_key) == (401, 200)
    (received,) = provider.received
    assert (received.path, is_by(received), "x-reknit-key" in received.headers) == (
        f"/base{PATH}/converse",
        True,
        False,
    )


def test_signing_for_all_clients_needs_a_key(tmp_path):
    file = tmp_path / "reknit.toml"
    file.write_text('[[serve.upstream]]\nname = "bedrock"\nto = "http://127.0.0.1:1"\nsign = "any"\n')
    done = CliRunner().invoke(main, ["serve", "--config", str(file), "--listen", "127.0.0.1:0"])
    assert (done.exit_code, "clients need a key: give --key-file" in done.stderr) == (2, True)


async def test_a_signed_request_without_botocore_names_the_extra(monkeypatch, caplog):
    async with gateway(says) as (provider, url, client):
        headers = signed(url, VALID)
        monkeypatch.setitem(sys.modules, "botocore.auth", None)
        status, kind, message = await refused(url, client, headers)
        bearer = (await posted(client, url, VALID, {"authorization": "Bearer k"}))[0]
    assert (status, kind, bearer, len(provider.received)) == (400, "ValidationException", 200, 1)
    assert "pip install 'reknit[bedrock]'" in message
    assert "pip install 'reknit[bedrock]'" in caplog.text


@pytest.mark.parametrize(
    "path",
    [
        f"{PATH}/converse",
        f"{PATH}/invoke",
        f"{PATH}/count-tokens",
        "/v1/projects/p/locations/l/publishers/anthropic/models/claude-opus-4-7:rawPredict",
        "/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-pro:generateContent",
    ],
)
async def test_a_key_of_the_gateway_replaces_a_signature_as_a_bearer_key(path, monkeypatch):
    monkeypatch.setenv("PLATFORM_KEY", "own")
    monkeypatch.setattr("gateway.validate", lambda *_: [])
    provider = Provider(says)
    async with provider.running() as to:
        upstream = Upstream(name="platform", to=to, key_env="PLATFORM_KEY")
        async with (
            gateway_to("", upstreams=[upstream], key="k" * 20) as (url, _),
            aiohttp.ClientSession() as client,
        ):
            headers = {**signed(url, b"{}", path, secret=THEIRS), "x-reknit-key": "k" * 20}
            assert (await posted(client, url, b"{}", headers, path))[0] == 200
    headers = provider.received[0].headers
    given = {"authorization", "x-api-key", "x-goog-api-key", "x-amz-security-token"} & headers.keys()
    assert (given, headers["authorization"]) == ({"authorization"}, "Bearer own")


# Healing.


async def test_a_refusal_is_healed_with_a_signature_of_the_narrower_request():
    refusal = {"message": "The model returned the following errors: temperature is deprecated for this model."}

    async def answer(request):
        if "temperature" in json.loads(await request.read()).get("inferenceConfig", {}):
            return web.json_response(refusal, status=400, headers={"x-amzn-errortype": "ValidationException"})
        return await says(request)

    given = {"messages": BROKEN[:1], "inferenceConfig": {"temperature": 0.5}}
    async with gateway(answer) as (provider, url, _):
        found = [await called(url, "converse", **given) for _ in range(2)]
    healed = [each["ResponseMetadata"]["HTTPHeaders"].get("x-reknit-healed") for each in found]
    # The second request of the conversation is sent without the refused parameter at once.
    assert (healed, len(provider.received)) == (["deprecated", None], 3)
    assert [is_by(each) for each in provider.received] == [True] * 3


DEPRECATED = answers.exception("validationException", "temperature is deprecated for this model.")
BUSY = answers.exception("throttlingException", "Too many requests, please wait before trying again.")
HELD = {
    "converse-stream": (
        {"messages": BROKEN[:1], "inferenceConfig": {"temperature": 0.5}},
        answers.converse_text()[:1],
        answers.converse_text(),
    ),
    "invoke-with-response-stream": (
        {**INVOKED, "messages": INVOKED["messages"][:1], "temperature": 0.5},
        answers.invoked(answers.anthropic_text())[:1],
        answers.invoked(answers.anthropic_text()),
    ),
}


@pytest.mark.parametrize("operation", HELD)
async def test_a_refusal_in_a_stream_is_healed_before_the_client_sees_it(operation):
    given, start, whole = HELD[operation]
    body, path = json.dumps(given).encode(), f"{PATH}/{operation}"
    left = [streamed([*start, DEPRECATED], FRAMES), streamed(whole, FRAMES)]

    async def answer(request):
        return await left.pop(0)(request)

    async with gateway(answer) as (provider, url, client):
        status, data, headers = await posted(client, url, body, signed(url, body, path), path)
    assert (status, data, headers["x-reknit-healed"]) == (200, b"".join(whole), "deprecated")
    assert [("temperature" in each.body.decode(), is_by(each)) for each in provider.received] == [
        (True, True),
        (False, True),
    ]


@pytest.mark.parametrize("operation", HELD)
@pytest.mark.parametrize("broken", [[BUSY], [DEPRECATED]], ids=["another error", "after content"])
async def test_all_other_exceptions_of_a_stream_pass_unchanged(operation, broken):
    given, start, whole = HELD[operation]
    pieces = [*(start if broken == [BUSY] else whole[:4]), *broken]
    body, path = json.dumps(given).encode(), f"{PATH}/{operation}"
    async with gateway(streamed([b"".join(pieces)], FRAMES)) as (provider, url, client):
        status, data, headers = await posted(client, url, body, signed(url, body, path), path)
    assert (status, data, len(provider.received)) == (200, b"".join(pieces), 1)
    assert "x-reknit-healed" not in headers


def test_the_conversation_of_a_signed_request_does_not_depend_on_its_signature():
    def key(headers):
        return conversation_key(b"s", CIMultiDict(headers), {}, upstream="u", target="bedrock-converse")

    first, second = (signed("http://gateway", VALID, **more) for more in ({}, {"x-amz-meta": "other"}))
    assert first["Authorization"] != second["Authorization"]
    assert key(first) == key(second) != key(signed("http://gateway", VALID, key="AKIDOTHER"))


# InvokeModel.


async def invoked(url):
    answer = await called(url, "invoke_model_with_response_stream", body=json.dumps(INVOKED))
    return [json.loads(each["chunk"]["bytes"])["type"] for each in answer["body"]]


async def test_a_stream_of_a_model_of_anthropic_is_passed_unchanged_and_its_history_is_repaired():
    pieces = answers.invoked(answers.anthropic_text())
    async with gateway(streamed(pieces, FRAMES)) as (provider, url, client):
        found = await invoked(url)
        body = json.dumps(INVOKED).encode()
        path = f"{PATH}/invoke-with-response-stream"
        status, data, headers = await posted(client, url, body, signed(url, body, path), path)
    assert found[-1] == "message_stop"
    assert (status, data, headers["x-reknit-fixes"]) == (200, b"".join(pieces), "result_synthesised=1")
    assert [is_by(each) for each in provider.received] == [True, True]


@pytest.mark.parametrize("breaks", [False, True], ids=["ends cleanly", "breaks"])
async def test_a_cut_stream_of_a_model_of_anthropic_ends_with_bedrocks_exception(breaks):
    pieces = answers.invoked(answers.anthropic_text())
    for kept in range(1, len(pieces)):
        async with gateway(streamed(pieces[:kept], FRAMES, breaks=breaks)) as (_, url, _):
            with pytest.raises(botocore.exceptions.EventStreamError, match="modelStreamErrorException"):
                await invoked(url)


async def test_a_stream_that_is_cut_inside_a_frame_raises():
    pieces = answers.invoked(answers.anthropic_text())
    async with gateway(streamed([*pieces[:3], pieces[3][:20]], FRAMES)) as (_, url, _):
        with pytest.raises(urllib3.exceptions.ProtocolError):
            await invoked(url)


async def test_models_of_other_makers_pass_unchanged():
    path, body = "/model/amazon.titan-text-lite-v1/invoke-with-response-stream", b'{"inputText": "hi"}'
    pieces = [answers.chunk(b'{"outputText":"Hi"}')]
    async with gateway(streamed(pieces, FRAMES)) as (provider, url, client):
        status, data, _ = await posted(client, url, body, signed(url, body, path), path)
    assert (status, data, provider.received[0].body) == (200, pieces[0], body)
    assert is_by(provider.received[0])


async def test_errors_have_bedrocks_form_for_every_path_of_bedrock():
    async with gateway_to("http://127.0.0.1:9") as (url, _), aiohttp.ClientSession() as client:
        for path in ("converse", "converse-stream", "invoke", "invoke-with-response-stream", "count-tokens"):
            status, data, headers = await posted(client, url, b"{}", {}, f"{PATH}/{path}")
            assert (status, headers["x-amzn-errortype"]) == (502, "ModelErrorException")
            assert json.loads(data)["message"].startswith("Reknit: 127.0.0.1:9 cannot be reached")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/foundation-models", "bedrock-converse"),
        (f"{PATH}/invoke", "bedrock-converse"),
        ("/openai/v1/chat/completions", "vllm"),
        ("/anthropic/v1/messages", "anthropic"),
    ],
)
def test_other_apis_at_bedrocks_host_have_their_own_form_of_errors(path, form):
    upstream = Upstream(name="bedrock", to="https://bedrock-runtime.us-east-1.amazonaws.com")
    assert form_of_errors(Upstreams([upstream], TARGETS).find(path)) == form
