"""The content of bodies: values that were compared before give the same digests, in bounded memory."""

import hashlib
import json

import pytest
from build import said, user
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from reknit.pipeline.stages import content
from reknit.pipeline.stages.content import MARKS, ROOTS, ComparedValues, content_sha256

MARK = {"cache_control": {"type": "ephemeral"}}
POINT = {"cachePoint": {"type": "default"}}


def without_marks(value):
    """The content of a message, in other words than the code's."""
    if isinstance(value, list):
        return [without_marks(each) for each in value if each == {} or not is_mark(each)]
    if not isinstance(value, dict):
        return value
    found = {name: without_marks(each) for name, each in value.items() if name not in MARKS}
    if isinstance(found.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return found


def is_mark(value):
    return isinstance(value, dict) and set(value) <= MARKS


def expected(body):
    found = {name: without_marks(value) if name in ROOTS else value for name, value in body.items()}
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


BODIES = [
    {"model": "m", "messages": [user("hi"), said("1"), user({"type": "text", "text": "two", **MARK})]},
    {"messages": [{"role": "user", "content": [{"text": "hi"}, POINT]}, POINT, {}, MARK], "system": [POINT]},
    {"contents": [{"parts": [{"text": "hi"}]}], "input": "hi", "z": {"b": 1, "a": [2.5, None, 2**70]}},
    {"messages": {"content": "no list"}},
    {"messages": "no list"},
    {"tools": [{"name": "ls", "cache_control": 1}]},
    {},
]


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_a_digest_is_that_of_the_content(body):
    data = json.dumps(body, indent=1).encode()
    kept = ComparedValues(1 << 20)
    assert [kept.content_sha256(data), kept.content_sha256(data), content_sha256(data)] == [expected(body)] * 3


_NAMES = st.sampled_from(["role", "content", "text", "a", *MARKS])
_VALUES = st.recursive(
    st.none() | st.integers(0, 9) | st.text("ab é\n", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from([*ROOTS, "model", "tools"]), _VALUES, max_size=3), max_size=6))
def test_bodies_with_equal_values_in_other_places_have_digests_of_their_own(bodies):
    kept = ComparedValues(1 << 20)
    for body in bodies:
        assert kept.content_sha256(json.dumps(body).encode()) == expected(body)


@pytest.fixture
def compared(monkeypatch):
    """The values that are read, in order."""
    found, real = [], content.unmarked
    monkeypatch.setattr(content, "unmarked", lambda value, **more: found.append(value) or real(value, **more))
    return found


def test_a_message_is_read_once(compared):
    kept, message = ComparedValues(1 << 20), Raw(json.dumps(user("hi")).encode())
    first, second = (kept.message(message) for _ in range(2))
    assert (len([each for each in compared if each == user("hi")]), first) == (1, second)


def test_the_values_that_were_used_least_recently_are_forgotten_first(compared):
    messages = [Raw(json.dumps(user(f"{number}" * 100)).encode()) for number in range(4)]
    kept = ComparedValues(1500)
    for at in (0, 1, 0, 2, 0, 3, 0, 1):
        kept.message(messages[at])
    read = [each["content"][0]["text"][0] for each in compared if isinstance(each, dict) and "role" in each]
    assert read == ["0", "1", "2", "3", "1"]
