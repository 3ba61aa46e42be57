"""Losses that an accepted answer reports: counted as fixes of the answer, wherever the answer is read."""

import gzip
import json

import aiohttp
import pytest
from aiohttp import web
from build import user
from gateway import Provider, gateway_to, streamed
from hypothesis import given
from hypothesis import strategies as st
from stage_runs import of, records

from reknit import Session
from reknit.pipeline.losses import losses_in
from reknit.pipeline.serve.upstreams import Upstream
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.streams.session import Recovery
from reknit.topics import HISTORY_FIXES

DROPPED = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
OTHER = {**DROPPED, "path": "messages.3.content.0", "reason": "model_binding_mismatch"}
ALLOWED = {**DROPPED, "type": "thinking_mismatch_allowed"}
FOUND = ("provider_dropped", "messages.1.content.0", "thinking_dropped: prefix_binding_mismatch")
HEADERS = (("source", b"anthropic"), ("request-id", b"q1"), ("status", b"200"))
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-fable-5-1", "content": []}


def events(at_start=(), at_end=()):
    """Return the events of one streamed answer."""
    return [
        {"type": "message_start", "message": {**MESSAGE, "input_transformations": list(at_start)}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Fine."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "input_transformations": list(at_end)},
        {"type": "message_stop"},
    ]


def whole(*transformations):
    content = [{"type": "text", "text": "Fine."}]
    return {**MESSAGE, "content": content, "stop_reason": "end_turn", "input_transformations": list(transformations)}


def fixes_of(*answer):
    recovery = Recovery("anthropic")
    for event in answer:
        recovery.feed(json.dumps(event).encode())
    recovery.end_run()
    return [(fix.code, fix.path, fix.detail) for fix in recovery.take_fixes()]


@pytest.mark.parametrize(
    "answer", [events([DROPPED]), events(at_end=[DROPPED]), [whole(DROPPED)]], ids=["start", "end", "whole"]
)
def test_a_dropped_block_is_a_lossy_fix_with_its_place_and_reason(answer):
    assert fixes_of(*answer) == [FOUND]


def test_each_dropped_block_is_counted():
    assert [path for _, path, _ in fixes_of(whole(DROPPED, ALLOWED, OTHER))] == [DROPPED["path"], OTHER["path"]]


@pytest.mark.parametrize(
    "given_entries",
    [None, {}, "thinking_dropped", [None, 7, "x"], [{"type": 1}], [{"type": "dropped!"}], [ALLOWED], [[]]],
)
def test_what_is_not_reported_as_dropped_is_no_loss(given_entries):
    assert fixes_of({**whole(), "input_transformations": given_entries}) == []
    start, *rest = events()
    start["message"]["input_transformations"] = given_entries
    assert fixes_of(start, *rest) == []


def test_a_place_and_a_reason_with_other_characters_are_left_out():
    (loss,) = losses_in(json.dumps([{"type": "thinking_dropped", "path": "a b\n", "reason": "<script>"}]).encode())
    assert (loss.path, loss.reason) == ("", "thinking_dropped")


@given(st.binary() | st.recursive(st.none() | st.text(), st.lists).map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read(data):
    assert all(loss.reason for loss in losses_in(data))


def published(found):
    return [json.loads(output.value) for output in of(found, HISTORY_FIXES)]


def test_a_loss_is_published_and_counted_with_the_request_that_it_is_of():
    found = EventsStage().process(records(events([DROPPED]), HEADERS))
    (fix,) = published(found)
    assert (fix["code"], fix["path"], fix["detail"]) == FOUND
    assert (fix["request_id"], fix["source"], fix["lossless"]) == ("q1", "anthropic", False)
    assert found.tally["reknit_fixes_total", "provider_dropped", "anthropic"] == 1
    assert found.tally["reknit_fixes_lossy_total", "provider_dropped", "anthropic"] == 1


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_loss_names_its_own_record_in_any_batch(size):
    log = records([*events([DROPPED]), *events(at_end=[OTHER])], HEADERS)
    stage = EventsStage()
    batches = [log[at : at + size] for at in range(0, len(log), size)]
    made = [fix for batch in batches for fix in published(stage.process(batch))]
    assert [(fix["offset"], fix["number"], fix["path"]) for fix in made] == [
        (0, 0, DROPPED["path"]),
        (10, 0, OTHER["path"]),
    ]


def test_a_session_reports_the_losses_of_an_answer_that_is_appended_whole():
    session = Session(targets=["anthropic"])
    session.append(user("hi"))
    made = session.append(whole(DROPPED, ALLOWED, OTHER))
    lost = [fix for fix in made if fix.code == "provider_dropped"]
    assert [(fix.path, fix.lossless) for fix in lost] == [
        ("messages.1.input_transformations.0", False),
        ("messages.1.input_transformations.1", False),
    ]
    assert lost[0].detail == "thinking_dropped: prefix_binding_mismatch at messages.1.content.0"
    assert "provider_dropped" not in {fix.code for fix in session.append(whole())}


async def counted(answer):
    """Send a request through the gateway; return the gateway's metrics."""
    body = {"model": "claude-fable-5-1", "max_tokens": 64, "messages": [user("hi")]}
    provider = Provider(answer)
    async with (
        provider.running() as url,
        gateway_to("", upstreams=[Upstream(to=url, name="provider")]) as (gateway_url, status_url),
        aiohttp.ClientSession() as client,
    ):
        async with client.post(f"{gateway_url}/v1/messages", json=body) as response:
            assert (response.status, await response.read() != b"") == (200, True)
        async with client.get(f"{status_url}/metrics") as response:
            lines = (await response.text()).splitlines()
    return [line.rpartition(" ")[2] for line in lines if 'reknit_serve_fixes_total{code="provider_dropped"' in line]


def packed(data, **headers):
    async def respond(_request):
        return web.Response(body=data, headers={"content-type": "application/json", **headers})

    return respond


async def test_the_gateway_counts_the_losses_of_streams_and_documents():
    pieces = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events([DROPPED, OTHER])]
    assert await counted(streamed(pieces)) == ["2.0"]
    document = json.dumps(whole(DROPPED)).encode()
    assert await counted(packed(document)) == ["1.0"]
    assert await counted(packed(gzip.compress(document), **{"content-encoding": "gzip"})) == ["1.0"]
    assert await counted(packed(json.dumps(whole(ALLOWED)).encode())) == []
