"""Histories of AgentCore and of many issue threads as requests for Converse, Gemini and the Copilot command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from pipeline import Session, normalize, validate

HERE = Path(__file__).parent
ASKED = (
    ("bedrock-converse", "us.anthropic.claude-opus-4-8"),
    ("bedrock-converse", "us.amazon.nova-pro-v1:0"),
    ("bedrock-converse", "us.meta.llama3-3-70b-instruct-v1:0"),
    ("gemini", "gemini-2.5-flash"),
    ("gemini", "gemini-3-pro-preview"),
    ("copilot-cli", None),
)


def vectors(name):
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [pytest.param(json.loads(line), id=json.loads(line)["name"]) for line in lines]


def both_ways(messages, target, policy=None, model=None):
    document = {"messages": messages} | ({"model": model} if model else {})
    whole = normalize(msgspec.json.encode(document), to=target, policy=policy)
    session = Session((target,), policy, model=model)
    for message in messages:
        session.append(msgspec.json.encode(message))
        session.request()
    step = session.request()
    assert step.unjudged == whole.unjudged
    assert sorted(step.fixes, key=repr) == sorted(whole.fixes, key=repr)
    return whole


@pytest.mark.parametrize("vector", vectors("agentcore_converse_requests"))
def test_a_restored_history_is_ready_for_converse(vector):
    done = both_ways(vector["messages"], "bedrock-converse", {"tail": "keep", "strip_tools": vector["strip_tools"]})
    assert json.loads(done.body)["messages"] == vector["expect"]
    assert done.ids == vector["ids"]
    assert [fix.code for fix in done.fixes] == vector["fixes"]


@pytest.mark.parametrize(("target", "model"), ASKED)
@pytest.mark.parametrize("vector", vectors("broken_histories"))
def test_a_history_that_providers_refuse_is_mended(vector, target, model):
    done = both_ways(vector["messages"], target, None, model)
    serious = [violation for violation in validate(done.body, target, model) if violation.severity != "soft"]
    assert serious == []
    came, left = marks(json.dumps(vector["messages"])), marks(done.body.decode())
    named = {fix.path for fix in done.fixes}
    for at, message in enumerate(vector["messages"]):
        for place, block in enumerate(message["content"]):
            if (came - left) & marks(json.dumps(block)):
                assert f"messages.{at}.content.{place}" in named


def marks(text):
    return set(re.findall(r"MARK-\w+", text))


def test_vectors_say_why():
    for parameter in vectors("agentcore_converse_requests"):
        assert parameter.values[0]["why"].endswith(".")
