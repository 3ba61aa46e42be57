"""One line for the Claude CLI's standard input: what it takes, what it drops, what it dies of.

A vector holds the ``line`` and all the ``violations`` in it; none is what the CLI takes.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from pipeline.rules import RULE_SETS, RULES, Violation, validate

VECTORS = [
    json.loads(line) for line in (Path(__file__).parent / "claude_cli_rules.jsonl").read_text("utf-8").split("\n")[:-1]
]
EMPTY_TURN = '{"type": "user", "message": {"role": "user", "content": ""}}\n'


@pytest.mark.parametrize("vector", VECTORS)
def test_a_line(vector):
    assert validate(vector["line"], "claude-cli") == msgspec.convert(vector["violations"], list[Violation])


def test_every_rule_is_broken_by_a_vector():
    broken = {violation["rule"] for vector in VECTORS for violation in vector["violations"]}
    assert broken == {rule.id for rule in RULES.values() if rule.target == "claude-cli"}


def test_some_lines_are_taken():
    assert sum(not vector["violations"] for vector in VECTORS) >= 6


def test_a_long_line_is_quoted_in_part():
    (found,) = validate("x" * 1000 + "\n", "claude-cli")
    assert found.message.startswith("Error parsing streaming input line: " + "x" * 200 + "…: ")


def test_the_fold_says_it_all_at_the_start():
    rules = RULE_SETS["claude-cli"]
    state, found = rules.start(EMPTY_TURN.encode())
    assert found == validate(EMPTY_TURN, "claude-cli")
    assert [violation.rule for violation in found] == ["CLI-05"]
    assert rules.step(state, b"{}") == (state, [])
    assert rules.finish(state) == []
