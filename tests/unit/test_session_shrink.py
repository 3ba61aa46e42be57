"""Policy `media = shrink`: images are scaled once, and requests are the same whole, turn by turn, and from records."""

from __future__ import annotations

import json

import msgspec
import pytest
from build import call, image, png, result, said, user
from msgspec import Raw
from stage_runs import bodies, letters, records, restored, turn

from reknit.pipeline import Session, normalize
from reknit.pipeline.errors import PolicyError
from reknit.pipeline.session.arguments import policy_from
from reknit.pipeline.session.scaled import digest_of
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage

MODEL = "claude-sonnet-4-5"
SHRINK = {"media": "shrink"}
SMALL = png(1999, 50)


class Scaling:
    """A function that scales, and the images that it was asked for."""

    def __init__(self, made=SMALL):
        self.asked = []
        self._made = made

    def __call__(self, data):
        self.asked.append(digest_of(data))
        if self._made is None:
            return None
        return Raw(msgspec.json.encode({"type": "base64", "media_type": "image/png", "data": self._made}))


def sources(body):
    return [
        part["source"]["data"]
        for message in json.loads(body)["messages"]
        for block in message["content"]
        for part in ([block] if block["type"] == "image" else block.get("content", ()))
        if isinstance(part, dict) and part["type"] == "image"
    ]


def wide(number=0):
    return png(8100 + number, 500)


def whole(messages, scale, target="anthropic", **policy):
    return normalize({"model": MODEL, "messages": messages}, target, policy={**SHRINK, **policy}, scale=scale)


def test_an_image_of_8100_pixels_is_scaled():
    done = whole([user(image(wide()))], Scaling())
    assert sources(done.body) == [SMALL]
    assert [(fix.code, fix.path, fix.detail) for fix in done.fixes] == [
        ("image_scaled", "messages.0.content.0", "8100 x 500 pixels to 1999 x 50")
    ]


def test_an_image_in_a_result_is_scaled():
    shown = user(result("a", [{"type": "text", "text": "here"}, image(wide())]))
    done = whole([user("q"), said(call("a")), shown], Scaling())
    assert sources(done.body) == [SMALL]
    assert [(fix.code, fix.path) for fix in done.fixes] == [("image_scaled", "messages.2.content.0.content.1")]
    assert [(entry.path, entry.fate) for entry in done.ledger if entry.path.startswith("messages.2")] == [
        ("messages.2.content.0", "rewritten")
    ]


def test_each_image_is_scaled_once():
    scale = Scaling()
    session = Session(["anthropic"], SHRINK, model=MODEL, scale=scale)
    for message in [user(image(wide())), said("ok"), user(image(wide()), image(wide(1))), said("ok"), user("go on")]:
        session.append(message)
        session.request()
    assert scale.asked == [digest_of(wide()), digest_of(wide(1))]
    assert sources(session.request().body) == [SMALL] * 3


def test_images_within_the_limits_stay():
    scale = Scaling()
    assert whole([user(image(png(2000, 2000)), image(png(10, 10)))], scale).fixes == []
    assert scale.asked == []


def test_an_image_that_cannot_be_scaled_becomes_text():
    done = whole([user(image(wide()))], Scaling(None))
    assert [fix.code for fix in done.fixes] == ["image_stubbed"]


def test_a_target_without_such_limits_gets_the_original():
    done = whole([user(image(wide()))], Scaling(), "openai-chat")
    assert wide().encode() in done.body
    assert done.fixes == []


def test_scaled_images_count_with_their_own_size():
    messages = [turn for at in range(25) for turn in (user(image(wide(at))), said("ok"))]
    done = whole([*messages, user("go on")], Scaling())
    assert [fix.code for fix in done.fixes] == ["image_scaled"] * 25
    many = [turn for at in range(101) for turn in (user(image(wide(at))), said("ok"))]
    done = whole([*many, user("go on")], Scaling())
    assert len(sources(done.body)) == 70
    assert [fix.code for fix in done.fixes] == ["media_over_limit"] * 31 + ["image_scaled"] * 70


def test_turn_by_turn_and_records_are_equal():
    messages = [turn for at in range(40) for turn in (user(image(wide(at % 7))), said(f"ok {at}"))]
    session = Session(["anthropic", "openai-chat"], SHRINK, model=MODEL, scale=Scaling())
    segments = []
    for count, message in enumerate(messages, 1):
        session.append(message)
        segments += [data for _, data in session.take_segments()]
        # The records hold what was scaled: another machine makes nothing of it again.
        session = Session.load(session.head(), segments, scale=Scaling(None if count > 14 else SMALL))
        session.request()
    for target in session.targets:
        assert session.request(target).body == whole(messages, Scaling(), target).body
        assert session.request(target).fixes == whole(messages, Scaling(), target).fixes


def test_a_log_carries_what_was_scaled():
    session = Session(["anthropic"], SHRINK, model=MODEL, scale=Scaling())
    for message in [user(image(wide())), said("ok"), user("go on")]:
        session.append(message)
    other = Session(["anthropic"], SHRINK, model=MODEL, scale=Scaling(None))
    other.replace_by_log(session.log())
    assert other.request().body == session.request().body


def test_a_restored_history_is_scaled():
    session = Session(["anthropic"], SHRINK, model=MODEL, scale=Scaling())
    session.replace([user(image(wide())), said("ok"), user("go on")])
    assert sources(session.request().body) == [SMALL]


def test_a_rewind_keeps_what_stays_scaled():
    session = Session(["anthropic"], SHRINK, model=MODEL, scale=Scaling())
    messages = [turn for at in range(40) for turn in (user(image(wide(at))), said(f"ok {at}"))]
    segments = []
    for message in messages:
        session.append(message)
        segments += [data for _, data in session.take_segments()]
    for count in (60, 50, 11, 2):
        session.rewind(count)
        assert session.request().body == whole(messages[:count], Scaling()).body
        segments += [data for _, data in session.take_segments(flush=True)]
        loaded = Session.load(session.head(), segments, scale=Scaling(None))
        assert loaded.request().body == session.request().body
    session.append(user(image(wide(30))))
    assert session.request().body == whole([*messages[:2], user(image(wide(30)))], Scaling()).body


def test_the_policy_needs_a_function_that_scales():
    for make in (
        lambda: normalize([user("q")], policy=SHRINK),
        lambda: Session(policy=SHRINK),
        lambda: Session().configure(policy=SHRINK),
    ):
        with pytest.raises(PolicyError, match=r"a function that scales: scale=reknit\.media\.scale") as caught:
            make()
        assert (caught.value.code, caught.value.path) == ("policy", "policy.media")


def test_a_policy_that_comes_later_scales_what_comes_after_it():
    scale = Scaling()
    session = Session(["anthropic"], model=MODEL, scale=scale)
    session.append(user(image(wide())))
    session.append(said("ok"))
    session.configure(policy=SHRINK)
    session.append(user(image(wide(1))))
    assert [fix.code for fix in session.request().fixes] == ["image_stubbed", "image_scaled"]
    assert scale.asked == [digest_of(wide(1))]


# In the worker's stage.

OPENED = {"type": "session.opened", "policy": SHRINK}


def stage_for(policy=None, *, state_format=3, can_scale=True):
    stage = TurnsStage(
        Defaults(
            model=MODEL,
            params={"max_tokens": Raw(b"9")},
            policy=policy_from(policy or {}),
            can_scale=can_scale,
        )
    )
    stage.use_format(state_format)
    return stage


def with_scaled(found):
    scaled = {digest_of(wide()): Scaling()(wide())}
    return [msgspec.structs.replace(record, scaled=scaled) for record in found]


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_stage_takes_scaled_images_from_the_record(is_reloaded):
    stage, state = stage_for(), {}
    made = stage.process(with_scaled(records([OPENED, turn(user(image(wide())))])))
    assert sources(json.dumps(bodies(made)[0])) == [SMALL]
    state |= made.changes
    if is_reloaded:
        stage = restored(stage_for(), state)
    assert stage.scales(b"session-1")
    made = stage.process(records([turn(said("ok")), turn(user("go on"))], first=2))
    assert sources(json.dumps(bodies(made)[0])) == [SMALL]


def test_a_stage_says_which_sessions_scale():
    assert stage_for(SHRINK).scales(b"any")
    stage = stage_for()
    assert not stage.scales(b"session-1")
    stage.process(records([OPENED]))
    assert stage.scales(b"session-1")
    assert not stage.scales(b"another")


def test_a_stage_that_cannot_scale_refuses_the_policy():
    made = stage_for(can_scale=False).process(records([OPENED, turn(user("q"))]))
    assert letters(made.outputs) == [(0, "policy")]
    assert len(bodies(made)) == 1


def test_a_stage_of_an_earlier_format_scales_nothing():
    made = stage_for(SHRINK, state_format=2).process(with_scaled(records([turn(user(image(wide())))])))
    assert "left out" in json.dumps(bodies(made))
