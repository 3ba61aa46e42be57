"""Random histories with media and calls under every policy on media and length: valid, and the same in every way."""

import msgspec
import pytest
from build import call, image, png, result, said, text, user
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from reknit.pipeline import Session, normalize, validate

CLAUDE = "us.anthropic.claude-sonnet-4-20250514-v1:0"
sides = st.sampled_from([10, 10, 10, 10, 2001, 8001])
shown = st.lists(sides, max_size=8)


def words(data):
    """Tokens of a text of these tests: each `w` is one."""
    return data.count("w")


def scaled(_data):
    return Raw(msgspec.json.encode({"type": "base64", "media_type": "image/png", "data": png(2000, 9)}))


def pictures(given_sides):
    return [image(png(side, 9)) for side in given_sides]


exchange = st.one_of(
    st.tuples(shown, st.integers(0, 30)).map(lambda each: [user(text("w" * each[1] + "?"), *pictures(each[0]))]),
    st.integers(0, 30).map(lambda size: [said(text("w" * size + "."))]),
    st.tuples(shown, st.sampled_from("abc"), st.integers(0, 30)).map(
        lambda each: [
            said(call(each[1], "look", a="w" * each[2])),
            user(result(each[1], [text("seen"), *pictures(each[0])])),
        ]
    ),
)
histories = st.lists(exchange, min_size=1, max_size=16).map(
    lambda parts: [user(text("begin")), *(message for part in parts for message in part), user(text("end"))]
)


def media_left_out(done):
    return {fix.path for fix in done.fixes if fix.code == "media_over_limit"}


def cut(done):
    return {fix.path for fix in done.fixes if fix.code == "exchange_cut"}


def is_cut(path, messages):
    return any(path == each or path.startswith(f"{each}.") for each in messages)


@pytest.mark.parametrize("media", ["stub", "shrink", "reject"])
@pytest.mark.parametrize("fit", ["off", 120])
@pytest.mark.parametrize(("target", "model"), [("anthropic", "claude-sonnet-4-5"), ("bedrock-converse", CLAUDE)])
@settings(max_examples=12)
@given(messages=histories)
def test_a_history_within_the_limits_is_the_same_in_every_way(media, fit, target, model, messages):
    policy = {"media": media, "fit": fit, "tail": "continue"}
    given_more = {"count_tokens": words, "scale": scaled}
    session, reloaded = (Session([target], policy, model=model, **given_more) for _ in range(2))
    segments, left_out = [], set()
    for message in messages:
        session.append(message)
        reloaded.append(message)
        segments += [data for _, data in reloaded.take_segments()]
        reloaded = Session.load(reloaded.head(), segments, **given_more)
        done = session.request()
        if media != "reject":
            assert done.body is not None
        if done.body is not None:
            assert [each for each in validate(done.body, target, model) if each.severity == "hard"] == []
        # A medium that became text stays text, unless its exchange is cut.
        assert {path for path in left_out if not is_cut(path, cut(done))} <= media_left_out(done)
        left_out = media_left_out(done)
    whole = normalize({"model": model, "messages": messages}, target, policy=policy, **given_more)
    for done in (session.request(), reloaded.request()):
        assert done.unjudged == whole.unjudged
        assert done.fixes == whole.fixes
        assert done.ledger == whole.ledger
