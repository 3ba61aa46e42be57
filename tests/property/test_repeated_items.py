"""Items of Responses that a producer repeats: of consecutive equal items with an id, one stays."""

import json
from itertools import chain

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE

from reknit.pipeline import Session, normalize
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.testing import Kit

HOSTED = [
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "file_search_call", "status": "completed", "queries": ["x"], "results": None},
    {"type": "code_interpreter_call", "status": "completed", "code": "1", "container_id": "c", "outputs": []},
    {"type": "mcp_list_tools", "server_label": "x", "tools": []},
    {"type": "mcp_call", "server_label": "x", "name": "n", "arguments": "{}", "output": "o"},
    {"type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
    {"type": "item_reference"},
]
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
CALLED = [
    {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "done"},
]


@st.composite
def sequences(draw):
    """Items with unique ids, and how often each is repeated in a row."""
    kinds = draw(st.lists(st.sampled_from(HOSTED), min_size=1, max_size=6))
    items = [kind | {"id": f"item_{at}"} for at, kind in enumerate(kinds)]
    if draw(st.booleans()):
        items += CALLED
    times = [draw(st.sampled_from([1, 1, 2, 3])) if "id" in item else 1 for item in items]
    return items, times


def document(items):
    return msgspec.json.encode({"model": "gpt-5", "input": [USER, *items, USER]})


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=20 * SCALE)
@given(sequence=sequences())
def test_repeated_items_do_not_change_the_request(target, sequence):
    items, times = sequence
    again = [item for item, count in zip(items, times, strict=True) for _ in range(count)]
    once, more = (normalize(document(each), to=target) for each in (items, again))
    assert (more.unjudged, more.violations) == (once.unjudged, once.violations)
    dropped = [fix.path for fix in more.fixes if fix.code == "item_repeated"]
    starts = list(chain.from_iterable([False] + [True] * (count - 1) for count in times))
    assert [int(path.split(".")[1]) for path in dropped] == [at for at, repeats in enumerate(starts, 1) if repeats]
    Kit(target).accounted(document(again))


@settings(max_examples=40 * SCALE)
@given(sequence=sequences(), data=st.data())
def test_repeated_items_do_not_change_a_session_saved_in_between(sequence, data):
    items, times = sequence
    again = [item for item, count in zip(items, times, strict=True) for _ in range(count)]
    session, segments = Session(["openai-responses"], model="gpt-5"), []
    for item in [USER, *again, USER]:
        session.append(item)
        if data.draw(st.booleans()):
            segments += session.take_segments(flush=data.draw(st.booleans()))
            session = Session.load(session.head(), [record for _, record in segments])
    found, whole = session.request(), normalize(document(again), to="openai-responses")
    assert (found.unjudged, found.fixes, found.ledger) == (whole.unjudged, whole.fixes, whole.ledger)


@settings(max_examples=40 * SCALE)
@given(
    messages=st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "developer"]), st.integers(1, 3)), min_size=1, max_size=5
    )
)
def test_messages_without_an_id_all_stay(messages):
    items = [
        {"type": "message", "role": role, "content": [{"type": side, "text": f"word {at}."}]}
        for at, (role, count) in enumerate(messages)
        for side in ["output_text" if role == "assistant" else "input_text"] * count
    ]
    done = normalize(document(items), to="openai-responses")
    assert [done.unjudged.count(b"word %d." % at) for at in range(len(messages))] == [count for _, count in messages]
    assert not [fix for fix in done.fixes if fix.code == "item_repeated"]


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([HOSTED[0] | {"id": "ws_1"}, HOSTED[0] | {"id": "ws_1", "status": "failed"}], id="other bytes"),
        pytest.param([HOSTED[0] | {"id": "ws_1"}, USER, HOSTED[0] | {"id": "ws_1"}], id="not adjacent"),
    ],
)
def test_an_item_that_differs_from_the_previous_one_stays_and_is_rejected(items):
    done = normalize(document(items), to="openai-responses")
    sent = json.loads(done.unjudged)["input"][1:-1]
    assert [item for item in sent if item["type"] == "web_search_call"] == [items[0], items[-1]]
    assert "RSP-05" in [found.rule for found in done.violations]
