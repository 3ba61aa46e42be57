"""The promises over arbitrary histories: valid, accounted, reproducible."""

from __future__ import annotations

import hashlib
import json
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import healthy_histories, histories, policies

from pipeline import Session, normalize, validate
from pipeline.fixes import FIXES
from pipeline.history.readers import read

# More examples for a long run: REKNIT_EXAMPLES=10.
SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))
TARGETS = ("anthropic", "claude-cli")


def encoded(messages):
    return msgspec.json.encode(messages)


def input_paths(messages):
    """Every block's place in the input, as it was read."""
    turns = read(encoded(messages)).conversation.turns
    return [
        path
        for turn in turns
        for path in turn.paths or [f"messages.{turn.index}.content.{at}" for at in range(len(turn.blocks))]
    ]


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=200 * SCALE)
@given(messages=histories, policy=policies)
def test_what_comes_out_is_valid(target, messages, policy):
    done = normalize(encoded(messages), to=target, policy=policy)
    hard = [violation for violation in done.violations if violation.severity == "hard"]
    if policy.get("tail") == "reject" and hard:
        # The only thing that may be wrong is what the policy was asked not to mend.
        assert len(hard) == 1
        assert hard[0].rule in {"ANT-01", "ANT-25", "CLI-01"}
        assert done.body is None
        assert normalize(encoded(messages), to=target, policy=policy | {"tail": "continue"}).body is not None
    else:
        assert hard == []
        assert done.body is not None


def related(one, other):
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


@settings(max_examples=200 * SCALE)
@given(messages=histories, policy=policies)
def test_each_input_block_has_one_fate_and_each_output_block_a_source(messages, policy):
    done = normalize(encoded(messages), policy=policy)
    named = {(fix.code, fix.path) for fix in done.fixes}
    seen = [entry for entry in done.ledger if ".content." not in entry.path.partition(".content")[2]]
    fates = [entry.path for entry in seen if entry.path]
    assert sorted(fates) == sorted(input_paths(messages))
    for entry in done.ledger:
        assert (entry.fate == "kept") == (entry.code == "")
        if entry.fate not in {"kept", "synthesised"}:
            # Reading names the very field that it mended; a block out of a result is named by the result's fix.
            assert any(code == entry.code and related(path, entry.path) for code, path in named)
        if entry.fate == "synthesised":
            assert entry.path == ""
            assert any(code == entry.code for code, _ in named)
        assert (entry.fate == "dropped") == (entry.output == "")
    if done.body is None:
        return
    body = json.loads(done.body)
    outputs = [
        f"messages.{at}.content.{place}"
        for at, message in enumerate(body["messages"])
        for place in range(len(message["content"]))
    ]
    assert [entry.output for entry in done.ledger if entry.output.startswith("messages")] == outputs
    assert len(done.ids) == len(body["messages"])


@settings(max_examples=200 * SCALE)
@given(messages=histories, policy=policies)
def test_what_is_kept_is_unchanged(messages, policy):
    done = normalize(encoded(messages), policy=policy)
    if done.body is None:
        return
    body = json.loads(done.body)["messages"]
    for entry in done.ledger:
        if entry.fate != "kept" or not entry.output.startswith("messages"):
            continue
        at, place = entry.output.removeprefix("messages.").split(".content.")
        out = body[int(at)]["content"][int(place)]
        came = messages
        for step in entry.path.split(".")[1:]:
            came = came[int(step) if isinstance(came, list) else step]
        came = {"type": "text", "text": came} if isinstance(came, str) else came
        assert plain(out) == plain(came)


def plain(block):
    """A block as everybody reads it: without breakpoints, the issuer, and a flag that says nothing."""
    if isinstance(block, list):
        return [plain(part) for part in block]
    if not isinstance(block, dict):
        return block
    ignored = {"cache_control", "issuer"}
    return {
        key: plain(value) if key == "content" else value
        for key, value in block.items()
        if key not in ignored and (key, value) != ("is_error", False)
    }


@settings(max_examples=200 * SCALE)
@given(messages=histories, policy=policies)
def test_mending_twice_changes_nothing_and_reports_nothing(messages, policy):
    once = normalize(encoded(messages), policy=policy)
    if once.body is None:
        return
    twice = normalize(once.body, policy=policy)
    assert twice.fixes == []
    assert twice.body == once.body


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_whole_and_turn_by_turn_are_the_same(target, messages, policy):
    session = Session((target,), policy)
    for count, message in enumerate(messages, start=1):
        session.append(encoded(message))
        step, whole = session.request(), normalize(encoded(messages[:count]), to=target, policy=policy)
        assert step.body == whole.body
        assert sorted(step.fixes, key=repr) == sorted(whole.fixes, key=repr)
        assert sorted(step.ledger, key=repr) == sorted(whole.ledger, key=repr)
        assert step.ids == whole.ids
        assert step.violations == whole.violations
        assert step.sha256 == whole.sha256
        if step.body is not None:
            assert step.sha256 == hashlib.sha256(step.body).hexdigest()


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_the_settled_part_of_a_request_begins_the_next(target, messages, policy):
    session = Session((target,), policy, model="claude-sonnet-4-5")
    before = None
    for message in messages:
        session.append(message)
        now = session.request()
        if before is not None and before.body and now.body and now.prefix_bytes:
            shared = min(before.prefix_bytes, now.prefix_bytes)
            assert now.body[:shared] == before.body[:shared]
            if before.prefix_bytes:
                assert now.prefix_bytes >= before.prefix_bytes
        before = now


@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies, data=st.data())
def test_a_session_goes_on_from_its_records(messages, policy, data):
    session = Session(TARGETS, policy)
    segments = []
    for message in messages:
        session.append(message)
        if data.draw(st.booleans()):
            segments += session.take_segments(flush=data.draw(st.booleans()))
            records = [record for _, record in segments]
            session = Session.load(session.head(), records)
    session = Session.load(session.head(), [record for _, record in segments])
    for target in TARGETS:
        resumed, whole = session.request(target), normalize(encoded(messages), to=target, policy=policy)
        assert resumed.body == whole.body
        assert resumed.sha256 == whole.sha256
        assert sorted(resumed.fixes, key=repr) == sorted(whole.fixes, key=repr)
        assert sorted(resumed.ledger, key=repr) == sorted(whole.ledger, key=repr)
        assert resumed.ids == whole.ids


@settings(max_examples=150 * SCALE)
@given(messages=histories, policy=policies)
def test_rules_step_by_step_are_the_rules_over_the_whole_body(messages, policy):
    session = Session(policy=policy)
    for message in messages:
        session.append(message)
        session.request()
    done = session.request()
    if done.body is not None and policy.get("tail") != "keep":
        assert sorted(done.violations, key=repr) == sorted(validate(done.body), key=repr)


@settings(max_examples=150 * SCALE)
@given(messages=healthy_histories(), policy=policies)
def test_a_healthy_history_has_no_fix_and_comes_out_as_it_is(messages, policy):
    policy = policy | {"strip_tools": False}
    done = normalize(encoded(messages), policy=policy)
    assert done.fixes == []
    assert json.loads(done.body)["messages"] == messages
    assert {entry.fate for entry in done.ledger} == {"kept"}


@settings(max_examples=100 * SCALE)
@given(messages=histories, cut=st.integers(0, 14), policy=policies)
def test_going_back_is_as_if_the_rest_had_never_come(messages, cut, policy):
    cut = min(cut, len(messages))
    session = Session(policy=policy)
    for message in messages:
        session.append(message)
    session.rewind(cut)
    assert session.request().body == normalize(encoded(messages[:cut]), policy=policy).body
    for message in messages[cut:]:
        session.append(message)
    assert session.request().body == normalize(encoded(messages), policy=policy).body


@given(messages=histories)
def test_every_fix_is_in_the_catalogue(messages):
    for fix in normalize(encoded(messages)).fixes:
        assert FIXES[fix.code].lossless == fix.lossless
        assert msgspec.json.decode(msgspec.json.encode(fix), type=type(fix)) == fix
