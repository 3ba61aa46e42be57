"""Any history is written in each framework's shape so that it is read again as the part that the shape holds."""

import json
from itertools import groupby

import msgspec
import pytest
from hypothesis import given
from msgspec import UNSET

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import WRITERS, write
from reknit.pipeline.history.writers.kept import kept
from reknit.pipeline.model import Conversation
from reknit.pipeline.testing.strategies import mixed_histories, perturbed_histories


def said(turns):
    """Return what turns hold, with neighbours of one role in one message."""
    return [
        (role, [block for turn in group for block in map(shown, turn.blocks)])
        for role, group in groupby((turn for turn in turns if turn.blocks), key=lambda turn: turn.role)
    ]


def shown(block):
    members = msgspec.json.decode(msgspec.json.encode(block))
    own = members.pop("own", None)
    if own and own.get("kind"):
        members["own"] = own
    if isinstance(members.get("content"), str) or members["type"] == "tool_result":
        content = members.get("content", "")
        members["content"] = [
            text_of(part) for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
        ]
    return text_of(members)


def text_of(members):
    """Return a block without the mark of a tool's own value, whose JSON is compared by its value."""
    members = {name: value for name, value in members.items() if name != "structured"}
    if members["type"] == "text" and members["text"][:1] in ("{", "["):
        try:
            members["text"] = json.loads(members["text"])
        except ValueError:
            return members
    return members


def check(history):
    try:
        turns = read(history).conversation.turns
    except InputError:
        return
    for writer in WRITERS.values():
        expected, fixes = kept(turns, writer.holds)
        done = write(Conversation(turns=turns), writer)
        assert done.fixes == tuple(fixes)
        if not done.data:
            assert said(expected) == []  # a file without a line is no history
            continue
        again = read(done.data, writer.source)
        assert said(again.conversation.turns) == said(expected), writer.name
        # Arguments that are a list or a number are a text in most shapes, and reading them says so.
        assert {fix.code for fix in again.fixes} <= {"input_parsed"}, writer.name
        calls = [block.id for turn in expected for block in turn.blocks if getattr(block, "input", UNSET) is not UNSET]
        assert len(calls) + lost(fixes) == sum(
            getattr(block, "input", UNSET) is not UNSET for turn in turns for block in turn.blocks
        )


def lost(fixes):
    return sum(fix.code == "call_incomplete" for fix in fixes)


@given(perturbed_histories())
def test_broken_histories_are_converted_without_a_silent_loss(messages):
    check(messages)


@given(mixed_histories)
def test_histories_of_several_shapes_are_converted_without_a_silent_loss(messages):
    check(messages)


@pytest.mark.parametrize("name", WRITERS)
def test_an_empty_history_is_an_empty_list_or_file(name):
    assert write(Conversation(turns=()), WRITERS[name]).data == (b"" if WRITERS[name].lines else b"[]")
