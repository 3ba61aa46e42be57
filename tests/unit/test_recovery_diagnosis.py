"""The diagnosis of an unfinished run: both ends of its text, counts, and the cause."""

import json

import pytest
from anthropic_events import block, end, start, stop, text
from stage_runs import records
from stream_runs import items_of, only

from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.streams.recovery.diagnosis import cause_of, is_loop
from reknit.pipeline.streams.session import Recovery, recover
from reknit.topics.items import TurnDiagnosis
from reknit.topics.reducer import reduce

START, TEXT, STOP = start(model="m"), block(0, "text", text=""), stop(0)


def delta(words):
    return text(0, words)


def fed(*events, reason="connection lost", **options):
    recovery = Recovery("anthropic", **options)
    return [item for event in events for item in recovery.feed(json.dumps(event).encode())] + recovery.end_run(reason)


def diagnosis(items):
    (found,) = only(items, TurnDiagnosis)
    assert items[-1] is found
    return found


def test_a_cut_run_reports_its_reason_its_text_and_its_counts():
    counts = {"message_started": 1, "block_started": 1, "text_delta": 2}
    assert diagnosis(fed(START, TEXT, delta("Hello, "), delta("wor"))) == TurnDiagnosis(
        reason="connection lost", cause="disconnect", head="Hello, wor", length=10, counts=counts, seq=0
    )


def test_both_ends_of_a_long_text_are_kept():
    text = "".join(f"{number} " for number in range(1000))
    found = diagnosis(fed(START, TEXT, *map(delta, text), reason="exit 1"))
    assert (found.head, found.tail, found.length) == (text[:400], text[-400:], len(text))
    short = diagnosis(fed(START, TEXT, delta(text), excerpt=10))
    assert (short.head, short.tail) == (text[:10], text[-10:])


def test_the_ends_do_not_overlap_and_replaced_attempts_count():
    again = {"type": "message_start", "message": {"id": "m2"}}
    found = diagnosis(fed(START, TEXT, delta("abc"), again, TEXT, delta("def"), excerpt=4))
    assert (found.head, found.tail, found.length) == ("abc\n", "def", 6)


def test_a_finished_run_has_no_diagnosis():
    done = fed(START, TEXT, delta("Hi"), STOP, *end("end_turn"), reason="end of input")
    assert only(done, TurnDiagnosis) == []
    assert Recovery("anthropic").end_run("exit 1") == []


@pytest.mark.parametrize("reason", ["time limit", "stalled for 60 s", "loop detected"])
def test_the_callers_reason_takes_precedence(reason):
    found = diagnosis(fed(START, TEXT, delta("Hi"), STOP, *end("tool_use"), reason=reason))
    assert (found.reason, found.cause) == (reason, cause_of(reason))


def test_an_error_is_named():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    found = diagnosis(fed(START, TEXT, delta("Hi"), error, reason="exit 1"))
    assert (found.cause, found.error, found.counts["error"]) == ("error", "overloaded_error", 1)
    assert diagnosis(fed(error)).cause == "disconnect"


def test_a_loop_in_the_text_is_detected():
    looping = [delta("I will try that again. ") for _ in range(60)]
    found = diagnosis(fed(START, TEXT, delta("Let me see. "), *looping, STOP, *end("max_tokens"), reason="exit"))
    assert (found.cause, found.repeats) == ("loop", True)
    assert found.head.startswith("Let me see. I will try")


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("abc " * 30, True),
        ("x" * 80, True),
        ("The end. " * 3, False),
        ("x" * 79, False),
        (" " * 400, False),
        ("".join(str(n) for n in range(200)), False),
        ("", False),
    ],
)
def test_loop_detection(text, *, loop):
    assert is_loop(text) is loop


@pytest.mark.parametrize(
    ("reason", "failed", "cause"),
    [
        ("time limit", "", "time_limit"),
        ("timed out after 600 s", "overloaded", "time_limit"),
        ("stall", "", "stall"),
        ("connection reset by peer", "", "disconnect"),
        ("interrupted", "", "stopped"),
        ("exit 137", "", "other"),
        ("exit 1", "overloaded_error", "error"),
    ],
)
def test_reasons_are_mapped_to_causes_for_a_metric(reason, failed, cause):
    assert cause_of(reason, failed) == cause


def test_an_agent_program_has_finished_once_it_has_printed_its_result():
    whole = {"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": "Hi"}]}}
    result = {"type": "result", "is_error": False, "result": "Hi"}
    for lines, finished in (([whole, result], True), ([whole], False)):
        assert bool(only(items_of("claude-cli", lines, end="exit 0"), TurnDiagnosis)) is not finished


def test_the_end_of_recover_input_causes_no_diagnosis():
    assert not any(isinstance(item, TurnDiagnosis) for item in recover(json.dumps(START), "anthropic"))


def test_counts_do_not_depend_on_batching():
    events = [START, TEXT, *[delta(str(n)) for n in range(50)]]
    together = diagnosis(items_of("anthropic", b"\n".join(json.dumps(event).encode() for event in events), end="x"))
    assert together.counts["text_delta"] == 50
    assert diagnosis(items_of("anthropic", events, end="x")) == together


def test_it_is_one_item_and_one_metric():
    headers = (("source", b"anthropic"), ("run", b"r1"))
    lines = records([START, TEXT, delta("Hi")], headers, key=b"s")
    ended = Record(partition=2, offset=3, key=b"s", value=None, headers=(*headers, ("exit", b"time limit")))
    result = EventsStage().process([*lines, ended])
    assert result.tally["reknit_runs_unfinished_total", "anthropic", "time_limit"] == 1
    told = [json.loads(output.value or b"{}") for output in result.outputs]
    assert [item["type"] for item in told].count("turn/diagnosis") == 1


def test_the_reference_view_keeps_it_apart_from_the_screen():
    items = fed(START, TEXT, delta("Hi"))
    view = reduce([*items, *items])
    assert list(view.diagnoses) == [0]
