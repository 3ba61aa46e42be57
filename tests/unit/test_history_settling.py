"""The settled and the open part of a history, and the model's turn."""

from __future__ import annotations

import json
from functools import partial

import pytest
from build import answered, called, result, session_of, text
from work_counter import function_calls

from reknit.pipeline import Session, normalize
from reknit.pipeline.history import History
from reknit.pipeline.model import Text, Turn
from reknit.pipeline.policy import Policy


def user(words="go on"):
    return {"role": "user", "content": words}


def said(words="well"):
    return {"role": "assistant", "content": words}


def test_everything_before_the_last_turn_is_settled():
    session = session_of(user(), said(), user(), called("a"), answered("a"))
    done = session.request()
    assert done.body[: done.prefix_bytes].endswith(b'"name":"ls","input":{}}]}')
    session.append(said())
    assert session.request().body.startswith(done.body[: done.prefix_bytes])


def test_a_call_without_a_real_result_holds_the_boundary():
    before = session_of(user(), said(), user(), called("a"), user("hm"), said("wait"), user("?"))
    settled = before.request().prefix_bytes
    before.append(answered("a"))
    done = before.request()
    assert done.prefix_bytes > settled
    assert b"hm" not in before.request().body[:settled]


def test_the_boundary_moves_after_the_window_has_passed():
    session = session_of(user(), called("a"), user("hm"))
    held = session.request().prefix_bytes
    for _ in range(3):
        session.append(said())
        session.append(user())
    assert session.request().prefix_bytes == held
    session.append(said())
    session.append(user())
    assert session.request().prefix_bytes > held


def test_a_synthesised_result_of_one_of_two_calls_is_placed_after_the_other():
    session = session_of(user(), called("a", "b"), answered("a"), *[user(), said()] * 9, user())
    assert [(fix.code, fix.path) for fix in session.request().fixes] == [("result_synthesised", "messages.2.content.1")]


@pytest.mark.parametrize(
    ("target", "ids", "merged"),
    [
        ("anthropic", ["m1", None, "m2", "m3", None, None], []),
        ("bedrock-converse", ["m1", None, "m3", None, None], [("turns_merged", "messages.4")]),
    ],
)
def test_user_text_after_a_dropped_answer_is_merged_into_the_turn_before(target, ids, merged):
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln", "issuer": {"provider": target}}
    gone = {"role": "assistant", "content": [thinking, *called("a")["content"]]}
    first, second, third = (user(words) | {"id": f"m{at}"} for at, words in enumerate(("one", "two", "three"), 1))
    policy = {"missing_result": "drop", "open_exchanges": 1}
    session = session_of(first, said(), second, gone, third, said(), user(), targets=(target,), policy=policy)
    done = session.request()
    assert done.ids == ids
    assert [done.body.count(f'"{words}"'.encode()) for words in ("two", "three")] == [1, 1]
    assert [(fix.code, fix.path) for fix in done.fixes] == [
        ("call_unanswered", "messages.3.content.1"),
        ("reasoning_alone", "messages.3.content.0"),
        *merged,
    ]


@pytest.mark.parametrize("first", [user(), {"role": "user", "content": [{"text": "go on"}]}])
def test_a_message_stays_separate_if_the_call_before_it_is_dropped(first):
    """The second history is read as of several shapes, where each row is a separate message."""
    blank = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}
    messages = [first, said(), called("a"), blank]
    done = normalize(messages, to="openai-responses", policy={"missing_result": "drop"})
    assert [item["content"] for item in json.loads(done.body)["input"]] == ["go on", "well", ""]


def test_a_reloaded_session_knows_how_long_a_call_has_been_waited_for():
    whole = session_of(user(), called("a"), user(), policy={"open_exchanges": 6})
    segments = [record for _, record in whole.take_segments(flush=True)]
    for session in (whole, Session.load(whole.head(), segments)):
        for message in [*[said(), user()] * 3, answered("a")]:
            session.append(message)
        assert [fix.code for fix in session.request().fixes] == ["result_synthesised", "result_late_turn"]


def test_no_prefix_is_stable_before_the_first_turn():
    session = session_of({"role": "system", "content": "be brief"})
    assert session.request().prefix_bytes == 0


@pytest.mark.parametrize(
    ("messages", "waiting"),
    [
        ([], False),
        ([user()], True),
        ([user(""), user(" ")], False),
        ([user(), said()], False),
        ([user(), called("a")], False),
        ([user(), called("a"), answered("a")], True),
        ([user(), called("a", "b"), answered("a")], False),
        ([user(), called("a", "b"), answered("a"), answered("b")], True),
        ([user(), called("a", "b"), answered("a"), user("stop")], True),
        ([user(), called("a"), user("stop")], True),
        ([user(), called("a"), answered("a", "[Request interrupted by user]")], False),
        ([user(), called("a"), answered("x")], False),
        ([user(), said(), {"role": "system", "content": "note"}], False),
        ([user(), called("a"), user("hm"), said("wait"), answered("a")], True),
    ],
)
def test_it_is_the_models_turn_if_everything_is_answered(messages, waiting):
    assert session_of(*messages).waiting is waiting


def test_turns_before_the_first_user_turn_are_dropped():
    done = session_of(said("hi"), called("a"), answered("a"), user("q"), said("so"), user("on")).request()
    assert [fix.code for fix in done.fixes] == ["leading_dropped", "leading_dropped", "result_orphan"]
    assert b"hi" not in done.body


def test_leading_system_messages_are_the_system_prompt():
    done = session_of(
        {"role": "system", "content": "one"}, {"role": "developer", "content": "two"}, user("q"), system="zero"
    ).request()
    assert done.body.startswith(
        b'{"system":[{"type":"text","text":"zero"},{"type":"text","text":"one"},{"type":"text","text":"two"}],'
    )
    assert done.fixes == []
    assert [entry.output for entry in done.ledger] == ["system", "system", "messages.0.content.0"]


def test_later_system_messages_stay_in_place_as_marked_text():
    done = session_of(user("q"), said(), {"role": "system", "content": "note"}, user("on")).request()
    assert b'{"role":"user","content":"[System message]\\nnote"},{"role":"user","content":' in done.body
    assert [fix.code for fix in done.fixes] == ["system_inlined"]


def test_a_turn_with_only_reasoning_is_dropped():
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]}
    done = session_of(user("a"), thought, user("b")).request()
    assert [fix.code for fix in done.fixes] == ["reasoning_alone"]
    assert [message["role"] for message in json.loads(done.body)["messages"]] == ["user", "user"]


def test_a_history_can_be_used_without_a_session():
    history = History(Policy(tail="keep"))
    history.append(Turn(role="user", blocks=(Text(text="q"),), index=0))
    history.append(Turn(role="assistant", blocks=(Text(text="a"),), index=1))
    history.append(Turn(role="user", blocks=(Text(text="b"),), index=2))
    messages, fixes, gone, calls = history.take_settled()
    assert [message.role for message in messages] == ["user", "assistant"]
    assert (fixes, gone, calls) == ([], [], [])
    assert [message.role for message in history.open_messages().messages] == ["user"]


def test_one_more_turn_costs_the_turn_and_not_the_history():
    def turn(session, number):
        session.append(called(f"toolu_{number}"))
        session.append(answered(f"toolu_{number}"))
        done = session.request()
        assert done.sha256
        assert not done.rejected

    session = session_of(user())
    costs = [function_calls(partial(turn, session, number)) for number in range(600)]
    assert max(costs[500:]) <= 1.1 * max(costs[10:100])


def test_a_synthesised_result_is_replaced_while_possible_and_then_reported_with_its_place():
    history = [user("q"), called("a"), {"role": "user", "content": [text("go on")]}, answered("a", "r")]
    done = normalize(history, policy={"open_exchanges": 1})
    assert [(fix.code, fix.path) for fix in done.fixes] == [
        ("result_synthesised", "messages.2.content.0"),
        ("placeholder_dropped", "messages.2.content.0"),
        ("result_moved", "messages.3.content.0"),
    ]
    assert json.loads(done.body)["messages"][2]["content"] == [result("a", "r"), text("go on")]
    assert all(entry.path for entry in done.ledger)


@pytest.mark.parametrize("missing", ["synthesise", "drop"])
@pytest.mark.parametrize("after", [[], [said("end")], [said("end"), user("on"), said("ok")]])
def test_a_call_that_settled_without_a_result_gets_one_when_its_neighbour_does(missing, after):
    """Gemini takes a turn's calls with no result, but not with some of them."""
    history = [user(), called("a", "b"), {"role": "system", "content": "hm"}, answered("b"), *after]
    policy = {"open_exchanges": 1, "missing_result": missing}
    session = session_of(*history, targets=["gemini"], policy=policy, model="gemini-3-pro-preview")
    done = normalize({"messages": history, "model": "gemini-3-pro-preview"}, to="gemini", policy=policy)
    assert session.request().body == done.body is not None
    assert [violation for violation in done.violations if violation.severity == "hard"] == []


THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]}


@pytest.mark.parametrize(
    ("first", "policy", "code"),
    [(THOUGHT, {}, "reasoning_alone"), (called("a"), {"missing_result": "drop"}, "call_unanswered")],
)
def test_a_system_message_is_not_the_first_where_the_answer_before_it_was_left_out(first, policy, code):
    note = {"role": "system", "content": "note"}
    session = Session(["anthropic"], policy, model="claude-opus-4-8")
    for message in (first, note, user("q")):
        session.append(message)
    done = session.request("anthropic")
    assert json.loads(done.body)["messages"] == [user("[System message]\nnote"), user("q")]
    assert [fix.code for fix in done.fixes] == [code, "system_inlined"]
    for message in (said("a"), user("b"), said("c"), user("d")):
        session.append(message)
    later = session.request("anthropic")
    assert json.loads(later.body)["messages"][:2] == [user("[System message]\nnote"), user("q")]
    # After a message of the user's it may stay.
    kept = normalize({"model": "claude-opus-4-8", "messages": [user("a"), note, said("b"), user("c")]}, to="anthropic")
    assert json.loads(kept.body)["messages"][1] == note


RUN = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
ASKED = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}


@pytest.mark.parametrize(
    "answers",
    [
        # A block that is left out after the call does not end the pause.
        [[RUN, {"type": "hologram", "depth": 3}], [ASKED]],
        # A result that is moved out of an answer does not part it.
        [[RUN], [ASKED, {"type": "tool_result", "tool_use_id": "toolu_9", "content": "?"}, ASKED | {"id": "toolu_2"}]],
    ],
)
def test_an_answer_goes_on_after_a_call_that_the_provider_runs(answers):
    messages = [user("q"), *({"role": "assistant", "content": content} for content in answers)]
    done = normalize({"messages": messages}, to="anthropic", source="anthropic")
    shown = json.loads(done.body)["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert [block["type"] for block in shown[1]["content"]][:2] == ["server_tool_use", "tool_use"]
    again = normalize(done.body, to="anthropic")
    assert (again.body, again.fixes) == (done.body, [])
