"""OpenAI's chat shape and its variants become canonical turns; a valid history has no fix."""

import json

import pytest
from build import result
from msgspec import UNSET, Raw
from reader_results import one

from reknit.pipeline import normalize
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.model import Document, Image, Issuer, Own, Text, Thinking, Tool, ToolResult, ToolUse, Turn, Unknown

ISSUER = Issuer(provider="openai-chat")


def function(call_id, name="f", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn_of(index, role, *blocks, places="", **more):
    paths = tuple(f"messages.{index}.{place}" for place in places.split())
    return Turn(role=role, blocks=blocks, index=index, paths=paths or None, **more)


def test_a_valid_round():
    calls = [function("A", arguments='{"x":  1.0}'), function("B", "g")]
    result = read(
        {
            "messages": [
                {"role": "developer", "content": "rules"},
                {"role": "user", "content": [{"type": "text", "text": "q"}]},
                {"role": "assistant", "content": "go", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "A", "name": "f", "content": "1"},
                {"role": "tool", "tool_call_id": "B", "content": [{"type": "text", "text": "2"}]},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        }
    )
    assert (result.shape, result.fixes) == ("openai-chat", ())
    uses = ToolUse(id="A", name="f", input=Raw(b'{"x":  1.0}')), ToolUse(id="B", name="g", input=Raw(b"{}"))
    developer, named_f = Own("openai-chat", {"role": Raw(b'"developer"')}), Own("openai-chat", {"name": Raw(b'"f"')})
    assert result.conversation.turns == (
        turn_of(0, "system", Text(text="rules"), places="content", own=developer),
        turn_of(1, "user", Text(text="q")),
        turn_of(2, "assistant", Text(text="go"), *uses, places="content tool_calls.0 tool_calls.1"),
        turn_of(3, "user", ToolResult(tool_use_id="A", content="1"), places="content", own=named_f),
        turn_of(4, "user", ToolResult(tool_use_id="B", content=[Text(text="2")]), places="content"),
    )
    assert result.conversation.tools == (Tool(name="f", input_schema=Raw(b'{"type":"object"}')),)


@pytest.mark.parametrize(
    ("arguments", "expected", "fixes"),
    [
        ('{"a": {"b": 1.50}}', (b'{"a": {"b": 1.50}}', False), []),
        ('{\n  "a": 1\n}', (b'{"a":1}', False), []),
        ("", (b"{}", False), ["field_missing"]),
        ("null", (b"{}", False), ["field_missing"]),
        (None, (b"{}", False), ["field_missing"]),
        ({"a": 1.0}, (b'{"a":1.0}', False), []),
        ('"{\\"a\\": 1}"', (b'{"a": 1}', False), ["input_parsed"]),
        ('{"a": "unfinis', (b'"{\\"a\\": \\"unfinis"', True), []),
        ("[1]", (b"[1]", False), ["input_parsed"]),
        ("{'a': 1}", (b"\"{'a': 1}\"", True), []),
    ],
)
def test_arguments_in_every_form(arguments, expected, fixes):
    turn, found = one({"role": "assistant", "content": None, "tool_calls": [function("A", arguments=arguments)]})
    block = turn.blocks[0]
    assert (bytes(block.input), block.incomplete) == expected
    assert found == [(code, "messages.0.tool_calls.0.function.arguments") for code in fixes]


def test_calls_and_results_as_picoclaw_writes_them():
    turn, fixes = one({"role": "assistant", "content": "", "tool_calls": [{"id": "A", "name": "f", "args": {"x": 1}}]})
    assert turn.blocks == (ToolUse(id="A", name="f", input=Raw(b'{"x":1}')),)
    assert (turn.paths, fixes) == (("messages.0.tool_calls.0",), [])
    turn, fixes = one({"role": "user", "content": "r", "tool_call_id": "A"})
    assert (turn.role, turn.blocks, fixes) == ("user", (ToolResult(tool_use_id="A", content="r"),), [])


def test_a_call_that_is_not_in_a_list():
    turn, fixes = one({"role": "assistant", "content": None, "tool_calls": function("A")})
    assert turn.blocks == (ToolUse(id="A", name="f", input=Raw(b"{}")),)
    assert fixes == [("content_wrapped", "messages.0.tool_calls")]


def test_calls_without_ids_are_paired_by_tool_name():
    call, fixes = one({"role": "assistant", "content": None, "function_call": {"name": "get it", "arguments": "{}"}})
    assert call.blocks == (ToolUse(id="call_get_it", name="get it", input=Raw(b"{}")),)
    assert (call.paths, fixes) == (("messages.0.function_call",), [("call_id_derived", "messages.0.function_call")])
    result, fixes = one({"role": "function", "name": "get it", "content": "r"})
    assert (result.blocks, result.ids_made) == ((ToolResult(tool_use_id="call_get it", content="r"),), True)
    assert fixes == [("call_id_derived", "messages.0")]
    ollama, _ = one({"role": "tool", "tool_name": "get it", "content": "r"})
    assert ollama.blocks == result.blocks


@pytest.mark.parametrize(
    ("beside", "dropped"),
    [
        ({"tool_call_ids": ["A"]}, []),
        ({"tool_call_id": "A", "tool_name": "f"}, []),
        ({"tool_call_ids": ["A", "B"]}, ["tool_call_ids.1"]),
        ({"tool_call_id": "A", "tool_call_ids": ["A"]}, ["tool_call_ids"]),
        ({"tool_call_id": "A", "tool_call_ids": ["B"]}, ["tool_call_ids"]),
        ({"tool_call_id": "A", "name": "f", "tool_name": "g"}, ["tool_name"]),
        ({"tool_call_id": "A", "name": 42}, ["name"]),
        ({"role": "system", "tool_call_id": "A"}, []),
    ],
)
def test_a_row_answers_one_call_and_a_second_id_is_dropped_with_a_fix(beside, dropped):
    turn, fixes = one({"role": "tool", "content": "r", **beside})
    assert turn.blocks == (ToolResult(tool_use_id="A", content="r"),)
    assert fixes == [("field_dropped", f"messages.0.{key}") for key in dropped]


@pytest.mark.parametrize(
    ("beside", "blocks", "fixes"),
    [
        ({"role": "user", "tool_name": "f"}, (), [("field_dropped", "messages.0.tool_name")]),
        ({"role": "user", "tool_call_ids": ["A"]}, (), [("field_dropped", "messages.0.tool_call_ids")]),
        (
            {"role": "assistant", "function_call": {"id": "A", "function": {"name": "f", "arguments": "{}"}}},
            (ToolUse(id="A", name="f", input=Raw(b"{}")),),
            [],
        ),
    ],
)
def test_older_forms_next_to_a_text_are_never_skipped(beside, blocks, fixes):
    turn, found = one({"content": "x", **beside})
    assert (turn.blocks, found) == ((Text(text="x"), *blocks), fixes)


def test_content_parts():
    turn, fixes = one(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "high"}},
                {"type": "input_image", "image_url": "https://x/z.png"},
                {"type": "input_image", "file_id": "file-1"},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "image_url", "image_url": {"url": "ftp://no", "detail": "low"}},
            ],
        }
    )
    base64 = '{"type":"base64","media_type":"%s","data":"AAAA"}'
    assert turn.paths is None
    assert turn.blocks == (
        Text(text="a"),
        Image(source=Raw((base64 % "image/png").encode())),
        Image(
            source=Raw(b'{"type":"url","url":"https://x/y.png"}'), own=Own("openai-chat", {"detail": Raw(b'"high"')})
        ),
        Image(source=Raw(b'{"type":"url","url":"https://x/z.png"}')),
        Image(source=Raw(b'{"type":"file","file_id":"file-1"}')),
        Document(source=Raw((base64 % "application/pdf").encode()), title="a.pdf"),
        Unknown(kind="input_audio", raw=Raw(b'{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}')),
        Unknown(kind="image_url", raw=Raw(b'{"type":"image_url","image_url":{"url":"ftp://no","detail":"low"}}')),
    )
    assert fixes == []


def test_a_file_by_its_id_is_a_document_of_its_name():
    part = {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}}
    request = normalize([{"role": "user", "content": [part, {"type": "text", "text": "q"}]}])
    assert json.loads(request.body)["messages"][0]["content"][0] == {
        "type": "document",
        "source": {"type": "file", "file_id": "file-1"},
        "title": "a.pdf",
    }
    assert request.fixes == []


def test_reasoning_and_refusals():
    turn, fixes = one(
        {"role": "assistant", "content": "a", "reasoning_content": "think", "reasoning": "think", "refusal": None}
    )
    assert turn.blocks == (Thinking(thinking="think", issuer=ISSUER), Text(text="a"))
    assert turn.paths == ("messages.0.reasoning_content", "messages.0.content")
    assert fixes == []
    turn, fixes = one({"role": "assistant", "content": None, "refusal": "no"})
    assert (turn.blocks, turn.paths, fixes) == ((Text(text="no", refusal=True),), ("messages.0.refusal",), [])
    turn, fixes = one({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})
    assert (turn.blocks, fixes) == ((Text(text="no", refusal=True),), [])


def test_mistrals_thinking_is_a_list_of_texts():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    turn, fixes = one({"role": "assistant", "content": [{**thinking, "closed": True}, {"type": "text", "text": "c"}]})
    assert turn.blocks == (Thinking(thinking="ab", issuer=ISSUER), Text(text="c"))
    assert fixes == []


def test_a_custom_tools_free_text_is_put_into_an_object():
    call = {"id": "A", "type": "custom", "custom": {"name": "f", "input": "free {text"}}
    turn, fixes = one({"role": "assistant", "tool_calls": [call]})
    own = Own("openai-chat", kind="custom")
    assert turn.blocks == (ToolUse(id="A", name="f", input=Raw(b'{"input":"free {text"}'), own=own),)
    assert fixes == []


def test_keys_without_a_place_are_recorded():
    turn, fixes = one({"role": "user", "content": "x", "mood": "calm", "annotations": []}, index=2)
    assert turn == Turn(role="user", blocks=(Text(text="x"),), index=2, paths=("messages.2.content",))
    assert fixes == [("field_dropped", "messages.2.mood")]


def test_tools_of_every_shape():
    web = {"type": "web_search_20250305", "name": "web_search"}
    cached = {"name": "e", "input_schema": {"a": 1.0}, "cache_control": {"type": "ephemeral"}}
    result = read(
        {
            "messages": [],
            "tools": [
                {"name": "a", "description": "d", "input_schema": {"type": "object"}},
                {"type": "custom", "name": "b", "input_schema": {}},
                {"type": "function", "function": {"name": "c"}},
                web,
                cached,
                {"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}},
            ],
            "functions": [{"name": "g", "parameters": {"type": "object"}}],
        }
    )
    tools = result.conversation.tools
    assert [(tool.name, bytes(tool.input_schema)) for tool in tools] == [
        ("a", b'{"type":"object"}'),
        ("b", b"{}"),
        ("c", b'{"type":"object","properties":{}}'),
        ("web_search", b"null"),
        ("e", b'{"a":1.0}'),
        ("f", b'{"type":"object"}'),
        ("g", b'{"type":"object"}'),
    ]
    assert [tool.name for tool in tools if tool.raw is not UNSET] == ["web_search", "e", "g"]
    assert tools[0].description == "d"


CALLS = {"role": "assistant", "content": None, "tool_calls": [function("A", "read_it"), function("B", "list")]}


def converse_result(call_id, said):
    return {"toolResult": {"toolUseId": call_id, "content": [{"text": said}], "status": "success"}}


@pytest.mark.parametrize("source", ["auto", "openai-chat"])
@pytest.mark.parametrize(
    "rows",
    [
        [{"role": "tool", "name": "list", "content": "2"}, {"role": "tool", "name": "read_it", "content": "1"}],
        [{"role": "tool", "content": [result("A", "1"), result("B", "2")]}],
        [{"role": "tool", "tool_call_id": "A", "content": [converse_result("B", "2"), converse_result("A", "1")]}],
    ],
    ids=["a name only", "results as blocks", "Converse's results as blocks"],
)
def test_a_tools_row_keeps_its_results(rows, source):
    done = normalize([{"role": "user", "content": "go"}, CALLS, *rows], to="openai-chat", source=source)
    sent = json.loads(done.body)["messages"][2:]
    assert sorted((row["tool_call_id"], row["content"]) for row in sent) == [("A", "1"), ("B", "2")]
    assert {fix.code for fix in done.fixes} <= {"call_id_derived"}
