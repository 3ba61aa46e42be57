"""Sessions with more media than a request may hold: steps, and equal requests whole, turn by turn, and from records."""

from __future__ import annotations

import base64
import json
import struct

import msgspec
import pytest
from build import said, user
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_runs import records, restored, turn

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.session.media import MediaStubs
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS

MODEL = "claude-sonnet-4-5"
LIMIT = 100


def image(number=0, width=10, height=10, size=0):
    """A PNG of these sides, that differs by ``number``; ``size`` bytes longer."""
    header = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    )
    raw = header + struct.pack(">II", 0, number) + b"\0" * size + b"\0\0\0\0IEND\xaeB`\x82"
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(raw).decode()}
    return {"type": "image", "source": source}


def shots(count, **sides):
    return [turn for at in range(count) for turn in (user(image(at, **sides)), said(f"seen {at}"))]


def session_for(messages, model=MODEL, **given):
    """The session after these messages, with the last request and how many prefixes the limits changed."""
    session, resets = Session(["anthropic"], model=model, **given), 0
    for message in messages:
        session.append(message)
        done = session.request()
        assert done.body is not None, done.violations
        resets += done.prefix_reset == "limits"
    return session, done, resets


def from_records(messages, model=MODEL):
    session, segments = Session(["anthropic"], model=model), []
    for message in messages:
        session.append(message)
        segments += [data for _, data in session.take_segments()]
        session = Session.load(session.head(), segments)
    return session.request()


def images_in(body):
    return body.count(b'"type":"image"')


def whole(messages, model=MODEL, **given):
    return normalize(list(messages), model=model, **given)


def test_the_101st_image_leaves_70():
    done = whole([*shots(LIMIT), user(image(LIMIT))])
    assert images_in(done.body) == 70
    assert [(fix.code, fix.path) for fix in done.fixes] == [
        ("media_over_limit", f"messages.{2 * at}.content.0") for at in range(31)
    ]
    assert done.fixes[0].detail == "image/png, 10 x 10 pixels, 68 bytes of base64"


def test_a_hundred_images_stay_as_they_are():
    messages = [*shots(LIMIT), user("go on")]
    kept, sent = whole(messages), whole(messages, policy={"media": "reject"})
    assert kept.fixes == []
    assert kept.body == sent.body


def test_a_model_with_a_longer_context_window_takes_more():
    assert whole([*shots(LIMIT), user(image(LIMIT))], model="claude-opus-4-8").fixes == []


def test_rejected_where_the_policy_says_so():
    done = whole([*shots(LIMIT), user(image(LIMIT))], policy={"media": "reject"})
    assert done.body is None
    assert [found.rule for found in done.violations if found.severity == "hard"] == ["ANT-30f"]


def test_a_session_of_500_screenshots_goes_on():
    messages = [*shots(500), user("go on")]
    session, done, resets = session_for(messages)
    assert images_in(done.body) <= LIMIT
    assert resets == 13  # each step of 31 screenshots; 401 are beyond the limit
    assert done.body == whole(messages).body
    assert done.fixes == whole(messages).fixes
    assert msgspec.msgpack.decode(session.head())["media"] == {"anthropic": [806, []]}


def test_records_give_the_same_request():
    messages = [*shots(140), user("go on")]
    done = from_records(messages)
    assert done.body == whole(messages).body
    assert done.fixes == whole(messages).fixes


def test_35_mb_of_images_fit_into_a_body():
    messages = [*shots(12, size=2_200_000), user("go on")]
    done = whole(messages)
    assert len(done.body) <= 0.7 * 32 * 2**20
    assert images_in(done.body) == 8
    assert session_for(messages)[1].body == done.body


def test_a_wide_image_goes_once_there_are_21():
    messages = [user(image(0, width=2162)), said("ok"), *shots(19), user(image(30))]
    assert whole(messages[:-1]).fixes == []
    done = whole(messages)
    assert [(fix.code, fix.path) for fix in done.fixes] == [("media_over_limit", "messages.0.content.0")]
    session, last, resets = session_for(messages)
    assert (last.body, resets) == (done.body, 1)
    # The next small image changes nothing of it.
    session.append(said("ok"))
    session.append(user(image(31)))
    assert session.request().prefix_reset == ""
    assert images_in(session.request().body) == 21


def test_the_current_turns_media_are_replaced_last():
    done = whole([*shots(20), user(image(30, width=2162))])
    assert images_in(done.body) == 14
    assert image(30, width=2162)["source"]["data"].encode() in done.body
    many = whole([user(*[image(at) for at in range(LIMIT + 2)])])
    assert images_in(many.body) == LIMIT
    assert [fix.path for fix in many.fixes] == ["messages.0.content.0", "messages.0.content.1"]


def test_media_in_results_are_replaced_in_place():
    call = {"type": "tool_use", "id": "toolu_1", "name": "shot", "input": {}}
    shown = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image(1), {"type": "text", "text": "done"}]}
    messages = [user("q"), said(call), user(shown), said("ok"), *shots(LIMIT), user("go on")]
    done = whole(messages)
    assert done.fixes[0].path == "messages.2.content.0.content.0"
    content = json.loads(done.body)["messages"][2]["content"][0]["content"]
    assert [part["type"] for part in content] == ["text", "text"]
    assert content[1]["text"] == "done"
    assert session_for(messages)[1].body == done.body


def test_a_rewind_keeps_what_became_text():
    session, _, _ = session_for([*shots(110), user("go on")])
    assert images_in(session.request().body) == 79
    session.rewind(100)
    session.append(user("again"))
    assert images_in(session.request().body) == 19
    reloaded = Session.load(session.head(), [data for _, data in session.take_segments(flush=True)])
    assert reloaded.request().body == session.request().body


def test_another_model_returns_no_medium():
    session, done, _ = session_for([*shots(110), user("go on")])
    session.configure(model="claude-opus-4-8")
    assert images_in(session.request().body) == images_in(done.body) == 79


def test_another_policy_returns_them():
    session, _, _ = session_for([*shots(110), user("go on")])
    session.configure(policy={"media": "reject"}, model="claude-opus-4-8")
    assert images_in(session.request().body) == 110


def test_a_session_whose_state_has_no_place_for_it_keeps_no_limits():
    session = Session(["anthropic"], model=MODEL)
    session.keep_limits(on=False)
    for message in [*shots(LIMIT), user(image(LIMIT))]:
        session.append(message)
    assert session.request().body is None


def test_the_state_of_a_session_without_steps_does_not_name_them():
    session, _, _ = session_for([*shots(3), user("go on")])
    assert b"media" not in session.head().replace(b"media_type", b"")


def test_stubs_of_a_shorter_history():
    stubs = MediaStubs(4, frozenset({"messages.6.content.0", "messages.8.content.0#1"}))
    assert [stubs.has(key) for key in ("messages.3.content.9", "messages.8.content.0#1", "input.8#1")] == [
        True,
        True,
        False,
    ]
    assert stubs.upto(7) == MediaStubs(4, frozenset({"messages.6.content.0"}))
    assert stubs.upto(2) == MediaStubs(2)


def kept_in_segments(session, segments):
    """Take the session's new segments; return their sizes."""
    new = session.take_segments()
    segments.update(new)
    used = set(session.segments)
    for number in segments.keys() - used:
        del segments[number]
    return [len(data) for _, data in new]


def test_a_step_does_not_write_the_log_again():
    session, segments, written = Session(["anthropic"], model=MODEL), {}, []
    messages = [*shots(240, size=20_000), user("go on")]
    for message in messages:
        session.append(message)
        written += kept_in_segments(session, segments)
    # The body after a step has 70 images, in one segment; the log of 240 images is in others, once.
    assert max(written) < 70 * 30_000 + 30_000
    assert sum(written) < 2 * 240 * 30_000 + 5 * 70 * 30_000
    loaded = Session.load(session.head(), segments.values())
    assert loaded.request().body == session.request().body == whole(messages).body
    for count in (480, 400, 90):
        loaded.rewind(count)
        session.rewind(count)
        assert loaded.request().body == session.request().body
        assert loaded.request().fixes == session.request().fixes


def test_a_history_that_is_read_again_is_in_many_segments():
    session, segments = Session(["anthropic"], model=MODEL), {}
    messages = [turn for at in range(60) for turn in (user("x" * 200_000, f"{at}"), said("ok"))]
    for message in messages:
        session.append(message)
        kept_in_segments(session, segments)
    session.configure(system="Another.")
    session.append(user("go on"))
    sizes = kept_in_segments(session, segments)
    assert len(sizes) == 11
    assert max(sizes[:-1]) < 1_300_000
    loaded = Session.load(session.head(), segments.values())
    assert loaded.request().body == session.request().body
    loaded.rewind(41)
    session.rewind(41)
    assert loaded.request().body == session.request().body


sizes = st.sampled_from([10, 10, 10, 2001, 8001])
turns = st.lists(st.lists(sizes, max_size=9), min_size=1, max_size=24)


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("anthropic", MODEL),
        ("bedrock-converse", "us.anthropic.claude-sonnet-4-20250514-v1:0"),
        ("openai-chat", "gpt-5"),
    ],
)
@settings(max_examples=15)
@given(given_turns=turns)
def test_every_history_stays_within_the_limits(target, model, given_turns):
    messages, number = [], 0
    for sides in given_turns:
        content = []
        for side in sides:
            number += 1
            content.append(image(number, width=side))
        messages += [user({"type": "text", "text": "look"}, *content), said("ok")]
    messages.append(user("go on"))
    session, left_out = Session([target], model=model), set()
    for message in messages:
        session.append(message)
        done = session.request()
        assert done.body is not None
        assert [found for found in validate(done.body, target, model) if found.severity == "hard"] == []
        paths = {fix.path for fix in done.fixes if fix.code == "media_over_limit"}
        assert left_out <= paths
        left_out = paths
    assert done.body == normalize(messages, to=target, model=model).body


@pytest.mark.parametrize(("state_format", "rejected"), [(2, True), (3, False)])
@pytest.mark.parametrize("is_reloaded", [False, True])
def test_the_worker_keeps_limits_from_format_3_on(state_format, rejected, is_reloaded):
    def stage_of_format():
        stage = TurnsStage(Defaults(model=MODEL, params={"max_tokens": msgspec.Raw(b"9")}))
        stage.use_format(state_format)
        return stage

    stage, state, topics = stage_of_format(), {}, []
    for at, message in enumerate([*shots(LIMIT), user(image(LIMIT))]):
        if is_reloaded and at == 2 * LIMIT:
            stage = restored(stage_of_format(), state)
        made = stage.process(records([turn(message)], first=at))
        state |= made.changes
        topics = [output.topic for output in made.outputs]
    assert (DEAD_LETTERS in topics, PROVIDER_REQUESTS in topics) == (rejected, not rejected)
