"""The gateway: requests as the provider receives them, and answers as the client receives them."""

import asyncio
import gzip
import json

import aiohttp
import cramjam
import pytest
from aiohttp import web
from build import answered, call, called, image, said, user
from click.testing import CliRunner
from gateway import Provider, body, gateway, gateway_to, streamed
from sender_runs import anthropic
from yarl import URL

from reknit.pipeline import normalize
from reknit.pipeline.cli import main
from reknit.pipeline.errors import InputError
from reknit.pipeline.serve import repair, server
from reknit.pipeline.serve.upstreams import Upstream
from reknit.pipeline.web import runner_of

VALID = body(user("hi"))
# The call has no result.
BROKEN = body(user("hi"), called("a"), user("and?"))
PATH = "/v1/messages"


async def posted(client, url, data, path=PATH, **headers):
    async with client.post(URL(url + path, encoded=True), data=data, headers=headers) as response:
        return response.status, await response.read(), response.headers


async def until_broken(client, url):
    """Return the bytes of an answer and the error at its end, or None."""
    received = b""
    async with client.post(url + PATH, data=VALID) as response:
        try:
            async for data in response.content.iter_any():
                received += data
        except aiohttp.ClientError as error:
            return received, error
    return received, None


# Requests.


async def test_a_valid_request_is_forwarded_byte_for_byte_with_its_query_and_headers():
    async with gateway() as (provider, url, client):
        status, _, headers = await posted(
            client,
            url,
            VALID,
            f"{PATH}?beta=true&x=%2F",
            **{"x-api-key": "k", "anthropic-beta": "a,b", "te": "trailers"},
        )
    (received,) = provider.received
    assert (status, received.body, received.path) == (200, VALID, f"{PATH}?beta=true&x=%2F")
    kept = ("x-api-key", "anthropic-beta", "te", "via", "content-length")
    assert {name: received.headers.get(name) for name in kept} == {
        "x-api-key": "k",
        "anthropic-beta": "a,b",
        "te": None,
        "via": "1.1 reknit",
        "content-length": str(len(VALID)),
    }
    assert len(headers["x-reknit-request-id"]) == 32
    assert "x-reknit-fixes" not in headers


async def test_a_history_that_the_provider_refuses_is_accepted_through_the_gateway():
    async with gateway() as (provider, url, client):
        async with provider.running() as direct:
            assert (await posted(client, direct, BROKEN))[0] == 400
        status, _, headers = await posted(client, url, BROKEN)
    done = normalize(BROKEN, "anthropic")
    assert (status, provider.received[-1].body) == (200, done.body)
    assert headers["x-reknit-fixes"] == "result_synthesised=1"


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (
            "/v1/chat/completions",
            {
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "a", "content": "x"}],
            },
        ),
        (
            "/v1/responses",
            {"model": "gpt-5", "input": [{"type": "function_call", "call_id": "a", "name": "ls", "arguments": "{}"}]},
        ),
        (
            "/v1beta/models/gemini-2.5-pro:generateContent",
            {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {}}}]}]},
        ),
        (
            "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse",
            {"messages": [{"role": "user", "content": [{"text": "hi"}, {"text": " "}]}]},
        ),
    ],
    ids=["chat", "responses", "gemini", "converse"],
)
async def test_each_api_is_repaired_in_its_own_shape(path, given):
    async with gateway() as (provider, url, client):
        status, _, headers = await posted(client, url, json.dumps(given).encode(), path)
    (received,) = provider.received
    assert (status, received.path, received.headers["content-length"]) == (200, path, str(len(received.body)))
    assert json.loads(received.body) != given
    assert headers["x-reknit-fixes"]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"\xff", b'{"messages": 1}', b"[" * 100_000, b'{"messages": "\\ud800"}', b'{"a": 1e999}'],
    ids=["empty", "cut", "a list", "not UTF-8", "a wrong type", "nested deeply", "a lone surrogate", "infinite"],
)
async def test_a_body_that_cannot_be_read_is_forwarded_unchanged(data, monkeypatch):
    monkeypatch.setattr("gateway.validate", lambda *_: [])
    async with gateway() as (provider, url, client):
        assert (await posted(client, url, data))[0] == 200
    assert [received.body for received in provider.received] == [data]


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
async def test_a_request_whose_history_only_the_provider_has_is_forwarded_unchanged(name, monkeypatch):
    monkeypatch.setattr("gateway.validate", lambda *_: [])
    given = {"model": "gpt-5", "input": [{"type": "function_call_output", "call_id": "a", "output": "x"}], name: "r"}
    data = json.dumps(given).encode()
    async with gateway() as (provider, url, client):
        assert (await posted(client, url, data, "/v1/responses"))[0] == 200
    assert provider.received[0].body == data


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress(BROKEN)), ("zstd", bytes(cramjam.zstd.compress(BROKEN)))],
    ids=["gzip", "zstd"],
)
async def test_a_compressed_body_is_repaired_and_one_that_is_valid_stays_compressed(encoding, packed, monkeypatch):
    monkeypatch.setattr("gateway.validate", lambda *_: [])
    valid = gzip.compress(VALID) if encoding == "gzip" else bytes(cramjam.zstd.compress(VALID))
    async with gateway() as (provider, url, client):
        for data in (packed, valid):
            assert (await posted(client, url, data, **{"content-encoding": encoding}))[0] == 200
    found = [(each.body, each.headers.get("content-encoding")) for each in provider.received]
    assert found == [(normalize(BROKEN, "anthropic").body, None), (valid, encoding)]


async def test_a_compressed_request_for_a_stream_asks_for_plain_bytes(monkeypatch):
    monkeypatch.setattr("gateway.validate", lambda *_: [])
    data = gzip.compress(body(user("hi"), stream=True))
    async with gateway(streamed(anthropic())) as (provider, url, client):
        await posted(client, url, data, **{"content-encoding": "gzip", "accept-encoding": "br"})
    assert provider.received[0].headers["accept-encoding"] == "identity"


def test_a_policy_that_cannot_be_used_ends_the_start(tmp_path):
    upstream = '[[serve.upstream]]\nname = "a"\nto = "https://api.anthropic.com"\npolicy = {tail = "never"}\n'
    (tmp_path / "r.toml").write_text(upstream)
    done = CliRunner().invoke(main, ["serve", "--config", str(tmp_path / "r.toml")])
    assert (done.exit_code, "serve.upstream" in done.stderr, "'never'" in done.stderr) == (2, True, True)


def test_a_decompression_bomb_and_unknown_encodings_are_not_read(monkeypatch):
    monkeypatch.setattr(repair, "MOST_BYTES", 1000)
    assert repair.decoded(gzip.compress(bytes(1001)), "gzip") is None
    assert repair.decoded(bytes(cramjam.zstd.compress(bytes(5000))), "zstd") is None
    assert repair.decoded(b"x", "br") is None
    assert repair.decoded(b"no gzip", "gzip") is None
    assert repair.decoded(gzip.compress(VALID)[:-9], "gzip") is None
    assert repair.decoded(VALID, "") == VALID


async def test_a_large_body_is_repaired_in_another_process_with_the_same_result():
    data = body(user("x" * repair.LARGE_BYTES), called("a"), user("and?"))
    async with gateway() as (provider, url, client):
        # The first body waits for the start of the process.
        for _ in range(20):
            assert (await posted(client, url, data))[0] in {200, 400}
            if provider.received[-1].body != data:
                break
    assert provider.received[-1].body == normalize(data, "anthropic").body


async def test_a_fault_of_repair_forwards_the_body(monkeypatch):
    def fail(*_args, **_options):
        raise ZeroDivisionError

    monkeypatch.setattr(repair, "normalize_answered", fail)
    async with gateway() as (provider, url, client):
        assert (await posted(client, url, VALID))[0] == 200
    assert provider.received[0].body == VALID


async def test_an_irreparable_request_is_forwarded_or_answered_in_the_providers_words():
    data = body()
    assert normalize(data, "anthropic").body is None
    async with gateway() as (provider, url, client):
        assert (await posted(client, url, data))[0] == 400
        assert provider.received[0].body == data
        async with provider.running() as direct:
            local = [Upstream(name="p", to=direct, reject="local")]
            async with gateway_to(direct, upstreams=local) as (strict, _):
                status, text, headers = await posted(client, strict, data)
    assert len(provider.received) == 1
    assert (status, headers["x-should-retry"]) == (400, "false")
    assert json.loads(text)["error"]["type"] == "invalid_request_error"


async def test_other_paths_and_methods_pass_unchanged():
    async def answer(request):
        return web.Response(body=b"list", headers={"x-request-id": "1", "set-cookie": "a=b", "alt-svc": "h3=x"})

    async with gateway(answer) as (provider, url, client):
        async with client.get(f"{url}/v1/models?limit=2") as response:
            found = response.status, await response.read()
            names = {name.lower() for name in response.headers}
        status, _, _ = await posted(client, url, b"\x00file", "/v1/files")
        async with client.head(f"{url}/api/hello") as response:
            assert response.status == 200
    assert (found, status) == ((200, b"list"), 200)
    assert names.isdisjoint({"set-cookie", "alt-svc"})
    assert "x-request-id" in names
    assert [(each.method, each.path, each.body) for each in provider.received] == [
        ("GET", "/v1/models?limit=2", b""),
        ("POST", "/v1/files", b"\x00file"),
        ("HEAD", "/api/hello", b""),
    ]


# Refusals of the gateway.


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET http://evil.example/v1/messages HTTP/1.1", "", 400),
        ("GET //evil.example/v1/messages HTTP/1.1", "", 400),
        ("GET /v1/messages HTTP/1.1", "Via: 1.1 reknit\r\n", 508),
        ("GET /v1/responses HTTP/1.1", "Upgrade: websocket\r\nConnection: Upgrade\r\n", 426),
        ("POST /v1/messages HTTP/1.1", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 400),
    ],
    ids=["a full URL", "an authority", "a loop", "a WebSocket", "two lengths"],
)
async def test_requests_that_are_no_requests_to_a_provider_are_refused(line, headers, status):
    async with gateway() as (provider, url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(f"{line}\r\nHost: x\r\n{headers}\r\n".encode())
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert (int(answer.split()[1]), provider.received) == (status, [])


async def test_a_redirect_is_not_followed_and_names_its_host():
    async def answer(_request):
        return web.Response(status=307, headers={"location": "https://elsewhere.example/secret?key=1"})

    async with gateway(answer) as (_, url, client):
        status, text, headers = await posted(client, url, VALID)
    assert (status, "location" in headers) == (502, False)
    assert "elsewhere.example" in json.loads(text)["error"]["message"]
    assert b"secret" not in text


async def test_a_provider_that_cannot_be_reached_is_reported_in_its_own_form():
    async with gateway_to("http://127.0.0.1:9") as (url, _), aiohttp.ClientSession() as client:
        status, text, _ = await posted(client, url, VALID)
        found = json.loads(text)
    assert (status, found["type"], found["error"]["type"]) == (502, "error", "api_error")
    assert found["error"]["message"].startswith("Reknit: 127.0.0.1:9 cannot be reached")


async def test_a_body_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.serve.exchange.MOST_BYTES", 1000)
    async with gateway() as (provider, url, client):
        status, text, _ = await posted(client, url, body(user("x" * 1000)))
    assert (status, json.loads(text)["error"]["type"], provider.received) == (413, "request_too_large", [])


# Keys.


async def test_the_gateways_key_is_required_and_never_forwarded():
    async with gateway(key="secret") as (provider, url, client):
        refused = [(await posted(client, url, VALID, **given))[0] for given in ({}, {"x-reknit-key": "other"})]
        accepted = (await posted(client, url, VALID, **{"x-reknit-key": "secret", "x-api-key": "k"}))[0]
    assert (refused, accepted) == ([401, 401], 200)
    (received,) = provider.received
    assert ("x-reknit-key" in received.headers, received.headers["x-api-key"]) == (False, "k")


async def test_a_key_of_the_gateway_replaces_the_clients_credentials(monkeypatch):
    monkeypatch.setenv("PROVIDER_KEY", "own")
    provider = Provider()
    async with provider.running() as direct:
        given = [Upstream(name="p", to=direct, key_env="PROVIDER_KEY")]
        async with gateway_to(direct, upstreams=given, key="k") as (url, _), aiohttp.ClientSession() as client:
            await posted(client, url, VALID, **{"x-reknit-key": "k", "authorization": "Bearer theirs"})
    headers = provider.received[0].headers
    assert (headers["x-api-key"], "authorization" in headers) == ("own", False)


@pytest.mark.parametrize(
    ("host", "key_env"),
    [("0.0.0.0", ""), ("127.0.0.1", "K")],  # noqa: S104  it does not start
    ids=["another address", "a key of its own"],
)
async def test_an_exposed_gateway_without_a_key_does_not_start(host, key_env):
    given = [Upstream(name="p", to="https://api.anthropic.com", key_env=key_env)]
    with pytest.raises(InputError, match="clients need a key"):
        async with gateway_to("", upstreams=given, host=host):
            pass


async def test_no_log_status_or_error_has_a_key_or_content(caplog):
    async def answer(_request):
        return web.Response(
            status=302, headers={"location": "https://x.example/?key=marker-5", "x-goog-api-key": "marker-6"}
        )

    caplog.set_level("DEBUG")
    given = body(user("marker-1"), called("a"), user("x"))
    secrets = {"authorization": "Bearer marker-2", "x-api-key": "marker-3", "x-reknit-key": "marker-4"}
    provider = Provider(answer)
    async with (
        provider.running() as direct,
        gateway_to(direct, key="marker-4") as (url, status_url),
        aiohttp.ClientSession() as client,
    ):
        _, first, headers = await posted(client, url, given, f"{PATH}?key=marker-7", **secrets)
        _, second, _ = await posted(client, url, b'{"a": "marker-8"}', **secrets)
        async with client.get(f"{status_url}/metrics") as response:
            metrics = await response.read()
    seen = caplog.text.encode() + second + metrics + str(headers).encode()
    assert [each for each in range(1, 9) if b"marker-%d" % each in seen] == []
    assert b"marker-2" not in first
    assert b"reknit_serve_repairs_total" in metrics


async def test_metrics_have_the_prefix_of_the_topics_and_are_at_the_address_of_the_settings():
    async with (
        gateway_to("http://127.0.0.1:9", prefix="p.", metrics_host="127.0.0.2") as (_, status_url),
        aiohttp.ClientSession() as client,
        client.get(f"{status_url}/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    assert URL(status_url).host == "127.0.0.2"
    samples = [line for line in lines if not line.startswith("#")]
    assert [line for line in samples if 'pipeline="p."' not in line] == []
    names = {line.partition("{")[0] for line in samples}
    assert names >= {"reknit_serve_in_flight", "process_resident_memory_bytes"}


def test_the_command_takes_the_prefix_and_the_address_of_metrics_from_the_settings(tmp_path, monkeypatch):
    begun = []

    async def serve(_upstreams, listening, *_arguments, **_options):
        begun.append(listening)

    monkeypatch.setattr(server, "serve", serve)
    settings = tmp_path / "r.toml"
    settings.write_text(f'prefix = "p."\nmetrics_host = "127.0.0.2"\nstate_dir = "{tmp_path}"\n')
    done = CliRunner().invoke(main, ["serve", "--config", str(settings), "--metrics-port", "9999"])
    assert (done.exit_code, done.output) == (0, "")
    assert [(each.prefix, each.metrics_host, each.metrics_port) for each in begun] == [("p.", "127.0.0.2", 9999)]


# Answers and streams.


async def test_a_stream_passes_unchanged_and_the_provider_is_asked_for_plain_bytes():
    async with gateway(streamed(anthropic())) as (provider, url, client):
        data = body(user("hi"), stream=True)
        status, text, _ = await posted(client, url, data, **{"accept-encoding": "gzip, br"})
    assert (status, text) == (200, b"".join(anthropic()))
    assert provider.received[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("breaks", [False, True], ids=["ends cleanly", "breaks"])
@pytest.mark.parametrize("cut_inside", [False, True], ids=["after an event", "inside an event"])
async def test_a_cut_stream_ends_with_the_providers_error_and_no_clean_end(breaks, cut_inside):
    pieces = anthropic(end=False)
    if cut_inside:
        pieces[-1] = pieces[-1][:20]
    async with gateway(streamed(pieces, breaks=breaks)) as (_, url, client):
        received, error = await until_broken(client, url)
    assert isinstance(error, aiohttp.ClientPayloadError)
    before = b"".join(pieces)
    assert received.startswith(before)
    event = received[len(before) :].removeprefix(b"\n\n" if cut_inside else b"")
    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.partition(b"data: ")[2])["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("more", [0, 10, 5000])
async def test_a_cut_stream_with_a_length_ends_with_the_providers_error(more):
    pieces = anthropic(end=False)
    async with gateway(streamed(pieces, more=more, breaks=more > 0)) as (_, url, client):
        received, error = await until_broken(client, url)
    assert isinstance(error, aiohttp.ClientPayloadError)
    before = b"".join(pieces)
    assert received.startswith(before + b"event: error\ndata: ")
    assert received.endswith(b"\n\n")


async def test_a_whole_stream_with_a_length_passes_unchanged():
    async with gateway(streamed(anthropic(), more=0)) as (_, url, client):
        status, text, _ = await posted(client, url, body(user("hi"), stream=True))
    assert (status, text) == (200, b"".join(anthropic()))


async def test_an_answer_that_falls_silent_is_broken_off():
    pieces = anthropic(end=False)
    async with gateway(streamed(pieces, silence=60.0), silence_seconds=0.3) as (_, url, client):
        received, error = await until_broken(client, url)
    assert isinstance(error, aiohttp.ClientPayloadError)
    assert received.startswith(b"".join(pieces))
    assert b"event: error" in received


async def test_an_answer_may_take_longer_than_the_longest_silence():
    pieces = anthropic()
    waiting = streamed(pieces, pause=3.0 / len(pieces))
    async with gateway(waiting, silence_seconds=2.0) as (_, url, client):
        for _ in range(2):  # the second one over the same connection
            status, text, _ = await posted(client, url, VALID)
            assert (status, text) == (200, b"".join(pieces))


async def test_no_answer_in_time_is_an_error():
    async def answer(_request):
        await asyncio.sleep(60.0)

    async with gateway(answer, silence_seconds=0.3) as (_, url, client):
        status, _, _ = await posted(client, url, VALID)
    assert status == web.HTTPGatewayTimeout.status_code


async def test_an_error_event_of_the_provider_is_the_end_of_its_stream():
    pieces = [
        *anthropic()[:2],
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n',
    ]
    async with gateway(streamed(pieces)) as (_, url, client):
        _, text, _ = await posted(client, url, VALID)
    assert text == b"".join(pieces)


async def test_a_document_with_a_length_that_breaks_has_no_clean_end():
    async def answer(request):
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "100"})
        await response.prepare(request)
        await response.write(b'{"half":')
        await asyncio.sleep(0.05)
        request.transport.abort()
        return response

    async with gateway(answer) as (_, url, client), client.post(url + PATH, data=VALID) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_refusals_and_their_headers_pass_unchanged():
    text = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'

    async def answer(_request):
        return web.Response(body=text, status=429, headers={"retry-after": "7", "anthropic-ratelimit-x": "1"})

    async with gateway(answer) as (provider, url, client):
        found = await posted(client, url, VALID)
    assert found[:2] == (429, text)
    assert (found[2]["retry-after"], found[2]["anthropic-ratelimit-x"], len(provider.received)) == ("7", "1", 1)


async def test_a_client_that_leaves_ends_the_request_to_the_provider():
    left = asyncio.get_running_loop().create_future()

    async def answer(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(anthropic()[0])
        try:
            while True:
                await response.write(b": keep-alive\n\n")
                await asyncio.sleep(0.01)
        except ConnectionError:
            left.set_result(True)
            raise

    async with gateway(answer) as (_, url, client):
        async with client.post(url + PATH, data=VALID) as response:
            await response.content.readany()
            response.close()
        assert await asyncio.wait_for(left, 30)


@pytest.mark.parametrize(
    ("error", "level"), [(aiohttp.ClientConnectionResetError("secret"), "INFO"), (ValueError("secret"), "ERROR")]
)
async def test_a_client_that_leaves_is_no_error_in_the_log(error, level, caplog):
    caplog.set_level("INFO")

    async def handle(_):
        raise error

    app = web.Application()
    app.router.add_get("/", handle)
    runner = runner_of(app, stop_seconds=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as client:
            await client.get(f"http://127.0.0.1:{runner.addresses[0][1]}/")
    finally:
        await runner.cleanup()
    logged = [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "reknit.http"]
    assert logged == [(level, f"a request was not answered: {type(error).__name__}")]


async def test_a_request_over_a_dead_kept_connection_is_sent_again_once():
    connections = []

    async def answer(reader, writer):
        """Answer the first request of each connection, and close it when the second one comes."""
        connections.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(
            next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")).split()[1]
        )
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}")
        await writer.drain()
        await reader.read(1)
        writer.transport.abort()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with gateway_to(url) as (gateway_url, status_url), aiohttp.ClientSession() as client:
            statuses = [(await posted(client, gateway_url, VALID))[0] for _ in range(2)]
            async with client.get(f"{status_url}/metrics") as response:
                metrics = await response.text()
    assert (statuses, len(connections)) == ([200, 200], 2)
    assert 'reknit_serve_resent_total{upstream="provider"} 1.0' in metrics


# Life.


async def test_a_stop_lets_answers_end_and_refuses_new_requests():
    begun, go = asyncio.Event(), asyncio.Event()

    async def answer(request):
        begun.set()
        await go.wait()
        return web.json_response({})

    provider = Provider(answer)
    async with provider.running() as direct, aiohttp.ClientSession() as client:
        running = gateway_to(direct)
        url, status_url = await running.__aenter__()
        async with client.get(f"{status_url}/readyz") as response:
            assert (response.status, await response.text()) == (200, "ok\n")
        work = asyncio.create_task(posted(client, url, VALID))
        await begun.wait()
        stop = asyncio.create_task(running.__aexit__(None, None, None))
        await asyncio.sleep(0)
        go.set()
        assert (await work)[0] == 200
        await stop
        with pytest.raises(aiohttp.ClientConnectionError):
            await posted(client, url, VALID)


async def test_parallel_tools_and_images_pass_unchanged():
    data = body(user("hi"), said(call("a"), call("b")), answered("a", "x"), user("more"))
    whole = body(
        user("look", image()),
        said(call("a"), call("b")),
        user(*answered("a", "x")["content"], *answered("b", "y")["content"]),
    )
    async with gateway() as (provider, url, client):
        await posted(client, url, data)
        await posted(client, url, whole)
    assert [each.body for each in provider.received] == [normalize(data, "anthropic").body, whole]
