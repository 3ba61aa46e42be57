"""Repaired lists of messages: untouched messages stay the same objects, and nothing is left to repair.

The histories are those of the frameworks' samples, in each shape that the integrations write.
"""

import json
import logging

import pytest
from framework_cases import cases

import reknit
from reknit.pipeline.errors import PolicyError, UnknownTargetError
from reknit.pipeline.history.writers import WRITERS
from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.written import framework_writer, request_writer

TARGETS = ("anthropic", "openai-chat", "openai-responses", "gemini", "bedrock-converse")
SAMPLES = [case for case in cases() if "expect" in case]
# The shape that is read, the writer of its messages, and whether the results of a turn are in one message.
SHAPES = {
    "langchain": ("langchain", framework_writer("langchain"), False),
    "pydantic-ai": ("pydantic-ai", framework_writer("pydantic-ai"), False),
    "openai-agents": ("openai-agents", framework_writer("openai-agents"), False),
    "strands": ("bedrock-converse", framework_writer("strands"), True),
    "openai-chat": ("openai-chat", request_writer("openai-chat"), False),
    "anthropic": ("anthropic", request_writer("anthropic"), True),
    "gemini": ("gemini", request_writer("gemini"), True),
}
ROOTS = {"gemini": "contents"}
# A call without a result, a result without a call, and a result that comes twice.
CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}} for each in ("c1", "c2")
        ],
    },
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "tool", "tool_call_id": "c9", "content": "nine"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "user", "content": "And?"},
]


def messages_of(case, shape):
    """Return a sample's messages in a shape, broken where the sample is; None where the shape has none of them."""
    if shape in WRITERS:
        found = reknit.convert(case["text"], to=shape).messages
        return [each["message"] for each in found] if shape == "strands" else found
    done = reknit.normalize(case["text"], shape)
    return json.loads(done.unjudged)[ROOTS.get(shape, "messages")]


def repair(shape, target, **more):
    source, write, joins = SHAPES[shape]
    return MessageRepair(source, write, target, joins=joins, **more)


def repaired(given, shape, target, **more):
    def load(members, _origin):
        return members["message"] if shape == "strands" else members

    return repair(shape, target, **more).repaired(given, list, load)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_repaired_sample_needs_no_second_repair(shape, target, caplog):
    count = 0
    for case in SAMPLES:
        given = messages_of(case, shape)
        before = json.dumps(given)
        done = repaired(given, shape, target)
        assert json.dumps(given) == before
        if done is not None:
            count += 1
            assert repaired(done, shape, target) is None, case["case"]
            assert done != given
    assert caplog.records == []
    # What `convert` writes is as broken as the sample; a request is written in its provider's own structure.
    assert count > 0 or shape not in WRITERS


@pytest.mark.parametrize("shape", ["langchain", "pydantic-ai", "openai-agents", "strands"])
def test_a_repaired_sample_has_no_structural_repair_in_a_request(shape):
    structural = {"result_synthesised", "result_orphan", "result_duplicate", "result_repeated", "call_incomplete"}
    for case in SAMPLES:
        given = messages_of(case, shape)
        done = repaired(given, shape, "anthropic") or given
        found = reknit.normalize(done, "anthropic", source=SHAPES[shape][0]) if done else None
        assert found is None or structural.isdisjoint(fix.code for fix in found.fixes), case["case"]


def test_messages_that_the_repair_does_not_touch_are_the_same_objects():
    fixes = []
    done = repaired(CHAT, "openai-chat", "openai-chat", on_fixes=fixes.extend)
    assert [message["role"] for message in done] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert all(done[at] is CHAT[at] for at in (0, 1, 2, 3))
    assert done[5] is CHAT[6]
    assert done[4]["tool_call_id"] == "c1"
    assert sorted(fix.code for fix in fixes) == ["result_orphan", "result_repeated", "result_synthesised"]


def test_a_valid_list_is_not_changed():
    fixes = []
    valid = [*CHAT[:2], {"role": "assistant", "content": "Done."}, CHAT[6]]
    assert repaired(valid, "openai-chat", "openai-chat", on_fixes=fixes.extend) is None
    assert repaired([], "openai-chat", "openai-chat", on_fixes=fixes.extend) is None
    assert fixes == []


def test_a_policy_decides_as_in_normalize():
    done = repaired(CHAT, "openai-chat", "openai-chat", policy={"missing_result": "drop"})
    calls = [call["id"] for message in done for call in message.get("tool_calls", ())]
    assert calls == ["c2"]


def test_what_cannot_be_read_is_passed_on_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "reknit.integrations"):
        assert repaired([{"role": "user", "content": object()}], "openai-chat", "openai-chat") is None
        assert repaired([CHAT[1], "text"], "langchain", "anthropic") is None
    assert len(caplog.records) == 2
    assert all("passed on unchanged" in record.message for record in caplog.records)


def test_an_error_of_the_frameworks_own_classes_is_a_warning(caplog):
    def fail(*_):
        raise RuntimeError("no such message")

    assert repair("openai-chat", "openai-chat").repaired(CHAT, list, fail) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_wrong_configuration_is_an_error_at_once():
    with pytest.raises(UnknownTargetError):
        repair("langchain", "no-api")
    with pytest.raises(PolicyError):
        repair("langchain", "anthropic", policy={"missing_result": "maybe"})
