"""W3C Trace Context: which values are valid, and which outputs have the trace of the record that caused them."""

from __future__ import annotations

import json

import pytest
from build import called, said, user
from hypothesis import given
from hypothesis import strategies as st
from stage_runs import KEY, OPENED, in_batches, letters, of, processed, records, turn

from reknit.pipeline.engine.batches import size_letter
from reknit.pipeline.stages.base import Output, passed_on
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
)
from reknit.topics.trace import carried, is_traceparent, is_tracestate, trace_headers, trace_id, trace_of

ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{ID}-b7ad6b7169203331-01"
STATE = "congo=t61rcWkgMzE,rojo@vendor=00f067aa0ba902b7"
TRACE = (("traceparent", PARENT.encode()), ("tracestate", STATE.encode()))
# A lone header keeps its place among the others of a record.
AMONG = (("tracestate", STATE.encode()), ("other", b"\xff"), ("traceparent", PARENT.encode()))


# The examples are those of the recommendation and of its test suite (w3c/trace-context, test/test.py).
@pytest.mark.parametrize(
    "text",
    [
        PARENT,
        f"00-{ID}-b7ad6b7169203331-00",
        f"00-{ID}-b7ad6b7169203331-ff",
        f"01-{ID}-b7ad6b7169203331-01",
        f"cc-{ID}-b7ad6b7169203331-01-what-the-future-will-be-like",
        f"fe-{ID}-b7ad6b7169203331-01-",
    ],
)
def test_a_valid_traceparent(text):
    assert is_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-1",
        PARENT.upper(),
        f" {PARENT}",
        f"{PARENT} ",
        f"{PARENT}\n",
        f"{PARENT}-more",
        f"{PARENT}-",
        f"ff-{ID}-b7ad6b7169203331-01",
        f"0-{ID}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{ID}-{'0' * 16}-01",
        f"00-{ID[:-1]}-b7ad6b7169203331-01",
        f"00-{ID}-b7ad6b716920333-01",
        f"00-{ID}-b7ad6b7169203331-1",
        f"00-{ID[:-1]}\N{ARABIC-INDIC DIGIT ONE}-b7ad6b7169203331-01",
        f"cc-{ID}-b7ad6b7169203331-01.what",
        f"cc-{ID}-b7ad6b7169203331-01-\x00",
        f"{PARENT},{PARENT}",
    ],
)
def test_an_invalid_traceparent(text):
    assert not is_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        STATE,
        "foo=1, \tbar=2",
        "foo=1,,bar=2,",
        "0tenant@system=a b",
        "a*/_-@=!",
        ",".join(f"k{at}=1" for at in range(32)),
        "a" * 256 + "=" + "b" * 256,
    ],
)
def test_a_valid_tracestate(text):
    assert is_tracestate(text)


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "foo=",
        "=1",
        "Foo=1",
        "foo =1",
        "foo=1=2",
        "foo=1\n",
        "foo=\N{LATIN SMALL LETTER E WITH ACUTE}",
        "foo=1,foo=2",
        ",".join(f"k{at}=1" for at in range(33)),
        "a" * 257 + "=1",
        "a=" + "b" * 257,
    ],
)
def test_an_invalid_tracestate(text):
    assert not is_tracestate(text)


@pytest.mark.parametrize("bad", [None, b"\xff\xfe", b"", PARENT.upper().encode(), b"x" * 20_000])
def test_a_tracestate_without_a_valid_traceparent_is_not_passed_on(bad):
    assert trace_of((("traceparent", bad), TRACE[1])) == ()
    assert (carried((("traceparent", bad), TRACE[1])), trace_id((("traceparent", bad),))) == ({}, "")


@pytest.mark.parametrize("bad", [None, b"\xff\xfe", b"foo", b"a=" + b"x" * 20_000])
def test_an_invalid_tracestate_leaves_the_traceparent(bad):
    assert trace_of((TRACE[0], ("tracestate", bad))) == TRACE[:1]


def test_the_last_traceparent_of_a_record_counts():
    assert trace_of((("traceparent", b"\xff"), *TRACE)) == TRACE
    assert trace_of((*TRACE, ("traceparent", None))) == ()


def test_a_carrier_of_other_headers_gives_those_of_the_trace():
    carrier = {"TraceParent": PARENT, "tracestate": STATE, "baggage": "a=b", "authorization": "Bearer x"}
    assert (trace_headers(carrier), trace_id(TRACE)) == (TRACE, ID)
    assert carried(trace_headers(carrier)) == {"traceparent": PARENT, "tracestate": STATE}
    assert trace_headers(None) == trace_headers({"traceparent": "\ud800"}) == ()


@given(st.binary() | st.none(), st.binary() | st.none())
def test_no_value_makes_reading_a_trace_fail(parent, state):
    for name, value in trace_of((("traceparent", parent), ("tracestate", state))):
        assert value
        assert value.decode().isascii(), name


def traces(outputs, topic):
    return [trace_of(output.headers) for output in outputs if output.topic == topic]


BROKEN = turn(user("hi", " "))


@pytest.mark.parametrize("headers", [TRACE, AMONG])
def test_requests_fixes_and_dead_letters_have_the_trace_of_their_turn(headers):
    other = (("traceparent", PARENT.replace("-01", "-00").encode()),)
    log = [*records([OPENED]), *records([BROKEN], headers, first=1), *records([turn(said("yes?")), BROKEN], first=2)]
    log += records([b"no JSON", turn(user("go"))], other, first=4)
    for batch in (1, 9):
        outputs, *_ = processed(TurnsStage, in_batches(log, batch))
        assert [set(trace) for trace in traces(outputs, PROVIDER_REQUESTS)] == [set(TRACE), set(), set(other)]
        assert [set(trace) for trace in traces(outputs, HISTORY_FIXES)] == [set(TRACE), set()]
        assert (letters(outputs), traces(outputs, DEAD_LETTERS)) == ([(4, "not_json")], [other])


def test_a_bad_trace_changes_no_output_and_is_counted():
    log = [OPENED, BROKEN]
    for bad in ((("traceparent", b"00-1"),), (("traceparent", b"\xff"),), (("tracestate", STATE.encode()),)):
        found, plain = TurnsStage().process(records(log, bad)), TurnsStage().process(records(log))
        assert (found.outputs, found.changes) == (plain.outputs, plain.changes)
        dropped = found.tally.get(("reknit_headers_dropped_total", AGENT_TURNS, "traceparent"), 0)
        assert dropped == (0 if bad[0][0] == "tracestate" else 2)


def test_state_does_not_hold_the_trace():
    log = [OPENED, BROKEN]
    assert TurnsStage().process(records(log, TRACE)).changes == TurnsStage().process(records(log)).changes
    events = (("source", b"anthropic"), ("run", b"r"))
    whole = json.dumps({"id": "m", "type": "message", "role": "assistant", "content": []}).encode()
    stages = EventsStage(), EventsStage()
    assert (
        stages[0].process(records([whole], events)).changes
        == stages[1].process(records([whole], events + TRACE)).changes
    )


def test_a_withdrawal_has_the_trace_of_the_turn_that_answers():
    stage = TurnsStage(Defaults(withdraw=True))
    stage.process(records([OPENED, turn(user("one"))]))
    (withdrawn,) = of(stage.process(records([turn(said("1"))], TRACE, first=2)), PROVIDER_REQUESTS)
    assert (withdrawn.value, trace_of(withdrawn.headers)) == (None, TRACE)


def test_a_parked_record_keeps_its_trace_until_its_release():
    other = (("traceparent", PARENT.replace("-01", "-00").encode()),)
    repaired = {"type": "session.released", "record": turn(called("call_1", "ls"))}
    log = [*records([OPENED]), *records([{"type": "turn.appended", "message": {"role": "nobody"}}], other, first=1)]
    log += [*records([turn(user("stop", " "))], TRACE, first=2), *records([repaired], first=3)]
    for restart in (None, "changelog", "store"):
        outputs, *_ = processed(lambda: TurnsStage(Defaults(on_dead_letter="park")), in_batches(log, 1), restart)
        assert (traces(outputs, PROVIDER_REQUESTS), letters(outputs)) == ([TRACE], [(1, "unknown_role")])
        assert set(traces(outputs, HISTORY_FIXES)) == {TRACE}


EVENTS = (("source", b"anthropic"), ("run", b"r"), ("request-id", b"q"))
ANSWER = json.dumps(
    {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "well"}]}
    | {"model": "m", "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
).encode()


def test_items_and_the_recorded_turn_have_the_trace_of_the_event():
    stage = EventsStage()
    policy = (("policy", b'{"record_assistant": true}'),)
    stage.process(records([None], policy))
    found = stage.process(records([ANSWER], (*EVENTS, *TRACE), first=1))
    found.outputs += stage.process(records([None], (*EVENTS, ("exit", b"end"), *TRACE), first=2)).outputs
    assert set(traces(found.outputs, SESSION_ITEMS)) == {TRACE}
    assert traces(found.outputs, AGENT_TURNS) == [TRACE]
    plain = EventsStage()
    plain.process(records([None], policy))
    alone = plain.process(records([ANSWER], EVENTS, first=1)).outputs
    alone += plain.process(records([None], (*EVENTS, ("exit", b"end")), first=2)).outputs
    stripped = [
        Output(each.topic, each.key, each.value, tuple(header for header in each.headers if header not in TRACE))
        for each in found.outputs
    ]
    assert stripped == alone


def test_a_healed_request_has_the_trace_of_the_refused_one():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "EqQBAAAAAAAAAAAA"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py"}
    opened = OPENED | {"tools": [{"name": "ls", "input_schema": {"type": "object", "properties": {}}}]}
    messages = [user("hi"), {"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
    turns = TurnsStage()
    log = records([opened, *map(turn, messages)], TRACE)
    *_, request = of(turns.process(log), PROVIDER_REQUESTS)
    words = "messages.1.content.0: Invalid `signature` in `thinking` block"
    refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    headers = (
        *(("source", b"anthropic"), ("run", b"r"), ("status", b"400")),
        ("request-id", dict(request.headers)["request-id"]),
        *trace_of(request.headers),
    )
    (answered,) = of(EventsStage().process(records([json.dumps(refusal).encode()], headers)), AGENT_TURNS)
    assert answered.headers == TRACE
    (again,) = records([answered.value], answered.headers, first=9)
    (healed,) = of(turns.process([again]), PROVIDER_REQUESTS)
    assert (dict(healed.headers)["reason"], trace_of(healed.headers)) == (b"healed", TRACE)


def test_the_letter_of_an_output_that_is_too_large_keeps_its_trace():
    made = Output(PROVIDER_REQUESTS, KEY, b"x", (("cause", b"agent.turns.v1/0/7"), *TRACE))
    letter = size_letter(made, AGENT_TURNS, 0, 9)
    assert (trace_of(letter.headers), dict(letter.headers)["reknit.error.offset"]) == (TRACE, b"7")
    (record,) = records([BROKEN], (("producer", b"crew/1"), *AMONG))
    assert passed_on(record) == (("producer", b"crew/1"), AMONG[0], AMONG[2])
    of_event = Output(PROVIDER_EVENTS, KEY, b"x", (("traceparent", b"\xff"),))
    assert trace_of(size_letter(of_event, AGENT_TURNS, 0, 9).headers) == ()
