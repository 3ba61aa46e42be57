"""Every fix of a tool call, of a result, or of something inside one has the id that the call had in the input."""

import json

import pytest
from hypothesis import given, settings
from strategies import SCALE, histories, policies

from reknit.pipeline import Session, normalize
from reknit.pipeline.registry import TARGETS

# These refer to something that has no place in the input.
ADDED = {"result_synthesised", "tail_continued", "assistant_inserted", "lead_inserted", "tools_stubbed"}


def block_at(messages, path):
    """Return the block that contains a place, or None for a whole message or a place outside the messages."""
    steps = path.split(".")
    if steps[0] != "messages" or len(steps) < 4 or steps[2] != "content":
        return {}
    return messages[int(steps[1])]["content"][int(steps[3])]


def called(messages, path):
    block = block_at(messages, path)
    return {"tool_use": block.get("id"), "tool_result": block.get("tool_use_id")}.get(block.get("type"), "")


def calls(messages):
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return {block["id"] for content in contents for block in content if block["type"] == "tool_use"}


def expected(messages, fix):
    if fix.code == "result_synthesised":
        return called(messages, fix.detail.partition(":")[0])
    if not fix.path or (fix.code == "placeholder_dropped" and not fix.before):
        # The repaired block is a result that Reknit added: it answers one of the calls, and has no place in the
        # input.
        return fix.id if fix.id in calls(messages) else "the id of a call"
    return "" if fix.code in ADDED else called(messages, fix.path)


def assert_named(messages, done):
    assert [(fix, fix.id) for fix in done.fixes] == [(fix, expected(messages, fix)) for fix in done.fixes]


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies)
def test_a_fix_has_the_id_of_the_call_in_the_input(target, messages, policy):
    done = normalize(json.dumps(messages), to=target, policy=policy)
    assert_named(messages, done)


@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies)
def test_a_session_saved_between_messages_reports_the_same_ids(messages, policy):
    session = Session(("anthropic", "openai-chat"), policy)
    for message in messages:
        session.append(message)
        session = Session.load(session.head(), [])
    for target in session.targets:
        assert_named(messages, session.request(target))
