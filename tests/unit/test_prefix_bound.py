"""Reasoning that is bound to its prefix, case by case: what stays, what goes, and what the state holds.

The reports: pydantic/pydantic-ai#7984, anomalyco/opencode#46653, zed-industries/zed#63571,
NousResearch/hermes-agent#106426 and Wei-Shaw/sub2api#6677 (a changed prefix is refused), openclaw/openclaw#136782 (keep
it stable), BerriAI/litellm#41203 (Bedrock), langchain-ai/langchain-aws#408 (changed messages invalidate signatures on
Bedrock).
"""

import json

import msgspec
import pytest
from build import call, image, result, said, session_of, text, user
from stage_runs import KEY, OPENED, of, records, turn

from reknit.pipeline import Session, normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.placeholders import INTERRUPTED
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.targets.bound import LINES, is_prefix_bound
from reknit.pipeline.testing import Kit
from reknit.topics import PROVIDER_REQUESTS

FABLE = "claude-fable-5-1"
TOOL = {"name": "ls", "input_schema": {"type": "object"}}
CAT = TOOL | {"name": "cat"}
REMOVED = "reasoning_foreign"


def thought(name):
    return {"type": "thinking", "thinking": f"I think {name}.", "signature": f"sig_{name}"}


def answer(name, *calls):
    return said(thought(name), f"Answer {name}.", *map(call, calls))


def without(name, *calls):
    return said(f"Answer {name}.", *map(call, calls))


def bound_session(*messages, **given):
    """A session on a prefix-bound model that made a request after each message of the user."""
    session = Session(**{"model": FABLE, "params": {"max_tokens": 99}, "tools": [TOOL]} | given)
    for message in messages:
        session.append(message)
        if message["role"] == "user":
            session.request()
    return session


def sent(session):
    """The messages of the next request, the codes of its fixes, and why its prefix is new."""
    done = session.request()
    return json.loads(done.body)["messages"], [fix.code for fix in done.fixes], done.prefix_reset


def reloaded(session, state_format=3):
    segments = session.take_segments()
    return Session.load(session.head(), [record for _, record in segments], state_format)


TALK = [user("u1"), answer("a"), user("u2"), answer("b"), user("u3")]


# Which models.


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        ("claude-fable-5-1", True),
        ("claude-fable-5-2-20261001", True),
        ("claude-fable-5.1", True),
        ("anthropic/claude-fable-5.1:beta", True),
        ("claude-5.1-fable", True),
        ("us.anthropic.claude-fable-5-1-v1:0", True),
        ("claude-fable-5-1@20260901", True),
        ("claude-fable-6", True),
        ("Claude-Opus-5-5", True),
        ("claude-sonnet-5-5-20260910", True),
        ("claude-haiku-5-5", True),
        ("claude-mythos-5-1", False),
        ("claude-mythos-6-0", True),
        ("claude-saga-5-2", True),
        ("claude-saga-5-0", False),
        ("claude-fable-5", False),
        ("claude-fable-5-0", False),
        ("claude-opus-5", False),
        ("claude-opus-5-20260801", False),
        ("claude-opus-5-1", False),
        ("claude-sonnet-4-5-20250929", False),
        ("claude-3-5-sonnet-20241022", False),
        ("claude-3-7-sonnet", False),
        ("gpt-5.5", False),
        ("acme", False),
        ("", False),
        (None, False),
    ],
)
def test_models_are_known_by_name_and_by_pattern(model, bound):
    assert is_prefix_bound(model, Endpoint()) == bound


def test_a_look_alike_is_no_such_model_whatever_it_is_called():
    assert not is_prefix_bound(FABLE, Endpoint("deepseek", "deepseek"))
    assert is_prefix_bound(FABLE, Endpoint("bedrock", "anthropic"))


def test_each_line_has_a_source():
    assert all(line.source for line in LINES)
    assert len({line.name for line in LINES}) == len(LINES)


# What changes the prefix.

CHANGES = [
    ({"tools": [TOOL, CAT]}, "a new tool"),
    ({"tools": []}, "no tools"),
    ({"system": "Be brief."}, "another system prompt"),
]


@pytest.mark.parametrize("change", [change for change, _ in CHANGES], ids=[name for _, name in CHANGES])
def test_another_head_voids_all_reasoning_so_far_for_good(change):
    session = bound_session(*TALK)
    session.configure(**change)
    expected = [user("u1"), without("a"), user("u2"), without("b"), user("u3")]
    assert sent(session) == (expected, [REMOVED, REMOVED], "configured; reasoning from messages.1")
    for each in (answer("c"), user("u4")):
        session.append(each)
    session = reloaded(session)
    assert sent(session) == ([*expected, answer("c"), user("u4")], [REMOVED, REMOVED], "")
    # Not even where the head is again what it was.
    session.configure(tools=[TOOL], system=None)
    messages, codes, reset = sent(session)
    assert messages == [*expected, without("c"), user("u4")]
    assert (codes, reset) == ([REMOVED] * 3, "configured; reasoning from messages.5")


@pytest.mark.parametrize(
    "change", [{"params": {"max_tokens": 7}}, {"model": "claude-fable-5-2"}, {"policy": {"open_exchanges": 3}}]
)
def test_other_settings_void_nothing(change):
    session = bound_session(*TALK)
    session.configure(**change)
    assert sent(session) == (TALK, [], "configured")


def test_cache_breakpoints_void_nothing():
    marked = {"cache_control": {"type": "ephemeral"}}
    session = bound_session(user(text("u1", **marked)), answer("a"), user(text("u2", **marked)))
    session.configure(system=[text("Be brief.", **marked)])
    session.request()
    session.append(answer("b"))
    session.configure(system=[text("Be brief.")])
    session.append(user("u3"))
    messages, codes, _ = sent(session)
    assert messages[3] == answer("b")
    assert codes == [REMOVED]


def test_a_compaction_voids_what_it_leaves():
    session = bound_session(*TALK)
    session.replace([user("Summary of the conversation."), *TALK[2:]])
    assert sent(session) == (
        [user("Summary of the conversation."), user("u2"), without("b"), user("u3")],
        [REMOVED],
        "replaced; reasoning from messages.2",
    )


def test_a_history_that_comes_again_whole_voids_nothing():
    session = bound_session(*TALK)
    session.replace([*TALK, answer("c"), user("u4")])
    assert sent(session) == ([*TALK, answer("c"), user("u4")], [], "replaced")


def test_what_was_void_stays_void_in_a_history_that_comes_again_whole():
    session = bound_session(*TALK)
    session.configure(system="Be brief.")
    session.request()
    session.replace([*TALK, answer("c"), user("u4")])
    expected = [user("u1"), without("a"), user("u2"), without("b"), user("u3"), answer("c"), user("u4")]
    assert sent(session) == (expected, [REMOVED, REMOVED], "replaced")


def test_only_reasoning_after_the_changed_place_goes():
    session = bound_session(*TALK)
    session.replace([*TALK[:2], user("u2, in other words"), *TALK[3:]])
    assert sent(session) == (
        [*TALK[:2], user("u2, in other words"), without("b"), user("u3")],
        [REMOVED],
        "replaced; reasoning from messages.3",
    )


def test_a_rewind_voids_nothing_and_the_void_part_that_it_cuts_is_forgotten():
    session = bound_session(*TALK)
    session.rewind(3)
    assert sent(session) == (TALK[:3], [], "rewound")
    session.configure(system="Be brief.")
    session.request()
    session.rewind(1)
    session.request()
    session.append(answer("c"))
    session.append(user("u4"))
    assert sent(session)[:2] == ([user("u1"), answer("c"), user("u4")], [])


def test_a_rewind_into_segments_knows_from_where_a_request_is_another():
    session = bound_session()
    for message in [*TALK, answer("c"), user("u4")]:
        session.append(message)
        if message["role"] == "user":
            session.request()
        session.take_segments(flush=True)
    session.rewind(4)
    for message in (user("u3, in other words"), answer("d"), user("u5")):
        session.append(message)
    expected = [*TALK[:4], user("u3, in other words"), without("d"), user("u5")]
    assert sent(session) == (expected, [REMOVED], "rewound; reasoning from messages.5")


def test_a_turn_loses_all_of_its_reasoning():
    redacted = {"type": "redacted_thinking", "data": "c2VhbGVk"}
    turn_of_three = said(thought("a"), redacted, "So.", thought("b"), "Then.")
    session = bound_session(user("u1"), turn_of_three, user("u2"))
    assert sent(session)[0][1] == turn_of_three
    session.configure(system="Be brief.")
    assert sent(session)[:2] == ([user("u1"), said("So.", "Then."), user("u2")], [REMOVED] * 3)


# What the model has answered.


def missing(name):
    return result(name, INTERRUPTED, is_error=True)


def test_a_placeholder_that_was_answered_stays_and_the_result_becomes_a_turn():
    session = bound_session(user("u1"), answer("a", "c1"), user("Never mind."), answer("b"), user(result("c1")))
    late = user("[Tool result of an earlier call: ls, c1]\nfiles")
    expected = [user("u1"), answer("a", "c1"), user(missing("c1"), "Never mind."), answer("b"), late]
    assert sent(session) == (expected, ["result_synthesised", "result_late_turn"], "")
    history = [user("u1"), answer("a", "c1"), user("Never mind."), answer("b"), user(result("c1"))]
    whole = normalize({"messages": history, "model": FABLE, "params": {"max_tokens": 99}, "tools": [TOOL]})
    assert whole.body == session.request().body


def test_a_placeholder_that_nobody_answered_yet_gives_way():
    session = bound_session(user("u1"), answer("a", "c1"), user("Never mind."), user(result("c1")))
    messages, codes, reset = sent(session)
    assert messages == [user("u1"), answer("a", "c1"), user(result("c1"), "Never mind.")]
    assert (codes, reset) == (["result_moved"], "")


def test_another_model_still_replaces_the_placeholder():
    history = [user("u1"), answer("a", "c1"), user("Never mind."), answer("b"), user(result("c1"))]
    session = bound_session(*history, model="claude-opus-5")
    assert sent(session)[0][2] == user(result("c1"), "Never mind.")


@pytest.mark.parametrize("restart", [False, True])
def test_the_turn_that_continues_stays_once_it_is_answered(restart):
    session = bound_session(user("u1"), answer("a"))
    go_on = user("Continue.")
    assert sent(session) == ([user("u1"), answer("a"), go_on], ["tail_continued"], "")
    session = reloaded(session) if restart else session
    session.append(answer("b"))
    session = reloaded(session) if restart else session
    session.append(user("u2"))
    expected = [user("u1"), answer("a"), go_on, answer("b"), user("u2")]
    assert sent(session) == (expected, ["tail_continued"], "")
    # Also where the log is read again.
    session.configure(params={"max_tokens": 7})
    assert sent(session) == (expected, ["tail_continued"], "configured")
    session.rewind(2)
    session.append(user("u3"))
    assert sent(session)[:2] == ([user("u1"), answer("a"), user("u3")], [])


def test_a_request_that_was_asked_for_before_the_results_came_is_not_changed_by_them():
    session = bound_session(user("u1"), answer("a", "c1"))
    session.request()
    session.append(answer("b"))
    session.append(user(result("c1")))
    late = user("[Tool result of an earlier call: ls, c1]\nfiles")
    assert sent(session)[0] == [user("u1"), answer("a", "c1"), user(missing("c1")), answer("b"), late]


def test_an_unchanged_conversation_keeps_its_bytes():
    session = bound_session()
    plain = Session(model="claude-opus-5", params={"max_tokens": 99}, tools=[TOOL])
    for at in range(12):
        for message in (user(f"u{at}"), answer(f"a{at}", f"c{at}"), user(result(f"c{at}")), answer(f"b{at}")):
            session.append(message)
            plain.append(message)
            if message["role"] == "user":
                bound, free = session.request(), plain.request()
                assert bound.body == free.body.replace(b"claude-opus-5", FABLE.encode())
                assert (bound.fixes, bound.prefix_reset) == ([], "")


# Policies.


def test_by_policy_void_reasoning_stays():
    """A sender that asks the provider to drop the blocks itself (`drop_block`) keeps them."""
    session = bound_session(*TALK, policy={"reasoning": "keep"})
    session.configure(system="Be brief.")
    assert sent(session) == (TALK, [], "configured")
    session.configure(policy={"reasoning": "same_issuer"})
    assert sent(session)[1] == [REMOVED, REMOVED]


# Whole histories.


def test_a_whole_history_keeps_its_thinking():
    given = {"model": FABLE, "max_tokens": 99, "messages": TALK}
    done = normalize(json.dumps(given, separators=(",", ":")))
    assert (json.loads(done.body)["messages"], done.fixes) == (TALK, [])


def test_a_whole_history_that_proves_a_change_loses_what_came_before_it():
    """Media beyond the limit: the model answered images that are lines of text since."""

    def media(at):
        return {"role": "user", "content": [{"text": f"u{at}"}, *[_image() for _ in range(5)]]}

    def reasoned(at):
        content = {"reasoningText": {"text": "hm", "signature": f"sig_{at}"}}
        return {"role": "assistant", "content": [{"reasoningContent": content}, {"text": f"a{at}"}]}

    history = [message for at in range(22) for message in (media(at), reasoned(at))] + [media(22)]
    model = "us.anthropic.claude-fable-5-1-v1:0"
    whole = normalize({"messages": history, "modelId": model}, to="bedrock-converse")
    # The twenty-first turn exceeds the limit of 100 images.
    kept = ["reasoningContent" in json.dumps(message) for message in json.loads(whole.body)["messages"][1::2]]
    assert kept == [False] * 20 + [True] * 2
    session = Session(["bedrock-converse"], model=model)
    for message in history:
        session.append(message)
        if message["role"] == "user":
            last = session.request()
    assert last.body == whole.body


def _image():
    return {"image": {"format": "png", "source": {"bytes": image()["source"]["data"]}}}


# Bedrock.


def test_on_bedrock_reasoning_stays_where_it_is_and_goes_after_a_change():
    def reasoned(*names):
        parts = [({"reasoningText": {"text": "hm", "signature": f"sig_{name}"}}, name) for name in names]
        content = [block for thinking, name in parts for block in ({"reasoningContent": thinking}, {"text": name})]
        return {"role": "assistant", "content": content}

    talk = [
        {"role": "user", "content": [{"text": "u1"}]},
        reasoned("a", "b"),
        {"role": "user", "content": [{"text": "x"}]},
    ]
    session = Session(["bedrock-converse"], model="us.anthropic.claude-sonnet-5-5-v1:0")
    for message in talk:
        session.append(message)
        done = session.request()
    assert (json.loads(done.body)["messages"], done.fixes) == (talk, [])
    session.configure(system="Be brief.")
    messages, codes, reset = sent(session)
    assert messages[1] == {"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]}
    assert (codes, reset) == ([REMOVED, REMOVED], "configured; reasoning from messages.1")


# State.


def bound_state(session):
    return msgspec.msgpack.decode(session.head()).get("bound")


def test_state_grows_for_prefix_bound_models_only():
    assert bound_state(bound_session(*TALK, model="claude-opus-5")) is None
    assert bound_state(bound_session(*TALK, targets=["claude-cli", "openai-chat"])) is None
    assert bound_state(Session(model=FABLE)) is None
    assert bound_state(session_of(*TALK, model=FABLE)) is None
    assert bound_state(bound_session(*TALK)) is not None


def test_state_is_as_large_as_the_open_end():
    sizes = []
    session = bound_session()
    for at in range(200):
        session.append(user(f"u{at}"))
        session.request()
        session.append(answer(str(at)))
        session.take_segments()
        sizes.append(len(msgspec.msgpack.encode(bound_state(session))))
    assert max(sizes) - min(sizes) <= 8


def test_below_format_3_nothing_is_bound():
    session = bound_session(user("u1"), answer("a", "c1"), user("Never mind."), answer("b"), state_format=2)
    session.append(user(result("c1")))
    session.append(user("u3"))
    session.configure(system="Be brief.")
    messages, codes, reset = sent(session)
    # Late results need format 3 as well.
    assert messages == [user("u1"), answer("a", "c1"), user(result("c1"), "Never mind."), answer("b"), user("u3")]
    assert (codes, reset) == (["result_moved"], "configured")
    assert bound_state(session) is None


def test_a_session_of_an_earlier_format_goes_on_in_format_3():
    """What it sent before is not known; its open placeholder was answered, so it stays."""
    history = [user("u1"), answer("a", "c1"), user("Never mind."), answer("b")]
    session = reloaded(bound_session(*history, state_format=2), state_format=3)
    session.append(user(result("c1")))
    late = user("[Tool result of an earlier call: ls, c1]\nfiles")
    expected = [user("u1"), answer("a", "c1"), user(missing("c1"), "Never mind."), answer("b"), late]
    assert sent(session)[0] == expected
    session.configure(system="Be brief.")
    assert sent(session)[2] == "configured; reasoning from messages.1"


@pytest.mark.parametrize("restart", [False, True])
def test_a_session_that_moves_keeps_what_is_void(restart):
    session = bound_session(*TALK)
    session.configure(system="Be brief.")
    session.request()
    session.append(answer("c"))
    moved = Session(model=FABLE, params={"max_tokens": 99}, tools=[TOOL], system="Be brief.")
    moved.replace_by_log(session.log())
    moved = reloaded(moved) if restart else moved
    for each in (session, moved):
        each.append(user("u4"))
    assert moved.request().body == session.request().body
    # And it knows what was sent.
    moved.configure(system=None)
    assert sent(moved)[0][5] == without("c")


def test_the_log_of_another_model_has_nothing_of_it():
    assert b"bound" not in bound_session(*TALK, model="claude-opus-5").log()


def test_a_log_that_refers_to_what_it_does_not_have_is_refused():
    log = json.loads(bound_session(*TALK).log())
    log["bound"][0]["anthropic"][2] = 1
    session = Session(model=FABLE)
    with pytest.raises(InputError) as error:
        session.replace_by_log(json.dumps(log).encode())
    assert error.value.code == "bad_log"


# Records.


def test_a_record_reports_from_where_reasoning_went():
    stage = TurnsStage(Defaults())
    opened = OPENED | {"model": FABLE, "tools": [TOOL]}
    log = [opened, *map(turn, TALK), {"type": "session.opened", "system": "Be brief."}, {"type": "request.wanted"}]
    found = stage.process(records(log))
    last = of(found, PROVIDER_REQUESTS)[-1]
    assert dict(last.headers)["prefix-reset"] == b"configured; reasoning from messages.1"
    assert {key[1] for key in found.tally if key[0] == "reknit_prefix_resets_total"} == {"configured"}


def test_a_stage_that_publishes_nothing_knows_what_was_sent():
    """The viewer rebuilds a published request so."""
    opened = OPENED | {"model": FABLE, "tools": [TOOL]}
    continued = [{"type": "request.wanted"}, turn(answer("c"))]
    log = records([opened, *map(turn, TALK[:4]), *continued, {"type": "session.opened", "system": "x"}, turn(TALK[4])])
    loud, quiet = TurnsStage(Defaults()), TurnsStage(Defaults(), publish=False)
    last = of(loud.process(log), PROVIDER_REQUESTS)[-1]
    assert of(quiet.process(log), PROVIDER_REQUESTS) == []
    assert quiet.find(KEY).session.request().body == last.value
    bare = [without("a"), user("u2"), without("b"), user("Continue."), without("c"), user("u3")]
    assert json.loads(last.value)["messages"] == [user("u1"), *bare]


def test_a_request_that_is_only_looked_at_does_not_count_as_sent():
    session = session_of(user("u1"), answer("a"), model=FABLE)
    session.request(is_sent=False)
    session.append(user("u2"))
    session.configure(system="Be brief.")
    assert sent(session)[0] == [user("u1"), answer("a"), user("u2")]
    kit = Kit("anthropic", setting={"model": FABLE})
    kit.check([user("u1"), answer("a"), answer("b", "c1"), user("u2"), answer("c"), user(result("c1"))])
