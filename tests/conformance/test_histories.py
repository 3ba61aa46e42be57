"""Histories of five sources and many issue threads, each mended whole and turn by turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.testing import Kit

HERE = Path(__file__).parent


def vectors(name):
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [pytest.param(json.loads(line), id=json.loads(line)["name"]) for line in lines]


def both_ways(messages, target, policy):
    kit = Kit(target, policy)
    kit.incremental(messages)
    return kit.normalize(messages)


@pytest.mark.parametrize("vector", vectors("geny_claude_cli_flatten"))
def test_the_command_line_gets_one_envelope(vector):
    done = both_ways(vector["messages"], "claude-cli", None)
    if not vector["stdin"]:
        assert done.body is None
        assert [violation.rule for violation in done.violations] == ["CLI-05"]
    else:
        # The vectors hold non-ASCII as it is; the same JSON is written in ASCII, with the same spaces.
        assert done.text == json.dumps(json.loads(vector["stdin"])) + "\n"
    assert [fix.code for fix in done.fixes] == vector["fixes"]


@pytest.mark.parametrize("vector", vectors("picoclaw_anthropic_tool_results"))
def test_each_call_has_one_result_directly_after_it(vector):
    done = both_ways(vector["messages"], "anthropic", {"tail": "keep"})
    assert json.loads(done.body)["messages"] == vector["expect"]
    assert [fix.code for fix in done.fixes] == vector["fixes"]


@pytest.mark.parametrize("vector", vectors("agentcore_converse_restore"))
def test_a_restored_history_is_alternating_and_keeps_its_ids(vector):
    policy = {"tail": "keep", "strip_tools": vector["strip_tools"]}
    done = both_ways(vector["messages"], "anthropic", policy)
    assert json.loads(done.body)["messages"] == vector["expect"]
    assert done.ids == vector["ids"]
    assert [fix.code for fix in done.fixes] == vector["fixes"]


@pytest.mark.parametrize("vector", vectors("broken_histories"))
def test_a_history_that_providers_refuse_is_mended(vector):
    done = both_ways(vector["messages"], "anthropic", None)
    assert json.loads(done.body)["messages"] == vector["expect"]
    assert [fix.code for fix in done.fixes] == vector["fixes"]
    Kit().check(vector["messages"])


@pytest.mark.parametrize("vector", vectors("broken_histories"))
def test_no_mark_of_a_broken_history_is_lost_without_a_fix(vector):
    Kit().marked(vector["messages"])


def test_vectors_say_why():
    for name in ("geny_claude_cli_flatten", "picoclaw_anthropic_tool_results", "agentcore_converse_restore"):
        for parameter in vectors(name):
            assert parameter.values[0]["why"].endswith(".")
