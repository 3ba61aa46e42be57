"""Histories of five sources and many issue threads, each mended whole and turn by turn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from pipeline import Session, normalize, validate

HERE = Path(__file__).parent


def vectors(name):
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [pytest.param(json.loads(line), id=json.loads(line)["name"]) for line in lines]


def turn_by_turn(messages, target, policy):
    session = Session((target,), policy)
    for message in messages:
        session.append(msgspec.json.encode(message))
        session.request()
    return session.request()


def both_ways(messages, target, policy):
    whole = normalize(msgspec.json.encode(messages), to=target, policy=policy)
    step = turn_by_turn(messages, target, policy)
    assert step.unjudged == whole.unjudged
    assert sorted(step.fixes, key=repr) == sorted(whole.fixes, key=repr)
    return whole


@pytest.mark.parametrize("vector", vectors("geny_claude_cli_flatten"))
def test_the_command_line_gets_one_envelope(vector):
    done = both_ways(vector["messages"], "claude-cli", None)
    assert done.text == vector["stdin"]
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
    assert [violation for violation in validate(done.body) if violation.severity == "hard"] == []


@pytest.mark.parametrize("vector", vectors("broken_histories"))
def test_no_mark_of_a_broken_history_is_lost_without_a_fix(vector):
    done = normalize(vector["messages"])
    lost = set(marks(json.dumps(vector["messages"]))) - set(marks(done.body.decode()))
    named = {fix.path for fix in done.fixes}
    for at, message in enumerate(vector["messages"]):
        for place, block in enumerate(message["content"]):
            if lost & set(marks(json.dumps(block))):
                assert f"messages.{at}.content.{place}" in named


def marks(text):
    return re.findall(r"MARK-\w+", text)


def test_vectors_say_why():
    for name in ("geny_claude_cli_flatten", "picoclaw_anthropic_tool_results", "agentcore_converse_restore"):
        for parameter in vectors(name):
            assert parameter.values[0]["why"].endswith(".")
