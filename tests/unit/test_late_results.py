"""Results that come late: the place of each, the request that it makes due, and the state below format 3."""

from __future__ import annotations

import json

import msgspec
import pytest
from build import answered, call, image, result, said, session_of, text, user
from reader_results import vectors
from stage_runs import OPENED, Sliced, bodies, processed, records, restored, turn

from reknit.pipeline import Session, normalize
from reknit.pipeline.history.placeholders import INTERRUPTED
from reknit.pipeline.policy import Policy
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

PENDING = [user("q"), said(call("job", "deploy")), answered("job", "pending")]
MARK = "[Tool result of an earlier call: deploy, job]"
DONE = answered("job", "done")


def mended(*messages, **policy):
    done = normalize(list(messages), policy={"tail": "keep"} | policy)
    return json.loads(done.body)["messages"], [fix.code for fix in done.fixes]


def late(words="done"):
    return user(f"{MARK}\n{words}")


def test_a_result_that_is_not_shown_is_replaced_by_the_last_one():
    messages, codes = mended(*PENDING, answered("job", "half"), DONE)
    assert messages == [*PENDING[:2], DONE]
    assert codes == ["result_replaced", "result_replaced"]


def test_a_shown_result_stays_and_the_later_one_is_a_user_turn():
    messages, codes = mended(*PENDING, said("wait"), DONE)
    assert messages == [*PENDING, said("wait"), late()]
    assert codes == ["result_late_turn"]


@pytest.mark.parametrize("words", ["", " "])
def test_an_assistant_turn_that_says_nothing_shows_a_result_too(words):
    messages, codes = mended(*PENDING, {"role": "assistant", "content": [text(words)]}, DONE)
    assert [block["content"] for block in messages[2]["content"] if block["type"] == "tool_result"] == ["pending"]
    assert codes[-1] == "result_late_turn"


def test_turn_never_replaces_and_drop_keeps_the_first():
    assert mended(*PENDING, DONE, late_result="turn")[0] == [*PENDING, late()]
    assert mended(*PENDING, DONE, late_result="drop") == (PENDING, ["result_duplicate"])
    shown = [*PENDING, said("wait")]
    assert mended(*shown, DONE, late_result="turn")[0] == [*shown, late()]
    assert mended(*shown, DONE, late_result="drop") == (shown, ["result_duplicate"])


def test_equal_results_count_as_one():
    assert mended(*PENDING, answered("job", "pending"))[1] == ["result_repeated"]
    assert mended(*PENDING, answered("job", [text("pending")]))[1] == ["result_repeated"]
    assert mended(*PENDING, DONE, answered("job", "pending"), DONE)[0] == [*PENDING[:2], DONE]
    messages, codes = mended(*PENDING, said("wait"), DONE, said("so"), DONE, answered("job", "pending"), user("on"))
    assert messages == [*PENDING, said("wait"), late(), said("so"), user("on")]
    assert codes == ["result_late_turn", "result_repeated", "result_repeated"]


def test_an_error_differs_from_a_result_with_the_same_words():
    messages, codes = mended(*PENDING, said("wait"), user(result("job", "pending", is_error=True)))
    assert messages[-1] == user("[Tool error of an earlier call: deploy, job]\npending")
    assert codes == ["result_late_turn"]


def test_a_late_result_keeps_its_media():
    messages, _ = mended(*PENDING, said("wait"), user(result("job", [text("done"), image()])))
    assert messages[-1] == user(f"{MARK}\ndone", image())


def test_a_late_result_is_before_the_words_of_its_turn():
    messages, _ = mended(*PENDING, said("wait"), user("and?", result("job", "done")))
    assert messages[-1] == user(f"{MARK}\ndone", "and?")


def test_a_late_result_waits_for_the_results_of_the_open_calls():
    session = session_of(*PENDING, said("wait", call("b"), call("c")))
    due = []
    for message in (DONE, answered("c"), answered("b")):
        session.append(message)
        due.append(session.waiting)
    assert due == [False, False, True]
    assert json.loads(session.request().body)["messages"][4:] == [answered("c"), user(result("b"), f"{MARK}\ndone")]


def test_a_request_shows_a_late_result_that_waits():
    messages, codes = mended(*PENDING, said("wait", call("b")), DONE)
    assert messages[-1] == user(result("b", INTERRUPTED, is_error=True), f"{MARK}\ndone")
    assert sorted(codes) == ["result_late_turn", "result_synthesised"]


def test_words_of_the_user_end_the_wait():
    session = session_of(*PENDING, said("wait", call("b")), DONE, user("stop"))
    assert (session.waiting, session.interrupted) == (True, True)
    messages = json.loads(session.request().body)["messages"]
    assert messages[-1] == user(result("b", INTERRUPTED, is_error=True), f"{MARK}\ndone", "stop")


def test_a_late_result_makes_a_request_due_and_a_repeated_one_does_not():
    session = session_of(*PENDING, said("wait"), DONE)
    assert session.waiting
    session.append(said("so"))
    session.append(DONE)
    assert not session.waiting


def test_a_placeholder_of_ours_is_replaced_while_its_exchange_is_open_and_not_after():
    chatter = [message for _ in range(4) for message in (said("wait"), user("and now?"))]
    asked = [user("q"), said(call("job", "deploy")), user("hm")]
    messages, codes = mended(*asked, said("wait"), DONE)
    assert messages == [*asked[:2], user(result("job", "done"), "hm"), said("wait")]
    assert codes == ["result_moved"]
    messages, codes = mended(*asked, *chatter, DONE)
    assert messages[2] == user(result("job", INTERRUPTED, is_error=True), "hm")
    assert messages[-2:] == [user("and now?"), late()]
    assert codes == ["result_synthesised", "result_late_turn"]


def test_a_late_placeholder_says_nothing():
    assert mended(*PENDING, said("wait"), answered("job", INTERRUPTED)) == (
        [*PENDING, said("wait")],
        ["placeholder_dropped"],
    )


def test_a_displaced_result_may_be_replaced_until_it_is_shown():
    asked = [user("q"), said(call("job", "deploy")), user("hm"), said("wait")]
    messages, codes = mended(*asked, answered("job", "pending"), DONE)
    assert messages == [*asked[:2], user(result("job", "done"), "hm"), said("wait")]
    assert codes == ["result_moved", "result_replaced", "result_moved"]
    messages, _ = mended(*asked, answered("job", "pending"), said("I see"), DONE)
    assert messages[2] == user(result("job", "pending"), "hm")
    assert messages[-1] == late()


def test_a_result_belongs_to_the_latest_call_of_its_id_that_waits():
    asked = [user("q"), said(call("x", "one")), user("hm"), said(call("x", "two")), answered("x", "of two")]
    messages, _ = mended(*asked, answered("x", "of one"))
    assert messages[2] == user(result("x", "of one"), "hm")
    assert messages[4] == answered("x", "of two")
    assert "result_repeated" in mended(*asked, answered("x", "of two"))[1]


def test_a_late_result_of_a_reused_id_names_the_latest_call():
    rounds = [user("q"), said(call("x", "one")), answered("x", "1"), said(call("x", "two")), answered("x", "2")]
    assert mended(*rounds, said("so"), answered("x", "3"))[0][-1] == user("[Tool result of an earlier call: two, x]\n3")
    done = normalize([*rounds, said("so"), answered("x", "3")], to="bedrock-converse")
    words = json.loads(done.body)["messages"][-1]["content"][0]["text"]
    second = json.loads(done.body)["messages"][3]["content"][0]["toolUse"]["toolUseId"]
    assert second != "x"
    assert words == f"[Tool result of an earlier call: two, {second}]\n3"


def test_a_result_without_an_id_replaces_nothing():
    rows = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    done = normalize(rows)
    assert [fix.code for fix in done.fixes] == ["result_duplicate"]


@pytest.mark.parametrize(
    ("given", "current"),
    [
        ([text("go on")], "go on"),
        ([], f"{MARK}\ndone, \u200b@me"),
    ],
)
def test_on_a_text_target_it_is_the_tools_words(given, current):
    done = normalize([*PENDING, said("wait"), user(result("job", "done, @me"), *given)], to="claude-cli")
    said_now = json.loads(done.text)["message"]["content"]
    assert said_now.endswith(f"## Current input\n{current}")
    assert ("### Tool result\n" + MARK in said_now) == bool(given)
    assert "### User\n" + MARK not in said_now


def test_a_settled_call_is_found_after_a_reload_and_a_rewind():
    history = [*PENDING, said("wait")]
    for _ in range(40):
        history += [user("more"), said("well")]
    session, segments = session_of(*history), []
    segments += session.take_segments(flush=True)
    whole = normalize([*history, DONE])
    for _ in range(2):
        session = Session.load(session.head(), [record for _, record in segments])
        session.append(DONE)
        assert session.request().body == whole.body
        session.append(DONE)
        assert [fix.code for fix in session.request().fixes] == ["result_late_turn", "result_repeated"]
        session.rewind(len(history))


# Reports of agent frameworks, on each target.

LISTS = {"gemini": "contents", "openai-responses": "input"}
REPORTS = [
    pytest.param(vector, target, id=f"{vector['name']}-{target}")
    for vector in vectors("late_results")
    for target in vector["targets"]
]


def content_of(done):
    """Return the content of a request: its messages, or its text."""
    if TARGETS[done.target].is_prompt:
        return done.body.decode()
    body = json.loads(done.body)
    return body["message"]["content"] if done.target == "claude-cli" else body[LISTS.get(done.target, "messages")]


@pytest.mark.parametrize(("vector", "target"), REPORTS)
def test_a_report_becomes_exactly_this(vector, target):
    session = Session([target], {"tail": "keep"})
    for message in vector["messages"]:
        session.append(msgspec.json.encode(message), vector["from"])
        session.request()
    whole = normalize(vector["messages"], to=target, source=vector["from"], policy={"tail": "keep"})
    for done in (whole, session.request()):
        assert content_of(done) == vector["targets"][target]["expect"]
        assert [fix.code for fix in done.fixes] == vector["targets"][target]["fixes"]


def test_each_target_has_its_reports():
    assert all(vector["targets"].keys() == TARGETS.keys() for vector in vectors("late_results"))


# Below format 3 of the state late results are left out, and the state has nothing of them.


def run(state_format, events, policy=None):
    stage = TurnsStage(Defaults(policy=Policy(**policy or {})))
    stage.use_format(state_format)
    made = stage.process(records(events))
    return stage, made


LOG = [OPENED, *map(turn, [*PENDING, said("wait"), DONE])]


@pytest.mark.parametrize("state_format", [1, 2])
@pytest.mark.parametrize("policy", [{}, {"late_result": "turn"}])
def test_below_format_3_the_first_result_stays(state_format, policy):
    _, made = run(state_format, [*LOG, {"type": "request.wanted"}], policy)
    assert bodies(made)[-1]["messages"][-1] == said("wait")
    written = b"".join(value for value in made.changes.values() if value)
    for name in (b"late_result", b"held", b"spoken_at", b"came", b"seen"):
        assert name not in written
    _, made = run(3, [*LOG, {"type": "request.wanted"}], policy)
    assert bodies(made)[-1]["messages"][-1] == late()


def test_state_of_format_2_goes_on_in_format_3():
    *before, last = LOG
    _, made = run(2, before)
    state = {key: value for key, value in made.changes.items() if value is not None}
    stage = restored(TurnsStage(Defaults()), state)
    stage.use_format(3)
    [record] = records([last], first=len(before))
    found = stage.process([record])
    assert bodies(found)[-1]["messages"][-1] == late()


def test_results_that_wait_in_state_of_format_2_may_be_replaced():
    _, made = run(2, LOG[:4])
    stage = restored(TurnsStage(Defaults()), {key: value for key, value in made.changes.items() if value is not None})
    stage.use_format(3)
    found = stage.process(records([LOG[-1]], first=4))
    assert bodies(found)[-1]["messages"][-1] == DONE


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_a_result_that_waits_survives_a_restart(restart):
    log = [OPENED, *map(turn, [*PENDING, said("wait", call("b")), DONE, answered("b")])]
    found, _, _ = processed(lambda: TurnsStage(Defaults()), [[record] for record in records(log)], restart)
    sent = [json.loads(output.value)["messages"] for output in found if output.topic == PROVIDER_REQUESTS]
    assert [len(messages) for messages in sent] == [1, 3, 5]
    assert sent[-1][-1] == user(result("b"), f"{MARK}\ndone")


@pytest.mark.parametrize("state_format", [2, 3])
def test_a_late_result_in_a_parked_session_gives_the_same_request(state_format):
    unusable = {"type": "turn.appended", "message": {"role": "nobody"}}
    park = Defaults(on_dead_letter="park")
    sent = []
    for events in ([OPENED, *LOG[1:]], [OPENED, unusable, *LOG[1:], {"type": "session.released"}]):
        sliced = Sliced(lambda: TurnsStage(park), "changelog") if state_format == 3 else None
        if sliced is not None:
            for record in records(events):
                sliced.take(record)
            sliced.release()
            outputs = sliced.outputs
        else:
            stage = TurnsStage(park)
            stage.use_format(state_format)
            outputs = stage.process(records(events)).outputs
        sent.append([output.value for output in outputs if output.topic == PROVIDER_REQUESTS])
    assert sent[0] == sent[1]
    assert len(sent[0]) == (3 if state_format == 3 else 2)


def test_the_option_is_in_records_and_in_settings():
    opened = OPENED | {"policy": {"late_result": "drop"}}
    _, made = run(3, [opened, *LOG[1:], {"type": "request.wanted"}])
    assert bodies(made)[-1]["messages"][-1] == said("wait")
    assert msgspec.convert({"late_result": "turn"}, Policy).late_result == "turn"
