"""A gateway that publishes: its exchanges are in the topics once and in order, and clients never wait for brokers."""

import asyncio
import gzip
import hashlib
import json
import threading
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import pytest
from aiohttp import web
from build import answered, call, called, result, said, user
from gateway import Provider, body, gateway_to, streamed
from input_brokers import InputBrokers, Worker
from multidict import CIMultiDict
from sender_runs import anthropic

from reknit.pipeline.serve import conversations
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.journal import Journal
from reknit.pipeline.serve.journal_format import InputRecord
from reknit.pipeline.serve.publishing import Exchanged, session_of
from reknit.pipeline.serve.repair import RequestBody
from reknit.pipeline.serve.upstreams import Upstream
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS

STREAM = anthropic()
KEY = "sk-ant-secret-4711"


def streaming(pieces=STREAM, **options):
    return streamed(pieces, **options)


class Running:
    def __init__(self, provider, brokers, url, status_url, client):
        self.provider, self.brokers, self.url, self.status_url, self.client = provider, brokers, url, status_url, client

    async def post(self, data, path="/v1/messages", **headers):
        headers = {"x-api-key": KEY} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(self.url + path, data=data, headers=headers) as response:
            return response.status, await response.read()

    async def metric(self, name):
        async with self.client.get(f"{self.status_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)}


@asynccontextmanager
async def running(tmp_path, answer=None, publish="all", brokers=None, upstream=None, **options):
    provider, brokers = Provider(answer or streaming()), brokers or InputBrokers()
    async with provider.running() as url:
        upstreams = [Upstream(name="provider", to=url, **(upstream or {}))]
        options = {"state_dir": tmp_path, "publish": publish, "connect": brokers.connect} | options
        async with (
            gateway_to("", upstreams=upstreams, **options) as (gateway_url, status_url),
            aiohttp.ClientSession(auto_decompress=False) as client,
        ):
            yield Running(provider, brokers, gateway_url, status_url, client)


# Answers.


async def test_events_of_a_session_that_the_platform_names(tmp_path):
    async with running(tmp_path, publish="events") as gateway:
        _, data = await gateway.post(body(user("hi"), stream=True), x_session_id="docs-1")
        await gateway.brokers.ends(1)
    assert gateway.brokers.runs() == [("docs-1", data, "end of stream")]
    assert gateway.brokers.of(AGENT_TURNS) == []
    texts = [each for each in Worker(gateway.brokers).items if each["type"] == "item/completed"]
    assert len(texts) == 1


async def test_events_without_a_session_are_counted_and_not_published(tmp_path):
    async with running(tmp_path, publish="events") as gateway:
        await gateway.post(body(user("hi"), stream=True))
        counted = await gateway.metric("reknit_serve_log_incomplete_total")
    assert gateway.brokers.records == []
    assert counted == {'reknit_serve_log_incomplete_total{reason="session"}': 1.0}


@pytest.mark.parametrize(
    ("default", "of_upstream", "published"), [("all", "off", 0), ("off", "all", 1), ("off", "", 0)]
)
async def test_an_upstream_replaces_the_default(tmp_path, default, of_upstream, published):
    async with running(tmp_path, publish=default, upstream={"publish": of_upstream}) as gateway:
        await gateway.post(body(user("hi"), stream=True))
        if published:
            await gateway.brokers.ends(published)
    assert len(gateway.brokers.runs()) == published


@pytest.mark.parametrize("pack", [None, gzip.compress])
async def test_an_answer_that_is_a_document_is_published_at_its_end(tmp_path, pack):
    document = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": "end_turn",
    }
    plain = json.dumps(document).encode()

    async def answer(_request):
        headers = {"content-type": "application/json"} | ({"content-encoding": "gzip"} if pack else {})
        return web.Response(body=pack(plain) if pack else plain, headers=headers)

    async with running(tmp_path, answer) as gateway:
        await gateway.post(body(user("hi")))
        await gateway.brokers.ends(1)
    assert [run[1:] for run in gateway.brokers.runs()] == [(plain, "end of stream")]


async def test_a_cut_answer_ends_its_run_as_cut(tmp_path):
    async with running(tmp_path, streaming(STREAM[:3], breaks=True)) as gateway:
        with pytest.raises(aiohttp.ClientError):
            await gateway.post(body(user("hi"), stream=True))
        await gateway.brokers.ends(1)
    assert [run[1:] for run in gateway.brokers.runs()] == [(b"".join(STREAM[:3]), "cut")]


async def test_a_client_that_leaves_ends_its_run_with_the_bytes_so_far(tmp_path):
    async def endless(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(STREAM[:3]))
        await asyncio.Event().wait()

    async with running(tmp_path, endless) as gateway:
        async with gateway.client.post(f"{gateway.url}/v1/messages", data=body(user("hi"), stream=True)) as response:
            await response.content.readany()
        await gateway.brokers.ends(1)
    assert [run[1:] for run in gateway.brokers.runs()] == [(b"".join(STREAM[:3]), "client left")]


async def test_a_refusal_crosses_to_the_log_and_is_not_healed_by_the_worker(tmp_path):
    sentence = "messages.1.content.0: Invalid `signature` in `thinking` block"

    async def refuse(_request):
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": sentence}}
        return web.json_response(error, status=400)

    history = [
        user("hi"),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "Ep"}]},
    ]
    async with running(tmp_path, refuse, upstream={"heal": "off"}) as gateway:
        status, _ = await gateway.post(body(*history, said("Fine."), user("go on")))
        await gateway.brokers.ends(1)
    assert status == 400
    worker = Worker(gateway.brokers)
    crossed = [json.loads(each.value) for each in worker.events.outputs if each.topic == AGENT_TURNS]
    assert [(each["type"], each["status"]) for each in crossed] == [("provider.answered", 400)]
    assert crossed[0]["request_id"] == worker.requests[0][0].request_id


# Turns and requests.


async def conversation(gateway, messages, at, **more):
    """Send the conversation up to each of these lengths."""
    for number, length in enumerate(at, 1):
        await gateway.post(body(*messages[:length], stream=True, **more))
        await gateway.brokers.ends(number)


HEALTHY = [user("one"), called("a"), answered("a"), said("1"), user("two")]


async def test_a_conversation_is_mirrored_turn_by_turn(tmp_path):
    async with running(tmp_path) as gateway:
        await conversation(gateway, HEALTHY, [1, 3, 5])
    next_turns = ["turn.appended", "turn.appended", "request.sent"]
    begun = ["session.opened", "history.restored", "request.sent"]
    assert gateway.brokers.types == [*begun, *next_turns, *next_turns]
    turns = [each for each in gateway.brokers.turns if each["type"] == "turn.appended"]
    assert {(each["request"], each["origin"]) for each in turns} == {(False, "gateway")}
    worker = Worker(gateway.brokers)
    assert (worker.mismatches, worker.letters, worker.fixes) == (0, [], [])
    for (headers, value), received in zip(worker.requests, gateway.provider.received, strict=True):
        assert json.loads(value) == json.loads(received.body)
        assert headers.sent == hashlib.sha256(received.body).hexdigest()
        assert (headers.reason, headers.target) == ("sent", "anthropic")
    assert len({headers.request_id for headers, _ in worker.requests}) == 3


BROKEN = [user("one"), called("a"), user("go on"), said("1"), answered("b"), user("two"), called("c"), user("three")]


async def test_a_repaired_request_is_the_one_that_the_worker_publishes(tmp_path):
    async with running(tmp_path) as gateway:
        await conversation(gateway, BROKEN, [1, 3, 6, 8])
    worker = Worker(gateway.brokers)
    assert worker.mismatches == 0
    assert [value for _, value in worker.requests][1:] == [each.body for each in gateway.provider.received][1:]
    assert {"result_synthesised", "result_orphan"} <= set(worker.fixes)


INTERRUPTED = [user("list"), said("so", call("a"), call("b")), user(result("a"))]


async def test_a_result_that_comes_after_the_answer_is_where_the_provider_received_it(tmp_path):
    history = [*INTERRUPTED, said("fine"), user(result("b", "late")), said("good"), user("thanks")]
    async with running(tmp_path) as gateway:
        await conversation(gateway, history, [3, 5])
    async with running(tmp_path, brokers=gateway.brokers) as later:
        await conversation(later, history, [7])
        await later.brokers.ends(3)
    sent = [each for each in gateway.brokers.turns if each["type"] == "request.sent"]
    known = [{"messages": 3}]
    assert [(each.get("answered"), each.get("end")) for each in sent] == [(None, "open"), (known, None), (known, None)]
    assert all("content_sha256" in each for each in sent)
    worker = Worker(gateway.brokers)
    assert (worker.mismatches, worker.letters) == (0, [])
    received = [each.body for each in (*gateway.provider.received, *later.provider.received)]
    assert [json.loads(value) for _, value in worker.requests] == [json.loads(each) for each in received]
    # Another gateway restores the history, whose fixes are published again.
    assert worker.fixes == ["result_synthesised", "result_late_turn"] * 2


async def test_cache_breakpoints_are_no_mismatch(tmp_path):
    def marked(message):
        return {"role": message["role"], "content": [*message["content"][:-1], _with_mark(message["content"][-1])]}

    def _with_mark(block):
        return block | {"cache_control": {"type": "ephemeral"}}

    def blocks(message):
        content = message["content"]
        return message if isinstance(content, list) else message | {"content": [{"type": "text", "text": content}]}

    history = [*map(blocks, HEALTHY)]
    async with running(tmp_path) as gateway:
        for number, length in enumerate([1, 3, 5], 1):
            messages = [*history[: length - 1], marked(history[length - 1])]
            await gateway.post(body(*messages, stream=True, system=[_with_mark({"type": "text", "text": "s"})]))
            await gateway.brokers.ends(number)
    assert gateway.brokers.types.count("history.restored") == 1
    assert Worker(gateway.brokers).mismatches == 0


async def test_a_healed_request_and_the_later_ones_are_what_the_worker_publishes(tmp_path):
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "EpwBREFUSED1"}
    answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Fine."}]}
    history = [user("hi"), answer, user("go on"), said("Yes."), user("and?")]
    refusals = ["messages.1.content.0: Invalid `signature` in `thinking` block"]

    async def refusing(request):
        if not refusals:
            return await streaming()(request)
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": refusals.pop()}}
        return web.json_response(error, status=400)

    async with running(tmp_path, refusing) as gateway:
        await conversation(gateway, history, [3, 5], model="claude-sonnet-4-0")
    worker = Worker(gateway.brokers)
    first, second = [each for each in gateway.brokers.turns if each["type"] == "request.sent"]
    assert (first["healings"], second.get("healings", [])) == (["thinking_signature"], [])
    assert (worker.mismatches, worker.letters) == (0, [])
    bodies = [json.loads(value) for _, value in worker.requests]
    assert bodies == [json.loads(each.body) for each in gateway.provider.received[1:]]
    assert "EpwBREFUSED1" not in json.dumps(bodies)
    assert "EpwBREFUSED1" in json.dumps(gateway.brokers.turns), "the log has what the client sent"


async def test_another_content_than_the_logs_counts_as_a_mismatch(tmp_path):
    async with running(tmp_path) as gateway:
        await conversation(gateway, HEALTHY, [1])
    topic, session, value, headers = gateway.brokers.of(AGENT_TURNS)[-1]
    told = json.loads(value) | {"content_sha256": "0" * 64, "request_id": "another", "id": "another"}
    gateway.brokers.records.append((topic, session, json.dumps(told).encode(), headers))
    worker = Worker(gateway.brokers)
    assert (worker.mismatches, len(worker.requests)) == (1, 2)


async def test_a_repeated_request_is_published_again_without_new_turns(tmp_path):
    async with running(tmp_path) as gateway:
        await conversation(gateway, HEALTHY, [3, 3])
    assert gateway.brokers.types == ["session.opened", "history.restored", "request.sent", "request.sent"]
    assert (len(Worker(gateway.brokers).requests), Worker(gateway.brokers).mismatches) == (2, 0)


async def test_tenants_and_branches_have_sessions_of_their_own(tmp_path):
    async with running(tmp_path) as gateway:
        await gateway.post(body(user("one"), stream=True))
        await gateway.post(body(user("one"), stream=True), x_api_key="another")
        await gateway.post(body(user("A title, please."), stream=True))
        await gateway.brokers.ends(3)
    sessions = [session for session, _, _ in gateway.brokers.runs()]
    assert len(set(sessions)) == 3
    tenants = [session.partition("/")[0] for session in sessions]
    assert (tenants[0] == tenants[2], tenants[0] == tenants[1]) == (True, False)


async def test_the_key_of_a_conversation_is_made_once_for_a_request(tmp_path, monkeypatch):
    made, real = [], conversations.conversation_key
    monkeypatch.setattr(
        conversations, "conversation_key", lambda *given, **more: made.append(1) or real(*given, **more)
    )
    async with running(tmp_path) as gateway:
        await conversation(gateway, INTERRUPTED, [3, 3])
    assert len(made) == 2


def test_requests_of_a_client_that_signs_each_one_have_one_session():
    def session(access_key, signature):
        scope = f"{access_key}/20260101/us-east-1/bedrock/aws4_request"
        signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date, Signature={signature * 64}"
        given = RequestBody(body(user("one")))
        exchanged = Exchanged(
            headers=CIMultiDict(Authorization=signed),
            upstream=Upstream(name="aws", to="https://bedrock-runtime.us-east-1.amazonaws.com"),
            endpoint=Endpoint("bedrock-converse", "m"),
            request_id="r",
            given=given,
            sent=given.data,
            written=None,
        )
        return session_of(b"secret", exchanged, given)

    assert session("AKIA1", "a") == session("AKIA1", "b") != session("AKIA2", "a")


async def test_no_key_reaches_the_topics_or_the_journal(tmp_path):
    brokers = InputBrokers()
    brokers.is_down = True
    async with running(tmp_path, brokers=brokers) as gateway:
        secrets = {"authorization": "Bearer " + KEY, "cookie": KEY, "x_goog_api_key": KEY}
        await gateway.post(body(user("hi"), stream=True), path=f"/v1/messages?key={KEY}", **secrets)
        await asyncio.sleep(0)
        brokers.is_down = False
        await brokers.ends(1)
        stored = b"".join(path.read_bytes() for path in (tmp_path / "serve.journal").iterdir())
    assert KEY not in repr(brokers.records)
    assert KEY.encode() not in stored


# Brokers that do not answer.


async def test_clients_do_not_wait_for_brokers_and_nothing_is_lost(tmp_path):
    brokers = InputBrokers()
    brokers.is_down = True
    async with running(tmp_path, brokers=brokers) as gateway:
        for length in (1, 3, 5):
            status, data = await gateway.post(body(*HEALTHY[:length], stream=True))
            assert (status, data) == (200, b"".join(STREAM))
        assert brokers.records == []
        brokers.is_down = False
        await brokers.ends(3)
    assert [run[1] for run in brokers.runs()] == [b"".join(STREAM)] * 3
    assert (Worker(brokers).mismatches, len(Worker(brokers).requests)) == (0, 3)


async def test_records_that_are_written_twice_count_once(tmp_path):
    brokers = InputBrokers()
    brokers.loses_acknowledgements = 2
    async with running(tmp_path, brokers=brokers) as gateway:
        await gateway.post(body(*HEALTHY[:1], stream=True))
        await gateway.post(body(*HEALTHY[:3], stream=True))
        await brokers.until(lambda found: [run[2] for run in found.runs()].count("end of stream") >= 2)
        await brokers.until(lambda found: found.types.count("request.sent") >= 2)
    worker = Worker(brokers)
    assert brokers.loses_acknowledgements == 0
    completed = [each for each in worker.items if each["type"] == "item/completed"]
    assert (len(completed), len(worker.requests), worker.letters, worker.mismatches) == (2, 2, [], 0)


async def test_turns_that_are_written_twice_leave_the_history_as_it_is(tmp_path):
    """A worker forgets the ids of messages that a restored history replaces."""
    brokers = InputBrokers()
    brokers.is_down = True
    other = [user("one"), said("another"), user("two"), said("2"), user("three"), said("3"), user("four")]
    async with running(tmp_path, brokers=brokers) as gateway:
        for messages in (HEALTHY[:1], HEALTHY[:3], other[:3], other[:5]):
            await gateway.post(body(*messages, stream=True))
        brokers.loses_acknowledgements = 3
        brokers.is_down = False
        await brokers.ends(4)
        await gateway.post(body(*other, stream=True))
        await brokers.until(lambda found: len({each["id"] for each in found.turns if "sha256" in each}) == 5)
    worker = Worker(brokers)
    assert (brokers.loses_acknowledgements, worker.letters, worker.mismatches) == (0, [], 0)
    assert [len(json.loads(value)["messages"]) for _, value in worker.requests] == [1, 3, 3, 5, 7]


async def test_a_torn_request_of_an_earlier_process_stops_no_later_one(tmp_path):
    session = ""
    async with running(tmp_path) as gateway:
        await gateway.post(body(*HEALTHY[:1], stream=True))
        await gateway.brokers.ends(1)
        session = gateway.brokers.runs()[0][0]
    torn = Journal(tmp_path)
    torn.append([InputRecord(AGENT_TURNS, session, b'{"type":"history.rewound","to":0}', (), "torn", 0)])
    torn.close()
    async with running(tmp_path) as gateway:
        await gateway.post(body(*HEALTHY[:3], stream=True))
        await gateway.brokers.ends(1)
        await gateway.brokers.until(lambda found: "request.sent" in found.types)
    assert gateway.brokers.types == ["history.rewound", "session.opened", "history.restored", "request.sent"]


async def test_a_gateway_that_stops_leaves_the_rest_to_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr("reknit.pipeline.serve.input_log._LAST_SECONDS", 0.05)
    brokers = InputBrokers()
    brokers.is_down = True
    async with running(tmp_path, brokers=brokers) as gateway:
        await gateway.post(body(*HEALTHY[:1], stream=True))
    assert brokers.records == []
    brokers.is_down = False
    async with running(tmp_path, brokers=brokers) as gateway:
        await gateway.post(body(*HEALTHY[:3], stream=True))
        await brokers.ends(2)
    worker = Worker(brokers)
    assert [run[1:] for run in brokers.runs()] == [(b"".join(STREAM), "end of stream")] * 2
    assert (worker.mismatches, worker.letters, len(worker.requests)) == (0, [], 2)


async def test_beyond_its_limit_a_journal_ends_runs_as_incomplete(tmp_path):
    brokers = InputBrokers()
    brokers.is_down = True
    async with running(tmp_path, brokers=brokers, journal_bytes=6_000) as gateway:
        for length in (1, 3, 5, 1, 3, 5, 1, 3):
            status, data = await gateway.post(body(*HEALTHY[:length], stream=True))
            assert (status, data) == (200, b"".join(STREAM))
        counted = await gateway.metric("reknit_serve_log_incomplete_total")
        brokers.is_down = False
        await brokers.ends(8)
        await gateway.post(body(*HEALTHY, stream=True))
        await brokers.ends(9)
    ends = [end for _, _, end in brokers.runs()]
    assert (ends[0], "log_incomplete" in ends, ends[-1]) == ("end of stream", True, "end of stream")
    assert counted['reknit_serve_log_incomplete_total{reason="journal_full"}'] >= 1
    for _, data, end in brokers.runs():
        assert b"".join(STREAM).startswith(data) if end == "log_incomplete" else data == b"".join(STREAM)
    worker = Worker(brokers)
    assert (worker.mismatches, worker.letters) == (0, [])
    assert json.loads(worker.requests[-1][1])["messages"] == HEALTHY


# The end of an answer.


@contextmanager
def slow_disk(monkeypatch, seconds):
    """Block the journal until the block ends; the end of an answer waits for ``seconds`` without progress."""
    may_store, append = threading.Event(), Journal.append

    def blocked(self, records):
        may_store.wait(30)
        append(self, records)

    monkeypatch.setattr(Journal, "append", blocked)
    monkeypatch.setattr("reknit.pipeline.serve.input_log._STALLED_SECONDS", seconds)
    try:
        yield may_store
    finally:
        may_store.set()


async def document(_request):
    return web.json_response({"id": "m1", "type": "message", "role": "assistant", "content": []})


@pytest.mark.parametrize(("answer", "streams"), [(streaming(), True), (document, False)])
async def test_a_client_has_a_whole_answer_only_once_the_journal_has_it(tmp_path, monkeypatch, answer, streams):
    with slow_disk(monkeypatch, 30) as may_store:
        async with running(tmp_path, answer) as gateway:
            reader = asyncio.create_task(gateway.post(body(user("hi"), stream=streams)))
            done, _ = await asyncio.wait([reader], timeout=0.3)
            assert not done
            may_store.set()
            status, _ = await reader
    assert status == 200


async def test_a_client_sees_a_cut_only_once_the_journal_has_the_exchange(tmp_path, monkeypatch):
    with slow_disk(monkeypatch, 30) as may_store:
        async with running(tmp_path, streaming(STREAM[:4], breaks=True)) as gateway:
            reader = asyncio.create_task(gateway.post(body(user("hi"), stream=True)))
            done, _ = await asyncio.wait([reader], timeout=0.3)
            assert not done
            may_store.set()
            with pytest.raises(aiohttp.ClientError):
                await reader
            await gateway.brokers.ends(1)
    assert gateway.brokers.runs()[0][1:] == (b"".join(STREAM[:4]), "cut")


@pytest.mark.parametrize(("answer", "streams"), [(streaming(), True), (document, False)])
async def test_a_disk_that_blocks_delays_a_client_for_a_moment_only(tmp_path, monkeypatch, answer, streams):
    with slow_disk(monkeypatch, 0.01) as may_store:
        async with running(tmp_path, answer) as gateway:
            status, _ = await gateway.post(body(user("hi"), stream=streams))
            assert (status, may_store.is_set(), gateway.brokers.records) == (200, False, [])
            may_store.set()
            await gateway.brokers.ends(1)


# Parallel answers of one session.


async def test_parallel_answers_of_one_session_follow_each_other(tmp_path):
    going = asyncio.Event()

    async def slow(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[0])
        await going.wait()
        for piece in STREAM[1:]:
            await response.write(piece)
        return response

    async with running(tmp_path, slow, upstream={"heal": "off"}) as gateway:
        data = body(user("hi"), stream=True)
        posts = [asyncio.create_task(gateway.post(data)) for _ in range(3)]
        await gateway.brokers.until(lambda found: found.of(PROVIDER_EVENTS))
        going.set()
        await asyncio.gather(*posts)
        await gateway.brokers.ends(3)
    runs = [dict(headers)["run"] for _, _, _, headers in gateway.brokers.of(PROVIDER_EVENTS)]
    assert len([run for at, run in enumerate(runs) if at == 0 or runs[at - 1] != run]) == 3
    assert [run[1] for run in gateway.brokers.runs()] == [b"".join(STREAM)] * 3
