"""Every fix and every rule has a vector that triggers it and one that comes close and does not."""

import json
from collections import defaultdict

import pytest
from reader_results import vectors

from reknit.pipeline import normalize
from reknit.pipeline.explain import FIX_EXAMPLES, RULE_EXAMPLES, STREAM_EXAMPLES, retold, written_out
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.sets import RULES

NEAR_MISSES = {vector["code"]: vector for vector in vectors("fix_near_misses")}
STREAM_NEAR_MISSES = {vector["code"]: vector for vector in vectors("stream_near_misses")}


def test_every_fix_has_an_example_and_a_near_miss():
    assert NEAR_MISSES.keys() == FIX_EXAMPLES.keys()
    assert STREAM_NEAR_MISSES.keys() == STREAM_EXAMPLES.keys()
    assert sorted([*FIX_EXAMPLES, *STREAM_EXAMPLES]) == sorted(FIXES)
    assert len(vectors("fix_near_misses")) == len(NEAR_MISSES)
    assert len(vectors("stream_near_misses")) == len(STREAM_NEAR_MISSES)


@pytest.mark.parametrize("code", STREAM_NEAR_MISSES)
def test_a_near_miss_in_a_stream_is_left_as_it_is(code):
    vector, example = STREAM_NEAR_MISSES[code], STREAM_EXAMPLES[code]
    _, messages, fixes = retold(example, vector["events"])
    assert fixes == []
    assert messages == [{"role": "assistant", "content": vector["content"]}]
    assert not vector["why"].endswith(".")


@pytest.mark.parametrize("code", NEAR_MISSES)
def test_a_near_miss_needs_no_such_fix(code):
    """It goes where the example goes, unless the target is what makes the difference, and is accepted there."""
    vector, example = NEAR_MISSES[code], FIX_EXAMPLES[code]
    history = written_out(vector["history"])
    done = normalize(
        history if isinstance(history, str) else json.dumps(history).encode(),
        to=vector.get("to", "anthropic"),
        source=vector.get("from", "auto"),
        policy=vector.get("policy"),
        scale=example.scale,
    )
    assert {fix.code for fix in done.fixes} == set(vector.get("also", ()))
    assert done.body is not None
    assert vector.get("to", "anthropic") == example.to or code == "thinking_dropped"
    assert not vector["why"].endswith(".")


def cases():
    """For each rule what its vectors are: a breach, or a body of its target that does not break it."""
    seen = defaultdict(set)
    for target in TARGETS:
        own = [rule.id for rule in RULES.values() if rule.target == target]
        for vector in vectors(f"{target.replace('-', '_')}_rules"):
            if "rule" in vector:
                seen[vector["rule"]].add(vector["case"])
                continue
            # A vector that lists all of its violations is near to every rule that is not among them.
            broken = {violation["rule"] for violation in vector["violations"]}
            for rule in own:
                seen[rule].add("breach" if rule in broken else "near")
    return seen


def test_every_rule_has_a_breach_and_a_near_miss():
    found = cases()
    checked = {rule.id for rule in RULES.values() if not rule.unchecked}
    assert {rule: found[rule] for rule in checked if found[rule] != {"breach", "near"}} == {}
    assert found.keys() <= RULES.keys()


def test_every_rule_that_a_body_can_break_has_an_example():
    assert RULE_EXAMPLES.keys() == {rule.id for rule in RULES.values() if not rule.unchecked}
