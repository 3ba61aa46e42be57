"""A request's rules folded step by step, in any grouping, say what the whole body says; states are values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rules import RULE_SETS, Violation, validate
from pipeline.rules.base import Seen

RULES = RULE_SETS["anthropic"]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"

ids = st.sampled_from(["a", "b", "c", "toolu_1", "x.y", ""])
texts = st.sampled_from(["", " ", "hi", "bye\n", "\ud83d", "é"])
cached = st.fixed_dictionaries(
    {}, optional={"cache_control": st.sampled_from([None, {"type": "ephemeral"}, {"type": "forever"}])}
)


def block(kind: str, **fields: st.SearchStrategy) -> st.SearchStrategy:
    whole = st.fixed_dictionaries({"type": st.just(kind), **fields})
    return st.builds(lambda one, two: {**one, **two}, whole, cached)


inner = st.one_of(
    block("text", text=texts), block("image", source=st.just({"type": "url", "url": "u"})), st.just({"type": "nope"})
)
results = st.one_of(texts, st.lists(inner, max_size=2))
blocks = st.one_of(
    block("text", text=texts),
    block("tool_use", id=ids, name=st.sampled_from(["f", ""]), input=st.sampled_from([{}, "{}", {"k": "\ud83d"}])),
    block("tool_result", tool_use_id=ids, content=results, is_error=st.booleans()),
    block("thinking", thinking=texts, signature=texts),
    block("redacted_thinking", data=texts),
    block("server_tool_use", id=ids, name=st.just("web_search"), input=st.just({})),
    block("web_search_tool_result", tool_use_id=ids, content=st.just([])),
    block("image", source=st.just({"type": "base64", "media_type": "image/png", "data": PIXEL})),
    st.sampled_from([{"type": "nope"}, {}, None, 5, {"type": ["text"]}]),
)
messages = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant", "user", "assistant", "system"]),
                "content": st.one_of(texts, st.lists(blocks, max_size=4)),
            }
        ),
        st.sampled_from(
            [{"role": "user"}, {"role": "tool", "content": "x"}, "x", None, {"role": "assistant", "content": 1}]
        ),
    ),
    max_size=9,
)
heads = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["claude-sonnet-4-5", "claude-opus-4-8", "claude-sonnet-5", "other"]),
        "max_tokens": st.just(4096),
        "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}]),
        "tools": st.just([{"name": "f", "input_schema": {"type": "object"}}]),
        "system": st.sampled_from(["", [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], 5]),
    },
)


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def sort(found: list[Violation]) -> list[str]:
    return sorted(map(repr, found))


def step_all(state, groups):
    found = []
    for group in groups:
        state, more = RULES.step(state, b",".join(map(encode, group)))
        found += more
    return state, found


def split(items: list, cuts: list[int]) -> list[list]:
    at = sorted({cut % (len(items) + 1) for cut in cuts})
    return [items[one:two] for one, two in zip([0, *at], [*at, len(items)], strict=True)]


@settings(max_examples=300)
@given(heads, messages, st.lists(st.integers(0, 8), max_size=4))
def test_any_grouping_says_what_the_whole_body_says(head, history, cuts):
    state, found = RULES.start(encode(head))
    state, more = step_all(state, split(history, cuts))
    folded = found + more + RULES.finish(state)
    assert sort(folded) == sort(validate(encode({**head, "messages": history})))


@settings(max_examples=150)
@given(heads, messages, messages, messages)
def test_a_state_can_be_stepped_from_twice(head, trunk, left, right):
    """Neither branch sees the other, and the state that both left from finishes as it would have before."""

    def alone(*parts):
        state, found = RULES.start(encode(head))
        state, more = step_all(state, parts)
        return sort(found + more + RULES.finish(state))

    state, found = RULES.start(encode(head))
    state, more = step_all(state, [trunk])
    base = found + more
    before = RULES.finish(state)
    ends = [(branch, step_all(state, [branch])) for branch in (left, right)]
    for branch, (end, added) in ends:
        assert sort(base + added + RULES.finish(end)) == alone(trunk, branch)
    assert RULES.finish(state) == before


def test_a_fork_does_not_learn_its_siblings_ids():
    start, _ = RULES.start(b'{"model":"claude-sonnet-4-5","max_tokens":1,"tools":[{"type":"bash_20250124"}]}')
    asked, _ = RULES.step(start, b'{"role":"user","content":"hi"}')
    call = b'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}'
    one, found_one = RULES.step(asked, call)
    two, found_two = RULES.step(asked, call)
    again, _ = RULES.step(one, b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}')
    _, repeated = RULES.step(again, call)
    assert found_one == found_two == []
    assert [violation.rule for violation in repeated] == ["ANT-11"]
    assert [violation.rule for violation in RULES.finish(two)] == ["ANT-07"]
    assert RULES.finish(asked) == []


@given(st.lists(st.sets(st.integers(0, 40).map(str), max_size=6), max_size=30))
def test_a_growing_set_keeps_its_earlier_versions(batches):
    versions, model = [(Seen(), frozenset[str]())], frozenset[str]()
    for batch in batches:
        model |= batch
        versions.append((versions[-1][0].plus(batch), model))
    for seen, expected in versions:
        assert {str(item) for item in range(41) if str(item) in seen} == expected
        assert len(seen.layers) <= 8


def test_no_messages_change_nothing():
    state, _ = RULES.start(b"{}")
    assert RULES.step(state, b"") == (state, [])


@pytest.mark.parametrize("broken", [b"{", b'{"role":', b"\xff", b"]", b'{"role":"user","content":"a"},,', b"NaN"])
def test_text_that_cannot_be_read_ends_the_fold(broken):
    start, _ = RULES.start(b"{}")
    state, found = RULES.step(start, broken)
    assert [violation.rule for violation in found] == ["ANT-32"]
    assert RULES.step(state, b'{"role":"nobody"}') == (state, [])
    assert RULES.finish(state) == []
