"""Requests that the provider answered keep their bytes in later ones, as long as the client keeps its history."""

import json
import sqlite3

import aiohttp
import msgspec
import pytest
from build import call, result, said, user
from gateway import Provider, gateway_to
from multidict import CIMultiDict

from reknit.pipeline.serve import store
from reknit.pipeline.serve.answered import Answered, AnsweredHistory, AnsweredMemory, digests_of
from reknit.pipeline.serve.conversations import Conversation
from reknit.pipeline.serve.memory import GatewayMemory
from reknit.pipeline.serve.upstreams import Upstream

ASKED = [user("list"), said("so", call("a", "ls"), call("b", "ls")), user(result("a", "done"))]
LATER = [*ASKED, said("fine"), user(result("b", "late"))]
INTERRUPTED = "No result was recorded"


def members(messages, name="messages"):
    return msgspec.json.decode(msgspec.json.encode({name: messages}), type=dict[str, msgspec.Raw])


async def forwarded(tmp_path, *histories, statuses=(), model="claude-sonnet-4-5"):
    """Return the messages that a provider received, with a gateway for each of these histories."""
    left = list(statuses)

    async def answer(_request):
        return aiohttp.web.json_response({}, status=left.pop(0) if left else 200)

    provider = Provider(answer)
    async with provider.running() as to, aiohttp.ClientSession() as client:
        for history in histories:
            upstreams = [Upstream(name="provider", to=to, heal="off")]
            async with gateway_to("", upstreams=upstreams, state_dir=tmp_path, metrics_port=None) as (url, _):
                body = {"model": model, "max_tokens": 64, "messages": history}
                async with client.post(f"{url}/v1/messages", json=body) as response:
                    await response.read()
    return [json.loads(each.body)["messages"] for each in provider.received]


async def test_a_result_that_comes_after_the_answer_does_not_change_what_was_answered(tmp_path):
    first, second = await forwarded(tmp_path, ASKED, LATER)
    assert second[: len(first)] == first
    assert INTERRUPTED in json.dumps(first)
    assert "late" in json.dumps(second[len(first) :])


@pytest.mark.parametrize(
    ("histories", "statuses"),
    [
        ([LATER], []),
        ([ASKED, [user("list the files"), *LATER[1:]]], []),
        ([ASKED, LATER], [529]),
    ],
    ids=["the gateway has not seen the request", "the client changed its history", "the request was not accepted"],
)
async def test_a_result_goes_to_its_call_where_no_answered_request_shows_otherwise(tmp_path, histories, statuses):
    last = (await forwarded(tmp_path, *histories, statuses=statuses))[-1]
    assert INTERRUPTED not in json.dumps(last)
    assert [block["tool_use_id"] for block in last[2]["content"]] == ["a", "b"]


async def test_the_user_turn_that_ended_a_request_stays_in_later_ones(tmp_path):
    ended = [user("go"), said("half of it")]
    more = [*ended, said("the rest"), user("thanks")]
    first, second = await forwarded(tmp_path, ended, more, model="claude-opus-4-7")
    assert (first[-1]["role"], second[: len(first)]) == ("user", first)


async def test_a_history_without_an_open_end_is_not_remembered(tmp_path):
    await forwarded(tmp_path, [user("hi")], [*ASKED, user(result("b", "done"))])
    assert GatewayMemory(tmp_path).answered.is_empty


def test_cache_breakpoints_and_the_form_of_a_text_do_not_count():
    marked = [user({"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}), *ASKED[1:]]
    plain = [{"role": "user", "content": "hi"}, *ASKED[1:]]
    digests = digests_of(members(marked), {1, 3})
    assert (digests, len(digests)) == (digests_of(members(plain), {1, 3}), 2)
    assert digests[1] != digests_of(members([user("hello")]), {1})[1]
    converse = [{"role": "user", "content": [{"text": "hi"}, {"cachePoint": {"type": "default"}}]}]
    without = [{"role": "user", "content": [{"text": "hi"}]}]
    assert digests_of(members(converse), {1}) == digests_of(members(without), {1}) != {}


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b'{"input": "hi"}', 1),
        (b'{"contents": [{"parts": []}]}', 1),
        (b"{}", 0),
        (b'{"messages": 3}', 0),
        (b'{"messages": ["\xff"]}', 0),
        (b'{"messages": [' + b"[" * 2_000 + b"]" * 2_000 + b"]}", 0),
    ],
)
def test_a_body_of_any_kind_can_be_noted(body, count):
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = {}
    memory = GatewayMemory(None)
    conversation = Conversation(memory.secret, CIMultiDict(), found, upstream="a", target="b")
    history = AnsweredHistory(memory.answered, conversation.key, found)
    history.note("continued")
    assert history.known() == ({count: True} if count else {})


def test_the_least_recently_used_answers_are_forgotten_first(tmp_path, monkeypatch):
    now = [1_000_000]
    monkeypatch.setattr(store, "now", lambda: now[0])
    kept = AnsweredMemory(store.Store(tmp_path), most_rows=3)
    answers = [Answered(count, bytes([count]) * 16, is_continued=False) for count in range(5)]
    for answered in answers:
        kept.keep(b"k", answered)
        now[0] += 1
    assert kept.of(b"k") == answers[2:]
    now[0] += 31 * store.DAY
    assert GatewayMemory(tmp_path).answered.is_empty


def test_an_unusable_memory_stops_no_request(tmp_path, caplog):
    memory = GatewayMemory(tmp_path)
    memory.answered.keep(b"k", Answered(1, b"1" * 16, is_continued=True))
    with sqlite3.connect(tmp_path / "serve.sqlite") as database:
        assert database.execute("SELECT count, digest, continued FROM answered").fetchall() == [(1, b"1" * 16, 1)]
    memory.close()
    assert memory.answered.of(b"k") == []
    memory.answered.keep(b"k", Answered(2, b"1" * 16, is_continued=True))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
