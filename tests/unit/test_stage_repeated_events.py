"""Records of events with a number in their run: a record that was written twice is ignored."""

from __future__ import annotations

import json

import pytest
from sender_runs import anthropic
from stage_runs import in_batches, letters, of, processed, records

from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, SESSION_ITEMS

COUNTED = ("reknit_events_repeated_total", "anthropic")


def run(name: str, pieces=None) -> list[tuple[bytes | None, tuple]]:
    """The pieces of one run, which end inside events, and its end."""
    whole = b"".join(pieces or anthropic(text=f"answer of {name}", message_id=f"msg_{name}"))
    cut = [whole[at : at + 70] for at in range(0, len(whole), 70)]
    common = (("source", b"anthropic"), ("run", name.encode()))
    made = [(piece, (*common, ("framing", b"bytes"), ("seq", b"%d" % seq))) for seq, piece in enumerate(cut)]
    return [*made, (None, (*common, ("exit", b"end of stream"), ("seq", b"%d" % len(cut))))]


def as_records(written):
    return [records([value], headers, first=at)[0] for at, (value, headers) in enumerate(written)]


def shown(found):
    return [json.loads(each.value) for each in of(found, SESSION_ITEMS)]


def completed(items):
    return [each for each in items if each["type"] == "item/completed"]


def stage():
    return EventsStage(Defaults())


@pytest.mark.parametrize("again", range(1, len(run("a")) + 1))
def test_records_that_are_written_again_change_nothing(again):
    first, second = run("a"), run("b")
    once = stage().process(as_records([*first, *second]))
    twice = stage().process(as_records([*first[:again], *first, *second]))
    assert shown(twice) == shown(once)
    assert twice.tally[COUNTED] == again
    assert COUNTED not in once.tally


def test_a_whole_run_that_is_written_again_after_its_end_changes_nothing():
    first, second = run("a"), run("b")
    once = stage().process(as_records([*first, *second]))
    assert shown(stage().process(as_records([*first, *first, *second]))) == shown(once)


@pytest.mark.parametrize("restart", ["changelog", "store"])
def test_a_restart_of_the_worker_remembers_the_numbers(restart):
    written = as_records([*run("a"), *run("a"), *run("b")])
    outputs, _, _ = processed(stage, in_batches(written, 3), restart)
    once = stage().process(as_records([*run("a"), *run("b")]))
    again = [json.loads(each.value) for each in outputs if each.topic == SESSION_ITEMS]
    assert completed(again) == completed(shown(once))


def test_a_run_of_another_name_begins_with_its_own_numbers():
    found = stage().process(as_records([*run("a"), *run("b")]))
    assert len([each for each in shown(found) if each["type"] == "item/completed"]) == 2


def test_a_refusal_that_is_written_again_crosses_to_the_log_once():
    headers = (("source", b"anthropic"), ("run", b"q1"), ("request-id", b"q1"), ("status", b"400"), ("seq", b"0"))
    refusal = (b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}', headers)
    assert len(of(stage().process(as_records([refusal, refusal])), AGENT_TURNS)) == 1


@pytest.mark.parametrize("value", [b"-1", b"1.5", b"one", b"9" * 19, "²".encode()])
def test_a_number_that_is_none_is_a_dead_letter(value):
    headers = (("source", b"anthropic"), ("run", b"r"), ("seq", value))
    found = stage().process(records([b"{}"], headers))
    assert letters(of(found, DEAD_LETTERS)) == [(0, "bad_seq")]
