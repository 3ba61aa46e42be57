"""Histories of AgentCore and of many issue threads as requests for Converse, Gemini and the Copilot command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import validate
from pipeline.testing import Kit

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


@pytest.mark.parametrize("vector", vectors("agentcore_converse_requests"))
def test_a_restored_history_is_ready_for_converse(vector):
    kit = Kit("bedrock-converse", {"tail": "keep", "strip_tools": vector["strip_tools"]})
    kit.incremental(vector["messages"])
    done = kit.normalize(vector["messages"])
    assert json.loads(done.body)["messages"] == vector["expect"]
    assert done.ids == vector["ids"]
    assert [fix.code for fix in done.fixes] == vector["fixes"]


@pytest.mark.parametrize(("target", "model"), ASKED)
@pytest.mark.parametrize("vector", vectors("broken_histories"))
def test_a_history_that_providers_refuse_is_mended(vector, target, model):
    kit = Kit(target, setting={"model": model} if model else None)
    done = kit.check(vector["messages"])
    assert [found for found in validate(done.body, target, model) if found.severity != "soft"] == []
    kit.marked(vector["messages"])


def test_vectors_say_why():
    for parameter in vectors("agentcore_converse_requests"):
        assert parameter.values[0]["why"].endswith(".")
