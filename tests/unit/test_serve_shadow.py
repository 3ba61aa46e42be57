"""A gateway that only observes: every body passes unchanged, and a shadow worker reports from the topics or a file."""

import hashlib
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from build import answered, called, said, user
from click.testing import CliRunner
from gateway import Provider, body, gateway_to, streamed
from input_brokers import InputBrokers, Worker
from msgspec import Raw
from sender_runs import anthropic

from reknit.pipeline.cli import main
from reknit.pipeline.cli.requests import Places, read_line
from reknit.pipeline.serve.mirrored import Conversations
from reknit.pipeline.serve.upstreams import ModelSettings, Upstream

STREAM = anthropic()
KEY = "sk-ant-secret-4711"
# The call has no result.
BROKEN = [user("one"), called("a"), user("go on")]


class Lenient(Provider):
    """A provider that accepts every request."""

    async def handle(self, request):
        self.received.append((request.raw_path, await request.read()))
        return await self.answer(request)


@asynccontextmanager
async def shadow(tmp_path, **options):
    provider, brokers = Lenient(streamed(STREAM)), InputBrokers()
    async with provider.running() as url:
        settings = ModelSettings(params={"temperature": Raw(b"0")})
        upstream = Upstream(name="provider", to=url, reject="local", models={"*": settings}).as_shadow()
        options = {"state_dir": tmp_path, "connect": brokers.connect, "is_shadow": True} | options
        async with (
            gateway_to("", upstreams=[upstream], **options) as (gateway_url, _),
            aiohttp.ClientSession() as client,
        ):

            async def post(data, path="/v1/messages"):
                headers = {"x-api-key": KEY, "user-agent": "crew/1.4 (x)", "cookie": KEY}
                async with client.post(gateway_url + path, data=data, headers=headers) as response:
                    return response.status, await response.read(), response.headers

            yield provider, brokers, post


async def test_a_broken_body_passes_unchanged_and_the_worker_says_what_it_would_repair(tmp_path):
    sent = [body(*BROKEN, stream=True), body(*BROKEN, said("1"), user("two"), stream=True)]
    async with shadow(tmp_path) as (provider, brokers, post):
        for number, data in enumerate(sent, 1):
            status, received, headers = await post(data)
            assert (status, received, "x-reknit-fixes" in headers) == (200, b"".join(STREAM), False)
            await brokers.ends(number)
    assert [data for _, data in provider.received] == sent
    worker = Worker(brokers)
    assert (worker.mismatches, worker.letters, "result_synthesised" in worker.fixes) == (0, [], True)
    told = [each for each in brokers.turns if each["type"] == "request.sent"]
    assert [each["sha256"] for each in told] == [hashlib.sha256(data).hexdigest() for data in sent]
    assert ["content_sha256" in each for each in told] == [False, False]


async def test_the_rules_that_requests_broke_are_in_their_records_for_the_report(tmp_path):
    async with shadow(tmp_path) as (_, brokers, post):
        await post(body(*BROKEN, stream=True))
        await brokers.ends(1)
    judged = [dict(headers).get("judged") for topic, _, _, headers in brokers.records if topic == "agent.turns.v1"]
    assert judged[:-1] == [None, None]
    target, *rules = judged[-1].decode().split(" ")
    assert (target, bool(rules)) == ("anthropic", True)
    producers = {dict(headers).get("producer") for topic, _, _, headers in brokers.records if topic == "agent.turns.v1"}
    assert producers == {b"crew/1.4"}


async def test_without_brokers_requests_are_lines_that_ingest_reads(tmp_path):
    file, sessions = tmp_path / "seen.jsonl", []
    laid_out = json.dumps(json.loads(body(*BROKEN)), indent=2).encode()
    async with shadow(tmp_path, shadow_log=file) as (provider, brokers, post):
        for data in (laid_out, body(*BROKEN, said("1"), answered("b"), user("two"))):
            await post(data, path=f"/v1/messages?key={KEY}")
        await post(b"no json")
    assert (provider.received[0][1], brokers.records) == (laid_out, [])
    text = file.read_bytes()
    assert KEY.encode() not in text
    conversations = Conversations()
    for line in text.splitlines():
        logged = read_line(line, Places(session="session", producer="headers.user-agent"))
        session, records = conversations.records_of(logged)
        sessions.append((session, logged.target, logged.producer, len(records)))
    assert [each[1:] for each in sessions] == [("anthropic", "crew/1.4 (x)", 3), ("anthropic", "crew/1.4 (x)", 3)]
    assert len({session for session, *_ in sessions}) == 1
    assert [json.loads(line)["status"] for line in text.splitlines()] == [200, 200]
    assert file.stat().st_mode & 0o777 == 0o600


async def test_lines_are_appended_to_those_of_an_earlier_start(tmp_path):
    file = tmp_path / "seen.jsonl"
    for _ in range(2):
        async with shadow(tmp_path, shadow_log=file) as (_, _, post):
            await post(body(user("hi")))
    assert len(file.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("place", ["missing/seen.jsonl", "."])
def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path, place):
    options = ["--listen", "127.0.0.1:0", "--metrics-port", "0", "--state-dir", str(tmp_path)]
    done = CliRunner().invoke(main, ["serve", *options, "--shadow-log", str(tmp_path / place)])
    assert done.exit_code == 2
