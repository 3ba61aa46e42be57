"""One prompt for the Copilot CLI: what it is, and what no program could take.

A vector holds the ``prompt`` (with ``pad``, that many times) and all the ``violations`` in it; none is a good prompt.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from pipeline.rules import RULE_SETS, RULES, Violation, validate

VECTORS = [
    json.loads(line) for line in (Path(__file__).parent / "copilot_cli_rules.jsonl").read_text("utf-8").splitlines()
]


def prompt_of(vector: dict) -> bytes:
    return vector["prompt"].encode("latin-1" if vector.get("raw") else "utf-8") * vector.get("pad", 1)


@pytest.mark.parametrize("vector", VECTORS)
def test_a_prompt(vector):
    assert validate(prompt_of(vector), "copilot-cli") == msgspec.convert(vector["violations"], list[Violation])


def test_every_rule_is_broken_by_a_vector_and_some_prompts_are_taken():
    broken = {violation["rule"] for vector in VECTORS for violation in vector["violations"]}
    assert broken == {rule.id for rule in RULES.values() if rule.target == "copilot-cli" and not rule.unchecked}
    assert sum(not vector["violations"] for vector in VECTORS) >= 4


@pytest.mark.parametrize("vector", VECTORS)
def test_the_fold_says_it_all_at_the_start(vector):
    rules = RULE_SETS["copilot-cli"]
    state, found = rules.start(prompt_of(vector))
    assert found == validate(prompt_of(vector), "copilot-cli")
    assert rules.step(state, b"{}") == (state, [])
    assert rules.finish(state) == []
