"""Second use of a value, a second segment, and exact boundaries: errors of shared or lost state show here."""

import json

import pytest
from build import call, result, rounds, said, session_of, user
from hypothesis import given, settings
from hypothesis import strategies as st
from request_bodies import BODIES

from reknit.pipeline import Session, normalize
from reknit.pipeline.errors import InternalError
from reknit.pipeline.history.call_ids import IdTable, SettledCall
from reknit.pipeline.providers.openai_chat.writer import Waiting, _in_turn
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.streams.recovery.message import Block
from reknit.pipeline.testing.strategies import broken_histories, mixed_histories, open_histories, tool_loops

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def encode(value):
    return json.dumps(value).encode()


# -- second use of a value
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", BODIES)
@settings(max_examples=60)
@given(data=st.data())
def test_judging_from_a_state_twice_gives_the_same_result(target, data):
    key, heads, histories = BODIES[target]
    rules, history = TARGETS[target].rules, data.draw(histories)
    at = data.draw(st.integers(0, len(history)))
    state, _ = rules.judge_head(encode({**data.draw(heads), key: []}))
    state, _ = rules.judge_messages(state, b",".join(map(encode, history[:at])))
    rest = b",".join(map(encode, history[at:]))
    (first, found), (second, again) = rules.judge_messages(state, rest), rules.judge_messages(state, rest)
    assert (again, rules.judge_end(second)) == (found, rules.judge_end(first))


@pytest.mark.parametrize("target", ["openai-chat", "vllm"])
def test_a_call_may_be_answered_in_each_use_of_one_state(target):
    rules = TARGETS[target].rules
    state, _ = rules.judge_head(b'{"messages":[]}')
    asked = {"type": "function", "id": "call_0001", "function": {"name": "f", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [asked]}
    state, _ = rules.judge_messages(state, encode({"role": "user", "content": "q"}) + b"," + encode(calls))
    answer = encode({"role": "tool", "tool_call_id": "call_0001", "content": "done"})
    for _ in range(3):
        after, found = rules.judge_messages(state, answer)
        assert (found, rules.judge_end(after)) == ([], [])


def test_of_two_placeholders_the_first_stays_until_a_real_result_replaces_it():
    history = [
        user("q"),
        said(call("a")),
        user(result("a", "[Request interrupted by user]")),
        user(result("a", "Tool result missing")),
    ]
    done = normalize(history)
    assert json.loads(done.body)["messages"][2]["content"][0]["content"] == "[Request interrupted by user]"
    assert [(fix.code, fix.path) for fix in done.fixes] == [("placeholder_dropped", "messages.3.content.0")]
    done = normalize([*history, user(result("a", "files"))])
    assert [block["content"] for block in json.loads(done.body)["messages"][2]["content"]] == ["files"]
    dropped = [fix.path for fix in done.fixes if fix.code == "placeholder_dropped"]
    assert dropped == ["messages.3.content.0", "messages.2.content.0"]


def test_unsettling_a_call_restores_the_answered_state_of_its_id():
    ends = [True, False, False, True]
    table = IdTable(again=True)
    for end in ends:
        table.begin_turn()
        table.settle_call(SettledCall("a", "a", answered=end))
    table.begin_turn()
    table.claim_answered(["a", "b"])
    assert (table.answered("a"), table.answered("b")) == (True, True)
    for before in [True, False, False, True, None]:
        table.unsettle_call(SettledCall("a", "a", answered=True))
        assert table.answered("a") is before
    table.unsettle_call(SettledCall("b", "b", answered=True))
    assert table.answered("b") is None


def test_of_a_duplicate_provider_run_call_the_last_is_kept():
    def search(query):
        return {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": query}}

    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    history = [user("q"), said(search("one"), search("two"), found, "so"), user("and?")]
    done = normalize(history)
    kept = json.loads(done.body)["messages"][1]["content"]
    assert [block.get("input") for block in kept if block["type"] == "server_tool_use"] == [{"query": "two"}]
    assert [(fix.code, fix.path) for fix in done.fixes] == [("server_tool_unpaired", "messages.1.content.0")]


def test_results_without_a_call_stay_if_each_message_has_one_call():
    waiting = [Waiting("a", "", ""), Waiting("b", "f", "{}")]
    answers = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("x", "b", "a", "y")]
    written = _in_turn(waiting, answers)
    assert [row.get("tool_call_id") for row in written] == ["a", None, "b", "x", "y"]
    assert _in_turn([], answers) == answers


def test_an_observed_result_without_a_call_is_written_for_single_calls():
    calls = said(call("a"), call("b"))
    policy = {"mend": {"result_orphan": "observe"}}
    history = [user("q"), calls, user(result("a", "one"), result("b", "two"), result("x", "three")), user("and?")]
    done = normalize(history, to="vllm", model=LLAMA, policy=policy)
    rows = json.loads(done.unjudged)["messages"]
    assert [row["content"] for row in rows if row["role"] == "tool"] == ["one", "two", "three"]
    assert [(fix.code, fix.observed) for fix in done.fixes] == [("calls_serialised", False), ("result_orphan", True)]


def test_deltas_after_the_reported_text_are_part_of_the_block():
    block = Block(item_id="i", kind="text")
    block.append("Hel")
    block.note_whole_text("Hello")
    assert block.final_text() == "Hello"
    block.append(" there")
    assert block.final_text() == "Hello there"
    block.append(".")
    assert (block.settle_text(), block.text()) == ("Hello there.", "Hello there.")


# -- blocks changed by reading
# ----------------------------------------------------------------------------------------


def test_a_block_changed_by_reading_is_rewritten_and_its_neighbours_are_kept():
    odd = {"type": "text", "text": "two", "odd": 1}
    plain = [{"type": "text", "text": word} for word in ("one", "three")]
    history = [user(plain[0], odd, plain[1]), said("a"), user(odd)]
    for messages in (history, [{"role": "system", "content": [plain[0], odd]}, *history]):
        ledger = [(entry.path, entry.fate, entry.code) for entry in normalize(messages).ledger]
        expected = [
            (
                f"messages.{at}.content.{place}"
                if isinstance(message["content"], list)
                else f"messages.{at}.content.0",
                block,
            )
            for at, message in enumerate(messages)
            for place, block in enumerate(message["content"])
        ]
        changed = ("rewritten", "field_dropped")
        assert ledger == [(path, *(changed if "odd" in block else ("kept", ""))) for path, block in expected]


# -- a second segment
# -------------------------------------------------------------------------------------------------


def in_segments(messages, **given):
    """Return a session that was saved and loaded after each message, with a segment for each."""
    session, segments = Session(**given), []
    for message in messages:
        session.append(message)
        segments += session.take_segments(flush=True)
        session = Session.load(session.head(), [record for _, record in segments])
    return session


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_session_with_a_damaged_segment_is_not_loaded(damage):
    session, segments = Session(), []
    for message in (user("a"), said("b"), user("c")):
        session.append(message)
        segments += session.take_segments(flush=True)
    records = dict(segments)
    assert list(records) == session.segments == [0, 1, 2]
    assert Session.load(session.head(), records.values()).request().body == session.request().body
    other = records.pop(1).replace(b'"b"', b'"B"')
    found = [*records.values(), *([other] if damage == "changed" else [])]
    with pytest.raises(InternalError, match="segment 1 is missing, or is not what was written") as caught:
        Session.load(session.head(), found)
    assert caught.value.code == "state_incomplete"


@pytest.mark.parametrize("late", range(4))
def test_calls_of_each_segment_are_known_after_a_reload(late):
    history = [
        message
        for number in range(4)
        for message in (user(f"q{number}"), said(call(f"call_{number}")), user(result(f"call_{number}")), said("a"))
    ]
    history.append(user(result(f"call_{late}", "other"), "q"))
    session = in_segments(history, targets=["anthropic"])
    assert session.segment_count > 3
    done, whole = session.request(), normalize(history)
    assert [(fix.code, fix.path) for fix in done.fixes] == [("result_late_turn", "messages.16.content.0")]
    assert (done.body, done.fixes, done.ledger) == (whole.body, whole.fixes, whole.ledger)


def test_the_ids_of_messages_are_in_order_after_a_reload():
    history = [message | {"id": f"m{at}"} for at, message in enumerate(rounds(5))]
    session = in_segments(history, targets=["anthropic", "openai-chat"])
    assert session.segment_count > 3
    whole = session_of(*history, targets=["anthropic", "openai-chat"])
    for target in session.targets:
        assert session.request(target).ids == whole.request(target).ids
    ids = session.request("anthropic").ids
    assert [name for name in ids if name] == sorted((name for name in ids if name), key=lambda name: int(name[1:]))
    assert len({name for name in ids if name}) > 10


@settings(max_examples=40, deadline=None)
@given(messages=st.one_of(tool_loops(), open_histories(), broken_histories, mixed_histories))
def test_a_session_with_a_segment_per_message_equals_the_whole_history(messages):
    session = in_segments(messages, targets=sorted(TARGETS))
    for target in session.targets:
        found, whole = session.request(target), normalize(messages, to=target)
        assert (found.unjudged, found.violations, found.ids) == (whole.unjudged, whole.violations, whole.ids)
        assert (found.fixes, found.ledger) == (whole.fixes, whole.ledger)
