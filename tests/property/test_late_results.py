"""Results that come late, in any order, number and batching: every way to take a history gives the same bytes.

A plain model of the rule predicts the outcome of each result from the log alone.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from build import call, image, result, said, session_of, text, user
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_runs import OPENED, processed, records, turn
from strategies import SCALE

from reknit.pipeline import Session, normalize
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.testing import Kit
from reknit.topics import HISTORY_FIXES, PROVIDER_REQUESTS

IDS = ("job_1", "job_2", "job_3")
CONTENTS = ("pending", "running", "done @me", "aborted", [text("done"), image()], [text("done @me")])
LATE = st.sampled_from(["replace", "turn", "drop"])


@st.composite
def late_histories(draw, ids=IDS, *, reused=False):
    """A history whose calls are answered once, several times, late or never; an assistant turn calls new ids only."""
    history, called, new = [user("q")], [], list(ids)
    for _ in range(draw(st.integers(2, 12))):
        if draw(st.booleans()):
            asked = [new.pop(0) for _ in range(draw(st.integers(0, min(2, len(new)))))]
            if reused and called and draw(st.booleans()):
                asked.append(draw(st.sampled_from(called)))
            called += asked
            history.append(
                said(*[draw(st.sampled_from(["so", "wait"]))], *(call(each, f"tool_{each}") for each in asked))
            )
        else:
            some = st.builds(result, st.sampled_from(called), st.sampled_from(CONTENTS), is_error=st.booleans())
            spoken = st.sampled_from(["hm", "go on"]).map(text)
            blocks = st.lists(st.one_of(some, some, spoken) if called else spoken, min_size=1, max_size=3)
            history.append(user(*draw(blocks)))
    return history


policies = st.fixed_dictionaries(
    {"late_result": LATE},
    optional={
        "open_exchanges": st.sampled_from([1, 2, 8]),
        "missing_result": st.sampled_from(["synthesise", "drop"]),
        "orphan_result": st.sampled_from(["drop", "text"]),
    },
)
histories = st.one_of(late_histories(), late_histories(reused=True))


def same(found, whole):
    assert (found.unjudged, found.fixes, found.ledger) == (whole.unjudged, whole.fixes, whole.ledger)


@settings(max_examples=30 * SCALE, deadline=None)
@given(messages=histories, policy=policies, data=st.data())
def test_a_session_equals_the_whole_history_over_reloads_and_rewinds(messages, policy, data):
    session, segments = Session(TARGETS, policy), []
    for _ in range(2):
        for message in messages[session.count :]:
            session.append(message)
            segments += session.take_segments(flush=data.draw(st.booleans()))
            if data.draw(st.booleans()):
                session = Session.load(session.head(), [record for _, record in segments])
        for target in TARGETS:
            same(session.request(target), normalize(msgspec.json.encode(messages), to=target, policy=policy))
        session.rewind(data.draw(st.integers(0, session.count)))


@settings(max_examples=25 * SCALE, deadline=None)
@given(messages=histories, policy=policies)
@pytest.mark.parametrize("target", ["anthropic", "openai-responses", "vllm", "codex-cli"])
def test_settled_bytes_stay_while_results_come_late(target, messages, policy):
    Kit(target, policy).incremental(messages)


@settings(max_examples=40 * SCALE, deadline=None)
@given(messages=histories, policy=policies, data=st.data())
def test_records_give_the_same_requests_in_any_batches_and_after_restarts(messages, policy, data):
    opened = OPENED | {"targets": ["anthropic", "claude-cli"], "policy": policy}
    wanted = {"type": "request.wanted"}
    log = records([opened, *(turn(message, id=f"m{at}") for at, message in enumerate(messages)), wanted])
    again = [log[at] for at in data.draw(st.lists(st.integers(1, len(messages)), max_size=2))]
    log = records(
        [*(json.loads(record.value) for record in log[:-1]), *(json.loads(each.value) for each in again), wanted]
    )
    edges = sorted({0, len(log), *data.draw(st.lists(st.integers(0, len(log)), max_size=4))})
    batches = [log[start:end] for start, end in pairwise(edges)]

    def outputs(batches, restart=None):
        found, _, state = processed(lambda: TurnsStage(Defaults()), batches, restart)
        return [each for each in found if each.topic in {PROVIDER_REQUESTS, HISTORY_FIXES}], state

    single = outputs([[record] for record in log])
    assert outputs(batches) == single
    assert outputs(batches, "changelog") == single
    last = {dict(each.headers)["target"]: each.value for each in single[0] if each.topic == PROVIDER_REQUESTS}
    for target, body in last.items():
        given = {"messages": messages, "model": OPENED["model"], "params": OPENED["params"]}
        whole = normalize(json.dumps(given), to=target.decode(), policy=policy)
        assert body == whole.body


@settings(max_examples=80 * SCALE, deadline=None)
@given(messages=histories, policy=policies)
@pytest.mark.parametrize("target", ["anthropic", "openai-chat"])
def test_a_normalized_history_stays_as_it_is(target, messages, policy):
    done = normalize(messages, to=target, policy=policy)
    again = normalize({"messages": json.loads(done.body)["messages"]}, to=target, policy=policy)
    assert again.body == done.body
    assert [fix for fix in again.fixes if fix.code != "tail_continued"] == []


# The plain model of the rule, for calls whose ids are not reused and histories in which nothing settles unanswered.

MODEL_CONTENTS = ("pending", "running", "done")


def outcomes(messages):
    """For each result of the log its outcome under `replace`, by the rule alone: the order of the log is enough."""
    current, seen, shown, found = {}, {}, set(), {}
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            shown |= current.keys()
            continue
        for place, block in enumerate(message["content"]):
            if block["type"] != "tool_result":
                continue
            name, content, path = block["tool_use_id"], block["content"], f"messages.{at}.content.{place}"
            if content in seen.setdefault(name, set()):
                found[path] = "result_repeated"
            elif name in shown:
                found[path] = "result_late_turn"
            else:
                if name in current:
                    found[current[name]] = "result_replaced"
                current[name], found[path] = path, "kept"
            seen[name].add(content)
    return found


@st.composite
def answered_histories(draw):
    """Each call has a first result before the next assistant turn; more may come at any time."""
    history, called = [user("q")], []
    for name in draw(st.lists(st.sampled_from(IDS), unique=True, min_size=1)):
        history.append(said("so", call(name, f"tool_{name}")))
        called.append(name)
        first = [result(name, draw(st.sampled_from(MODEL_CONTENTS)))]
        more = st.builds(result, st.sampled_from(called), st.sampled_from(MODEL_CONTENTS))
        mixed = draw(st.permutations([*first, *draw(st.lists(more, max_size=4))]))
        while mixed:
            size = draw(st.integers(1, len(mixed)))
            history.append(user(*mixed[:size]))
            mixed = mixed[size:]
        for _ in range(draw(st.integers(0, 2))):
            history += [said("well"), user(*draw(st.lists(more, max_size=2)), "go on")]
    return history


@settings(max_examples=150 * SCALE, deadline=None)
@given(messages=answered_histories())
def test_each_result_has_the_outcome_that_the_log_says(messages):
    done = normalize(messages)
    fates = {entry.path: entry.code for entry in done.ledger}
    for path, outcome in outcomes(messages).items():
        code = fates[path]
        assert code == outcome or (outcome == "kept" and code in {"", "result_moved"}), path
    made = Counter(fix.code for fix in done.fixes) - Counter({"turns_merged": 99, "result_moved": 99})
    assert made == Counter(outcome for outcome in outcomes(messages).values() if outcome != "kept")


@settings(max_examples=150 * SCALE, deadline=None)
@given(messages=answered_histories())
def test_a_late_result_makes_a_request_due_once_it_is_in_the_history(messages):
    session, called, answered = session_of(), set(), set()
    for at, message in enumerate(messages):
        session.append(message)
        blocks = message["content"]
        called |= {block["id"] for block in blocks if block["type"] == "tool_use"}
        answered |= {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        fates = outcomes(messages[: at + 1])
        new = [
            block
            for place, block in enumerate(blocks)
            if fates.get(f"messages.{at}.content.{place}") != "result_repeated"
        ]
        if message["role"] == "assistant":
            assert not session.waiting
        elif called > answered:
            assert not session.waiting, "a late result must not interrupt an open call"
        elif new:
            assert session.waiting
