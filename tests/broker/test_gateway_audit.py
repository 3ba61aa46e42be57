"""The audit of a gateway's topics finds what is missing, there again, in another order or different."""

import hashlib
import json

import pytest
from gateway_faults import BROKEN, EXACT, LEFT, Outcome, Planned, content_digest
from gateway_topics import CUT, STOPPED, WHOLE, Exchange, Topics, faults, unequal
from soak.load import exchange_of
from soak.memory import WARM, Sample, growth

from reknit.pipeline.stages.base import Record
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics import headers as names
from reknit.topics.headers import EndOfRunHeaders, EventHeaders, ItemHeaders, RequestHeaders

BODY = b'{"messages": []}'
PIECES = [b"data: one\n\n", b"data: two\n\n"]


def record(topic, value, headers=(), session="key"):
    data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return topic, Record(partition=0, offset=0, key=session.encode(), value=data, headers=headers)


def answer(run, pieces=PIECES, end=WHOLE):
    for seq, piece in enumerate(pieces):
        yield record(PROVIDER_EVENTS, piece, names.encode(EventHeaders(run=run, framing="bytes", seq=seq)))
    yield record(PROVIDER_EVENTS, None, names.encode(EndOfRunHeaders(exit=end, run=run, seq=len(pieces))))


def log(run, **members):
    return record(AGENT_TURNS, {"type": "request.sent", "request_id": run, "id": run, "content_sha256": "0", **members})


def published(run, body=BODY):
    headers = RequestHeaders(
        request_id=run,
        target="anthropic",
        turn=1,
        fixes=0,
        body_sha256="0" * 64,
        prefix_bytes=0,
        reknit_version="1",
        reason="sent",
    )
    return record(PROVIDER_REQUESTS, body, names.encode(headers))


def text(run):
    return record(SESSION_ITEMS, {"type": "item/completed", "item_id": run}, names.encode(ItemHeaders(run=run)))


def exchange(run, **members):
    usual = {"digest": hashlib.sha256(b"".join(PIECES)).hexdigest(), "body": content_digest(BODY), "texts": 1}
    return Exchange(session="c", run=run, **{"ends": frozenset({WHOLE}), **usual, **members})


A = [log("a"), *answer("a"), published("a"), text("a")]
B = [log("b"), *answer("b"), published("b"), text("b")]
TWO = [exchange("a"), exchange("b")]


def found(records, exchanges=TWO):
    topics = Topics()
    for topic, each in records:
        topics.take(topic, each)
    return faults(topics, exchanges)


def test_exchanges_that_are_there_once_and_in_order_are_right():
    assert found([*A, *B]) == []


def test_repeated_records_of_the_last_exchange_are_counted_only():
    topics = Topics()
    for topic, each in [*A, *A[:3], *B]:
        topics.take(topic, each)
    assert (faults(topics, TWO), topics.repeated) == ([], {AGENT_TURNS: 1, PROVIDER_EVENTS: 2})


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (A, "b: no answer in the topics; its client got the whole of it, and its end can be ['end of stream']"),
        ([*A, *B[1:]], "c, log: lost ['b'], again []"),
        ([*A, *B[:-2], B[-1]], "c, published requests: lost ['b'], again []"),
        ([*A, *B, B[-2]], "c, published requests: lost [], again ['b']"),
        ([*A, *B[:-1]], "b: 0 completed texts instead of 1"),
        ([*A, *B, B[-1]], "b: 2 completed texts instead of 1"),
        ([*B, *A], "c, answers: in another order"),
        ([*A, *B, A[1]], "a: record 0 again after a later exchange of its session"),
        ([A[0], A[1], *A[3:], *B], "a: record 2 after 0, end None"),
        ([*A[:3], *B, *A[3:]], "b: begins before the exchange before it has ended"),
        ([*A[:3], *A[4:], *B], "a: its answer ends with None instead of ['end of stream']"),
        ([A[0], *answer("a", end=CUT), *A[4:], *B], "a: its answer ends with 'cut' instead of ['end of stream']"),
        ([A[0], *answer("a", PIECES[:1]), *A[4:], *B], "a: its answer is not the one that the client got"),
        (
            [*A[:-2], published("a", b'{"messages": [1]}'), A[-1], *B],
            "a: the published request is not the one that the provider received",
        ),
        ([*A, *B, *answer("x")], "1 answers of no client, although only 0 were hit by a kill"),
        (
            [*A, *B, record(DEAD_LETTERS, None, (("reknit.error.code", b"bad_json"),))],
            "dead letters: {'bad_json': 1}",
        ),
        (
            [*A, *B, record(AGENT_TURNS, {"type": "turn.appended", "id": "t"})],
            "turns of others, or that make a request due: {(None, None): 1}",
        ),
    ],
)
def test_each_kind_of_fault_is_named(records, words):
    assert words in found(records)


def test_an_exchange_that_a_kill_broke_may_be_missing_but_not_its_whole_answer():
    broken = exchange("b", digest="", body=None, texts=None, ends=frozenset({STOPPED}), is_hit=True)
    assert found(A, [TWO[0], broken]) == []
    assert found(A, [TWO[0], exchange("b", is_hit=True)]) != []


def test_a_request_without_a_digest_is_counted_if_it_differs():
    topics = Topics()
    unjudged = record(AGENT_TURNS, {"type": "request.sent", "request_id": "a", "id": "a"})
    for topic, each in [unjudged, *A[1:-2], published("a", b'{"messages": [1]}'), A[-1], *B]:
        topics.take(topic, each)
    assert (faults(topics, TWO), unequal(topics, TWO)) == ([], 1)


@pytest.mark.parametrize(
    ("kind", "fault", "is_hit", "ends"),
    [
        (EXACT, "stream", False, {WHOLE}),
        (EXACT, "stream", True, {WHOLE, STOPPED}),
        (BROKEN, "reset in stream", False, {CUT}),
        (LEFT, "client leaves", False, {"client left", STOPPED}),
    ],
)
def test_how_an_answer_may_end_depends_on_what_its_client_saw(kind, fault, is_hit, ends):
    outcome = Outcome(kind, 200, b"data", request_id="a", is_hit=is_hit)
    made = exchange_of("c", Planned(1, fault, b""), outcome, b"data", "body")
    assert (made.ends, made.begun, bool(made.digest)) == (ends, b"" if kind == EXACT else b"data", kind == EXACT)


def test_memory_is_judged_once_the_caches_of_the_last_process_are_full():
    filling = [Sample(done, 2, done // 2, 0, 0) for done in range(0, WARM, 500)]
    flat = [Sample(WARM + done, 2, 10_000, 0, 0) for done in range(0, 20_000, 500)]
    other = [Sample(0, 1, 99_999, 0, 0)]
    warm = growth([*other, *filling, *flat])
    assert (warm.first, warm.last, warm.slope, warm.is_warm, warm.exchanges) == (10_000, 10_000, 0, True, 19_500)
    assert growth([*other, *filling]).is_warm is False
    assert growth([*other, *filling]).slope == pytest.approx(500)
    assert growth(filling[:5]) is None
