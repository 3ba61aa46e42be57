"""Routes: requests as a provider or a program receives them, and every way in which an answer can fail."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from msgspec import structs
from sender_runs import anthropic, request, sending

from reknit.pipeline.client.routes import Answer, Http, Program, RouteError, TryAgainError
from reknit.pipeline.errors import InputError

ASKED = request("r1", offset=0, body=b'{"messages": []}')
KEY = {"x-api-key": "sk-secret"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@asynccontextmanager
async def serving(handler):
    """Yield the address of a server that answers with ``handler``, and the list of its requests."""
    asked = []

    async def answer(given):
        asked.append((given.method, given.path_qs, given.headers.get("x-api-key"), await given.read()))
        return await handler(given)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def dropping(text):
    """A server that sends these bytes and closes the connection."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@asynccontextmanager
async def sending_to(url, **options):
    async with aiohttp.ClientSession() as client, sending(route=Http(client, url, KEY), **options) as sent:
        yield sent


async def answers(url, headers=KEY, **options):
    async with aiohttp.ClientSession() as client:
        return [piece async for piece in Http(client, url, headers, **options).answer(ASKED)]


async def streamed(given, pieces, **headers):
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
    await response.prepare(given)
    for piece in pieces:
        await response.write(piece)
    return response


async def test_a_request_is_sent_unchanged_with_the_headers_and_its_answer_is_passed_on():
    async with serving(lambda given: streamed(given, anthropic())) as (url, asked):
        pieces = await answers(f"{url}/v1/{{model}}?key=secret")
    assert asked == [("POST", "/v1/m?key=secret", "sk-secret", ASKED.body)]
    assert b"".join(piece.data for piece in pieces) == b"".join(anthropic())
    assert {(piece.status, piece.is_document) for piece in pieces} == {(200, False)}


async def test_the_model_in_the_url_adds_no_query():
    asked_model = structs.replace(ASKED, headers=structs.replace(ASKED.headers, model="publishers/a:b@c?x=1#y z"))
    async with serving(lambda given: streamed(given, anthropic())) as (url, asked), aiohttp.ClientSession() as client:
        _ = [piece async for piece in Http(client, f"{url}/v1/{{model}}:run?k=1", {}).answer(asked_model)]
    assert [path for _, path, _, _ in asked] == ["/v1/publishers/a:b@c%3Fx=1%23y%20z:run?k=1"]


TRACED = structs.replace(ASKED, raw_headers=(("traceparent", PARENT.encode()), ("tracestate", b"a=1")))


@pytest.mark.parametrize(
    ("asked", "headers", "expected"),
    [
        (TRACED, KEY, (PARENT, "a=1")),
        (TRACED, {"TraceParent": "of all"}, ("of all", "a=1")),
        (ASKED, KEY, (None, None)),
        (
            structs.replace(ASKED, raw_headers=(("traceparent", b"\xff\r\nx: y"), ("tracestate", b"a=1"))),
            KEY,
            (None, None),
        ),
    ],
    ids=["traced", "set by the operator", "no trace", "invalid"],
)
async def test_the_trace_of_a_request_goes_to_the_provider(asked, headers, expected):
    found = []

    async def answer(given):
        found.append(tuple(given.headers.get(name) for name in ("traceparent", "tracestate")))
        return web.json_response({})

    async with serving(answer) as (url, _), aiohttp.ClientSession() as client:
        _ = [piece async for piece in Http(client, url, headers).answer(asked)]
    assert found == [expected]


async def test_the_trace_of_a_request_is_in_the_environment_of_a_program(monkeypatch):
    monkeypatch.setenv("TRACEPARENT", "of the sender")
    monkeypatch.setenv("TRACESTATE", "of the sender")
    script = "import os; print(os.environ.get('TRACEPARENT'), os.environ.get('TRACESTATE'), 'PATH' in os.environ)"
    program = Program([sys.executable, "-c", script])
    only_parent = structs.replace(TRACED, raw_headers=TRACED.raw_headers[:1])
    found = [[piece.data async for piece in program.answer(each)] for each in (TRACED, only_parent, ASKED)]
    assert found == [
        [f"{PARENT} a=1 True".encode()],
        [f"{PARENT} None True".encode()],
        [b"of the sender of the sender True"],
    ]


async def test_a_json_document_is_marked():
    async def answer(_given):
        return web.json_response({"type": "message"})

    async with serving(answer) as (url, _):
        assert await answers(url) == [Answer(b'{"type": "message"}', 200, is_document=True)]


# Redirects.


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_a_redirect_is_a_refusal_that_names_its_host_and_is_not_followed(status, caplog):
    async def elsewhere(_given):
        return web.Response(text="taken")

    async with serving(elsewhere) as (other, followed):

        async def redirect(_given):
            return web.Response(status=status, headers={"location": f"{other}/v1?key=another-secret"})

        host = other.removeprefix("http://")
        said = f"HTTP {status}: redirect to {host}, which is not followed"
        async with serving(redirect) as (url, asked), sending_to(f"{url}/v1") as sent:
            sent.requests.put(request("r1", offset=0), request("r2", offset=1))
            ends = [await sent.events.next_end() for _ in range(2)]
    assert ends == [("s", "r1", said), ("s", "r2", said)]
    assert (len(asked), followed) == (2, [])
    body = json.dumps({"error": {"type": "redirect", "message": said}}, separators=(",", ":")).encode()
    assert sent.events.pieces == [("r1", body, status), ("r2", body, status)]
    assert said in caplog.text
    assert "secret" not in caplog.text


async def test_a_redirect_without_a_target_is_a_refusal():
    async def answer(_given):
        return web.Response(status=304)

    async with serving(answer) as (url, _):
        (refusal,) = await answers(url)
    assert (refusal.status, refusal.reason) == (304, "HTTP 304")


# Refusals.


async def test_a_refusal_is_one_piece():
    async def answer(given):
        response = web.StreamResponse(status=400)
        await response.prepare(given)
        for piece in (b'{"error":', b'{"message":"no"}}'):
            await response.write(piece)
        return response

    async with serving(answer) as (url, _):
        assert await answers(url) == [Answer(b'{"error":{"message":"no"}}', 400, reason="HTTP 400")]


async def test_credentials_quoted_by_a_refusal_are_masked():
    key = "sk-ant-0123456789abcdef"

    async def answer(given):
        return web.Response(status=403, body=f"{given.path_qs} {dict(given.headers)} 2023-06-01".encode())

    async with serving(answer) as (url, _):
        headers = {"authorization": f"Bearer {key}", "anthropic-version": "2023-06-01"}
        (refusal,) = await answers(f"{url}/v1?key={key}", headers)
    assert key.encode() not in refusal.data
    assert refusal.data.startswith(b"/v1?key=(hidden) ")
    assert b"Bearer (hidden)" in refusal.data
    assert refusal.data.endswith(b"2023-06-01")


async def test_only_the_beginning_of_a_refusal_is_read():
    async def answer(_given):
        return web.Response(status=413, body=b"x" * 3_000_000)

    async with serving(answer) as (url, _):
        (refusal,) = await answers(url)
    assert refusal.data == b"x" * 1024 * 1024


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_transient_statuses_are_retried_after_the_pause_that_the_provider_requests(status):
    async def answer(_given):
        return web.Response(status=status, body=b"words", headers={"retry-after": "300"})

    async with serving(answer) as (url, _):
        with pytest.raises(TryAgainError) as caught:
            await answers(url)
    assert (caught.value.reason, caught.value.seconds) == (f"HTTP {status}", 300.0)
    assert caught.value.body == Answer(b"words", status, reason=f"HTTP {status}")


async def test_refused_credentials_are_an_error_of_the_route():
    async def answer(_given):
        return web.Response(status=401, body=b"sk-secret is no key")

    async with serving(answer) as (url, _):
        with pytest.raises(RouteError, match=r"refuses the credentials \(HTTP 401\)") as caught:
            await answers(url)
    assert "secret" not in str(caught.value)


# Broken connections.


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\nno",
        b"nonsense\r\n\r\n",
    ],
)
async def test_a_broken_connection_is_retried(text):
    async with dropping(text) as url:
        with pytest.raises(TryAgainError):
            await answers(url)


async def test_a_silent_connection_is_closed():
    async def answer(given):
        await streamed(given, [b"data: {}\n\n"])
        await asyncio.Event().wait()

    async with serving(answer) as (url, _):
        with pytest.raises(TryAgainError, match="Timeout"):
            await answers(url, silence_seconds=0.05)


async def test_a_refused_connection_is_retried():
    async with dropping(b"") as url:
        pass
    with pytest.raises(TryAgainError, match="ECONNREFUSED"):
        await answers(url)


async def test_a_body_without_a_length_and_a_final_event_is_cut():
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with dropping(head + b"".join(anthropic(end=False))) as url, sending_to(url) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", "cut: no final event")
    assert sent.events.of("r1") == b"".join(anthropic(end=False))


async def test_a_document_cut_by_its_length_is_sent_again_and_never_published():
    whole = json.dumps({"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
    async with dropping(head + whole[:30]) as url, sending_to(url, attempts=3) as sent:
        sent.requests.put(request("r1", offset=0))
        assert (await sent.events.next_end())[2].startswith("ClientPayloadError")
    assert len(sent.waits) == 2
    assert sent.events.pieces == [("r1", whole[:30], 200)]  # of the last attempt, as evidence


# Configuration errors.


@pytest.mark.parametrize(
    "url", ["", "api.example.org/v1", "ftp://host/x", "http://", "https:///x", "http://host:port/"]
)
async def test_an_invalid_url_is_rejected_at_the_start(url):
    async with aiohttp.ClientSession() as client:
        with pytest.raises(RouteError, match="expected a URL"):
            Http(client, url, {})


@pytest.mark.parametrize(
    "headers",
    [{"x-api-key": "sk-secret\r\nx: y"}, {"x-api-key": "sk-\0secret"}, {"x api key": "sk-secret"}, {"": "sk-secret"}],
)
async def test_unsendable_headers_are_rejected_at_the_start_without_their_values(headers):
    async with aiohttp.ClientSession() as client:
        with pytest.raises(RouteError) as caught:
            Http(client, "https://host/", headers)
    assert caught.value.code == "bad_header"
    assert "secret" not in str(caught.value)


async def test_a_line_break_at_the_end_of_a_secret_is_not_part_of_it():
    async with serving(lambda given: streamed(given, anthropic())) as (url, asked):
        await answers(url, {"x-api-key": " sk-secret\r\n"})
    assert [key for _, _, key, _ in asked] == ["sk-secret"]


# Programs.


async def lines(script, body=b"{}", **options):
    program = Program([sys.executable, "-c", script], **options)
    return [piece.data async for piece in program.answer(request("r1", offset=0, body=body))]


async def test_a_program_reads_the_request_and_prints_events():
    assert await lines("import sys; print(sys.stdin.read()); print(); print('two')", b'{"a": 1}') == [
        b'{"a": 1}',
        b"two",
    ]


async def test_a_program_may_print_much_before_it_has_read_everything():
    body = b"x" * 2_000_000
    script = "import sys; print('y' * 2_000_000, flush=True); print(len(sys.stdin.read()))"
    assert await lines(script, body) == [b"y" * 2_000_000, b"2000000"]


@pytest.mark.parametrize("command", [[], ["/no/such/program"], ["no-such-program-at-all"], [__file__]])
def test_a_missing_program_is_rejected_at_the_start(command):
    with pytest.raises(RouteError, match="not an executable program"):
        Program(command)


async def test_a_program_that_goes_missing_ends_the_sender_and_nothing_is_committed(tmp_path):
    program = tmp_path / "answer"
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o700)
    route = Program([str(program)])
    program.unlink()
    async with sending(route=route) as sent:
        sent.requests.put(request("r1", offset=0))
        with pytest.raises(RouteError, match=r"cannot be run \(FileNotFoundError\[ENOENT\]\)"):
            await asyncio.wait_for(sent.task, 20)
    assert sent.events.ended.empty()


async def test_a_file_that_is_not_a_program_ends_the_sender(tmp_path):
    program = tmp_path / "answer"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o700)
    with pytest.raises(RouteError, match="ENOEXEC"):
        _ = [piece async for piece in Program([str(program)]).answer(ASKED)]


@pytest.mark.parametrize(
    ("script", "reason"),
    [("raise SystemExit(3)", "exit status 3"), ("import os; os.kill(os.getpid(), 9)", "signal 9")],
)
async def test_the_exit_status_or_signal_of_a_program_is_the_reason(script, reason):
    with pytest.raises(TryAgainError, match=reason):
        await lines(script)


async def test_a_silent_program_is_ended():
    with pytest.raises(TryAgainError, match="silence"):
        await lines("import time; time.sleep(60)", silence_seconds=0.3)


async def test_a_line_larger_than_a_record_is_rejected(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.client.routes._LONGEST_LINE", 1000)
    with pytest.raises(InputError, match="exceeds 1000 bytes"):
        await lines("print('x' * 100_000)")


async def test_a_program_and_its_children_are_ended_when_its_request_is_superseded(tmp_path):
    alive = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True:\n    pathlib.Path({str(alive)!r}).touch(); time.sleep(0.01)"
    script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    async with sending(route=Program([sys.executable, "-c", script])) as sent:
        sent.requests.put(request("r1", offset=0))
        while not alive.exists():  # noqa: ASYNC110  a process cannot set an event
            await asyncio.sleep(0.01)
        sent.requests.put(request("r2", offset=1, supersedes="r1"))
        assert await sent.events.next_end() == ("s", "r1", "superseded")
        sent.task.cancel()
    alive.unlink()
    await asyncio.sleep(0.2)
    assert not alive.exists()
