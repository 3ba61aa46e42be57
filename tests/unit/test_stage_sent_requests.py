"""Requests that a gateway has sent: the worker publishes them, compares them and never heals or withdraws them."""

import json

import pytest
from build import call, result, said, user
from stage_runs import KEY, OPENED, in_batches, letters, of, processed, records, turn

from reknit.pipeline.policy import Policy
from reknit.pipeline.session import normalize_answered
from reknit.pipeline.stages.content import content_sha256
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS
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
    (letter,) = of(found, DEAD_LETTERS)
    assert letters([letter]) == [(2, "bad_memory")]
    assert dict(letter.headers)["reknit.error.path"] == b"memory"
    assert published(found) == []


def test_another_target_than_the_sessions_is_a_dead_letter():
    found = run(OPENED, mirrored(user("hi")), sent(target="gemini"))
    assert letters(of(found, DEAD_LETTERS)) == [(2, "unknown_target")]


def test_an_irreparable_history_is_a_rejection():
    found = run({"type": "session.opened", "targets": ["anthropic"]}, mirrored(user("hi")), sent())
    assert (published(found), letters(of(found, DEAD_LETTERS))) == ([], [(2, "rejected")])


# Answered requests.

OPEN = [user("list"), said("so", call("a"), call("b")), user(result("a", "done"))]
LATER = [said("fine"), user(result("b", "late"))]
# In the state of older builds there is no place for it.
KNOWN = [{"messages": 3}]


def digest_of(answered, *messages):
    """The digest of the content of the request that a gateway makes of a history."""
    made, _ = normalize_answered(
        {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": list(messages)}, "anthropic", answered
    )
    return content_sha256(made.body)


def talk(*, end=None, answered=KNOWN, **more):
    """Two requests; a call of the first one has its result in the second one."""
    ends = {} if end is None else {"end": end}
    first = sent(content_sha256=digest_of({}, *OPEN), **ends)
    counts = {each["messages"]: False for each in answered}
    last = sent("q2", content_sha256=digest_of(counts, *OPEN, *LATER), answered=answered, **more)
    return [OPENED, *map(mirrored, OPEN), first, *map(mirrored, LATER), last]


def fix_codes(found):
    return [json.loads(each.value)["code"] for each in of(found, HISTORY_FIXES)]


def test_a_late_result_does_not_change_what_the_model_has_answered():
    found = run(*talk(end="open"))
    first, second = (json.loads(value)["messages"] for _, value in published(found))
    assert second[:3] == first
    assert "late" in json.dumps(second[3:])
    assert found.tally.get(MISMATCH, 0) == 0
    assert fix_codes(found) == ["result_synthesised", "result_late_turn"]


def test_an_answer_to_a_request_that_was_not_accepted_changes_nothing():
    found = run(*talk(answered=[]))
    _, second = (json.loads(value)["messages"] for _, value in published(found))
    assert [block["tool_use_id"] for block in second[2]["content"]] == ["a", "b"]
    assert found.tally.get(MISMATCH, 0) == 0


def test_what_the_gateway_says_holds_where_the_worker_knew_something_else():
    events = talk(end="open")
    forgotten = [*events, sent("q3", content_sha256=digest_of({}, *OPEN, *LATER))]
    again = [*forgotten, sent("q4", content_sha256=events[-1]["content_sha256"], answered=KNOWN)]
    learned = run(*talk())
    assert run(*again).tally.get(MISMATCH, 0) == learned.tally.get(MISMATCH, 0) == 0
    bodies = [value for _, value in published(run(*again))]
    assert bodies[1] == bodies[3] != bodies[2]
    assert published(learned)[1][1] == bodies[1]
    assert {"result_synthesised", "result_late_turn"} <= set(fix_codes(learned))


def test_a_gateway_that_did_not_repair_a_request_says_nothing_of_earlier_ones():
    unjudged = sent("q2")
    found = run(*talk(end="open")[:-1], unjudged)
    first, second = (json.loads(value)["messages"] for _, value in published(found))
    assert second[:3] == first


def test_the_user_turn_that_ended_a_request_stays():
    begun = [user("go"), said("half of it")]
    more = [said("the rest"), user("thanks")]
    opened = OPENED | {"model": "claude-opus-4-7"}
    last = sent("q2", content_sha256="0" * 64, answered=[{"messages": 2, "continued": True}])
    found = run(opened, *map(mirrored, begun), sent(end="continued"), *map(mirrored, more), last)
    first, second = (json.loads(value)["messages"] for _, value in published(found))
    assert (first[-1]["role"], second[: len(first)]) == ("user", first)


@pytest.mark.parametrize("restart", ["changelog", "store"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_restart_forgets_no_answer(size, restart):
    events = records(talk(end="open"))
    outputs, _, _ = processed(TurnsStage, in_batches(events, size), restart)
    assert outputs == run(*talk(end="open")).outputs


def test_an_exported_log_has_the_answers():
    stage = TurnsStage()
    stage.process(records(talk(end="open")))
    log = stage.find(KEY).session.log()
    other = {"type": "history.restored", "messages": [], "log": json.loads(log)}
    found = run(OPENED, other, talk(end="open")[-1])
    assert found.tally.get(MISMATCH, 0) == 0
    stage = TurnsStage()
    assert stage.process(records([OPENED, other, sent("q2")])).outputs[-1].value == published(found)[-1][1]


def test_a_state_without_a_place_for_answers_is_not_compared():
    stage = TurnsStage()
    stage.use_format(2)
    found = stage.process(records(talk(end="open")))
    assert found.tally.get(MISMATCH, 0) == 0
    head = stage.find(KEY).session.head()
    assert b"keeps_answered" not in head


def test_a_session_without_a_gateway_has_the_same_state_as_before():
    stage = TurnsStage()
    stage.process(records([OPENED, *map(turn, [*OPEN, *LATER])]))
    assert b"keeps_answered" not in stage.find(KEY).session.head()


def test_a_model_whose_reasoning_is_bound_keeps_what_the_gateway_kept():
    """A gateway repairs each body by itself, so a change of the history makes no reasoning void."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "EpwB"}
    opened = OPENED | {"model": "claude-sonnet-5-5"}
    history = [user("one"), said(thought, "1"), user("two")]
    restored = {"type": "history.restored", "messages": [user("another"), *history[1:]]}
    found = run(opened, *map(mirrored, history), sent(), restored, sent("q2"))
    assert [json.loads(value)["messages"][1] for _, value in published(found)] == [history[1]] * 2
