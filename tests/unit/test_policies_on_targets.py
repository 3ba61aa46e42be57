"""The exact effect of each policy on each target, for a short history and for a restored one."""

import json
from itertools import pairwise

import msgspec
import pytest
from build import png, session_of
from reader_results import hard, vectors

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.explain import written_out
from reknit.pipeline.policy import Policy
from reknit.pipeline.registry import TARGETS

HEAD = {"gemini": "gemini-3-pro-preview", "bedrock-converse": "us.anthropic.claude-opus-4-8"}


VECTORS = [
    {**vector, "messages": written_out(vector["messages"]), "expect": written_out(vector["expect"])}
    for vector in vectors("policies")
]
each_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])


def scaled(_data):
    return msgspec.Raw(msgspec.json.encode({"type": "base64", "media_type": "image/png", "data": png(2000, 400)}))


def said(done):
    """Return the content of a request: its messages, or its text."""
    if done.body is None:
        return None
    if TARGETS[done.target].is_prompt:
        return done.body.decode()
    body = json.loads(done.body)
    return body["message"]["content"] if done.target == "claude-cli" else body[TARGETS[done.target].rules.key]


@each_vector
def test_a_policy_on_a_target(vector):
    done = normalize({"messages": vector["messages"]}, to=vector["target"], policy=vector["policy"], scale=scaled)
    assert said(done) == vector["expect"]
    assert [fix.code for fix in done.fixes] == vector["fixes"]
    assert [violation.rule for violation in hard(done)] == ([vector["rule"]] if vector["expect"] is None else [])


@each_vector
def test_a_policy_turn_by_turn(vector):
    session = Session([vector["target"]], vector["policy"], scale=scaled)
    for message in vector["messages"]:
        session.append(msgspec.json.encode(message))
        session.request()
    assert said(session.request()) == vector["expect"]
    assert [fix.code for fix in session.request().fixes] == vector["fixes"]


def test_every_policy_value_has_a_vector_for_every_target():
    shown = {(vector["target"], name, value) for vector in VECTORS for name, value in vector["policy"].items()}
    values = {
        "tail": ("auto", "continue", "prefill", "keep", "reject"),
        "missing_result": ("synthesise", "drop"),
        "orphan_result": ("drop", "text"),
        "late_result": ("replace", "turn", "drop"),
        "incomplete_call": ("drop", "text"),
        "cut_text": ("auto", "keep", "mark", "drop"),
        "media": ("stub", "shrink", "reject"),
        "reasoning": ("keep", "same_issuer", "strip"),
        "strip_tools": (True,),
    }
    emulated = {"cascade"}  # tools emulated in text have vectors of their own
    assert values.keys() | {
        "fit",
        "heal",  # of refusals, which no history has
        "summary",
        "record_assistant",
        "open_exchanges",
        "expires_after",
        "mend",
        "endpoints",
    } == set(Policy.__struct_fields__)
    wanted = {(target, name, value) for target in TARGETS for name, given in values.items() for value in given}
    assert {row for row in wanted if row[0] not in emulated} == {row for row in shown if row[0] not in emulated}


# A restored history, and the turn that comes after it.

RESTORED = vectors("agentcore_converse_requests")
each_restored = pytest.mark.parametrize("vector", RESTORED, ids=lambda vector: vector["name"])
NEXT = {"role": "user", "content": [{"text": "next"}]}


def restored(vector):
    return stripped(*map(msgspec.json.encode, vector["messages"]), strip_tools=vector["strip_tools"])


def stripped(*messages, strip_tools=True):
    policy = {"tail": "keep", "strip_tools": strip_tools}
    return session_of(*messages, targets=["bedrock-converse"], policy=policy)


def in_turns(messages):
    roles = [message["role"] for message in messages]
    return all(one != other for one, other in pairwise(roles)) and roles[:1] in ([], ["user"])


@each_restored
def test_the_turn_after_a_restored_history_is_merged_with_its_end(vector):
    session = restored(vector)
    before = session.request()
    kept = json.loads(before.unjudged)["messages"]
    assert in_turns(kept)
    session.append(NEXT, source="bedrock-converse")
    after = session.request()
    messages = json.loads(after.unjudged)["messages"]
    assert in_turns(messages)
    if kept and kept[-1]["role"] == "user":
        assert messages == [*kept[:-1], {"role": "user", "content": [*kept[-1]["content"], *NEXT["content"]]}]
        assert len(after.ids) == len(before.ids)
    else:
        assert messages == [*kept, NEXT]
        assert after.ids == [*before.ids, None]
    found = validate(after.unjudged, "bedrock-converse", HEAD["bedrock-converse"])
    assert [violation for violation in found if violation.severity != "soft"] == []


@each_restored
def test_a_merged_turn_has_one_id_and_no_tool_or_reasoning_of_a_turn_that_had_tools(vector):
    done = restored(vector).request()
    messages = json.loads(done.unjudged)["messages"]
    assert len(done.ids) == len(messages)
    if vector["strip_tools"]:
        members = {key for message in messages for block in message["content"] for key in block}
        assert not members & {"toolUse", "toolResult"}
        cut = {fix.path.split(".content")[0] for fix in done.fixes if fix.code == "tools_stripped"}
        thought = {entry.path.split(".content")[0] for entry in done.ledger if is_reasoning(entry, messages)}
        assert not cut & thought


def is_reasoning(entry, messages):
    if not entry.output.startswith("messages"):
        return False
    _, at, _, place = entry.output.split(".")
    return "reasoningContent" in messages[int(at)]["content"][int(place)]


def wrapped(number, *blocks, role="assistant", **more):
    return {"message": {"role": role, "content": list(blocks)}, "message_id": number, **more}


USE = {"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}
RESULT = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "r"}]}}
THOUGHT = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}}


@pytest.mark.parametrize("which", ["first", "second", "both"])
def test_a_redaction_holds_on_either_half_of_a_merged_turn(which):
    redaction = {"redact_message": {"role": "assistant", "content": [{"text": "[redacted]"}]}}
    first, second = which in {"first", "both"}, which in {"second", "both"}
    done = stripped(
        wrapped(0, {"text": "q"}, role="user"),
        wrapped(1, {"text": "secret one"}, USE, **(redaction if first else {})),
        wrapped(2, RESULT, role="user"),
        wrapped(3, {"text": "secret two"}, **(redaction if second else {})),
    ).request()
    (_, merged) = json.loads(done.body)["messages"]
    one, two = "[redacted]" if first else "secret one", "[redacted]" if second else "secret two"
    assert merged == {"role": "assistant", "content": [{"text": one}, {"text": two}]}
    assert done.ids == ["0", "3"]


def test_reasoning_is_dropped_with_the_tools_that_it_led_to_and_other_reasoning_stays():
    session = stripped(
        wrapped(0, {"text": "q"}, role="user"),
        wrapped(1, THOUGHT, {"text": "calling"}, USE),
        wrapped(2, RESULT, role="user"),
        wrapped(3, {"text": "done"}),
        wrapped(4, {"text": "q2"}, role="user"),
        wrapped(5, THOUGHT, {"text": "a2"}),
    )
    messages = json.loads(session.request().body)["messages"]
    assert messages[1]["content"] == [{"text": "calling"}, {"text": "done"}]
    assert messages[3]["content"] == [THOUGHT, {"text": "a2"}]


def test_a_turn_before_the_assistants_first_words_is_observed_by_policy():
    given = {"model": HEAD["gemini"], "messages": [{"role": "assistant", "content": "Hi."}]}
    given["messages"].append({"role": "user", "content": "Go on."})
    done = normalize(json.dumps(given).encode(), to="gemini", policy={"mend": {"lead_inserted": "observe"}})
    assert [turn["role"] for turn in json.loads(done.body)["contents"]] == ["model", "user"]
    assert [(fix.code, fix.path, fix.observed) for fix in done.fixes] == [
        ("lead_inserted", "messages.0.content.0", True)
    ]
