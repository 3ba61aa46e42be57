"""OpenAI's Responses items become canonical turns, and a valid input round-trips unchanged, without a fix."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import UNSET, Raw
from reader_results import one, refusal

from reknit.pipeline import Session, normalize
from reknit.pipeline.history.readers.shapes import read, read_message
from reknit.pipeline.model import (
    Document,
    Issuer,
    Own,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

ISSUER = Issuer(provider="openai-responses")
SUMMARY = [{"type": "summary_text", "text": text} for text in "ab"]
ROUND = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {"type": "function_call", "id": "fc_1", "call_id": "A", "name": "f", "arguments": '{"x":  1.0}', "status": "x"},
    {"type": "function_call", "id": "fc_2", "call_id": "B", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "A", "output": "1"},
    {"type": "function_call_output", "call_id": "B", "output": [{"type": "input_text", "text": "2"}]},
    {"role": "user", "content": "go on"},
]  # fmt: skip


def own(kind="", **members):
    """The members of an item that are not in the canonical form."""
    return Own("openai-responses", {name: Raw(msgspec.json.encode(value)) for name, value in members.items()}, kind)


def test_a_valid_round():
    found = read({"model": "gpt-5-mini", "instructions": "Be brief.", "input": ROUND, "store": False})
    assert (found.shape, found.fixes) == ("openai-responses", ())
    given = found.conversation
    assert (given.system, given.model, given.params) == ("Be brief.", "gpt-5-mini", {"store": Raw(b"false")})
    result = ToolResult(tool_use_id="B", content=[Text(text="2")])
    sealed = own("reasoning", id="rs_1", summary=[], encrypted_content="gAAA")
    first = ToolUse(id="A", name="f", input=Raw(b'{"x":  1.0}'), own=own(id="fc_1", status="x"))
    assert [(turn.role, turn.id, turn.paths, turn.blocks) for turn in given.turns] == [
        ("user", None, ("input.0.content.0",), (Text(text="q"),)),
        ("assistant", "rs_1", ("input.1",), (RedactedThinking(data="gAAA", issuer=ISSUER, own=sealed),)),
        ("assistant", "fc_1", ("input.2",), (first,)),
        ("assistant", "fc_2", ("input.3",), (ToolUse(id="B", name="g", input=Raw(b"{}"), own=own(id="fc_2")),)),
        ("user", None, ("input.4",), (ToolResult(tool_use_id="A", content="1"),)),
        ("user", None, ("input.5",), (result,)),
        ("user", None, ("input.6.content",), (Text(text="go on"),)),
    ]
    assert {turn.root for turn in given.turns} == {"input"}


def test_it_round_trips_unchanged():
    done = normalize({"input": ROUND}, to="openai-responses")
    assert done.fixes == []
    expected = [dict(item) for item in ROUND]
    expected[0]["content"], expected[5]["output"] = "q", "2"
    expected[-1] = {"type": "message", **expected[-1]}
    written = json.loads(done.body)["input"]
    assert [dict(sorted(item.items())) for item in written] == [dict(sorted(item.items())) for item in expected]


def test_items_one_by_one_equal_the_whole():
    session = Session(["openai-responses"])
    for item in ROUND:
        session.append(item, source="openai-responses")
    whole = normalize({"input": ROUND}, to="openai-responses")
    assert session.request().body == whole.body
    assert session.request().fixes == whole.fixes == []


@pytest.mark.parametrize("source", ["auto", "openai-responses"])
def test_a_bare_list_is_recognised_by_its_items(source):
    found = read(ROUND, source)
    assert found.shape == "openai-responses"
    assert found.conversation.turns == read({"input": ROUND}).conversation.turns


def test_a_text_input_is_a_user_turn():
    found = read({"input": "hi"})
    assert found.conversation.turns == (
        Turn(role="user", blocks=(Text(text="hi"),), index=0, paths=("input.0.content",), root="input"),
    )


@pytest.mark.parametrize(
    ("members", "said", "signature"),
    [
        ({"summary": SUMMARY[:1], "encrypted_content": "gAAA"}, "a", "gAAA"),
        ({"summary": SUMMARY}, "a\n\nb", UNSET),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}, "hm", UNSET),
    ],
)
def test_reasoning(members, said, signature):
    turn, fixes = one({"type": "reasoning", **members}, source="openai-responses")
    thought = Thinking(thinking=said, signature=signature, issuer=ISSUER, own=own("reasoning", **members))
    assert (turn.role, turn.blocks, fixes) == ("assistant", (thought,), [])


@pytest.mark.parametrize(
    ("item", "block", "fixes"),
    [
        (
            {"type": "custom_tool_call", "call_id": "A", "name": "sql", "input": "SELECT 1"},
            ToolUse(id="A", name="sql", input=Raw(b'{"input":"SELECT 1"}'), own=own("custom_tool_call")),
            [],
        ),
        (
            {"type": "custom_tool_call_output", "call_id": "A", "output": "1"},
            ToolResult(tool_use_id="A", content="1", own=own("custom_tool_call_output")),
            [],
        ),
        (
            {"type": "function_call", "name": "f", "arguments": "{}", "namespace": "n"},
            ToolUse(id="call_f", name="f", input=Raw(b"{}"), own=own(namespace="n")),
            [("call_id_derived", "input.0")],
        ),
        (
            {"type": "function_call", "call_id": "A", "name": "f", "arguments": '{"a": '},
            ToolUse(id="A", name="f", input=Raw(b'"{\\"a\\": "'), incomplete=True),
            [],
        ),
    ],
)  # fmt: skip
def test_an_item(item, block, fixes):
    turn, found = one(item, source="openai-responses")
    assert turn.blocks == (block,)
    assert turn.role == ("user" if isinstance(block, ToolResult) else "assistant")
    assert found == fixes


@pytest.mark.parametrize(
    ("item", "role"),
    [
        ({"type": "item_reference", "id": "rs_1"}, "assistant"),
        ({"type": "web_search_call", "status": "completed"}, "assistant"),
        ({"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}, "user"),
    ],
)
def test_provider_specific_items_are_kept_whole_with_their_role(item, role):
    turn, fixes = one(item, source="openai-responses")
    whole = Unknown(kind=item["type"], raw=Raw(msgspec.json.encode(item)), issuer=ISSUER)
    assert (turn.role, turn.blocks, fixes) == (role, (whole,), [])


@pytest.mark.parametrize(
    ("part", "source"),
    [
        (
            {"file_data": "data:application/pdf;base64,JVBERg=="},
            {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
        ),
        ({"file_url": "https://example.org/a.pdf"}, {"type": "url", "url": "https://example.org/a.pdf"}),
        ({"file_id": "file-1"}, {"type": "file", "file_id": "file-1"}),
    ],
)  # fmt: skip
def test_a_file(part, source):
    content = [{"type": "input_file", "filename": "a.pdf", **part}]
    turn, fixes = one({"role": "user", "content": content}, source="openai-responses")
    (document,) = turn.blocks
    assert isinstance(document, Document)
    assert (json.loads(bytes(document.source)), document.title, fixes) == (source, "a.pdf", [])
    done = normalize({"input": [{"role": "user", "content": content}]}, to="openai-responses")
    # Only inline data has a name.
    named = {"filename": "a.pdf"} if "file_data" in part else {}
    assert json.loads(done.body)["input"][0]["content"] == [{"type": "input_file", **named, **part}]
    assert [fix.code for fix in done.fixes] == ([] if named else ["document_notes_dropped"])


def test_two_consecutive_messages_stay_two():
    items = [
        {"role": "user", "content": "q"},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "go on"},
    ]
    done = normalize({"input": items}, to="openai-responses")
    assert done.fixes == []
    assert [each.get("content") for each in json.loads(done.body)["input"]] == ["q", None, "one", "two", "go on"]


def test_a_role_that_no_message_has():
    message = {"role": "tool", "content": "x"}
    assert refusal(one, message, index=3, source="openai-responses") == ("wrong_shape", "input.3.role")


def test_a_rewind_names_the_items_that_stay():
    session = Session(["openai-responses"])
    session.append(msgspec.json.encode({"type": "function_call", "name": "f", "arguments": "{}"}))
    session.append({"role": "user", "content": "hi"})
    session.rewind(0)
    assert session.request().body is not None
    assert [fix.code for fix in session.request().fixes] == []


MIXED = [
    {"role": "user", "content": "go"},
    {"type": "function_call", "call_id": "A", "name": "f", "arguments": "{}"},
    {"role": "tool", "tool_call_id": "A", "content": "1"},
    {"role": "model", "parts": [{"text": "well"}]},
    {"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]},
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "B", "name": "f", "input": {}}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "B", "content": "2"}]},
]
DOCUMENT = Document(source=Raw(b'{"type":"file","file_id":"file-1"}'))


@pytest.mark.parametrize("wrapped", [lambda items: items, lambda items: {"input": items}], ids=["list", "input"])
def test_items_among_other_shapes_are_read_one_by_one(wrapped):
    found = read(wrapped(MIXED))
    assert found.fixes == ()
    assert [turn.blocks for turn in found.conversation.turns] == [
        (Text(text="go"),),
        (ToolUse(id="A", name="f", input=Raw(b"{}")),),
        (ToolResult(tool_use_id="A", content="1"),),
        (Text(text="well"),),
        (DOCUMENT,),
        (ToolUse(id="B", name="f", input=Raw(b"{}")),),
        (ToolResult(tool_use_id="B", content="2"),),
    ]


def test_contents_among_other_shapes_are_read_one_by_one():
    found = read({"contents": [*MIXED[3:4], *MIXED[:3], *MIXED[4:]]})
    assert found.fixes == ()
    assert [type(turn.blocks[0]) for turn in found.conversation.turns] == [
        Text, Text, ToolUse, ToolResult, Document, ToolUse, ToolResult,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "block", "own"),
    [
        ({"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}, DOCUMENT, UNSET),
        (
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}],
                "status": "completed",
            },
            Text(text="a"),
            Own("openai-responses", {"status": Raw(b'"completed"')}),
        ),
    ],
)
def test_a_single_message_keeps_provider_specific_members(message, block, own):
    (turn,), fixes = read_message(message, index=3)
    assert (turn.blocks, turn.own, turn.root, fixes) == ((block,), own, "input", [])
