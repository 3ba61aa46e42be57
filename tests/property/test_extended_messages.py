"""A message that comes again with more content: a session that sees every version requests the same as the last one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.pipeline.registry import TARGETS
from reknit.pipeline.session import Session, normalize

words = st.sampled_from(["a", "Let me see.", "So, é.", "x" * 40])
SIGNED = {"providerMetadata": {"anthropic": {"signature": "EgpzaWct+/8SEhISEhISEhISEhISEhISEhISEhISEhI="}}}


@st.composite
def answers(draw, number):
    """The versions of one answer on the screen, each with more content than the one before it."""
    parts, versions = [], []
    for at in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["text", "reasoning", "tool", "step"]))
        if kind == "step":
            parts = [*parts, {"type": "step-start"}]
        elif kind == "tool":
            call = {"type": "tool-read", "toolCallId": f"call_{number}_{at}"}
            states = [
                {**call, "state": "input-streaming", "rawInput": '{"a'},
                {**call, "state": "input-available", "input": {"a": 1}},
                {**call, "state": "output-available", "input": {"a": 1}, "output": draw(words)},
            ]
            kept = draw(st.integers(1, 3))
            versions += [[*parts, state] for state in states[: kept - 1]]
            parts = [*parts, states[kept - 1]]
        else:
            text = draw(words)
            signed = SIGNED if kind == "reasoning" and draw(st.booleans()) else {}
            versions.append([*parts, {"type": kind, "text": text[: len(text) // 2], "state": "streaming"}])
            parts = [*parts, {"type": kind, "text": text, "state": "done", **signed}]
        versions.append(parts)
    return [{"id": f"a{number}", "role": "assistant", "parts": version} for version in versions]


@st.composite
def conversations(draw):
    """Messages with all versions of the answers, and the last versions alone."""
    grown, final = [], []
    for number in range(draw(st.integers(1, 4))):
        asked = {"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": draw(words)}]}
        versions = draw(answers(number))
        grown += [asked, *versions]
        final += [asked, versions[-1]]
    return grown, final


@pytest.mark.parametrize("target", TARGETS)
@given(conversations(), st.data())
def test_every_version_of_an_answer_gives_way_to_the_next(target, conversation, data):
    grown, final = conversation
    session, segments = Session((target,)), {}
    for message in grown:
        session.append(message, "ai-sdk-ui")
        if data.draw(st.booleans()):
            session.request(is_sent=False)
        if data.draw(st.booleans()):
            segments |= dict(session.take_segments(flush=True))
        if data.draw(st.booleans()):
            kept = [segments[number] for number in session.segments]
            session = Session.load(msgspec.msgpack.decode(msgspec.msgpack.encode(session.head())), kept)
    whole = Session((target,))
    whole.replace(grown, "ai-sdk-ui")
    assert session.request().body == whole.request().body == normalize(final, target, "ai-sdk-ui").body
    assert sorted(map(str, session.request().fixes)) == sorted(map(str, whole.request().fixes))
    assert session.count == len(grown)
