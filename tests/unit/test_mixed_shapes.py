"""A history of several shapes: the first message that only one shape can have decides the shape of the session."""

import json

import msgspec
import pytest
from build import session_of
from hypothesis import given, settings

from reknit.pipeline import Session, normalize
from reknit.pipeline.history.frameworks import FRAMEWORKS
from reknit.pipeline.history.readers.message import UNDECIDED, Decided
from reknit.pipeline.history.readers.shapes import SHAPES, TRANSCRIPTS, read, read_next
from reknit.pipeline.history.readers.strict import Misfit, StrictReader
from reknit.pipeline.model import Turn
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.testing.strategies import mixed_histories

# Members that no shape has: the path of the fix shows the shape as which the message was read.
HELLO = {"role": "user", "content": "hello", "odd": 1}
ITEM = {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "done"}
ROW = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
DEVELOPER = {"role": "developer", "content": "be brief"}
PARTS = {"role": "user", "parts": [{"text": "hi"}]}
BLOCKS = {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "read", "input": {}}]}
NEUTRAL = [
    {"role": role, **content}
    for role in ("user", "assistant", "system", "developer")
    for content in (
        {"content": "x"},
        {"content": ""},
        {"content": []},
        {"content": None},
        {"content": "x", "type": "message"},
        {"content": [{"type": "text", "text": "x"}]},
        {"content": [{"type": "input_text", "text": "x"}]},
        {"content": [{"type": "output_text", "text": "x", "annotations": []}]},
        {"content": [{"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"}]},
        {"content": [{"type": "refusal", "refusal": "no"}]},
        {"content": [{"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}]},
        {"content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
    )
]


def paths(fixes):
    return [fix.path for fix in fixes if fix.code == "field_dropped"]


def appended(*messages, session=None):
    session = session or Session(["openai-responses"])
    return [path for message in messages for path in paths(session.append(message))]


def whole(*messages):
    return paths(read(list(messages)).fixes)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([HELLO, HELLO], ["messages.0.odd", "messages.1.odd"]),
        ([HELLO, ITEM, HELLO], ["messages.0.odd", "input.2.odd"]),
        ([DEVELOPER | {"odd": 1}, ITEM, HELLO], ["messages.0.odd", "input.2.odd"]),
        ([ITEM, OUTPUT, DEVELOPER | {"odd": 1}], ["input.2.odd"]),
        ([PARTS, {"role": "user", "odd": 1, "parts": []}], ["contents.1.odd"]),
        # The first one decides. A message of only one shape is read as that shape.
        ([BLOCKS, ROW, ITEM, HELLO], ["messages.3.odd"]),
        ([HELLO, BLOCKS, HELLO, ITEM, HELLO], ["messages.0.odd", "messages.2.odd", "messages.4.odd"]),
        ([ITEM, ROW | {"odd": 1}, HELLO], ["messages.1.odd", "input.2.odd"]),
        ([ITEM, PARTS, HELLO], ["input.2.odd"]),
        ([{"role": "assistant", "content": "x", "phase": "final_answer"}, HELLO], ["input.1.odd"]),
        ([{"role": "assistant", "content": "x", "phase": "moon"}, HELLO], ["messages.0.phase", "messages.1.odd"]),
    ],
)
def test_an_ambiguous_message_has_the_shape_decided_before_it(messages, expected):
    assert whole(*messages) == expected
    assert appended(*messages) == expected


@pytest.mark.parametrize("message", NEUTRAL)
@pytest.mark.parametrize("shape", ["openai-responses", "gemini"])
def test_an_ambiguous_message_has_the_same_content_in_each_shape(message, shape):
    turns, _, decided = read_next(message, index=0)
    assert decided == UNDECIDED
    listed, _, _ = read_next(message, index=0, decided=Decided(shape, 0))
    for target in TARGETS:
        alone, other = (
            session_of(turn, {"role": "user", "content": "hi"}, targets=[target]).request()
            for (turn,) in (turns, listed)
        )
        assert (alone.unjudged, alone.violations) == (other.unjudged, other.violations)
        assert [(fix.code, fix.detail) for fix in alone.fixes] == [(fix.code, fix.detail) for fix in other.fixes]


@settings(deadline=None)
@given(messages=mixed_histories)
def test_strict_and_tolerant_reading_decide_the_same(messages):
    def found():
        decided, each = UNDECIDED, []
        for index, message in enumerate(messages):
            turns, fixes, decided = read_next(message, index=index, decided=decided)
            each.append((turns, fixes, decided))
        return each

    strictly = found()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StrictReader, "read_message", lambda self, *_: Misfit(self))
        assert found() == strictly


@pytest.mark.parametrize("target", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("before", [[], [ITEM, OUTPUT], [BLOCKS, ROW]])
@pytest.mark.parametrize("after", [[], [ITEM, OUTPUT], [BLOCKS, ROW]])
def test_a_developer_message_keeps_its_role_for_both_openai_apis(target, before, after):
    messages = [*before, DEVELOPER, *after, HELLO]
    session = session_of(*messages, targets=[target])
    body = session.request().unjudged
    assert body == normalize(messages, to=target).unjudged
    rows = json.loads(body).popitem()[1]
    assert [row["role"] for row in rows if row.get("content") == "be brief"] == ["developer"]


def test_a_developer_message_becomes_the_users_if_the_model_takes_no_system_there():
    messages = [{"role": "user", "content": "hello"}, DEVELOPER]
    body = json.loads(normalize(messages, to="vllm").body)
    assert [row["role"] for row in body["messages"]] == ["user"]


def test_the_decision_is_saved_and_removed_with_its_message():
    session, segments = Session(["openai-responses"]), []
    appended(HELLO, ITEM, OUTPUT, session=session)
    for _ in range(2):
        segments += session.take_segments(flush=True)
        session = Session.load(session.head(), [record for _, record in segments])
        index = session.count
        assert appended(HELLO, session=session) == [f"input.{index}.odd"]
    session.configure(system="Be brief.")
    assert appended(HELLO, session=session) == ["input.5.odd"]
    session.rewind(2)
    assert appended(HELLO, session=session) == ["input.2.odd"]
    session.rewind(1)
    assert appended(HELLO, session=session) == ["messages.1.odd"]


@pytest.mark.parametrize(
    ("history", "path"),
    [
        ([ITEM, OUTPUT], "input.2.odd"),
        (json.dumps([ITEM, OUTPUT]).encode(), "input.2.odd"),
        (json.dumps({"input": "hi"}).encode(), "input.1.odd"),
        (json.dumps({"contents": [PARTS]}).encode(), "contents.1.odd"),
        (json.dumps({"messages": [{"role": "user", "content": "hi"}, ITEM]}, indent=1).encode(), "input.2.odd"),
        ([BLOCKS, ROW], "messages.2.odd"),
        ([{"role": "user", "content": "hi"}], "messages.1.odd"),
        ([Turn(role="user", blocks=(), index=0), ITEM], "input.2.odd"),
    ],
)
def test_a_replacement_history_decides_too(history, path):
    session = session_of(PARTS, targets=["openai-responses"])
    session.replace(history)
    message = HELLO if not path.startswith("contents") else {"role": "user", "parts": [], "odd": 1}
    assert appended(message, session=session) == [path]


def test_an_imported_log_continues_as_its_session_did():
    session = session_of(HELLO, ITEM, OUTPUT, targets=["openai-responses"])
    other = Session(["openai-responses"])
    other.replace_by_log(session.log())
    assert appended(HELLO, session=other) == appended(HELLO, session=session) == ["input.3.odd"]
    other.rewind(1)
    assert appended(HELLO, session=other) == ["messages.1.odd"]


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - TRANSCRIPTS - FRAMEWORKS.keys()))
def test_a_message_with_a_named_shape_decides_nothing(shape):
    session = Session(["openai-responses"])
    content = {"parts": [{"text": "x"}]} if shape == "gemini" else {"content": [{"text": "x"}]}
    content = content if shape in ("gemini", "bedrock-converse") else {"content": "x"}
    session.append({"role": "user", **content}, source=shape)
    assert appended(HELLO, session=session) == ["messages.1.odd"]
    session.replace([{"role": "user", **content}], source=shape)
    assert appended(HELLO, ITEM, HELLO, session=session) == ["messages.1.odd", "input.3.odd"]


def without_a_shape(head):
    fields = msgspec.msgpack.decode(head)
    del fields["shape"], fields["shape_since"]
    return msgspec.msgpack.encode(fields)


def test_a_session_of_an_earlier_version_reads_each_message_by_itself():
    session = session_of(HELLO, ITEM, OUTPUT, targets=["openai-responses"])
    old = Session.load(without_a_shape(session.head()), [])
    assert appended(HELLO, ITEM, HELLO, session=old) == ["messages.3.odd", "messages.5.odd"]
    old = Session.load(old.head(), [])
    assert appended(HELLO, session=old) == ["messages.6.odd"]
    log = msgspec.json.decode(old.log())
    del log["shape"], log["shape_since"]
    old.replace_by_log(msgspec.json.encode(log))
    assert appended(HELLO, session=old) == ["messages.7.odd"]
