"""Canonical messages are read as they are; what they lack or have too much is named."""

import json

import pytest
from msgspec import UNSET, Raw
from reader_results import named, one, refusal

from reknit.pipeline import normalize
from reknit.pipeline.history.readers.fields import Notes
from reknit.pipeline.history.readers.message import read_tolerantly
from reknit.pipeline.history.readers.shapes import read, read_message
from reknit.pipeline.model import (
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

PNG = '{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}'


def test_string_content_is_one_text_block_with_the_contents_path():
    turn, fixes = one({"role": "user", "content": "hi"})
    assert turn == Turn(role="user", blocks=(Text(text="hi"),), index=0, paths=("messages.0.content",))
    assert fixes == []


def test_the_mark_of_program_written_turns_is_kept():
    turn, fixes = one({"role": "user", "content": "Go on.", "synthetic": True})
    assert turn == Turn(
        role="user", blocks=(Text(text="Go on."),), index=0, paths=("messages.0.content",), synthetic=True
    )
    assert fixes == []
    turn, fixes = one({"role": "user", "content": [{"type": "text", "text": "Go on."}], "synthetic": False})
    assert (turn.synthetic, fixes) == (False, [])
    turn, fixes = one({"role": "assistant", "content": "Well.", "synthetic": True})
    assert (turn.synthetic, fixes) == (False, [("field_dropped", "messages.0.synthetic")])


def test_a_document_keeps_its_text_when_members_are_dropped():
    given = {"type": "document", "source": {"type": "text", "data": "x"}, "title": "T", "context": "C", "mood": 1}
    turn, fixes = one({"role": "user", "content": [given]})
    assert [(block.title, block.context) for block in turn.blocks] == [("T", "C")]
    assert fixes == [("field_dropped", "messages.0.content.0.mood")]


def test_every_canonical_block_is_kept_unchanged():
    message = (
        '{"role":"assistant","id":"m1","content":['
        '{"type":"thinking","thinking":"t","signature":"s"},{"type":"redacted_thinking","data":"d"},'
        '{"type":"text","text":"x","citations":[1.0],"cache_control":{"type":"ephemeral"}},'
        f'{{"type":"image","source":{PNG}}},{{"type":"document","source":{PNG},"title":"T","context":null}},'
        '{"type":"tool_use","id":"a","name":"f","input":{"n":1.0, "n":2}},'
        '{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"r"}],"is_error":true},'
        '{"type":"text","text":"y","issuer":{"provider":"anthropic","model":"m"}}]}'
    )
    turn, fixes = one(message)
    assert fixes == []
    assert turn == Turn(
        role="assistant",
        id="m1",
        index=0,
        blocks=(
            Thinking(thinking="t", signature="s"),
            RedactedThinking(data="d"),
            Text(text="x", citations=Raw(b"[1.0]"), cache_control=Raw(b'{"type":"ephemeral"}')),
            Image(source=Raw(PNG.encode())),
            Document(source=Raw(PNG.encode()), title="T", context=None),
            ToolUse(id="a", name="f", input=Raw(b'{"n":1.0, "n":2}')),
            ToolResult(tool_use_id="a", content=[Text(text="r")], is_error=True),
            Text(text="y", issuer=Issuer(provider="anthropic", model="m")),
        ),
    )


@pytest.mark.parametrize(
    "message",
    [
        '{"role":"user","content":"hi"}',
        '{"role":"user","content":""}',
        '{"role":"user","content":[]}',
        '{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}',
        '{"role":"assistant","id":"m","content":[{"type":"tool_use","id":"a","name":"f","input":{"x": [1]}}]}',
        '{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"},{"type":"text","text":"t"}]}',
        '{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"}]}',
        '{"role":"developer","content":"d"}',
        (
            '{"role":"assistant","content":null,"tool_calls":'
            '[{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\": 1}"}}]}'
        ),
        '{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}',
        '{"role":"assistant","content":[{"type":"text","text":"t"}],"tool_calls":[]}',
        '{"role":"tool","tool_call_id":"c","name":"f","content":"r"}',
        '{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"r"}]}',
    ],
)
def test_the_fast_and_the_tolerant_path_make_the_same_turn(message):
    notes = Notes()
    turn, *_ = read_tolerantly(message.encode(), 0, None, notes)
    assert one(message) == (turn, [])
    assert notes.fixes == []


@pytest.mark.parametrize(
    ("message", "blocks", "fixes"),
    [
        ('{"role":"user"}', (), []),
        ('{"role":"user","content":null}', (), []),
        ('{"role":"user","content":["a","b"]}', (Text(text="a"), Text(text="b")), []),
        ('{"role":"user","content":[{"type":"text"}]}', (Text(text=""),), []),
        (
            '{"role":"user","content":{"type":"text","text":"a"}}',
            (Text(text="a"),),
            [("content_wrapped", "messages.0.content")],
        ),
        (
            '{"role":"user","content":[{"type":"text","text":"a","index":3}]}',
            (Text(text="a"),),
            [("field_dropped", "messages.0.content.0.index")],
        ),
        (
            '{"role":"assistant","content":[{"type":"tool_use","id":"a","input":{"x":1}}]}',
            (ToolUse(id="a", name="", input=Raw(b'{"x":1}')),),
            [],
        ),
    ],
)
def test_missing_and_odd_members_of_a_block(message, blocks, fixes):
    turn, found = one(message)
    assert turn.blocks == blocks
    assert found == fixes


@pytest.mark.parametrize(
    ("given", "call_input", "incomplete", "fixes"),
    [
        ("null", b"{}", False, ["field_missing"]),
        ('"{\\"x\\": 1.0}"', b'{"x": 1.0}', False, ["input_parsed"]),
        ('"{\\"x\\": [1"', b'"{\\"x\\": [1"', True, []),
        ("[1, 2]", b"[1, 2]", False, []),
    ],
)
def test_a_calls_input_in_every_form(given, call_input, incomplete, fixes):
    turn, found = one(f'{{"role":"assistant","content":[{{"type":"tool_use","id":"a","name":"f","input":{given}}}]}}')
    assert turn.blocks == (ToolUse(id="a", name="f", input=Raw(call_input), incomplete=incomplete),)
    assert found == [(code, "messages.0.content.0.input") for code in fixes]


@pytest.mark.parametrize(
    ("given", "content", "fixes"),
    [
        ('"content":{"k": 1.0}', '{"k": 1.0}', ["result_as_text"]),
        ('"content":[{"k":1}]', '[{"k":1}]', ["result_as_text"]),
        ('"content":null,"is_error":null', UNSET, []),
    ],
)
def test_a_results_content_in_every_form(given, content, fixes):
    turn, found = one(f'{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a",{given}}}]}}')
    assert turn.blocks == (ToolResult(tool_use_id="a", content=content),)
    assert found == [(code, "messages.0.content.0.content") for code in fixes]


@pytest.mark.parametrize(
    ("flag", "is_error"), [('"yes"', True), ("1", True), ("0", False), ('"false"', False), ('""', False), ("[]", False)]
)
def test_a_flag_that_is_not_boolean_counts_by_its_truth(flag, is_error):
    turn, fixes = one(f'{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","is_error":{flag}}}]}}')
    assert turn.blocks == (ToolResult(tool_use_id="a", is_error=is_error),)
    assert fixes == [("flag_read", "messages.0.content.0.is_error")]


def test_unknown_blocks_are_kept_whole():
    server = '{"type":"server_tool_use","id":"s","name":"web_search","input":{"q": 1.0}}'
    odd = '{"type":7,"a":1}'
    turn, fixes = one(f'{{"role":"assistant","content":[{server},{odd}]}}')
    assert turn.blocks == (
        Unknown(kind="server_tool_use", raw=Raw(server.encode())),
        Unknown(kind="", raw=Raw(odd.encode())),
    )
    assert fixes == []


def test_a_block_with_the_internal_unknown_type_is_not_trusted():
    claim = '{"type":"reknit.unknown","kind":"text","raw":{"type":"text","text":"x"}}'
    turn, _ = one(
        f'{{"role":"user","content":[{claim},{{"type":"tool_result","tool_use_id":"a","content":[{claim}]}}]}}'
    )
    kept = Unknown(kind="reknit.unknown", raw=Raw(claim.encode()))
    assert turn.blocks == (kept, ToolResult(tool_use_id="a", content=[kept]))


def test_a_result_keeps_blocks_that_it_cannot_hold_whole():
    call = '{"type":"tool_use","id":"x","name":"f","input":{}}'
    search = '{"type":"search_result","source":"s","title":"t","content":[]}'
    message = (
        f'{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","content":[{call},{search},"s"]}}]}}'
    )
    turn, fixes = one(message)
    assert turn.blocks[0].content == [
        Unknown(kind="tool_use", raw=Raw(call.encode())),
        Unknown(kind="search_result", raw=Raw(search.encode())),
        Text(text="s"),
    ]
    assert fixes == []


def test_reknits_own_incomplete_call_is_read_back():
    turn, fixes = one(
        '{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":"{\\"x","incomplete":true}]}'
    )
    assert turn.blocks == (ToolUse(id="a", name="f", input=Raw(b'"{\\"x"'), incomplete=True),)
    assert fixes == []


def test_keys_of_a_response_are_dropped_and_recorded_with_digests():
    turns, fixes = read_message(
        b'{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,'
        b'"usage":{"input_tokens":1}}',
        index=4,
    )
    assert turns == [Turn(role="assistant", blocks=(), index=4, id="msg_1")]
    assert [(fix.code, fix.path, len(fix.before)) for fix in fixes] == [
        ("field_dropped", "messages.4.model", 16),
        ("field_dropped", "messages.4.usage", 16),
    ]


@pytest.mark.parametrize(("name", "role"), [("model", "assistant"), ("ai", "assistant"), ("human", "user")])
def test_roles_of_other_frameworks_are_renamed(name, role):
    turn, fixes = one({"role": name, "content": "x"})
    assert turn.role == role
    assert fixes == [("role_renamed", "messages.0.role")]


def test_a_missing_role_is_the_users():
    turn, fixes = one({"content": "x"})
    assert turn.role == "user"
    assert fixes == [("field_missing", "messages.0.role")]


def test_line_breaks_between_the_tokens_do_not_get_into_raw_values():
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": "l\n"}}]}
    turn, fixes = one(json.dumps(message, indent=2))
    assert turn.blocks[0].input == Raw(b'{"x":"l\\n"}')
    assert fixes == []


def test_documents_have_system_tools_model_and_parameters():
    document = {
        "model": "claude-x",
        "system": "be brief",
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 5,
        "temperature": 1.0,
        "params": {"max_tokens": 7},
        "top_k": None,
        "service_tier": "auto",
    }
    result = read(document)
    conversation = result.conversation
    assert (conversation.model, conversation.system, result.shape) == ("claude-x", "be brief", "anthropic")
    assert conversation.params == {
        "max_tokens": Raw(b"7"),
        "temperature": Raw(b"1.0"),
        "service_tier": Raw(b'"auto"'),
    }
    assert read([{"role": "user", "content": "q"}]).conversation.turns == conversation.turns
    assert read({"role": "user", "content": "q"}).conversation.turns == conversation.turns


def test_another_shape_than_the_named_one_is_rejected():
    call = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    assert refusal(read, [call], source="anthropic") == ("wrong_shape", "messages.0.tool_calls")
    assert read([call], source="openai-chat").shape == "openai-chat"


def test_an_issuer_is_read_from_the_wire_and_absent_otherwise():
    turn, _ = one('{"role":"assistant","content":[{"type":"thinking","thinking":"t","issuer":{"provider":"p"},"x":1}]}')
    assert turn.blocks[0].issuer == Issuer(provider="p")
    assert one({"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]})[0].blocks[0].issuer is UNSET


def test_redacted_thinking_stays_when_another_member_is_dropped():
    issuer = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    sealed = {"type": "redacted_thinking", "data": "c2ln"}
    request = normalize(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [sealed | {"issuer": issuer, "more": 1}, {"type": "text", "text": "a"}]},
            {"role": "user", "content": "and?"},
        ]
    )
    assert json.loads(request.body)["messages"][1]["content"][0] == sealed
    assert named(request.fixes) == [("field_dropped", "messages.1.content.0.more")]
