"""Requests for a text-only planner: what it takes, and what makes it refuse, stall, or follow a tool's output.

A vector holds the ``body`` (a string is its exact text) and all the ``violations`` in it; none is a good request.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from pipeline.rules import RULE_SETS, RULES, Violation, validate

LINES = (Path(__file__).parent / "cascade_rules.jsonl").read_text(encoding="utf-8").split("\n")
VECTORS = [pytest.param(json.loads(line), id=json.loads(line)["what"]) for line in LINES if line]


def wanted(vector):
    return msgspec.convert(vector["violations"], list[Violation])


@pytest.mark.parametrize("vector", VECTORS)
def test_a_request(vector):
    assert validate(vector["body"], "cascade") == wanted(vector)


@pytest.mark.parametrize("vector", VECTORS)
def test_message_by_message_the_rules_say_the_same(vector):
    body = vector["body"]
    if isinstance(body, str) or not isinstance(body.get("messages"), list):
        return
    rules = RULE_SETS["cascade"]
    head = {key: value for key, value in body.items() if key != "messages"}
    state, found = rules.start(msgspec.json.encode(head))
    for message in body["messages"]:
        state, more = rules.step(state, msgspec.json.encode(message))
        found += more
    assert sorted([*found, *rules.finish(state)], key=repr) == sorted(wanted(vector), key=repr)


def test_every_rule_is_broken_by_a_vector_and_kept_by_many():
    broken = {violation["rule"] for vector in VECTORS for violation in vector.values[0]["violations"]}
    assert broken == {rule.id for rule in RULES.values() if rule.target == "cascade"}
    assert sum(not vector.values[0]["violations"] for vector in VECTORS) >= 12


def test_a_model_that_is_given_beside_the_body_counts():
    body = {"messages": [{"role": "user", "content": "q"}]}
    assert [found.rule for found in validate(body, "cascade")] == ["CAS-08"]
    assert validate(body, "cascade", "claude-opus-4-7") == []
