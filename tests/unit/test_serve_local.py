"""What the gateway answers by itself: `/mend`, the page of the last exchanges, and settings by model."""

import json

import aiohttp
import jsonschema
import pytest
from aiohttp import web
from build import called, user
from click.testing import CliRunner
from gateway import Provider, body, gateway, gateway_to
from msgspec import Raw

from reknit.pipeline import normalize
from reknit.pipeline.cli import main
from reknit.pipeline.config import load_config
from reknit.pipeline.serve import repair
from reknit.pipeline.serve.mend import schemas
from reknit.pipeline.serve.upstreams import ModelSettings, Upstream

VALID = body(user("hi"))
BROKEN = body(user("hi"), called("a"), user("and?"))
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


async def mended(url, client, request, **headers):
    data = request if isinstance(request, bytes) else json.dumps(request).encode()
    async with client.post(f"{url}/mend", data=data, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def test_a_broken_history_is_repaired_with_its_fixes_and_violations():
    async with gateway() as (provider, url, client):
        status, result = await mended(url, client, b'{"body": %b, "target": "anthropic"}' % BROKEN)
    done = normalize(BROKEN, "anthropic")
    assert (status, result["body"], result["changed"]) == (200, json.loads(done.body), True)
    assert [fix["code"] for fix in result["fixes"]] == ["result_synthesised"]
    assert [each["rule"] for each in result["violations"]] == [each.rule for each in done.violations]
    assert provider.received == []


async def test_a_valid_body_is_returned_byte_for_byte():
    async with gateway() as (_, url, client), client.post(f"{url}/mend", data=b'{"body": %b}' % VALID) as response:
        answer = await response.read()
    assert answer.startswith(b'{"body":' + VALID + b',"changed":false,"fixes":[],')


async def test_an_irreparable_body_has_no_result():
    history = {"messages": [], "model": "claude-sonnet-4-5"}
    async with gateway() as (_, url, client):
        status, result = await mended(url, client, {"body": history})
    assert (status, result["body"], result["changed"]) == (200, None, False)
    assert "hard" in {each["severity"] for each in result["violations"]}


async def test_a_transcript_and_options_are_taken():
    line = json.dumps({"type": "user", "message": {"role": "user", "content": "hi"}, "uuid": "u1", "sessionId": "s"})
    request = {"body": line, "target": "openai-chat", "model": "gpt-5", "source": "claude-code"}
    async with gateway() as (_, url, client):
        status, result = await mended(url, client, request)
    assert (status, result["body"]["messages"], result["body"]["model"]) == (
        200,
        [{"role": "user", "content": "hi"}],
        "gpt-5",
    )


async def test_a_target_that_takes_a_text_gives_a_text():
    async with gateway() as (_, url, client):
        _, result = await mended(url, client, {"body": [{"role": "user", "content": "hi"}], "target": "codex-cli"})
    assert isinstance(result["body"], str)


@pytest.mark.parametrize(
    ("request_body", "code"),
    [
        (b"", "not_json"),
        (b"\xff", "not_json"),
        (b"[]", "wrong_type"),
        (b"{}", "wrong_type"),
        (b'{"body": 1}', "wrong_type"),
        (b'{"body": [], "more": 1}', "wrong_type"),
        (b'{"body": [], "target": "none"}', "unknown_target"),
        (b'{"body": [], "source": "none"}', "unknown_source"),
        (b'{"body": [], "policy": {"tail": "none"}}', "policy"),
        (b'{"body": "\\ud800"}', "not_json"),
        (b'{"body": %b}' % (b"[" * 100_000), "not_json"),
        (b'{"body": [{"role": "user", "content": "\\ud800"}]}', "not_json"),
    ],
)
async def test_a_request_that_cannot_be_used_is_refused(request_body, code):
    async with gateway() as (_, url, client):
        status, result = await mended(url, client, request_body)
    assert (status, result["error"]["code"]) == (400, code)
    jsonschema.validate(result, {**schemas(), "$ref": "#/properties/refusal"})


async def test_a_large_body_is_repaired_in_another_process(monkeypatch):
    monkeypatch.setattr(repair, "LARGE_BYTES", 10)
    async with gateway() as (_, url, client):
        status, result = await mended(url, client, b'{"body": %b}' % BROKEN)
    assert (status, result["body"]) == (200, json.loads(normalize(BROKEN, "anthropic").body))


async def test_a_body_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.serve.local.MOST_BYTES", 10)
    async with gateway() as (_, url, client), client.post(f"{url}/mend", data=BROKEN) as response:
        assert response.status == 413


async def test_the_published_schema_describes_requests_and_results():
    request = {"body": json.loads(BROKEN), "target": "anthropic", "policy": {"tail": "keep"}}
    async with gateway() as (_, url, client):
        async with client.get(f"{url}/mend") as response:
            published = await response.json()
        _, result = await mended(url, client, request)
    assert published == schemas()
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(request, {**published, "$ref": "#/properties/request"})
    jsonschema.validate(result, {**published, "$ref": "#/properties/result"})


# Access.


@pytest.mark.parametrize("path", ["/", "/mend"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rebound.example"}, 421),
        ({"Host": "["}, 421),
        ({"Origin": "https://other.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "localhost:1"}, 200),
    ],
)
async def test_pages_of_other_sites_cannot_ask(path, headers, status):
    async with gateway() as (_, url, client), client.get(url + path, headers=headers) as response:
        assert response.status == status


async def test_with_a_key_the_key_is_needed_and_any_host_name_serves():
    async with gateway(key="k" * 20) as (_, url, client):
        async with client.post(f"{url}/mend", data=b"{}", headers={"x-reknit-key": "wrong"}) as response:
            refused = response.status
        taken, result = await mended(
            url, client, b'{"body": %b}' % VALID, **{"x-reknit-key": "k" * 20, "Host": "gateway.example"}
        )
    assert refused == 401
    assert (taken, result["changed"]) == (200, False)


# The page of the last exchanges.


async def test_the_page_lists_exchanges_without_their_content():
    statuses = iter([200, 400, 404])

    async def answer(_request):
        return web.json_response({"secret": "answer-marker"}, status=next(statuses))

    async with gateway(answer) as (_, url, client):
        for data in (BROKEN, VALID.replace(b"hi", b"request-marker")):
            async with client.post(f"{url}/v1/messages", data=data) as response:
                await response.read()
        async with client.get(f"{url}/nowhere") as response:
            assert response.status == 404
        async with client.get(url + "/") as response:
            page, headers = await response.text(), response.headers
    assert "marker" not in page
    assert page.count("<tr>") == 4
    assert "<code>result_synthesised</code>" in page
    assert headers["Cache-Control"] == "no-store"


async def test_the_page_is_empty_before_the_first_exchange():
    async with gateway() as (_, url, client), client.get(url + "/") as response:
        assert "No exchange yet." in await response.text()


# Settings by model.


def test_the_first_pattern_that_matches_applies(tmp_path):
    config = tmp_path / "reknit.toml"
    config.write_text(
        """
        [[serve.upstream]]
        name = "provider"
        to = "http://127.0.0.1:1"
        [serve.upstream.models."gpt-5*"]
        params = { service_tier = "flex", stop = ["x"] }
        [serve.upstream.models."*"]
        policy = { reasoning = "strip" }
        """
    )
    (given,) = load_config(config).serve.upstream
    assert [given.settings_of(model).policy.reasoning for model in ("gpt-5", "m")] == ["same_issuer", "strip"]
    assert set(given.settings_of("gpt-5-mini").params) == {"service_tier", "stop"}


async def test_added_params_are_reported_and_the_rest_of_the_body_stays():
    settings = {"m*": ModelSettings(params={"service_tier": Raw(b'"flex"'), "model": Raw(b'"other"')})}
    provider = Provider()
    async with (
        provider.running() as provider_url,
        gateway_to("", upstreams=[Upstream(name="provider", to=provider_url, models=settings)]) as (url, _),
        aiohttp.ClientSession() as client,
        client.post(f"{url}/v1/chat/completions", data=CHAT) as response,
    ):
        headers = response.headers
    assert json.loads(provider.received[-1].body) == {**json.loads(CHAT), "service_tier": "flex"}
    assert headers["x-reknit-params"] == "service_tier"
    assert "x-reknit-fixes" not in headers


def test_a_policy_of_a_model_that_cannot_be_used_ends_the_start(tmp_path):
    config = tmp_path / "reknit.toml"
    config.write_text(
        """
        [[serve.upstream]]
        name = "provider"
        to = "http://127.0.0.1:1"
        [serve.upstream.models."*"]
        policy = { mend = { none = "observe" } }
        """
    )
    done = CliRunner().invoke(main, ["serve", "--config", str(config)])
    assert done.exit_code == 2
    assert "policy.mend.none" in done.stderr
