"""Records of an input that was recreated and accepted: sessions keep their state, and no id recurs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from build import said, user
from stage_runs import KEY, OPENED, Sliced, in_batches, of, processed, turn

from reknit.pipeline.cli.dead_letters import Letter, retry_of
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS
from reknit.topics import headers as names
from reknit.topics.headers import DeadLetterHeaders

BASE = 100
CLOSED = {"type": "session.closed"}
PARK = Defaults(on_dead_letter="park")
LETTER = {"role": "nobody"}


def log(events, base=0, key=KEY):
    values = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return [Record(partition=2, offset=at, key=key, value=value, base=base) for at, value in enumerate(values)]


def run(before, after, defaults=None, *, restart=None):
    """Process both topics, one record a batch."""
    batches = in_batches([*log(before), *log(after, BASE)], 1)
    return processed(lambda: TurnsStage(defaults or Defaults()), batches, restart)


def sent(outputs):
    """Return for each request the texts, `first`, the cause and the id."""
    found = []
    for output in outputs:
        if output.topic == PROVIDER_REQUESTS:
            headers = {name: value.decode() for name, value in output.headers}
            blocks = [block for message in json.loads(output.value)["messages"] for block in message["content"]]
            texts = [block["text"] for block in blocks] if isinstance(blocks[0], dict) else blocks
            found.append((texts, int(headers[names.FIRST]), headers[names.CAUSE], headers[names.REQUEST_ID]))
    return found


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_a_session_keeps_its_history_and_begins_a_new_first(restart):
    before, after = [OPENED, turn(user("one"))], [turn(user("two")), turn(said("so")), turn(user("three"))]
    outputs, stage, state = run(before, after, restart=restart)
    assert stage.find(KEY).is_carried
    assert [row[:3] for row in sent(outputs)] == [
        (["one"], 0, "agent.turns.v1/2/1"),
        (["one", "two"], BASE, "agent.turns.v1/2/0"),
        (["one", "two", "so", "three"], BASE, "agent.turns.v1/2/2"),
    ]
    whole, _, unbroken = run(before, after)
    assert (outputs, state) == (whole, unbroken)


def test_sessions_with_equal_first_offsets_make_different_ids():
    life = [OPENED, turn(user("hi")), CLOSED]
    outputs, stage, _ = run(life, life[:-1])
    assert not stage.find(KEY).is_carried
    (_, first, cause, one), (_, second, same_cause, other) = sent(outputs)
    assert (first, second, cause == same_cause) == (0, BASE, True)
    assert [
        dict(output.headers).get(names.BASE) for output in of(SimpleNamespace(outputs=outputs), PROVIDER_REQUESTS)
    ] == [
        None,
        b"%d" % BASE,
    ]
    assert one != other


def test_a_record_repeated_in_the_new_topic_is_recognised_by_its_id():
    again = turn(user("one"), id="u1")
    outputs, *_ = run([OPENED, again], [again, turn(user("two"), id="u2")])
    assert [texts for texts, *_ in sent(outputs)] == [["one"], ["one", "two"]]


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_waiting_records_are_processed_in_order_across_topics(restart):
    before = [OPENED, turn(user("zero")), turn(LETTER), turn(user("one")), turn(user("two"))]
    after = [turn(user("three")), turn(user("four")), {"type": "session.released", "id": "r"}, turn(user("five"))]
    outputs, stage, _ = run(before, after, PARK, restart=restart)
    assert [texts[-1] for texts, *_ in sent(outputs)] == ["zero", "one", "two", "three", "four", "five"]
    # Records that have waited since the previous topic belong to the session life that began there.
    assert [first for _, first, *_ in sent(outputs)] == [0, 0, 0, BASE, BASE, BASE]
    assert stage.levels() == {"reknit_sessions_parked": 0, "reknit_turns_waiting": 0}


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
@pytest.mark.parametrize("pace", [0, 1, 9])
def test_a_release_in_slices_is_the_same_across_topics(restart, pace):
    before = [OPENED, turn(user("zero")), turn(LETTER), *(turn(user(f"old {n}")) for n in range(5))]
    after = [turn(user("new 0")), {"type": "session.released", "id": "r"}, *(turn(user(f"new {n}")) for n in (1, 2))]
    whole, _, state = run(before, after, PARK)
    sliced = Sliced(lambda: TurnsStage(PARK), restart)
    for record in [*log(before), *log(after, BASE)]:
        sliced.take(record)
        sliced.release(pace)
    assert sliced.stage.released_at() == (BASE + 1 if pace < 9 else None)
    sliced.release()
    assert sliced.outputs == whole
    assert sliced.state.keys() == state.keys()


def test_fixes_and_dead_letters_of_equal_offsets_are_distinguished_by_their_base():
    mended = [OPENED, turn({"role": "user", "content": ""}), turn(LETTER)]
    outputs, *_ = run(mended, mended)
    fixes = [json.loads(output.value) for output in outputs if output.topic == HISTORY_FIXES]
    places = [(fix.get("base", 0), fix["offset"], fix["number"]) for fix in fixes]
    assert {base for base, *_ in places} == {0, BASE}
    assert len(places) == len(set(places))
    letters = [dict(output.headers) for output in outputs if output.topic == DEAD_LETTERS]
    assert [letter.get(names.ERROR_BASE) for letter in letters] == [None, b"%d" % BASE]


def test_dead_letters_of_equal_offsets_are_retried_under_different_ids():
    outputs, *_ = run([turn(LETTER)], [turn(LETTER)])
    retries = []
    for output in of(SimpleNamespace(outputs=outputs), DEAD_LETTERS):
        why = names.decode(output.headers, DeadLetterHeaders)
        retries.append(json.loads(retry_of(Letter(2, 0, output, why), None, None).value)["id"])
    assert retries == ["retry/agent.turns.v1/2/0", f"retry/agent.turns.v1/2/0+{BASE}"]
