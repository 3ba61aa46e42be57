"""The promises over arbitrary histories: valid, accounted, reproducible."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import healthy_histories, histories, policies

from pipeline import Session, normalize
from pipeline.fixes import FIXES
from pipeline.testing import Kit

# More examples for a long run: REKNIT_EXAMPLES=10.
SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))
TARGETS = ("anthropic", "claude-cli")


def encoded(messages):
    return msgspec.json.encode(messages)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=200 * SCALE)
@given(messages=histories, policy=policies)
def test_what_comes_out_is_valid(target, messages, policy):
    done = Kit(target, policy).valid(messages)
    hard = [violation.rule for violation in done.violations if violation.severity == "hard"]
    if done.body is None:
        # The only thing that may be wrong is what the policy was asked not to mend.
        assert policy["tail"] == "reject"
        assert len(hard) == 1
        assert hard[0] in {"ANT-01", "ANT-25", "CLI-01", "CLI-05"}
    else:
        assert hard == []


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=150 * SCALE)
@given(messages=histories, policy=policies)
def test_each_input_block_has_one_fate_and_each_output_block_a_source(target, messages, policy):
    Kit(target, policy).accounted(messages)


@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_fixes_are_counted_as_they_are_listed(messages, policy):
    session = Session(TARGETS, policy)
    for message in messages:
        session.append(message)
        for target in TARGETS:
            done = session.request(target)
            assert done.fix_count == len(done.fixes)


@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_the_ledger_follows_the_body(messages, policy):
    done = normalize(encoded(messages), policy=policy)
    if done.body is None:
        return
    body = json.loads(done.body)
    outputs = [
        f"messages.{at}.content.{place}"
        for at, message in enumerate(body["messages"])
        for place in range(len(blocks_of(message)))
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
        out = blocks_of(body[int(at)])[int(place)]
        came = messages
        for step in entry.path.split(".")[1:]:
            came = came[int(step) if isinstance(came, list) else step]
        came = {"type": "text", "text": came} if isinstance(came, str) else came
        assert plain(out) == plain(came)


def blocks_of(message):
    """A message's blocks; a string is one text block, whose place is 0."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


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
    Kit("anthropic", policy).idempotent(messages)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", [None, "claude-sonnet-4-5"])
@settings(max_examples=80 * SCALE)
@given(messages=histories, policy=policies)
def test_whole_and_turn_by_turn_are_the_same_and_what_is_settled_stays(target, model, messages, policy):
    Kit(target, policy, setting={"model": model} if model else None).incremental(messages)


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
    Kit("anthropic", policy).folded(messages)


@settings(max_examples=150 * SCALE)
@given(messages=healthy_histories(), policy=policies)
def test_a_healthy_history_has_no_fix_and_comes_out_as_it_is(messages, policy):
    done = Kit("anthropic", policy | {"strip_tools": False}).healthy(messages)
    assert json.loads(done.body)["messages"] == messages


@st.composite
def with_strings(draw):
    """Healthy histories in which some of the texts are their messages' whole content."""
    messages = draw(healthy_histories())
    for message in messages:
        if [block["type"] for block in message["content"]] == ["text"] and draw(st.booleans()):
            message["content"] = message["content"][0]["text"]
    return messages


@settings(max_examples=100 * SCALE)
@given(messages=with_strings(), policy=policies)
def test_a_healthy_history_keeps_its_strings(messages, policy):
    kit = Kit("anthropic", policy | {"strip_tools": False})
    done = kit.healthy(messages)
    kit.incremental(messages)
    assert json.loads(done.body)["messages"] == messages


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
