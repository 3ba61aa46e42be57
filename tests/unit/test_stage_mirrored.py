"""Logs that mirror a conversation of another program: turns without a request, and requests that are withdrawn."""

import hashlib

import msgspec
import pytest
from build import answered, called, said, user
from stage_runs import KEY, OPENED, bodies, in_batches, letters, of, processed, records, turn

from reknit.pipeline.diff import compare_session
from reknit.pipeline.diff.outputs import Published
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS
from reknit.topics.headers import RequestHeaders, WithdrawalHeaders, decode

WITHDRAWS = Defaults(withdraw=True)


def run(*events, defaults=None, headers=()):
    return TurnsStage(defaults).process(records(list(events), headers))


def requests(found):
    return of(found, PROVIDER_REQUESTS)


def mirrored(message, **fields):
    return turn(message, request=False, **fields)


# Turns that make no request due.


def test_an_already_answered_log_makes_no_request():
    found = run(OPENED, *map(mirrored, [user("one"), said("1"), user("two"), said("2")]))
    assert (requests(found), of(found, DEAD_LETTERS)) == ([], [])
    assert found.tally["reknit_turns_total", "turn.appended", "taken"] == 4


def test_neither_results_nor_text_over_an_open_call_make_a_request():
    found = run(OPENED, *map(mirrored, [user("go"), called("a"), answered("a"), called("b"), user("stop")]))
    assert requests(found) == []


def test_mirrored_turns_are_in_the_next_request():
    history = [user("one"), said("1"), user("two")]
    mirror = run(OPENED, *map(mirrored, history[:2]), turn(history[2]))
    wanted = run(OPENED, *map(mirrored, history), {"type": "request.wanted"})
    assert [body["messages"] for body in bodies(mirror)] == [history]
    assert [body["messages"] for body in bodies(wanted)] == [history]
    assert requests(mirror)[0].value == requests(wanted)[0].value == requests(run(OPENED, *map(turn, history)))[1].value


def test_request_true_is_the_default():
    assert requests(run(OPENED, turn(user("hi"), request=True))) == requests(run(OPENED, turn(user("hi"))))


def test_an_unsendable_history_is_no_dead_letter_while_nothing_is_due():
    without_a_model = [{"type": "session.opened"}, mirrored(user("hi"))]
    assert run(*without_a_model).outputs == run({"type": "session.opened"}).outputs
    assert letters(run(*without_a_model, {"type": "request.wanted"}).outputs) == [(2, "rejected")]


def test_the_same_turn_with_and_without_a_request_is_different_content():
    found = run(OPENED, mirrored(user("hi"), id="t"), mirrored(user("hi"), id="t"), turn(user("hi"), id="t"))
    assert (requests(found), letters(found.outputs)) == ([], [(3, "id_reused")])


@pytest.mark.parametrize("value", ["no", 0, None])
def test_a_request_flag_that_is_not_boolean_is_a_dead_letter(value):
    assert letters(run(OPENED, turn(user("hi"), request=value)).outputs) == [(1, "bad_record")]


# Requests that the log answers.


def test_nothing_is_withdrawn_by_default():
    found = run(OPENED, turn(user("one")), turn(said("1")))
    assert [output.value is None for output in requests(found)] == [False]


def test_a_request_that_the_log_answers_is_withdrawn():
    trace = (("producer", b"crew/1.4"), ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    found = run(OPENED, turn(user("one")), turn(said("1")), defaults=WITHDRAWS, headers=trace)
    sent, withdrawn = requests(found)
    assert (withdrawn.key, withdrawn.value) == (KEY, None)
    request_id = decode(sent.headers, RequestHeaders).request_id
    told = decode(withdrawn.headers, WithdrawalHeaders)
    assert told == WithdrawalHeaders(
        request_id=told.request_id,
        target="anthropic",
        turn=3,
        fixes=0,
        body_sha256=hashlib.sha256(b"").hexdigest(),
        prefix_bytes=0,
        reknit_version=decode(sent.headers, RequestHeaders).reknit_version,
        cause="agent.turns.v1/2/2",
        reason="answered",
        first=0,
        supersedes=request_id,
        producer="crew/1.4",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    assert told.request_id != request_id
    assert "dataref" not in dict(withdrawn.headers)
    assert decode(withdrawn.headers, RequestHeaders).reason == "answered"
    assert found.tally["reknit_requests_withdrawn_total", "anthropic"] == 1


def withdrawn_by(*events, defaults=WITHDRAWS):
    """Return the offsets of the records that withdrew a request, and the number of requests."""
    outputs = requests(run(*events, defaults=defaults))
    causes = [dict(output.headers)["cause"].decode() for output in outputs if output.value is None]
    return [int(cause.rpartition("/")[2]) for cause in causes], sum(output.value is not None for output in outputs)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([turn(user("1")), turn(said("a")), turn(said("b"))], ([2], 1)),
        ([turn(user("1")), turn(user("2")), turn(said("a"))], ([3], 2)),
        ([turn(user("1")), turn(said("a")), turn(user("2")), turn(said("b"))], ([2, 4], 2)),
        ([turn(user("1")), turn(called("c")), turn(answered("c")), turn(said("b"))], ([2, 4], 2)),
        ([mirrored(user("1")), turn(said("a"))], ([], 0)),
        ([turn(user("1")), mirrored(said("a"))], ([2], 1)),
        # A turn that the stream side recorded is the answer to a sent request.
        ([turn(user("1")), turn(said("a"), origin="recorded", source="anthropic")], ([], 1)),
    ],
)
def test_only_an_unrecorded_assistant_turn_withdraws(events, expected):
    assert withdrawn_by(OPENED, *events) == expected


def test_a_request_that_its_provider_refused_is_not_withdrawn():
    asked = [OPENED, turn(user("one"))]
    request_id = dict(requests(run(*asked))[0].headers)["request-id"].decode()
    refused = {"type": "provider.answered", "request_id": request_id, "status": 400, "body": "no"}
    assert withdrawn_by(*asked, refused, turn(said("1"))) == ([], 1)


def test_requests_are_withdrawn_for_each_target():
    opened = {**OPENED, "targets": ["anthropic", "claude-cli"]}
    found = requests(run(opened, turn(user("one")), turn(said("1")), defaults=WITHDRAWS))
    headers = [decode(output.headers, RequestHeaders) for output in found]
    assert [(each.target, each.reason) for each in headers] == [
        ("anthropic", "turn"),
        ("claude-cli", "turn"),
        ("anthropic", "answered"),
        ("claude-cli", "answered"),
    ]
    assert [each.supersedes for each in headers[2:]] == [each.request_id for each in headers[:2]]
    assert len({each.request_id for each in headers}) == 4


def test_a_stage_that_publishes_nothing_withdraws_nothing():
    stage = TurnsStage(WITHDRAWS, publish=False)
    assert requests(stage.process(records([OPENED, turn(user("one")), turn(said("1"))]))) == []


EVENTS = [
    OPENED,
    *[turn(user("one")), turn(said("1")), turn(user("two")), turn(user("three")), turn(said("3"))],
    *[mirrored(user("four")), turn(said("4")), {"type": "request.wanted"}, turn(said("5"))],
]


@pytest.mark.parametrize("restart", ["changelog", "store"])
@pytest.mark.parametrize("size", [1, 3])
def test_batches_and_restarts_change_nothing(size, restart):
    log = records(EVENTS)
    whole, _, _ = processed(lambda: TurnsStage(WITHDRAWS), [log])
    parts, _, _ = processed(lambda: TurnsStage(WITHDRAWS), in_batches(log, size), restart)
    assert parts == whole
    assert sum(output.topic == PROVIDER_REQUESTS and output.value is None for output in whole) == 3


def test_a_replay_publishes_the_same_and_a_diff_finds_missing_withdrawals():
    def published(defaults):
        found = requests(TurnsStage(defaults).process(records(EVENTS)))
        return [
            Published(
                topic=PROVIDER_REQUESTS,
                partition=2,
                offset=at,
                headers=output.headers,
                digest=hashlib.sha256(output.value or b"").digest(),
                read=lambda output=output: output.value,
            )
            for at, output in enumerate(found)
        ]

    same = compare_session("s", published(WITHDRAWS), published(WITHDRAWS))
    assert (same.changes, same.counts) == ((), {"requests": 7})
    less = compare_session("s", published(WITHDRAWS), published(Defaults()))
    assert [(change.subject, change.how, change.label) for change in less.changes] == [
        ("request", "vanished", "anthropic")
    ] * 3
    assert msgspec.json.encode(less.changes)
