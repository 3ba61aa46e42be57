"""The history side: records in; requests, fixes, dead letters and state out."""

from __future__ import annotations

import hashlib
import itertools
import json

import msgspec
import pytest
from build import answered, called, said, user
from stage_runs import KEY, OPENED, bodies, in_batches, of, processed, records, restored, turn

from reknit import pipeline
from reknit.pipeline.policy import Policy
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS


def run(*events: object, defaults: Defaults | None = None):
    return TurnsStage(defaults).process(records(list(events)))


def header(output, name: str) -> str | None:
    value = dict(output.headers).get(name)
    return None if value is None else value.decode()


def fixes_of(found) -> list[dict]:
    return [json.loads(output.value) for output in of(found, HISTORY_FIXES)]


def needing_a_result(found) -> list[str]:
    """Return the targets for which a result was synthesised; a fix of all targets has an empty name."""
    return [fix.get("target", "") for fix in fixes_of(found) if fix["code"] == "result_synthesised"]


def letters(found) -> list[str]:
    return [header(output, "reknit.error.code") for output in of(found, DEAD_LETTERS)]


def test_a_user_turn_makes_a_request_with_everything_that_a_sender_needs():
    found = run(OPENED, turn(user("hi")))
    (request,) = of(found, PROVIDER_REQUESTS)
    assert json.loads(request.value) == {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [user("hi")]}
    assert request.key == KEY
    assert header(request, "target") == "anthropic"
    assert header(request, "model") == "claude-sonnet-4-5"
    assert header(request, "turn") == "2"
    assert header(request, "fixes") == "0"
    assert header(request, "body-sha256") == hashlib.sha256(request.value).hexdigest()
    assert header(request, "supersedes") is None
    assert len(header(request, "request-id")) == 32
    assert not of(found, HISTORY_FIXES)
    assert not [v for v in pipeline.validate(request.value, "anthropic") if v.severity == "hard"]


def test_the_settled_part_of_a_request_starts_the_next_one():
    events = [OPENED]
    for n in range(5):
        events += [turn(user(f"question {n}")), turn(said(f"answer {n}"))]
    requests = of(run(*events), PROVIDER_REQUESTS)
    assert len(requests) == 5
    for earlier, later in itertools.pairwise(requests):
        settled = int(header(earlier, "prefix-bytes"))
        assert settled > 0
        assert later.value.startswith(earlier.value[:settled])


def test_a_request_waits_for_every_result_of_parallel_calls():
    found = run(OPENED, turn(user("go")), turn(called("a", "b")), turn(answered("a")))
    assert len(bodies(found)) == 1
    found = run(OPENED, turn(user("go")), turn(called("a", "b")), turn(answered("a")), turn(answered("b")))
    assert len(bodies(found)) == 2


def test_user_text_over_an_open_call_settles_it_as_interrupted():
    found = run(OPENED, turn(user("go")), turn(called("a")), turn(user("stop")))
    last = bodies(found)[-1]["messages"][-1]["content"]
    assert [block["type"] for block in last] == ["tool_result", "text"]
    assert last[0]["is_error"] is True
    (fix,) = fixes_of(found)
    assert (fix["code"], fix["path"], fix["id"], fix["lossless"]) == (
        "result_synthesised",
        "messages.2.content.0",
        "a",
        False,
    )
    assert found.tally["reknit_fixes_lossy_total", "result_synthesised", ""] == 1


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x.example/a"}}


@pytest.mark.parametrize(
    "said",
    [
        [called("a", "b"), {"role": "system", "content": "x"}],
        [called("a", "b"), {"role": "system", "content": [IMAGE]}],
        [{"role": "assistant", "content": [IMAGE, *called("a", "b")["content"]]}],
    ],
)
def test_only_user_text_settles_an_open_call(said):
    found = run(OPENED, *map(turn, [user("go"), *said, answered("a")]))
    assert len(bodies(found)) == 1


def test_an_unanswered_request_is_superseded():
    found = run(OPENED, turn(user("one")), turn(user("two")), turn(said("ok")), turn(user("three")))
    first, second, third = of(found, PROVIDER_REQUESTS)
    assert header(second, "supersedes") == header(first, "request-id")
    assert header(third, "supersedes") is None


def test_a_repeated_turn_is_ignored_and_one_with_other_content_is_a_dead_letter():
    again = turn(user("hi"), id="t1")
    same = json.dumps(again, indent=2).encode()
    found = run(OPENED, again, same, turn(user("other"), id="t1"))
    assert len(bodies(found)) == 1
    assert letters(found) == ["id_reused"]
    assert found.tally["reknit_turns_total", "turn.appended", "repeated"] == 1


def shown(text, **members):
    """Return the AI SDK's message with the answer so far."""
    return {"id": "a", "role": "assistant", "parts": [{"type": "text", "text": text, **members}]}


def test_a_message_that_comes_again_under_its_id_with_more_content_replaces_the_last_one():
    asked = turn({"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}, id="u")
    more = turn({"id": "v", "role": "user", "parts": [{"type": "text", "text": "and?"}]}, id="v")
    answers = [turn(shown(text), id="a") for text in ("Hel", "Hello", "Hello!")]
    found = run(OPENED, asked, *answers, answers[-1], more, {"type": "request.wanted"})
    assert letters(found) == []
    assert [message["content"][0]["text"] for message in bodies(found)[-1]["messages"]] == ["hi", "Hello!", "and?"]
    assert found.tally["reknit_turns_total", "turn.appended", "repeated"] == 1
    # Changed content, and content that is settled.
    assert letters(run(OPENED, asked, answers[1], turn(shown("No"), id="a"))) == ["id_reused"]
    assert letters(run(OPENED, asked, answers[0], more, answers[1])) == ["id_reused"]


def test_an_event_replaces_its_fragment_under_the_same_id():
    event = {"author": "bot", "invocationId": "i", "id": "a", "content": {"role": "model", "parts": [{"text": "Hi"}]}}
    asked = {"author": "user", "invocationId": "i", "id": "u", "content": {"role": "user", "parts": [{"text": "?"}]}}
    found = run(
        OPENED,
        turn(asked, id="u"),
        turn(event | {"partial": True}, id="a"),
        turn(event, id="a"),
        {"type": "request.wanted"},
    )
    assert letters(found) == []
    assert bodies(found)[-1]["messages"][1]["content"] == [{"type": "text", "text": "Hi"}]


def test_ids_are_still_known_after_a_restart():
    stage = TurnsStage()
    first = stage.process(records([OPENED, turn(user("hi"), id="t1")]))
    fresh = restored(TurnsStage(), first.changes)
    assert not fresh.process(records([turn(user("hi"), id="t1")], first=2)).outputs


def test_a_restore_and_a_rewind_send_nothing_but_a_wanted_request_does():
    restored = {"type": "history.restored", "messages": [user("a"), said("b"), user("c")]}
    found = run(OPENED, restored)
    assert not bodies(found)
    found = run(OPENED, restored, {"type": "request.wanted"}, {"type": "request.wanted"})
    assert [len(body["messages"]) for body in bodies(found)] == [3, 3]
    found = run(OPENED, restored, {"type": "history.rewound", "to": 1})
    assert not bodies(found)
    found = run(OPENED, restored, {"type": "history.rewound", "to": 1}, {"type": "request.wanted"})
    assert [body["messages"] for body in bodies(found)] == [[user("a")]]


def test_a_rewind_goes_to_an_id_and_frees_the_ids_after_it():
    turns = [turn(user("a"), id="1"), turn(said("b"), id="2"), turn(user("c"), id="3")]
    found = run(OPENED, *turns, {"type": "history.rewound", "to": "2"}, turn(user("d"), id="3"))
    assert letters(found) == []
    assert bodies(found)[-1]["messages"] == [user("a"), said("b"), user("d")]


def test_recorded_turns_of_a_self_driving_agent_send_nothing():
    recorded = {"origin": "recorded", "self_driving": True}
    found = run(
        OPENED,
        turn(user("go")),
        turn(called("a"), **recorded),
        turn(answered("a"), **recorded),
        turn(said("done"), **recorded),
    )
    assert len(bodies(found)) == 1


def test_each_fix_is_reported_once_with_its_first_request():
    found = run(
        OPENED,
        turn(user("go")),
        turn(called("call.1")),
        turn(user("stop")),
        turn(said("ok")),
        *[turn(message) for n in range(12) for message in (user(f"q{n}"), said(f"a{n}"))],
    )
    assert sorted(fix["code"] for fix in fixes_of(found)) == ["id_rewritten", "result_synthesised"]
    assert found.tally["reknit_fixes_total", "id_rewritten", ""] == 1


def test_a_fix_for_some_targets_is_reported_once_for_each_of_them():
    """Gemini accepts a call without a result, so only the others need one."""
    turns = [user("go"), called("c"), user("stop"), said("ok"), user("more"), said("yes"), user("on")]
    found = run(OPENED | {"targets": ["anthropic", "openai-chat", "gemini"]}, *map(turn, turns))
    assert needing_a_result(found) == ["anthropic", "openai-chat"]


def test_a_fix_for_all_targets_is_reported_once_although_it_settles_later_for_one():
    """If the blank turn is dropped, its neighbours are one exchange, so the call settles an exchange later."""
    turns = [user("go"), called("c"), user(""), said("ok"), *[user("q"), said("a")] * 9]
    found = run(OPENED | {"targets": ["openai-responses", "cascade"]}, *map(turn, turns))
    assert needing_a_result(found) == [""]


WATCHED = {
    **OPENED,
    "targets": ["bedrock-converse"],
    "model": "us.amazon.nova-pro-v1:0",
    "params": {"max_tokens": 100, "seed": 7},
    "policy": {"mend": {"bedrock-converse": {"tools_stubbed": "observe", "param_dropped": "observe"}}},
}


def fix_codes(found) -> list[tuple[str, bool]]:
    return [(fix["code"], fix.get("observed", False)) for fix in fixes_of(found)]


def test_an_observed_repair_is_reported_once_and_again_when_it_had_to_be_made():
    questions = [turn(user("q")), turn(said("a")), turn(user("q"))]
    found = run(WATCHED, *questions)
    assert [body["seed"] for body in bodies(found)] == [7, 7]
    assert fix_codes(found) == [("param_dropped", True)]
    assert found.tally["reknit_fixes_observed_total", "param_dropped", "bedrock-converse"] == 1
    assert ("reknit_fixes_total", "param_dropped", "bedrock-converse") not in found.tally
    assert found.tally["reknit_requests_total", "bedrock-converse", "clean"] == 2
    # The target rejects a request without a declaration of the called tools, so all repairs are made.
    found = run(WATCHED, *questions, turn(called("a")), turn(answered("a")), turn(said("b")), *questions)
    requests = of(found, PROVIDER_REQUESTS)
    assert [("seed" in body, "toolConfig" in body) for body in bodies(found)] == [(True, False)] * 2 + [
        (False, True)
    ] * 3
    assert fix_codes(found) == [("param_dropped", True), ("tools_stubbed", False), ("param_dropped", False)]
    assert [header(each, "prefix-reset") for each in requests] == [None, None, "mended", "mended", "mended"]
    assert [header(each, "fixes") for each in requests] == ["0", "0", "2", "2", "2"]


def test_a_sessions_setting_for_one_repair_leaves_the_others_unchanged():
    defaults = Defaults(policy=Policy(mend={"param_dropped": "observe", "turns_merged": "observe"}))
    change = {"mend": {"turns_merged": "on", "vllm": {"param_dropped": "on"}}}
    opened = {**OPENED, "targets": ["bedrock-converse"], "params": {"max_tokens": 100, "seed": 7}, "policy": change}
    assert fix_codes(run(opened, turn(user("a")), turn(user("b")), defaults=defaults)) == [
        ("param_dropped", True),
        ("turns_merged", False),
    ]
    assert letters(run({**OPENED, "policy": {"mend": {"id_rewritten": "observe"}}})) == ["policy"]


def test_records_of_a_repair_observed_for_one_of_two_targets_are_distinguishable():
    policy = {"mend": {"anthropic": {"blank_dropped": "observe"}}}
    opened = {**OPENED, "targets": ["anthropic", "bedrock-converse"], "policy": policy}
    found = run(opened, turn(user("a")), turn(said("b")), turn(user("c", " ")))
    assert [(fix["code"], fix.get("target"), fix.get("observed")) for fix in fixes_of(found)] == [
        ("blank_dropped", "bedrock-converse", None),
        ("blank_dropped", "anthropic", True),
    ]
    blocks = [len(body["messages"][2]["content"]) for body in bodies(found)[2:]]
    assert blocks == [2, 1]


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_a_request_that_continues_a_stored_response_is_rejected(name):
    found = run(OPENED | {"params": {name: "x_1"}})
    (letter,) = of(found, DEAD_LETTERS)
    assert header(letter, "reknit.error.code") == "chained"


def test_a_session_opened_again_changes_the_given_options_and_keeps_the_rest():
    found = run(OPENED, turn(user("hi")), {"type": "session.opened", "system": "Be brief."}, {"type": "request.wanted"})
    body = bodies(found)[-1]
    assert (body["system"], body["model"], body["max_tokens"]) == ("Be brief.", "claude-sonnet-4-5", 100)


def test_null_resets_to_the_default():
    defaults = Defaults(model="claude-haiku-4-5", params={"max_tokens": msgspec.Raw(b"5")})
    found = run(OPENED, {"type": "session.opened", "model": None}, turn(user("hi")), defaults=defaults)
    assert bodies(found)[-1]["model"] == "claude-haiku-4-5"


def test_several_targets_get_a_request_each():
    found = run(OPENED | {"targets": ["anthropic", "claude-cli"]}, turn(user("hi")))
    requests = of(found, PROVIDER_REQUESTS)
    assert [header(request, "target") for request in requests] == ["anthropic", "claude-cli"]
    assert (
        requests[1].value
        == b'{"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "hi"}]}}\n'
    )


def test_missing_members_that_the_target_requires_are_a_rejection():
    found = run(turn(user("hi")))
    assert not bodies(found)
    assert letters(found) == ["rejected"]
    (letter,) = of(found, DEAD_LETTERS)
    assert header(letter, "reknit.error.rule") == "ANT-37"
    assert header(letter, "reknit.error.message") == "anthropic: model: Field required"
    assert found.tally["reknit_requests_total", "anthropic", "rejected"] == 1


def test_opening_a_session_announces_its_policy_to_the_stream_side():
    found = run({"type": "session.opened", "policy": {"record_assistant": True}})
    (told,) = of(found, PROVIDER_EVENTS)
    assert (told.key, told.value) == (KEY, None)
    assert json.loads(header(told, "policy")) == {"record_assistant": True}


def test_a_closed_session_leaves_no_state():
    events = [turn(m, id=f"{n}{m['role']}") for n in range(40) for m in (user("q" * 900), said("a"))]
    log = records([OPENED, *events, {"type": "session.closed"}])
    assert processed(TurnsStage, in_batches(log, 1))[2] == {}


BAD = [
    pytest.param(b"not json", "not_json", id="not JSON"),
    pytest.param(b"", "not_json", id="empty"),
    pytest.param(b"\xff\xfe\x00", "not_json", id="binary"),
    pytest.param(b"null", "bad_record", id="null"),
    pytest.param(b"[" * 100_000, "bad_record", id="deep list"),
    pytest.param(b'{"type":"turn.appended","message":' + b"[" * 100_000, "too_deep", id="deep message"),
    pytest.param({"type": "nobody.knows"}, "bad_record", id="unknown type"),
    pytest.param({"type": "turn.appended"}, "bad_record", id="no message"),
    pytest.param({"type": "session.opened", "targets": ["nobody"]}, "unknown_target", id="unknown target"),
    pytest.param({"type": "session.opened", "policy": {"tial": "keep"}}, "bad_record", id="misspelt policy"),
    pytest.param({"type": "history.rewound", "to": 99}, "unknown_message", id="rewind too far"),
    pytest.param({"type": "history.rewound", "to": "x"}, "unknown_message", id="rewind to nobody"),
]


@pytest.mark.parametrize(("value", "code"), BAD)
def test_an_unusable_record_is_a_dead_letter_and_other_records_are_processed(value, code: str):
    stage = TurnsStage()
    stage.process(records([OPENED, turn(user("one"))]))
    bad = stage.process(records([value], first=2))
    assert letters(bad) == [code]
    (letter,) = of(bad, DEAD_LETTERS)
    assert header(letter, "reknit.error.offset") == "2"
    assert header(letter, "reknit.error.topic") == "agent.turns.v1"
    good = stage.process(records([turn(said("ok")), turn(user("two"))], first=3))
    assert [len(body["messages"]) for body in bodies(good)] == [3]


def test_half_a_surrogate_pair_is_repaired_by_the_reader_not_rejected():
    torn = b'{"type":"turn.appended","message":{"role":"user","content":[{"type":"text","text":"a \\ud83d b"}]}}'
    found = run(OPENED, torn)
    assert letters(found) == []
    assert bodies(found)[0]["messages"] == [user("a \ufffd b")]
    assert [fix["code"] for fix in fixes_of(found)] == ["surrogate_replaced"]
    restored = {"type": "history.restored", "messages": [user("@")]}
    found = run(OPENED, json.dumps(restored).replace("@", "\\ud83d").encode(), {"type": "request.wanted"})
    assert bodies(found)[0]["messages"] == [user("\ufffd")]


def test_under_follow_later_records_are_dead_letters_until_the_history_is_restored():
    stage = TurnsStage(Defaults(on_dead_letter="follow"))
    found = stage.process(
        records([OPENED, b"poison", turn(user("a")), {"type": "history.restored", "messages": [user("a")]}])
    )
    assert letters(found) == ["not_json", "quarantined"]
    assert len(bodies(stage.process(records([{"type": "request.wanted"}], first=4)))) == 1


def test_any_batching_and_any_restart_give_the_same_outputs():
    events = [OPENED]
    for n in range(30):
        name = f"call_{n % 3}"
        events += [turn(user(f"q{n}"), id=f"u{n}"), turn(called(name)), turn(answered(name)), turn(said(f"a{n}"))]
        if n % 7 == 3:
            events += [turn(user("twice")), {"type": "history.rewound", "to": f"u{n - 2}"}]
    lines = records(events)
    expected = TurnsStage().process(lines).outputs
    for size in (1, 3, 10):
        assert processed(TurnsStage, in_batches(lines, size), "changelog")[0] == expected


def test_a_turn_is_read_in_the_shape_that_it_names():
    message = {"type": "ai", "content": "Yes."}
    assert letters(run(OPENED, turn(message))) == ["missing_role"]
    found = run(OPENED, turn(user("hi")), turn(message, shape="langchain"), turn(user("why?")))
    assert letters(found) == []
    assert bodies(found)[-1]["messages"] == [user("hi"), {"role": "assistant", "content": "Yes."}, user("why?")]
    assert letters(run(OPENED, turn(message, shape="langchian"))) == ["unknown_source"]


def test_messages_of_a_framework_are_turns_and_those_that_it_does_not_send_make_no_request():
    asked = {"id": "u", "role": "user", "content": "Look."}
    called_by_ui = {
        "id": "a",
        "role": "assistant",
        "toolCalls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    result = {"id": "t", "role": "tool", "toolCallId": "call_1", "content": "done"}
    plan = {"id": "x", "role": "activity", "activityType": "PLAN", "content": {"steps": ["a"]}}
    found = run(OPENED, *map(turn, (asked, called_by_ui, result, plan)))
    assert letters(found) == []
    assert len(of(found, PROVIDER_REQUESTS)) == 2
    last = bodies(found)[-1]["messages"]
    assert [block["type"] for message in last[1:] for block in message["content"]] == ["tool_use", "tool_result"]
    assert [fix["code"] for fix in fixes_of(found)] == ["field_dropped"]


def test_a_history_of_no_known_shape_is_a_dead_letter_and_changes_nothing():
    tickets = [{"id": 1, "title": "Login", "status": "open", "body": "It fails."}]
    events = [OPENED, turn(user("hi")), {"type": "history.restored", "messages": tickets}]
    found = run(*events, {"type": "request.wanted"})
    assert letters(found)[0] == "unknown_shape"
