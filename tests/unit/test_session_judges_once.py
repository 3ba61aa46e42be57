"""A session has each message judged once, however often it asks, and says what the whole body's judge says."""

from unittest.mock import patch

import pytest
from build import call, result, said, user

from reknit.pipeline import Session, validate
from reknit.pipeline.registry import TARGETS

JUDGED = ("anthropic", "bedrock-converse", "openai-chat", "gemini", "cascade")
MODELS = {"gemini": "gemini-2.5-pro", "openai-chat": "gpt-4o"}


def session_for(target, exchanges=0, size=200, **options):
    session = Session([target], model=MODELS.get(target, "claude-sonnet-4-5"), params={"max_tokens": 9}, **options)
    if exchanges:
        session.append(user("begin"))
    for at in range(exchanges):
        add_exchange(session, at, size)
    return session


def add_exchange(session, at, size=200):
    session.append(said("so", call(f"t{at}", "read", at=at)))
    session.append(user(result(f"t{at}", "x" * size)))


def judged(target):
    """The sizes of the messages that the target's rules were given, and the patch that notes them."""
    rules = TARGETS[target].rules
    sizes = []
    judge_messages = type(rules).judge_messages

    def seen(self, state, messages):
        sizes.append(len(messages))
        return judge_messages(self, state, messages)

    return sizes, patch.object(type(rules), "judge_messages", seen)


@pytest.mark.parametrize("target", JUDGED)
def test_one_more_turn_is_one_step_over_the_new_messages(target):
    session = session_for(target, 40)
    session.request()
    sizes, noting = judged(target)
    with noting:
        for at in range(40, 60):
            add_exchange(session, at)
            assert session.request().violations == validate(session.request().unjudged, target, session.model)
    # Two requests a turn. Cascade's last turn is written otherwise once it has settled, so it is judged again then.
    assert 40 <= len(sizes) <= (42 if target == "cascade" else 40)
    assert max(sizes) < (6_000 if target == "cascade" else 2_000)


@pytest.mark.parametrize("size", [10, 5_000])
@pytest.mark.parametrize("target", JUDGED)
def test_a_repeated_request_does_not_read_a_long_history_again(target, size):
    session = session_for(target, 200, size)
    session.request()
    sizes, noting = judged(target)
    with noting:
        for _ in range(5):
            session.request()
    assert len(sizes) == 5
    assert max(sizes) < 6_000 + 2 * size


@pytest.mark.parametrize("tail", ["continue", "keep"])
@pytest.mark.parametrize("target", JUDGED)
def test_repeated_equal_messages_are_judged_correctly(target, tail):
    session = session_for(target, policy={"tail": tail})
    for _ in range(6):
        for message in (user("again"), said("again")):
            session.append(message)
            for _ in range(2):
                request = session.request()
                if tail == "continue":
                    assert request.violations == validate(request.unjudged, target, session.model)
                else:
                    assert not request.rejected


@pytest.mark.parametrize("target", JUDGED)
def test_a_turn_that_grows_after_it_was_judged(target):
    session = session_for(target)
    session.append(user("begin"))
    for at in range(6):
        add_exchange(session, at)
        session.request()
        session.append(user("and"))
        request = session.request()
        assert request.violations == validate(request.unjudged, target, session.model)
