"""Calls and results: the pairing of results with calls, and the outcome of unpaired ones."""

from __future__ import annotations

import json
from functools import partial

import pytest
from build import call, image, png, result, said, session_of, text, thinking, user
from work_counter import lines

from reknit.pipeline import normalize
from reknit.pipeline.history.placeholders import INTERRUPTED, PLACEHOLDERS, TEMPLATES
from reknit.pipeline.registry import TARGETS


def missing(call_id):
    return result(call_id, INTERRUPTED, is_error=True)


def mended(*messages, **policy):
    done = normalize(list(messages), policy={"tail": "keep"} | policy)
    return json.loads(done.body)["messages"], [fix.code for fix in done.fixes]


def test_a_displaced_result_returns_to_its_call():
    messages, codes = mended(
        user("q"), said(call("a")), user("still there?"), said("wait"), user(result("a")), said("so")
    )
    assert messages == [user("q"), said(call("a")), user(result("a"), "still there?"), said("wait"), said("so")]
    assert codes == ["result_moved"]


def test_a_result_displaced_by_less_than_the_window_is_still_paired():
    chatter = [message for _ in range(3) for message in (said("wait"), user("and now?"))]
    messages, codes = mended(user("q"), said(call("a")), user("hm"), *chatter, user(result("a")))
    assert messages[2] == user(result("a"), "hm")
    assert codes == ["result_moved"]


@pytest.mark.parametrize(("orphan", "code"), [("drop", "result_late"), ("text", "result_late_text")])
def test_a_result_after_its_call_was_settled_is_late(orphan, code):
    chatter = [message for _ in range(4) for message in (said("wait"), user("and now?"))]
    history = [user("q"), said(call("a")), user("hm"), *chatter, user(result("a", "at last"))]
    messages, codes = mended(*history, orphan_result=orphan, late_result="drop")
    assert messages[2] == user(missing("a"), "hm")
    assert codes[:2] == ["result_synthesised", code]
    assert ("at last" in json.dumps(messages)) == (orphan == "text")


def test_the_window_is_configurable():
    history = [user("q"), said(call("a")), user("hm"), said("wait"), user(result("a"))]
    assert mended(*history, open_exchanges=2, late_result="drop")[1] == ["result_synthesised", "result_late"]
    assert mended(*history, open_exchanges=2)[1] == ["result_synthesised", "result_late_turn"]
    assert mended(*history, open_exchanges=3)[1] == ["result_moved"]


def test_ids_reused_in_each_round_survive_with_their_results():
    rounds = [message for n in range(3) for message in (said(call("call_0", n=n)), user(result("call_0", f"r{n}")))]
    messages, codes = mended(user("q"), *rounds)
    assert (messages, codes) == ([user("q"), *rounds], [])


def test_a_second_result_of_a_call_is_dropped_and_a_different_one_is_reported():
    assert mended(user("q"), said(call("a")), user(result("a", "1"), result("a", "1")))[1] == ["result_repeated"]
    messages, codes = mended(user("q"), said(call("a")), user(result("a", "1"), result("a", "2")), late_result="drop")
    assert messages[2] == user(result("a", "1"))
    assert codes == ["result_duplicate"]


def test_a_duplicate_of_a_settled_result_is_dropped():
    settled = [user("q"), said(call("a")), user(result("a")), said("so"), user("on"), said("ok")]
    assert mended(*settled, user(result("a", "x")), late_result="drop")[1] == ["result_duplicate"]


@pytest.mark.parametrize("words", sorted(PLACEHOLDERS))
@pytest.mark.parametrize("order", ["before", "after", "later"])
def test_a_placeholder_is_replaced_by_the_real_result(words, order):
    empty, real = result("a", words), result("a", "real")
    turns = {
        "before": [user(empty, real)],
        "after": [user(real, empty)],
        "later": [user(empty), said("hm"), user(real)],
    }[order]
    messages, codes = mended(user("q"), said(call("a")), *turns)
    assert messages[2] == user(real)
    assert "placeholder_dropped" in codes


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_a_placeholder_may_name_its_call(template):
    own = result("a", template.replace("{name}", "ls").replace("{id}", "a"))
    others = result("a", template.replace("{name}", "rm").replace("{id}", "b"))
    real = result("a", "real")
    assert mended(user("q"), said(call("a")), user(own, real))[0][2] == user(real)
    assert mended(user("q"), said(call("a")), user(others, real), late_result="drop")[0][2] == user(others)


def test_a_placeholder_without_a_real_result_is_the_answer():
    history = [user("q"), said(call("a")), user(result("a", "[Request interrupted by user]"), "stop")]
    assert mended(*history) == (history, [])


def test_a_real_result_that_only_begins_like_a_placeholder_is_real():
    real = result("a", "aborted: 3 files left")
    assert mended(user("q"), said(call("a")), user(real, result("a", "aborted")))[0][2] == user(real)


def test_identical_calls_of_one_turn_collapse():
    messages, codes = mended(user("q"), said(call("a", x=1), call("a", x=1)), user(result("a")))
    assert messages[1] == said(call("a", x=1))
    assert codes == ["call_repeated"]


def test_differing_calls_with_one_id_are_paired_in_order():
    messages, codes = mended(user("q"), said(call("a", x=1), call("a", x=2)), user(result("a", "1"), result("a", "2")))
    second = messages[1]["content"][1]["id"]
    assert second != "a"
    assert messages[2] == user(result("a", "1"), result(second, "2"))
    assert codes == ["id_rewritten", "id_rewritten"]


def test_calls_of_neighbouring_turns_may_be_answered_together():
    history = [user("q"), said(call("a")), said(call("b")), user(result("a"), result("b"))]
    assert mended(*history) == (history, [])


def test_an_orphan_kept_as_text_keeps_its_media():
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    messages, codes = mended(user(result("x", [text("seen"), picture])), orphan_result="text")
    assert messages == [user("[Tool result without its call]\nseen", picture)]
    assert codes == ["result_orphan_text"]


def test_a_call_without_a_result_may_be_dropped():
    messages, codes = mended(user("q"), said(call("a")), user("never mind"), said("ok"), missing_result="drop")
    assert messages == [user("q"), user("never mind"), said("ok")]
    assert codes == ["call_unanswered"]


def test_a_dropped_call_returns_with_its_result():
    session = session_of(user("q"), said(call("a")), user("well?"), policy={"missing_result": "drop"})
    assert json.loads(session.request().body)["messages"] == [user("q"), user("well?")]
    session.append(said("wait"))
    session.append(user(result("a")))
    back = [user("q"), said(call("a")), user(result("a"), "well?")]
    assert json.loads(session.request().body)["messages"][:3] == back


def test_an_incomplete_call_is_never_completed():
    cut = {"type": "tool_use", "id": "a", "name": "rm", "input": '{"path": "/a', "incomplete": True}
    done = normalize([user("q"), said("I will", cut), user("stop")])
    assert json.loads(done.body)["messages"] == [user("q"), said("I will"), user("stop")]
    assert [(fix.code, fix.detail) for fix in done.fixes] == [("call_incomplete", '{"path": "/a')]
    kept, codes = mended(user("q"), said(cut), user("stop"), incomplete_call="text")
    assert kept[1]["content"][0]["type"] == "text"
    assert codes == ["call_incomplete_text"]


def test_results_in_an_assistant_turn_are_moved_to_a_user_turn():
    messages, codes = mended(user("q"), said(call("a"), result("a"), "so"), user("on"))
    assert messages == [user("q"), said(call("a")), user(result("a")), said("so"), user("on")]
    assert codes == ["block_moved"]


def test_text_after_a_call_is_moved_before_it():
    messages, codes = mended(user("q"), said(call("a"), "let me see", call("b")), user(result("a"), result("b")))
    assert messages[1] == said("let me see", call("a"), call("b"))
    assert codes == ["call_moved"]


def test_a_result_with_more_than_a_placeholder_is_real():
    content = [text(min(PLACEHOLDERS)), text("and then the files")]
    history = [user("q"), said(call("a")), user(result("a", content)), user(result("a", "late"))]
    messages, codes = mended(*history, late_result="drop")
    assert messages[2] == user(result("a", content))
    assert codes == ["result_duplicate"]


def test_a_late_result_of_one_of_several_dropped_calls_is_late():
    chatter = [message for _ in range(4) for message in (said("wait"), user("and now?"))]
    history = [user("q"), said("one moment", call("a"), call("b")), user(result("a")), *chatter, user(result("b"))]
    _, codes = mended(*history, missing_result="drop", orphan_result="drop", late_result="drop")
    assert codes == ["call_unanswered", "result_late"]


def test_user_turns_around_a_turn_with_only_reasoning_are_merged():
    history = [user("q"), said("well"), user("go"), said(thinking("hm", signature="s"), call("a")), user("on")]
    done = normalize(history, to="bedrock-converse", policy={"missing_result": "drop"})
    assert json.loads(done.body)["messages"][2:] == [{"role": "user", "content": [{"text": "go"}, {"text": "on"}]}]
    assert [fix.code for fix in done.fixes] == ["call_unanswered", "reasoning_alone", "turns_merged"]


def test_synthesised_results_are_placed_after_the_real_ones():
    history = [user("q"), said(call("a"), call("b"), call("c")), user(result("a")), said("so"), user("on")]
    places = [fix.path for fix in normalize(history).fixes if fix.code == "result_synthesised"]
    assert places == ["messages.2.content.1", "messages.2.content.2"]


def test_each_repaired_medium_of_a_result_is_reported():
    folded = image(f"{png()[:20]}\n{png()[20:]}")
    done = normalize([user("q"), said(call("a")), user(result("a", [folded, text("x"), folded]))])
    assert [(fix.path, fix.detail) for fix in done.fixes] == [("messages.2.content.0", "content.0, content.2")]


# Large numbers of calls, results and duplicates: pairing takes constant time per result, so the total is linear.


def with_results(calls, results):
    return [user("q"), said(*calls), user(*results)]


def written(messages, target):
    return normalize(json.dumps(messages), to=target).unjudged


def test_results_in_the_opposite_order_are_paired_with_their_calls():
    count = 3_000
    calls = [call(f"c{at}") for at in range(count)]
    results = [result(f"c{at}", f"r{at}") for at in range(count)]
    done = normalize(with_results(calls, results[::-1]))
    assert [fix.code for fix in done.fixes] == []
    body = json.loads(done.body)["messages"]
    assert {block["tool_use_id"]: block["content"] for block in body[2]["content"]} == {
        f"c{at}": f"r{at}" for at in range(count)
    }


def test_differing_calls_of_one_id_get_the_results_in_order():
    calls = [call("same", at=at) for at in range(50)]
    done = normalize(with_results(calls, [result("same", f"r{at}") for at in range(50)]))
    body = json.loads(done.body)["messages"]
    answers = {block["tool_use_id"]: block["content"] for block in body[2]["content"]}
    assert [answers[block["id"]] for block in body[1]["content"]] == [f"r{at}" for at in range(50)]


def test_the_same_call_in_another_order_of_keys_collapses():
    done = normalize(
        with_results([call("a", x=1, y={"p": 1, "q": 2}), call("a", y={"q": 2, "p": 1}, x=1)], [result("a", "r")])
    )
    assert [fix.code for fix in done.fixes] == ["call_repeated"]


@pytest.mark.parametrize(("one", "other"), [("true", "1"), ("1e400", "1e401"), ("1", '"1"')])
def test_calls_that_differ_in_a_value_are_two_calls(one, other):
    calls = ",".join(f'{{"type":"tool_use","id":"a","name":"read","input":{{"x":{value}}}}}' for value in (one, other))
    both = f'[{{"role":"user","content":"q"}},{{"role":"assistant","content":[{calls}]}}]'
    done = normalize(both)
    assert len({block["id"] for block in json.loads(done.unjudged)["messages"][1]["content"]}) == 2


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_work_is_linear_in_the_number_of_calls(target):
    def of(count):
        calls = [call("same" if at % 2 else f"c{at}", at=at) for at in range(count)]
        results = [result(block["id"], str(at)) for at, block in enumerate(calls)]
        return lines(partial(written, with_results(calls, results[::-1]), target))

    of(10)  # work that is done once
    assert of(800) < 4.2 * of(200)


DOCUMENT = {"type": "document", "title": "notes", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}
THINKING = thinking(signature="c2ln")


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
def test_the_work_is_linear_in_the_number_of_calls_and_results(history, target):
    few, many = (lines(partial(written, history(count), target)) for count in (200, 400))
    assert many < 2.3 * few
