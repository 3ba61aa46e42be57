"""Requests that a gateway has sent: the worker publishes them, compares them and never heals or withdraws them."""

import json

import pytest
from build import said, user
from stage_runs import OPENED, letters, of, processed, records, turn

from reknit.pipeline.policy import Policy
from reknit.pipeline.stages.content import content_sha256
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS
from reknit.topics.headers import RequestHeaders, decode

SHA = "0" * 64
MISMATCH = ("reknit_gateway_mismatch_total", "anthropic")
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "EpwBREFUSED1"}
REFUSED = "messages.1.content.0: Invalid `signature` in `thinking` block"


def sent(request_id="q1", **fields):
    event = {"type": "request.sent", "request_id": request_id, "target": "anthropic", "sha256": SHA, "id": request_id}
    return event | {"origin": "gateway"} | fields


def mirrored(message):
    return turn(message, request=False, origin="gateway")


def run(*events, **defaults):
    return TurnsStage(Defaults(**defaults)).process(records(list(events)))


def published(found):
    return [(decode(each.headers, RequestHeaders), each.value) for each in of(found, PROVIDER_REQUESTS)]


def test_the_request_of_the_history_so_far_is_published():
    ((headers, value),) = published(run(OPENED, mirrored(user("hi")), sent()))
    assert json.loads(value)["messages"] == [user("hi")]
    assert (headers.request_id, headers.reason, headers.sent) == ("q1", "sent", SHA)


def test_each_one_is_published_although_the_body_is_the_same_and_a_repeated_record_is_not():
    found = run(OPENED, mirrored(user("hi")), sent(), sent("q2"), sent("q2"))
    assert [headers.request_id for headers, _ in published(found)] == ["q1", "q2"]


@pytest.mark.parametrize("restart", ["changelog", "store"])
def test_a_restart_between_records_changes_nothing(restart):
    events = [OPENED, mirrored(user("hi")), sent(), mirrored(said("1")), mirrored(user("two")), sent("q2")]
    outputs, _, _ = processed(TurnsStage, [[each] for each in records(events)], restart)
    assert [each for each in outputs if each.topic == PROVIDER_REQUESTS] == of(run(*events), PROVIDER_REQUESTS)


def test_the_digest_of_the_content_decides():
    ((_, value),) = published(run(OPENED, mirrored(user("hi")), sent()))
    spaced = json.dumps(dict(reversed(json.loads(value).items())), indent=1).encode()
    equal = run(OPENED, mirrored(user("hi")), sent(content_sha256=content_sha256(spaced)))
    other = run(OPENED, mirrored(user("ho")), sent(content_sha256=content_sha256(spaced)))
    without = run(OPENED, mirrored(user("hi")), sent())
    assert [found.tally.get(MISMATCH, 0) for found in (equal, other, without)] == [0, 1, 0]
    assert len(published(other)) == 1


@pytest.mark.parametrize(
    ("change", "is_equal"),
    [
        (lambda body: body["messages"][0].update(content=[{"type": "text", "text": "hi"}]), True),
        (lambda body: body["messages"][0].update(cache_control={"type": "ephemeral"}), True),
        (lambda body: body["messages"][0].update(content="hi "), False),
        (lambda body: body.update(max_tokens=63), False),
        (lambda body: body.update(system=[{"type": "text", "text": "", "cache_control": {}}]), False),
        (lambda body: body["messages"].append(user("more")), False),
    ],
)
def test_what_counts_as_the_same_content(change, is_equal):
    body = {"model": "m", "max_tokens": 64, "messages": [user("hi")]}
    before = content_sha256(json.dumps(body).encode())
    change(body)
    assert (content_sha256(json.dumps(body).encode()) == before) is is_equal


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}"])
def test_a_body_without_content_has_the_digest_of_its_bytes(body):
    assert content_sha256(body) != content_sha256(body + b" ")


def refusal(request_id):
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": REFUSED}}
    return {"type": "provider.answered", "request_id": request_id, "status": 400, "body": json.dumps(error)}


HISTORY = [user("hi"), {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Yes."}]}, user("go on")]


def test_a_refusal_of_a_sent_request_is_judged_and_not_healed():
    stage = TurnsStage(Defaults(policy=Policy(heal="on")))
    stage.use_format(3)
    found = stage.process(records([OPENED, *map(mirrored, HISTORY), sent(), refusal("q1")]))
    assert [headers.reason for headers, _ in published(found)] == ["sent"]
    assert letters(of(found, DEAD_LETTERS)) == [(5, "refused_missed")]


def test_a_sent_request_is_not_withdrawn():
    found = run(OPENED, mirrored(user("hi")), sent(), mirrored(said("1")), withdraw=True)
    assert [value is None for _, value in published(found)] == [False]


@pytest.mark.parametrize("memory", ["no", [1], [[], [["signature", "AAEC", 3, ""]]], [[["row"]]], {}])
def test_a_memory_that_cannot_be_read_is_a_dead_letter(memory):
    found = run(OPENED, mirrored(user("hi")), sent(memory=memory))
    assert letters(of(found, DEAD_LETTERS)) == [(2, "bad_memory")]
    assert published(found) == []


def test_another_target_than_the_sessions_is_a_dead_letter():
    found = run(OPENED, mirrored(user("hi")), sent(target="gemini"))
    assert letters(of(found, DEAD_LETTERS)) == [(2, "unknown_target")]


def test_an_irreparable_history_is_a_rejection():
    found = run({"type": "session.opened", "targets": ["anthropic"]}, mirrored(user("hi")), sent())
    assert (published(found), letters(of(found, DEAD_LETTERS))) == ([], [(2, "rejected")])
