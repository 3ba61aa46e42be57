"""Repairs that a policy only observes are either not made and reported, or made and reported, on every target."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import SCALE, histories, perturbed_histories, policies

from reknit.pipeline import normalize, validate
from reknit.pipeline.explain import FIX_EXAMPLES, written_out
from reknit.pipeline.fixes import FIXES, OBSERVABLE
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.session import Session
from reknit.pipeline.testing.kit import Kit

NAMES = sorted(TARGETS)
# The repairs without which the target accepts their example. It rejects the other examples, so those are repaired.
TAKEN = {
    "blank_dropped", "document_renamed", "image_type_corrected", "json_word_added", "lead_inserted", "leading_dropped",
    "param_dropped", "reasoning_foreign", "system_inlined", "tail_continued", "thinking_foreign", "thinking_moved",
    "thinking_of_changed_turn", "tool_search_as_text", "turns_merged",
}  # fmt: skip


def repairs_of(done):
    """Count the repairs. The place of an added block is ignored."""
    return Counter(
        (fix.code, fix.target, fix.before, fix.after, "" if FIXES[fix.code].fate == "synthesised" else fix.path)
        for fix in done.fixes
        if not fix.observed
    )


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=40 * SCALE)
@given(messages=st.one_of(histories, perturbed_histories()), policy=policies, data=st.data())
def test_an_observed_repair_is_reported_and_not_made_unless_required(target, messages, policy, data):
    given = msgspec.json.encode(messages)
    mended = normalize(given, to=target, policy=policy)
    codes = sorted({fix.code for fix in mended.fixes} & OBSERVABLE)
    assume(codes)
    code = data.draw(st.sampled_from(codes))
    done = normalize(given, to=target, policy={**policy, "mend": {target: {code: "observe"}}})
    observed = [fix for fix in done.fixes if fix.observed]
    if not observed:
        assert (done.unjudged, done.fixes, done.ledger) == (mended.unjudged, mended.fixes, mended.ledger)
        return
    assert {(fix.code, fix.target) for fix in observed} == {(code, target)}
    assert done.body is not None
    assert done.body != mended.unjudged
    assert code not in {fix.code for fix in done.fixes if not fix.observed}
    assert repairs_of(done) <= repairs_of(mended)
    tail_rules = TARGETS[target].writer.tail_rules if policy.get("tail") == "keep" else ()
    found = validate(done.body, target=target)
    assert [each for each in found if each.severity == "hard" and each.rule not in tail_rules] == []


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=25 * SCALE)
@given(
    messages=st.one_of(histories, perturbed_histories()),
    codes=st.sets(st.sampled_from(sorted(OBSERVABLE)), min_size=1).map(sorted),
)
def test_the_promises_hold_with_observed_repairs(target, messages, codes):
    Kit(target, {"mend": dict.fromkeys(codes, "observe")}).check(messages)


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=15 * SCALE)
@given(
    messages=st.one_of(histories, perturbed_histories()),
    codes=st.sets(st.sampled_from(sorted(OBSERVABLE)), min_size=1).map(sorted),
    at=st.integers(0, 30),
)
def test_a_saved_session_continues_unchanged(target, messages, codes, at):
    sessions = [Session([target, "vllm"], {"mend": {target: dict.fromkeys(codes, "observe")}}) for _ in range(2)]
    segments = []
    for number, message in enumerate(messages):
        told = [session.append(json.dumps(message).encode()) for session in sessions]
        assert told[0] == told[1]
        requests = [[session.request(name) for name in session.targets] for session in sessions]
        for one, other in zip(*requests, strict=True):
            assert (one.unjudged, one.fixes, one.prefix_bytes) == (other.unjudged, other.fixes, other.prefix_bytes)
        if number == at:
            segments += sessions[0].take_segments(flush=True)
            sessions[0] = Session.load(sessions[0].head(), [record for _, record in segments])


@pytest.mark.parametrize("code", sorted(OBSERVABLE))
def test_each_repair_can_be_observed(code):
    example = FIX_EXAMPLES[code]
    history = written_out(example.history)
    history = history if isinstance(history, str) else json.dumps(history)
    policies = [{**example.policy, f"mend.{code}": how} for how in ("on", "observe")]
    made, done = (normalize(history, to=example.to, source=example.source, policy=policy) for policy in policies)
    observed = {fix.code for fix in done.fixes if fix.observed}
    if code in TAKEN:
        assert (observed, done.prefix_reset) == ({code}, "")
        assert done.body not in {None, made.body}
    else:
        # The target's verdict on the body without the repair is the reason for making it.
        assert (observed, done.prefix_reset) == (set(), "mended")
        assert (done.body, done.fixes) == (made.body, made.fixes)
