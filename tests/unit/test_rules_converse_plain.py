"""Converse's rules say of a request the same with and without the pass over its plain messages."""

from unittest.mock import patch

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reknit.pipeline.providers.bedrock_converse import rules as converse
from reknit.pipeline.providers.bedrock_converse.rules import pass_plain
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.validation import validate

HEAD = {"modelId": "anthropic.claude-3-haiku", "toolConfig": {"tools": []}}
models = st.sampled_from(["anthropic.claude-3-haiku", "us.deepseek.r1-v1:0", "amazon.nova-lite-v1:0", "other"])
texts = st.sampled_from(["a", "b c", "a", "", " "])
ids = st.sampled_from(["t1", "t2", "t3", "t.4", "x" * 65, ""])
calls = st.fixed_dictionaries(
    {"toolUseId": ids, "name": st.sampled_from(["f", "f", "f-2", "f.3", ""]), "input": st.just({})},
    optional={"type": st.just("server_tool_use")},
)
odd = st.sampled_from(
    [
        {"text": "a", "cachePoint": {"type": "default"}},
        {"cachePoint": {"type": "default"}},
        {"reasoningContent": {"reasoningText": {"text": "r"}}},
        {"document": {"name": "d", "format": "pdf", "source": {"bytes": "AAAA"}}},
        {"other": 1},
        5,
        {},
    ]
)
# Claude's form, no known one, OpenAI's, Vertex's, and none.
signatures = st.sampled_from(["EqQBCkYIAxgCKkDXXXXX", "sig", "gAAAAB", "claude#x", "", None])
reasoned = st.one_of(
    st.builds(lambda signed: {"reasoningContent": {"reasoningText": {"text": "r", "signature": signed}}}, signatures),
    st.just({"reasoningContent": {"redactedContent": "AAAA"}}),
)
said = st.builds(lambda text: {"text": text}, texts)
asked = st.builds(lambda call: {"toolUse": call}, calls)
parts = st.one_of(said, said, st.sampled_from([{"json": {}}, {"text": "a", "json": {}}, {"other": 1}]))
answered = st.builds(
    lambda call, content, status: {"toolResult": {"toolUseId": call, "content": content, "status": status}},
    ids,
    st.lists(parts, max_size=2),
    st.sampled_from(["success", "error"]),
)
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.one_of(st.lists(st.one_of(said, asked, answered, odd), max_size=3), st.just("a")),
    }
)


@st.composite
def rounds(draw):
    """Users and assistants take turns and calls are answered, nearly always."""
    made = []
    waiting = []
    for _ in range(draw(st.integers(0, 4))):
        results = [
            {"toolResult": {"toolUseId": call, "content": [{"text": draw(texts)}], "status": "success"}}
            for call in waiting
        ]
        made.append({"role": "user", "content": results or [draw(said)]})
        blocks = draw(st.lists(st.one_of(said, asked, asked, reasoned), min_size=1, max_size=3))
        made.append({"role": "assistant", "content": blocks})
        waiting = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    at = draw(st.integers(0, len(made)))
    return [*made[:at], *draw(st.lists(messages, max_size=1)), *made[at:]]


def turn(role, *blocks):
    return {"role": role, "content": list(blocks)}


def call(call_id):
    return {"toolUse": {"toolUseId": call_id, "name": "f", "input": {}}}


def result(call_id):
    return {"toolResult": {"toolUseId": call_id, "content": [{"text": "out"}]}}


SAID = {"text": "a"}
VALID = [
    turn("user", SAID),
    turn("assistant", SAID, call("t1"), call("t2")),
    turn("user", result("t1"), result("t2")),
    turn("assistant", call("t3")),
    turn("user", result("t3")),
    turn("assistant", SAID),
]


@settings(max_examples=300)
@given(st.one_of(rounds(), st.lists(messages, max_size=4)), st.integers(0, 8), models)
@example([*VALID, turn("user", SAID), turn("assistant", call("t1"))], 4, "other")
@example([*VALID[:4], turn("assistant", call("t3"))], 4, "other")
@example([*VALID[:4], turn("user", result("t1"))], 2, "other")
# One id twice in an answer, and its results twice, or an id that older models refuse: the pass must not begin there.
@example([VALID[0], turn("assistant", call("t"), call("t")), turn("user", result("t"), result("t")), VALID[5]], 0, "")
@example([VALID[0], turn("assistant", call("t.4")), turn("user", result("t.4")), VALID[5]], 0, "other")
# An id that comes again in a later part.
@example([*VALID, turn("user", SAID), turn("assistant", call("t1")), turn("user", result("t1")), VALID[5]], 6, "other")
def test_violations_are_the_same_with_and_without_the_fast_pass(listed, cut, model):
    head = HEAD | {"modelId": model}
    body = msgspec.json.encode(head | {"messages": listed})
    with patch.object(converse, "pass_plain", lambda walk, items, start: 0):
        expected = validate(body, "bedrock-converse")
    assert validate(body, "bedrock-converse") == expected
    rules = TARGETS["bedrock-converse"].rules
    state, found = rules.judge_head(msgspec.json.encode(head))
    for some in (listed[:cut], listed[cut:]):
        state, more = rules.judge_messages(state, msgspec.json.encode(some)[1:-1])
        found += more
    found += rules.judge_end(state)
    assert sorted(map(msgspec.json.encode, found)) == sorted(map(msgspec.json.encode, expected))


def test_the_fast_pass_covers_a_valid_history_up_to_its_last_pair():
    rules = TARGETS["bedrock-converse"].rules
    items = rules.items.decode(msgspec.json.encode([*VALID, turn("user", SAID)]))
    walk, _ = rules.judge_head(msgspec.json.encode(HEAD))
    assert pass_plain(walk, items, 0) == 6
    assert (walk.index, walk.role, walk.run_at, walk.calls, walk.results) == (6, "assistant", 5, (), ())
    assert "t3" in walk.ids
    assert walk.tool_blocks


def test_the_fast_pass_resumes_after_messages_that_it_does_not_know():
    rules = TARGETS["bedrock-converse"].rules
    image = {"image": {"format": "png", "source": {"bytes": "AAAA"}}}
    listed = [turn("user", image, SAID), turn("assistant", call("t0")), turn("user", result("t0")), *VALID[1:]]
    one_by_one = []
    judge_item = converse.Turns.judge_item
    with patch.object(
        converse.Turns, "judge_item", lambda walk, item: one_by_one.append(walk.index) or judge_item(walk, item)
    ):
        state, _ = rules.judge_head(msgspec.json.encode(HEAD))
        rules.judge_messages(state, msgspec.json.encode(listed)[1:-1])
    assert one_by_one == [0, 1]
