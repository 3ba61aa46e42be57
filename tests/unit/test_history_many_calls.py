"""Very many of one kind, calls and more: each result finds its call at once, and twice as many are twice the work."""

from __future__ import annotations

import json
from functools import partial

import pytest
from build import call, result
from counting import lines

from pipeline import normalize
from pipeline.registry import TARGETS


def asked(calls, results):
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]


def written(messages, target):
    return normalize(json.dumps(messages), to=target).unjudged


def test_results_in_the_opposite_order_go_to_their_calls():
    count = 3_000
    calls = [call(f"c{at}") for at in range(count)]
    results = [result(f"c{at}", f"r{at}") for at in range(count)]
    done = normalize(asked(calls, results[::-1]))
    assert [fix.code for fix in done.fixes] == []
    body = json.loads(done.body)["messages"]
    assert {block["tool_use_id"]: block["content"] for block in body[2]["content"]} == {
        f"c{at}": f"r{at}" for at in range(count)
    }


def test_differing_calls_of_one_id_get_the_results_in_order():
    calls = [call("same", at=at) for at in range(50)]
    done = normalize(asked(calls, [result("same", f"r{at}") for at in range(50)]))
    body = json.loads(done.body)["messages"]
    answers = {block["tool_use_id"]: block["content"] for block in body[2]["content"]}
    assert [answers[block["id"]] for block in body[1]["content"]] == [f"r{at}" for at in range(50)]


def test_the_same_call_in_another_order_of_keys_collapses():
    done = normalize(
        asked([call("a", x=1, y={"p": 1, "q": 2}), call("a", y={"q": 2, "p": 1}, x=1)], [result("a", "r")])
    )
    assert [fix.code for fix in done.fixes] == ["call_repeated"]


@pytest.mark.parametrize(("one", "other"), [("true", "1"), ("1e400", "1e401"), ("1", '"1"')])
def test_calls_that_differ_in_a_value_are_two_calls(one, other):
    calls = ",".join(f'{{"type":"tool_use","id":"a","name":"read","input":{{"x":{value}}}}}' for value in (one, other))
    both = f'[{{"role":"user","content":"q"}},{{"role":"assistant","content":[{calls}]}}]'
    done = normalize(both)
    assert len({block["id"] for block in json.loads(done.unjudged)["messages"][1]["content"]}) == 2


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_four_times_the_calls_are_four_times_the_work(target):
    def of(count):
        calls = [call("same" if at % 2 else f"c{at}", at=at) for at in range(count)]
        results = [result(block["id"], str(at)) for at, block in enumerate(calls)]
        return lines(partial(written, asked(calls, results[::-1]), target))

    of(10)  # what is made once
    assert of(800) < 4.2 * of(200)


DOCUMENT = {"type": "document", "title": "notes", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse", "openai-chat", "gemini"])
@pytest.mark.parametrize(
    "history",
    [
        lambda count: [{"role": "user", "content": [DOCUMENT] * count}],
        lambda count: [{"role": "user", "content": [DOCUMENT]}, {"role": "assistant", "content": "a"}] * count,
        lambda count: [{"role": "system", "content": "rule"}] * count + [{"role": "user", "content": "q"}],
        lambda count: [{"role": "user", "content": "q"}] + [{"role": "assistant", "content": [THINKING]}] * count,
        lambda count: [{"role": "user", "content": "q"}, {"role": "assistant", "content": [THINKING]}] * count,
    ],
    ids=[
        "documents of one name",
        "documents of one name, one a message",
        "leading system rows",
        "turns of reasoning in a row",
        "turns of reasoning",
    ],
)
def test_twice_as_many_are_twice_the_work(history, target):
    few, many = (lines(partial(written, history(count), target)) for count in (200, 400))
    assert many < 2.3 * few
