"""Histories of five sources and many issue threads, each repaired for every target, whole and turn by turn.

Also the results of single histories on each target, with the reasons: histories that crashed a target, were refused, or
vanished without a fix; those that a provider accepts and that must stay unchanged; and those that stay for one target's
models and are repaired for another's in the same session.
"""

import json

import msgspec
import pytest
import reader_results

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.testing import Kit, read_case, run_case

TOOLS = [{"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}]
# A model of each family that has a different form, and the other parameters.
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
    ("mistral", {"model": "mistral-small-latest"}),
    ("mistral", {"model": "mistral-medium-latest"}),
    ("deepseek", {"model": "deepseek-v4-flash"}),
    ("moonshot", {"model": "kimi-k2.6"}),
    ("moonshot", {"model": "kimi-k2-0905-preview"}),
    ("cascade", {"model": "m"}),
    ("cascade", {"model": "m", "tools": TOOLS}),
]
# The vectors of one target each, and their own policy.
OWN = {
    "geny_claude_cli_flatten": ("claude-cli", {}),
    "picoclaw_anthropic_tool_results": ("anthropic", {"tail": "keep", "late_result": "drop"}),
    "agentcore_converse_restore": ("anthropic", {"tail": "keep"}),
    "agentcore_converse_requests": ("bedrock-converse", {"tail": "keep"}),
}


def vectors(name):
    return [pytest.param(vector, id=vector["name"]) for vector in reader_results.vectors(name)]


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


CASES = (
    "lost_or_crashed",
    "harmless_anthropic_converse",
    "harmless_openai",
    "sdk_members",
    "audited_histories",
    "foreign_reasoning",
)


def cases():
    for [case] in (each.values for name in CASES for each in vectors(name)):
        why = case.pop("why")
        for target in [case["to"]] if isinstance(case["to"], str) else case["to"]:
            yield pytest.param(case, target, why, id=f"{case['name']}-{target}")


@pytest.mark.parametrize(("vector", "target", "why"), list(cases()))
def test_history_vectors_normalize_as_expected(vector, target, why):
    case = read_case(json.dumps(vector).encode())
    found = run_case(case, target)
    assert found.failures == [], why


each_structure = pytest.mark.parametrize("vector", vectors("structure"))


def said(done):
    """Return a request's content, and its fixes; nothing if it is refused."""
    messages = None if done.body is None else json.loads(done.body)[TARGETS[done.target].rules.key]
    return {"messages": messages, "fixes": [fix.code for fix in done.fixes]}


@each_structure
def test_each_target_gets_what_its_models_take(vector):
    for target, expected in vector["targets"].items():
        history = {key: vector[key] for key in ("messages", "model") if key in vector}
        assert (target, said(normalize(history, to=target))) == (target, expected)


@each_structure
def test_side_by_side_in_one_session_each_gets_the_same(vector):
    session, records = Session(list(vector["targets"]), model=vector.get("model")), []
    for message in vector["messages"]:
        session.append(msgspec.json.encode(message))
        records += [record for _, record in session.take_segments(flush=True)]
        session = Session.load(session.head(), records)
    assert {target: said(session.request(target)) for target in vector["targets"]} == vector["targets"]


@each_structure
def test_the_promises_hold_whatever_its_models_take(vector):
    for target in vector["targets"]:
        Kit(target, setting={"model": vector["model"]} if "model" in vector else None).check(vector["messages"])
