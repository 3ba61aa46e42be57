"""Histories of five sources and many issue threads, each mended for every target, whole and turn by turn."""

import json
from pathlib import Path

import pytest

from pipeline import validate
from pipeline.registry import TARGETS
from pipeline.testing import Kit

HERE = Path(__file__).parent
TOOLS = [{"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}]
# A model of each family that is written for differently, and what else stands beside the messages.
ASKED = [
    ("anthropic", {}),
    ("claude-cli", {}),
    ("codex-cli", {}),
    ("gemini-cli", {}),
    ("copilot-cli", {}),
    ("bedrock-converse", {"model": "us.anthropic.claude-opus-4-8"}),
    ("bedrock-converse", {"model": "us.amazon.nova-pro-v1:0"}),
    ("bedrock-converse", {"model": "us.meta.llama3-3-70b-instruct-v1:0"}),
    ("gemini", {"model": "gemini-2.5-flash"}),
    ("gemini", {"model": "gemini-3-pro-preview"}),
    ("openai-chat", {"model": "gpt-5-mini"}),
    ("openai-chat", {"model": "kimi-k2-thinking"}),
    ("openai-responses", {"model": "gpt-5-mini"}),
    ("vllm", {"model": "Qwen/Qwen3.5-9B"}),
    ("vllm", {"model": "meta-llama/Llama-3.1-8B-Instruct"}),
    ("vllm", {"model": "mistralai/Mistral-7B-Instruct-v0.3"}),
    ("vllm", {"model": "google/gemma-3-27b-it"}),
    ("cascade", {"model": "m"}),
    ("cascade", {"model": "m", "tools": TOOLS}),
]
# The vectors of one target each, and what their own policy says beside their head.
OWN = {
    "geny_claude_cli_flatten": ("claude-cli", {}),
    "picoclaw_anthropic_tool_results": ("anthropic", {"tail": "keep"}),
    "agentcore_converse_restore": ("anthropic", {"tail": "keep"}),
    "agentcore_converse_requests": ("bedrock-converse", {"tail": "keep"}),
}


def vectors(name):
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [pytest.param(json.loads(line), id=json.loads(line)["name"]) for line in lines]


@pytest.mark.parametrize(
    ("source", "vector"), [pytest.param(name, *each.values, id=each.id) for name in OWN for each in vectors(name)]
)
def test_a_history_of_a_program_is_what_the_program_should_have_sent(source, vector):
    target, policy = OWN[source]
    kit = Kit(target, policy | {key: vector[key] for key in ("strip_tools",) if key in vector})
    kit.incremental(vector["messages"])
    done = kit.normalize(vector["messages"])
    assert [fix.code for fix in done.fixes] == vector["fixes"]
    assert done.ids == vector.get("ids", done.ids)
    assert vector["why"].endswith(".")
    if target != "claude-cli":
        assert json.loads(done.body)["messages"] == vector["expect"]
    elif vector["stdin"]:
        # The vectors hold non-ASCII as it is; the same JSON is written in ASCII, with the same spaces.
        assert done.text == json.dumps(json.loads(vector["stdin"])) + "\n"
    else:
        assert done.body is None
        assert [violation.rule for violation in done.violations] == ["CLI-05"]


@pytest.mark.parametrize("vector", vectors("broken_histories"))
def test_a_history_that_providers_refuse_becomes_exactly_this(vector):
    done = Kit().normalize(vector["messages"])
    assert json.loads(done.body)["messages"] == vector["expect"]
    assert [fix.code for fix in done.fixes] == vector["fixes"]


@pytest.mark.parametrize(("target", "setting"), ASKED)
@pytest.mark.parametrize("vector", vectors("broken_histories"))
def test_a_history_that_providers_refuse_is_mended_and_loses_no_mark_without_a_fix(vector, target, setting):
    kit = Kit(target, setting=setting)
    done = kit.check(vector["messages"])
    kit.marked(vector["messages"])
    found = validate(done.body, target, setting.get("model"))
    assert [violation for violation in found if violation.severity != "soft" or target == "cascade"] == []


def test_every_target_is_here():
    assert {target for target, _ in ASKED} == set(TARGETS)
