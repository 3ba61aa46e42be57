"""Lines of an HTTP log become turns of sessions: the session of a line, its new turns, and the resulting requests."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import signal
import sys
from pathlib import Path

import aiohttp.web
import msgspec
import pytest
import yaml
from build import answered, called, said, user

from reknit.pipeline.cli.requests import Places, read_line
from reknit.pipeline.errors import InputError
from reknit.pipeline.serve.mirrored import Conversations
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

HI, YES, GO = user("hi"), said("yes?"), user("go")
URL = "https://api.anthropic.com/v1/messages"


def line(*messages, url=URL, session="s", **more):
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages, **more}
    return json.dumps({"url": url, "headers": {"X-Session": session}, "body": body}).encode()


def fed(*lines, **places):
    """Return for each line its session and its records by type."""
    conversations, places = Conversations(), Places(**places)
    found = []
    for each in lines:
        session, records = conversations.records_of(read_line(each, places))
        found.append((session, json.loads(msgspec.json.encode(records))))
    return found


def kinds(found):
    return [[record["type"].partition(".")[2] for record in records] for _, records in found]


def published(found):
    """Return the bodies that a worker would publish, by line."""
    stages, bodies, offset = {}, [], 0
    for session, records in found:
        stage = stages.setdefault(session, TurnsStage())
        rows = [
            Record(partition=0, offset=offset + at, key=session.encode(), value=msgspec.json.encode(record))
            for at, record in enumerate(records)
        ]
        offset += len(rows)
        outputs = stage.process(rows).outputs
        bodies.append([json.loads(each.value) for each in outputs if each.topic == PROVIDER_REQUESTS])
    return bodies


NEW = ["opened", "restored", "wanted"]
ANSWERED = [HI, called("a"), answered("a")]


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "logged",
    [
        {"headers": {"Traceparent": PARENT, "TraceState": "a=1"}},
        {"request": {"headers": [{"name": "traceparent", "value": PARENT}, {"name": "tracestate", "value": "a=1"}]}},
        {"traceparent": PARENT, "tracestate": "a=1"},
    ],
)
def test_a_line_names_the_trace_of_its_request(logged):
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [HI]}
    found = read_line(json.dumps({"url": URL, "body": body, **logged}).encode(), Places())
    assert found.trace == (("traceparent", PARENT.encode()), ("tracestate", b"a=1"))
    bad = json.dumps({"url": URL, "body": body, "headers": {"traceparent": [PARENT], "tracestate": "a=1"}}).encode()
    assert read_line(bad, Places()).trace == ()


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([[HI]], [NEW]),
        ([[HI], [HI, YES, GO]], [NEW, ["appended", "appended"]]),
        ([[HI], ANSWERED], [NEW, ["appended", "appended"]]),
        ([[HI], [HI, YES]], [NEW, ["appended", "wanted"]]),
        ([[HI], [HI, called("a", "b"), answered("a")]], [NEW, ["appended", "appended", "wanted"]]),
        ([[HI], [HI, called("a"), GO]], [NEW, ["appended", "appended"]]),
        ([[HI], [HI]], [NEW, []]),
        ([[HI, YES, GO], [HI]], [NEW, ["restored", "wanted"]]),
        ([[HI, YES, GO], [HI, YES, user("stop")]], [NEW, ["restored", "wanted"]]),
    ],
)
def test_a_continuing_body_appends_new_turns_and_any_other_restores(bodies, expected):
    found = fed(*[line(*messages) for messages in bodies], session="headers.x-session")
    assert kinds(found) == expected
    assert {session for session, _ in found} == {"s"}
    assert [len(one) for one in published(found)] == [1 if records else 0 for records in expected]


def test_other_tools_or_another_model_reopen_the_session_and_keep_its_history():
    found = fed(line(HI), line(HI, YES, GO, model="claude-opus-4-1"), line(HI, YES, GO, max_tokens=10))
    assert kinds(found) == [NEW, ["opened", "appended", "appended"], ["opened", "wanted"]]
    assert [one[0]["model"] for one in published(found)] == [
        "claude-sonnet-4-5",
        "claude-opus-4-1",
        "claude-sonnet-4-5",
    ]


def test_a_moved_cache_marker_or_a_text_block_is_the_same_history():
    marked = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
    found = fed(line({"role": "user", "content": "hi"}), line(marked, YES, GO))
    assert kinds(found) == [NEW, ["appended", "appended"]]


def test_unnamed_conversations_are_distinguished_by_their_history():
    other = [HI, said("no"), user("why?")]
    found = fed(
        line(HI), line(HI, YES, GO), line(*other), line(HI, YES, GO, said("ok"), user("on")), line(*other, YES, GO)
    )
    assert [session == found[0][0] for session, _ in found] == [True, True, False, True, False]
    assert found[2][0] == found[4][0]
    assert kinds(found) == [NEW, ["appended"] * 2, NEW, ["appended"] * 2, ["appended"] * 2]


def test_the_same_log_gives_the_same_records_and_can_be_fed_twice():
    lines = [line(HI), line(HI, YES, GO), line(user("else")), line(HI, YES, user("other")), line(HI)]
    assert fed(*lines) == fed(*lines)
    first = fed(*lines, session="headers.x-session")
    ids = [record["id"] for _, records in first for record in records]
    assert len(set(ids)) == len(ids)
    assert [one != [] for one in published(first[:2] + first[:2])] == [True, True, False, False]


MESSAGES, CONTENTS = {"messages": [{"role": "user", "content": "hi"}]}, {"contents": [{"parts": [{"text": "hi"}]}]}
BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com/model/"


@pytest.mark.parametrize(
    ("logged", "target", "model"),
    [
        ({"url": URL, "body": MESSAGES}, "anthropic", ""),
        ({"request": {"url": URL, "body": json.dumps(MESSAGES)}}, "anthropic", ""),
        ({"host": "api.openai.com", "path": "/v1/chat/completions", "request_body": MESSAGES}, "openai-chat", ""),
        ({"url": "https://a.openai.azure.com/x/chat/completions?v=1", "body": MESSAGES}, "openai-chat", ""),
        ({"url": "https://api.mistral.ai/v1/chat/completions", "body": MESSAGES}, "mistral", ""),
        ({"url": "https://api.deepseek.com/chat/completions", "body": MESSAGES}, "deepseek", ""),
        ({"url": "https://api.deepseek.com/anthropic/v1/messages", "body": MESSAGES}, "anthropic", ""),
        ({"url": "https://api.moonshot.ai/v1/chat/completions", "body": MESSAGES}, "moonshot", ""),
        ({"url": "https://notmistral.ai/v1/chat/completions", "body": MESSAGES}, "vllm", ""),
        ({"url": "https://api.openai.com/v1/", "body": MESSAGES}, "openai-chat", ""),
        ({"url": "http://localhost:8000/v1", "body": MESSAGES}, "vllm", ""),
        ({"uri": "/v1/responses", "body": {"input": "hi"}}, "openai-responses", ""),
        (
            {"url": "https://x/v1beta/models/gemini-2.5-pro:streamGenerateContent", "body": CONTENTS},
            "gemini",
            "gemini-2.5-pro",
        ),
        (
            {"url": f"{BEDROCK}us.amazon.nova%3A0/converse-stream", "body": MESSAGES},
            "bedrock-converse",
            "us.amazon.nova:0",
        ),
        ({"url": f"{BEDROCK}anthropic.claude-v2/invoke", "body": MESSAGES}, "anthropic", "anthropic.claude-v2"),
        (
            {"url": "https://h/v1/p/publishers/anthropic/models/claude-x:rawPredict", "body": MESSAGES},
            "anthropic",
            "claude-x",
        ),
        ({"request": {"url": URL, "postData": {"text": json.dumps(MESSAGES)}}}, "anthropic", ""),
        (CONTENTS, "gemini", ""),
        ({"input": "hi"}, "openai-responses", ""),
    ],
)
def test_the_endpoint_determines_target_and_model(logged, target, model):
    found = read_line(json.dumps(logged).encode(), Places())
    assert (found.target, found.model) == (target, model)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (b"not JSON", "not_json"),
        (b"[1]", "not_json"),
        (b"[" * 3000, "not_json"),
        ({"url": URL}, "no_body"),
        ({"url": URL, "body": "not JSON"}, "no_body"),
        ({"url": URL, "body": {"query": 1}}, "no_body"),
        ({"url": f"{URL}/count_tokens", "body": MESSAGES}, "provider_unknown"),
        ({"url": "https://h/v1/embeddings", "body": {"input": "hi"}}, "provider_unknown"),
        ({"url": "https://h/v1", "body": {"input": "hi"}}, "provider_unknown"),
        ({"body": MESSAGES}, "provider_unknown"),
        ({"url": URL, "body": {"messages": {"role": "user"}}}, "wrong_type"),
        ({"url": URL, "body": {"messages": [json.loads("[" * 900 + "]" * 900)]}}, "too_deep"),
        ({"url": URL, "body": {**MESSAGES, "tools": 1}}, "wrong_type"),
        ({"url": URL, "body": {**MESSAGES, "tools": [1]}}, "wrong_type"),
    ],
)
def test_a_line_that_is_no_model_request_is_reported(given, code):
    line = given if isinstance(given, bytes) else json.dumps(given).encode()
    with pytest.raises(InputError) as raised:
        Conversations().records_of(read_line(line, Places()))
    assert raised.value.code == code


def test_places_name_the_session_the_producer_and_the_target():
    given = {"body": {**MESSAGES, "metadata": {"user_id": "u1"}}, "request": {"headers": {"User-Agent": "crew/2"}}}
    places = Places(session="body.metadata.user_id", producer="request.headers.user-agent", target="anthropic")
    found = read_line(json.dumps(given).encode(), places)
    assert (found.session, found.producer, found.target) == ("u1", "crew/2", "anthropic")
    listed = {"body": given["body"], "request": {"headers": [7, {"name": "User-Agent", "value": "crew/3"}]}}
    assert read_line(json.dumps(listed).encode(), places).producer == "crew/3"
    text = json.dumps({"body": json.dumps(given["body"])}).encode()
    assert read_line(text, places).session == "u1"


def test_a_request_that_continues_a_stored_response_is_left_to_the_worker():
    ((session, records),) = fed(json.dumps({"input": "hi", "previous_response_id": "resp_1"}).encode())
    assert (session, [record["type"] for record in records]) == ("log-chained", ["session.opened"])


def test_the_remembered_sessions_are_bounded(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.serve.mirrored._MOST_SESSIONS", 2)
    conversations = Conversations()
    for name in "abcab":
        conversations.records_of(read_line(line(user(name)), Places()))
        assert len(conversations.sessions) == len(conversations.ends) <= 2


PAGE = Path(__file__).parents[2] / "docs" / "shadow.md"
# Debian installs it where only root's path leads.
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian package `nginx-light`)")
async def test_logs_of_a_real_nginx_configured_as_documented_are_read_byte_for_byte(tmp_path, unused_tcp_port_factory):
    settings = recipe("nginx", tmp_path).replace("size 32m", "size 1m")
    port, behind = unused_tcp_port_factory(), unused_tcp_port_factory()
    parts = [f"{name}_temp_path {tmp_path};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    parts += [f"upstream api.openai.com {{ server 127.0.0.1:{behind}; }}"]
    parts += [f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://api.openai.com; }} }}"]
    top = f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}"
    (tmp_path / "nginx.conf").write_text("\n".join([top, "http {", settings, *parts, "}"]))
    # After SIGTERM the line of a request that was just answered may be missing.
    command = [NGINX, "-p", str(tmp_path), "-c", "nginx.conf"]
    await check_logged_bodies(command, port, behind, tmp_path, stop=signal.SIGQUIT)


async def test_logs_of_a_real_envoy_configured_as_documented_are_read_byte_for_byte(tmp_path, unused_tcp_port_factory):
    envoy = shutil.which("envoy", path=str(Path(sys.executable).parent))
    assert envoy is not None
    manager = yaml.safe_load(recipe("yaml", tmp_path).replace("32 * 1024", "1024"))
    port, behind = unused_tcp_port_factory(), unused_tcp_port_factory()
    hop = "type.googleapis.com/envoy.extensions.filters"
    manager["http_filters"].append(
        {"name": "router", "typed_config": {"@type": f"{hop}.http.router.v3.Router"}},
    )
    to = {"match": {"prefix": "/"}, "route": {"cluster": "provider", "host_rewrite_literal": "api.openai.com"}}
    manager["route_config"] = {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [to]}]}
    manager |= {
        "@type": f"{hop}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "seen",
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    places = [{"lb_endpoints": [{"endpoint": {"address": address(behind)}}]}]
    cluster = {"name": "provider", "load_assignment": {"cluster_name": "provider", "endpoints": places}}
    listener = {"address": address(port), "filter_chains": [{"filters": filters}]}
    config = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    command = [envoy, "--config-yaml", json.dumps(config), "--use-dynamic-base-id", "--log-level", "error"]
    await check_logged_bodies([*command, "--concurrency", "1"], port, behind, tmp_path)


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def recipe(language, directory):
    (text,) = re.findall(f"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return text.replace("access.jsonl", f"{directory}/access.jsonl")


async def check_logged_bodies(command, port, behind, directory, stop=signal.SIGTERM):
    """Assert that a proxy logs bodies of up to a mebibyte, and forwards longer ones as well.

    ``stop`` ends it after its last line is written.
    """
    said_so = ("plain", 'quoted "words" \\ and a\ttab\nline', "naïve 日本 🦜 \x01\u2028\x7f", "long " * 100_000)
    asked = [{"model": "gpt-5", "messages": [user(words)]} for words in said_so]
    bodies = [json.dumps(body, ensure_ascii=as_ascii) for body in asked for as_ascii in (True, False)]
    proxy = await asyncio.create_subprocess_exec(*command)
    try:
        await post_through(port, behind, [*bodies, json.dumps({"messages": [user("too long " * 200_000)]})])
    finally:
        proxy.send_signal(stop)
        await proxy.wait()
    *lines, too_long = (directory / "access.jsonl").read_bytes().splitlines()
    found = [read_line(each, Places(session="headers.x-session-id", producer="headers.user-agent")) for each in lines]
    assert [json.loads(msgspec.json.encode(each.body)) for each in found] == [json.loads(body) for body in bodies]
    assert {(each.target, each.session, each.producer) for each in found} == {("openai-chat", 's "1"', "crew/2")}
    with pytest.raises(InputError, match="no request body"):
        read_line(too_long, Places())


async def post_through(port, behind, bodies):
    """Send bodies through a proxy to a provider that answers all of them."""

    async def answer(request):
        return aiohttp.web.Response(text=str(len(await request.read())))

    application = aiohttp.web.Application(client_max_size=1 << 26)
    application.router.add_post("/v1/chat/completions", answer)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    try:
        await aiohttp.web.TCPSite(runner, "127.0.0.1", behind).start()
        headers = {"user-agent": "crew/2", "x-session-id": 's "1"'}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as client:
            async with asyncio.timeout(60):
                while not await is_open(port):  # noqa: ASYNC110  another process opens it
                    await asyncio.sleep(0.05)
            for body in bodies:
                async with client.post("/v1/chat/completions", data=io.BytesIO(body.encode())) as given:
                    assert (given.status, await given.text()) == (200, str(len(body.encode())))
    finally:
        await runner.cleanup()


async def is_open(port):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
