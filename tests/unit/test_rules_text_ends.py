"""A text that is judged by its ends is judged as when all of it is read, and a session reads no more than those."""

import json
from unittest.mock import patch

import pytest
from build import call, image, result, said, session_of, text, user
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reknit.pipeline import Session, validate
from reknit.pipeline.registry import TARGETS

TEXTS = ("claude-cli", "codex-cli", "copilot-cli", "gemini-cli")
ENVELOPE = '{"type": "user", "message": {"role": "user", "content": '
OPENINGS = (
    f'{ENVELOPE}"',
    f'{ENVELOPE}"## So far',
    f'{ENVELOPE}"a\\n',
    f'{ENVELOPE}[{{"type": "text", "text": "a',
    f'{ENVELOPE}[{{"type": "image", "source": {{}}}}, {{"type": "text", "text": "',
    f'{ENVELOPE}[{{"type": "image", "text": "a", "source": {{"data": "',
    f'{ENVELOPE}"a"}}, "',
    f'{ENVELOPE}"a", "content": "b',
    f'{ENVELOPE}"a\\',
    f'{ENVELOPE}"a\\u00',
    f'{ENVELOPE}"a\\ud83d',
    f'{ENVELOPE}"a\\u2028\\u2029\\u2028", "content": "b"}}, "',
    '{"type": "',
    '{"message": {"role": "',
    "",
    "a",
    " ",
)
ENDINGS = (
    '"}}\n',
    'a"}}\n',
    '"}]}}\n',
    '"}}]}}\n',
    '": 1}\n',
    '", "content": "a"}}\n',
    '\\ude00a"}}\n',
    'ua"}}\n',
    'user", "message": {"role": "user", "content": "a"}}\n',
    '"}}',
    "",
    "b",
)
PIECES = ("x", " ", "\\n", "\\u00e9", "é", "\\ud83d\\ude00", "\\ude00", "\\", '"', "\n", "\0", "\u2028\u2029\u2028")
pieces = st.one_of(st.sampled_from([piece.encode() for piece in PIECES]), st.just(b"\xff"), st.just(b"x" * 131_072))


@settings(max_examples=600)
@given(
    st.sampled_from(TEXTS),
    st.sampled_from([opening.encode() for opening in OPENINGS]),
    st.lists(pieces, max_size=3),
    st.sampled_from([ending.encode() for ending in ENDINGS]),
)
@example("claude-cli", OPENINGS[0].encode(), [b" "], ENDINGS[0].encode())
@example("copilot-cli", b"a", [b"x" * 131_072], b"b")
@example("codex-cli", b"a", [b"x" * 1_048_574], b"b")
@example("codex-cli", b"a", [b"x" * 1_048_575], b"b")
def test_judging_the_ends_equals_judging_the_whole(target, opening, inside, ending):
    rules = TARGETS[target].rules
    if not all(map(rules.inert, inside)):
        return
    found = rules.judge_ends(opening, sum(map(len, inside)), ending)
    if found is not None:
        assert found == rules.validate(opening + b"".join(inside) + ending)


@pytest.mark.parametrize(
    ("target", "opening", "ending", "codes"),
    [
        ("claude-cli", OPENINGS[1], ENDINGS[0], []),
        ("claude-cli", OPENINGS[3], '"}]}}\n', []),
        ("copilot-cli", "a", "", []),
        ("claude-cli", OPENINGS[0], ENDINGS[0], None),  # is what is between blank?
        ("claude-cli", OPENINGS[6], '": 1}\n', None),  # inside a key
        ("claude-cli", OPENINGS[5], '"}}]}}\n', None),  # inside an image
        ("claude-cli", OPENINGS[7], '"}}', None),  # no newline
        ("claude-cli", OPENINGS[8], 'n"}}\n', None),  # inside an escape
        ("claude-cli", OPENINGS[1] + "\\u2028", '"}}\n', None),
        ("codex-cli", "a", "\0", []),
        ("gemini-cli", "a", "\0", []),
        ("gemini-cli", "/a", "", None),
        ("codex-cli", " ", " ", None),
        ("copilot-cli", " ", " ", None),
        ("copilot-cli", "a\0", "", None),
    ],
)
def test_cases_in_which_the_ends_are_enough(target, opening, ending, codes):
    found = TARGETS[target].rules.judge_ends(opening.encode(), 1, ending.encode())
    assert (None if found is None else [violation.rule for violation in found]) == codes


def test_the_size_of_a_prompt_is_known_without_reading_it():
    [found] = TARGETS["copilot-cli"].rules.judge_ends(b"a", 131_071, b"b")
    assert found == validate(b"a" + b"x" * 131_071 + b"b", "copilot-cli")[0]
    assert TARGETS["copilot-cli"].rules.judge_ends(b"a", 131_069, b"b") == []


def turns(count):
    """A healthy history, with a call in each assistant's turn."""
    yield {"role": "user", "content": 'begin \\ " é \U0001f600'}
    for at in range(count):
        yield said(f"step {at}\n", call(f"t{at}", "f", at=at))
        yield user(result(f"t{at}", "x" * 900))


@pytest.mark.parametrize("target", TEXTS)
def test_the_violations_of_a_session_are_those_of_its_text(target):
    session = Session([target], system="be brief")
    for turn in turns(150):
        session.append(turn)
        request = session.request()
        assert request.violations == validate(request.unjudged, target)
    assert [violation.rule for violation in request.violations] == (["COP-04"] if target == "copilot-cli" else [])


@pytest.mark.parametrize("target", TEXTS)
def test_the_violations_of_a_session_with_an_image_and_odd_text(target):
    session = session_of(*turns(3), targets=[target])
    picture = image("AAAA")
    for content in ([text("look \\u2028 \u2028\u2029\u2028"), picture], "and \0 this", [picture]):
        session.append({"role": "assistant", "content": "well"})
        session.append({"role": "user", "content": content})
        request = session.request()
        assert request.violations == validate(request.unjudged, target)
        assert not request.rejected


@pytest.mark.parametrize("target", TEXTS)
def test_one_more_turn_reads_the_ends_only(target):
    session = session_of(*turns(20), targets=[target])
    session.request()
    session.append({"role": "assistant", "content": "done"})
    session.append({"role": "user", "content": "more"})
    read = []
    rules = TARGETS[target].rules

    def seen(body):
        read.append(len(body))
        return True

    with patch.object(type(rules), "inert", lambda _, piece: seen(piece)):
        request = session.request()
    assert sum(read) < 2_500  # the last call's turns, and for a prompt its ends
    assert len(request.unjudged) > 15_000
    if target == "claude-cli":
        assert json.loads(request.body)["message"]["content"].endswith("## Current input\nmore")
