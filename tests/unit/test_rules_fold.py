"""Whatever a body holds, the rules answer with violations, and folded step by step they say the same in any grouping.

States are values.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from request_bodies import BODIES

from reknit.pipeline.errors import UnknownTargetError
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Seen, Violation
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.validation import validate

# They name a block in a string, a part that is not in a list, and the message that is missing or none.
PLACES_OF_THEIR_OWN = {"anthropic", "gemini", "bedrock-converse"}
each_target = pytest.mark.parametrize("target", BODIES)


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def fold(target, head, groups):
    """Return the violations of a body whose messages arrive in these groups."""
    state, found = TARGETS[target].rules.judge_head(encode(head))
    state, more = step_all(target, state, groups)
    return sort(found + more + TARGETS[target].rules.judge_end(state))


def step_all(target, state, groups):
    found = []
    for group in groups:
        state, more = TARGETS[target].rules.judge_messages(state, b",".join(map(encode, group)))
        found += more
    return state, found


def sort(found: list[Violation]) -> list[str]:
    return sorted(map(repr, found))


def split(messages: list, cuts: list[int]) -> list[list]:
    at = sorted({cut % (len(messages) + 1) for cut in cuts})
    return [messages[one:two] for one, two in zip([0, *at], [*at, len(messages)], strict=True)]


@each_target
@settings(max_examples=300)
@given(data=st.data())
def test_any_grouping_gives_the_violations_of_the_whole_body(target, data):
    key, heads, histories = BODIES[target]
    head, history = data.draw(heads), data.draw(histories)
    cuts = data.draw(st.lists(st.integers(0, 8), max_size=4))
    body = {**head, key: history}
    found = validate(encode(body), target)
    assert fold(target, head, split(history, cuts)) == sort(found)
    well_formed(found, target)
    for violation in found:
        assert target in PLACES_OF_THEIR_OWN or leads_into(body, violation.path), violation


def well_formed(found: list[Violation], target: str) -> None:
    for violation in found:
        assert RULES[violation.rule].target == target
        assert violation.severity in ("hard", "model", "soft")
        assert violation.message
        assert msgspec.json.decode(msgspec.json.encode(violation), type=Violation) == violation


def leads_into(body, path):
    """Whether a path names a value that is there, or a key that is missing from an object that is."""
    *parents, _ = path.split(".")
    for name in parents:
        body = body[int(name)] if isinstance(body, list) else body[name]
    return isinstance(body, dict | list)


@each_target
@settings(max_examples=100)
@given(data=st.data())
def test_a_state_can_be_stepped_from_twice(target, data):
    """Neither branch sees the other, and the state that both left from finishes as it would have before."""
    _, heads, histories = BODIES[target]
    head, trunk, left, right = data.draw(heads), *(data.draw(histories) for _ in range(3))
    rules = TARGETS[target].rules
    state, found = rules.judge_head(encode(head))
    state, more = step_all(target, state, [trunk])
    base, before = found + more, rules.judge_end(state)
    ends = [(branch, step_all(target, state, [branch])) for branch in (left, right)]
    for branch, (end, added) in ends:
        assert sort(base + added + rules.judge_end(end)) == fold(target, head, [trunk, branch])
    assert rules.judge_end(state) == before


CALLS = {
    "anthropic": (
        b'{"max_tokens":1,"tools":[{"type":"bash_20250124"}]}',
        b'{"role":"user","content":"hi"}',
        b'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}',
        b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}',
        "ANT-11b",
        ["ANT-07"],
    ),
    "bedrock-converse": (
        b'{"toolConfig":{"tools":[{"cachePoint":{}}]}}',
        b'{"role":"user","content":[{"text":"hi"}]}',
        b'{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]}',
        b'{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[]}}]}',
        "BED-06b",
        ["BED-03b"],
    ),
}


@pytest.mark.parametrize("target", CALLS)
def test_a_fork_does_not_learn_its_siblings_ids(target):
    rules = TARGETS[target].rules
    head, question, call, result, twice, unanswered = CALLS[target]
    asked, _ = rules.judge_messages(rules.judge_head(head, "anthropic.claude-sonnet-4-5")[0], question)
    one, found_one = rules.judge_messages(asked, call)
    two, found_two = rules.judge_messages(asked, call)
    again, _ = rules.judge_messages(one, result)
    _, repeated = rules.judge_messages(again, call)
    assert found_one == found_two == []
    assert [violation.rule for violation in repeated] == [twice]
    assert [violation.rule for violation in rules.judge_end(two)] == unanswered
    assert rules.judge_end(asked) == []


@given(st.lists(st.sets(st.integers(0, 40).map(str), max_size=6), max_size=30))
def test_a_growing_set_keeps_its_earlier_versions(batches):
    versions, model = [(Seen(), frozenset[str]())], frozenset[str]()
    for batch in batches:
        model |= batch
        versions.append((versions[-1][0].plus(batch), model))
    for seen, expected in versions:
        assert {str(item) for item in range(41) if str(item) in seen} == expected
        assert len(seen.layers) <= 8


@each_target
@pytest.mark.parametrize("nothing", [b"", b" "])
def test_judging_no_messages_changes_nothing(target, nothing):
    state, _ = TARGETS[target].rules.judge_head(b"{}")
    assert TARGETS[target].rules.judge_messages(state, nothing) == (state, [])


BROKEN = [b"{", b'{"role":', b"\xff", b"]", b'{"role":"user","content":"a"},,', b"NaN", b"[" * 5000]


@each_target
@pytest.mark.parametrize("broken", BROKEN)
def test_unreadable_text_ends_the_fold(target, broken):
    rules = TARGETS[target].rules
    state, found = rules.judge_messages(rules.judge_head(b"{}")[0], broken)
    assert [(violation.rule, violation.severity) for violation in found] == [(rules.not_json.id, "hard")]
    assert rules.judge_messages(state, b'{"role":"nobody"}') == (state, [])
    assert rules.judge_end(state) == []
    ended, found = rules.judge_head(b"[]")
    assert [violation.rule for violation in found] == ["ANT-35" if target == "anthropic" else rules.not_json.id]
    assert rules.judge_end(ended) == []


# No request at all, or one of any JSON.

# Any words are a prompt; for the others a body is JSON.
JSON_TARGETS = [target for target in sorted(TARGETS) if target not in ("codex-cli", "copilot-cli", "gemini-cli")]
KEYS = [
    "messages", "role", "content", "type", "text", "tool_use", "tool_result", "tool_use_id", "id", "name", "input",
    "source", "data", "media_type", "base64", "image", "document", "thinking", "signature", "system", "tools",
    "cache_control", "ephemeral", "ttl", "model", "max_tokens", "user", "assistant", "message", "server_tool_use",
    "input_schema", "tool_choice", "temperature", "budget_tokens", "enabled", "fallback", "from", "to",
    "contents", "parts", "functionCall", "function_call", "functionResponse", "args", "response", "inline_data",
    "mimeType", "thoughtSignature", "functionDeclarations", "generationConfig", "toolUse", "toolResult", "toolUseId",
    "json", "bytes", "toolConfig", "toolSpec", "inputSchema", "inferenceConfig", "modelId", "format",
]  # fmt: skip
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(KEYS))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)),
    max_leaves=25,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=8)
places = st.sampled_from(["messages", "contents", "input"])
bodies = st.one_of(
    objects,
    st.builds(lambda head, key, messages: {**head, key: messages}, objects, places, st.lists(objects, max_size=4)),
    st.builds(
        lambda key, role, inner, content: {key: [{"role": role, inner: content}]},
        places,
        values,
        st.sampled_from(["content", "parts"]),
        st.lists(objects),
    ),
)


@settings(max_examples=600)
@given(bodies, st.sampled_from(sorted(TARGETS)))
@example({"thinking": {"type": []}}, "anthropic")
def test_arbitrary_json(body, target):
    well_formed(validate(body, target), target)
    well_formed(validate(json.dumps(body), target), target)


@settings(max_examples=100)
@given(st.binary(max_size=40), st.text(max_size=40), st.sampled_from(sorted(TARGETS)))
def test_arbitrary_bytes_and_text(data, text, target):
    assert validate(data, target) or target not in JSON_TARGETS
    well_formed(validate(data, target), target)
    well_formed(validate(text, target), target)


@pytest.mark.parametrize("target", JSON_TARGETS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"[]", b"5", b'"x"', b"{", b"[" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"\xff\xfe",
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}', b'{"messages":NaN}', b"\x00",
        b'{"messages":[' + b"[" * 3000 + b"]" * 3000 + b"]}", b'{"max_tokens":1e999,"messages":[]}',
        b'{"messages":[],"max_tokens":' + b"9" * 5000 + b"}",
        *(b'{"%b":%b}' % (key, value) for key in (b"messages", b"contents", b"input") for value in (b"5", b"{}")),
        {"messages": {1, 2}}, {"messages": [object()]}, {1: 2}, {"x": float("nan")}, {"messages": "\ud800"},
    ],
)  # fmt: skip
def test_bodies_that_are_not_requests(body, target):
    found = validate(body, target)
    assert [violation for violation in found if violation.severity == "hard"]
    well_formed(found, target)


def test_a_lone_surrogate_in_an_id_or_a_key_is_escaped_in_the_report():
    call = {"type": "tool_use", "id": "a\ud83d", "name": "f", "input": {}, "k\ud83d": 1}
    found = validate({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]}]})
    well_formed(found, "anthropic")
    assert {violation.path for violation in found if violation.rule == "ANT-34"} == {r"messages.1.content.0.k\ud83d"}
    assert any(r"after: a\ud83d. Each" in violation.message for violation in found)


def test_every_path_leads_into_the_body():
    """A path names a value that is there, or a key that is missing from an object that is."""
    body = {
        "model": 5, "max_tokens": "x", "temperature": 2, "system": [{"type": "text", "text": ""}, 5],
        "tools": [{"name": "a b", "extra": 1}, 5],
        "messages": [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "", "z": 1}, {"type": "nope"}, None, {"text": "x"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a.b", "name": "", "input": []}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": 5}]}]},
        ],
    }  # fmt: skip
    found = validate(body)
    assert len(found) > 15
    assert [violation for violation in found if not leads_into(body, violation.path)] == []


def test_an_unknown_target_is_the_callers_fault():
    with pytest.raises(UnknownTargetError, match=r"expected one of anthropic, .*vllm, got 'nowhere'"):
        validate(b"{}", "nowhere")
