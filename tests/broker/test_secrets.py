"""No secret that was given to a command is in its output, its logs, its metrics, its pages or any record."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

import aiohttp
import harness
import pipeline_lab as lab
import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer

from reknit.topics import AGENT_TURNS, TOPICS

pytestmark = pytest.mark.broker

# Each is given to at least one command; none is a real one.
PASSWORD, PASSPHRASE, CLIENT_SECRET = "planted-password", "planted-passphrase", "planted-client-secret"
PROVIDER_KEY, TOKEN, STORE_PASSWORD = "planted-provider-key", "planted-token-0123456789abcdef", "planted-store"
PLANTED = (PASSWORD, PASSPHRASE, CLIENT_SECRET, PROVIDER_KEY, TOKEN, STORE_PASSWORD)
NO_BROKER = "127.0.0.1:1"
STORE = f"s3://someone:{STORE_PASSWORD}@127.0.0.1:1/bucket?token={STORE_PASSWORD}"


class Places:
    """The texts in which no secret may be, by the place where they were found."""

    def __init__(self):
        self.found = {}

    def add(self, place, text):
        self.found.setdefault(place, []).append(text if isinstance(text, bytes) else text.encode())

    def leaks(self):
        joined = {place: b"\n".join(texts) for place, texts in self.found.items()}
        return [(place, secret) for secret in PLANTED for place, text in joined.items() if secret.encode() in text]


async def run(places, *arguments, given=b"", **environment):
    """Run a command that ends, whatever its exit code; note its output."""
    command = [sys.executable, "-X", "faulthandler", "-m", "reknit", *arguments]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        input=given,
        capture_output=True,
        timeout=240,
        check=False,
        env=os.environ | environment,
    )
    places.add(" ".join(arguments[:2]), done.stdout + done.stderr)
    return done


def kafka_secrets(security):
    return {
        "REKNIT_KAFKA_SECURITY_PROTOCOL": security,
        "REKNIT_KAFKA_SASL_MECHANISM": "PLAIN",
        "REKNIT_KAFKA_SASL_USERNAME": "somebody",
        "REKNIT_KAFKA_SASL_PASSWORD": PASSWORD,
        "REKNIT_KAFKA_SASL_OAUTH_CLIENT_SECRET": CLIENT_SECRET,
        "REKNIT_KAFKA_SSL_PASSWORD": PASSPHRASE,
    }


async def failing_provider():
    """A provider that answers with a redirect, an error, nothing, and half an answer, by turns."""
    asked, enough = [], asyncio.Event()

    async def answer(request):
        asked.append(request.headers.get("x-api-key"))
        kind = len(asked) % 4
        if len(asked) >= 6:
            enough.set()
        if kind == 1:
            return web.Response(status=307, headers={"location": f"http://{NO_BROKER}/?key={PROVIDER_KEY}"})
        if kind == 2:
            return web.json_response({"error": {"type": "invalid_request_error", "message": "no"}}, status=400)
        if kind == 3:
            request.transport.abort()
            return web.Response()
        return web.Response(text='data: {"type":"message_start"', content_type="text/event-stream")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1/messages", asked, enough, runner


async def test_no_secret_is_found_after_every_kind_of_failure(broker, prefix, tmp_path, free_port):
    places = Places()
    place = ("--bootstrap-servers", broker.bootstrap, "--prefix", prefix)
    secrets = kafka_secrets("PLAINTEXT")

    # Commands that fail before they reach a broker, at the connection, and after it.
    for security in ("SASL_PLAINTEXT", "SASL_SSL", "SSL"):
        for bootstrap in (NO_BROKER, broker.bootstrap):
            at = ("--bootstrap-servers", bootstrap, "--prefix", prefix)
            await run(places, "topics", "diff", *at, **kafka_secrets(security))
    for arguments in (("inspect", "s"), ("dead-letters", "list"), ("report",), ("export", "s"), ("replay", "list")):
        await run(places, *arguments, *place, **secrets)
    await run(places, "config", "show", *place, REKNIT_OBJECTS__URL=STORE, **secrets)
    await run(places, "worker", *place, "--metrics-port", "0", REKNIT_OBJECTS__URL=STORE, **secrets)
    await run(places, "objects", "sweep", *place, REKNIT_OBJECTS__URL=STORE, **secrets)

    # A pipeline at work: a worker with sessions that succeed, fail and crash its stage, a sender and a viewer.
    await lab.make_topics(broker.bootstrap, prefix)
    port, viewer_port = free_port(), free_port()
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    url, asked, enough, runner = await failing_provider()
    environment = {
        "REKNIT_SESSION__MODEL": "claude-sonnet-4-5",
        "REKNIT_SESSION__MAX_TOKENS": "64",
        "PROVIDER_KEY": PROVIDER_KEY,
    }
    at_work = {
        "worker": ["worker", *place, "--metrics-port", str(port), "--state-dir", str(tmp_path / "state")],
        "send": ["send", *place, "--to", url, "--secret-header", "x-api-key=PROVIDER_KEY"],
        "viewer": [
            "viewer", *place, "--port", str(viewer_port), "--token-file", str(token_file),
            "--index", str(tmp_path / "viewer.index"),
        ],
    }  # fmt: skip
    started = {}
    try:
        for name, arguments in at_work.items():
            command = [sys.executable, "-X", "faulthandler", "-m", "reknit", *arguments]
            with (tmp_path / f"{name}.log").open("wb") as log:
                started[name] = await asyncio.create_subprocess_exec(
                    *command, stdout=log, stderr=log, env=os.environ | environment
                )
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        turn = {"type": "turn.appended", "message": {"role": "user", "content": "Hello."}}
        for number in range(6):
            await producer.send_and_wait(prefix + AGENT_TURNS, json.dumps(turn).encode(), key=b"s%d" % number)
        await producer.send_and_wait(prefix + AGENT_TURNS, b"no JSON", key=b"s0")
        await producer.stop()
        async with aiohttp.ClientSession() as http, asyncio.timeout(90):
            await enough.wait()
            await read_pages(http, places, port, viewer_port)
        # Killed so that the interpreter writes where it was.
        for process in started.values():
            process.send_signal(signal.SIGABRT)
            await asyncio.wait_for(process.wait(), 20)
    finally:
        for process in started.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await runner.cleanup()
    assert PROVIDER_KEY in asked
    for name in at_work:
        places.add(f"log of {name}", (tmp_path / f"{name}.log").read_bytes())
    for topic in TOPICS:
        for records in await harness.read_all(broker.bootstrap, prefix + topic.name, lab.PARTITIONS):
            for record in records:
                headers = b" ".join(part for name, value in record.headers for part in (name.encode(), value or b""))
                places.add(topic.name, (record.key or b"") + (record.value or b"") + headers)
    assert places.leaks() == []
    # The search saw every kind of place.
    searched = {"config show", "log of worker", "log of send", "log of viewer", "metrics", "pages", AGENT_TURNS}
    assert searched <= places.found.keys()
    assert b"Fatal Python error: Aborted" in b"".join(places.found["log of worker"])


async def read_pages(http, places, port, viewer_port):
    """Read the metrics, and the viewer's pages with and without its token."""
    viewer = f"http://127.0.0.1:{viewer_port}"
    while True:
        try:
            async with http.get(f"{viewer}/healthz") as found:
                if found.status == 200:
                    break
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.2)
    for path in ("/metrics", "/readyz", "/livez"):
        async with http.get(f"http://127.0.0.1:{port}{path}") as found:
            places.add("metrics", await found.read())
    async with http.post(f"{viewer}/login", data={"login": TOKEN}, headers={"origin": viewer}) as found:
        assert found.status == 200
    for path in ("/", "/sessions", "/letters", "/sessions/s0", "/nowhere", f"/sessions?session={'x' * 9000}"):
        async with http.get(viewer + path) as found:
            places.add("pages", await found.read() + repr(dict(found.headers)).encode())
