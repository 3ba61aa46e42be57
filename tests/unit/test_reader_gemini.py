"""Gemini's contents become canonical turns, and valid ones round-trip unchanged, without a fix."""

from __future__ import annotations

import json

import pytest
from build import session_of
from msgspec import UNSET, Raw
from reader_results import named, one, refusal

from reknit.pipeline import normalize
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.model import Image, Issuer, Text, Thinking, Tool, ToolResult, ToolUse, Turn, Unknown

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SOURCE = b'{"type":"base64","media_type":"image/png","data":"%b"}' % PNG.encode()
AUDIO = b'{"inlineData":{"mimeType":"audio/wav","data":"AAAA"}}'
CODE = b'{"executableCode":{"language":"PYTHON","code":"1"}}'
ISSUER = Issuer(provider="gemini")
UNSIGNED = Issuer(provider="skip_thought_signature_validator")
SEAL = Thinking(thinking="", signature="c2ln", issuer=ISSUER)
SIGNED = {"thoughtSignature": "c2ln"}


def user(*parts):
    return {"role": "user", "parts": [*parts]}


def model(*parts):
    return {"role": "model", "parts": [*parts]}


def call(name, args=None, **beside):
    return {"functionCall": {"name": name, "args": args or {}}, **beside}


def response(name, **said):
    return {"functionResponse": {"name": name, "response": said}}


ROUNDS = [
    user({"text": "q"}),
    model({"text": "hm", "thought": True}, call("f", {"x": 1.0}, **SIGNED), call("f", {"x": 1.0}), call("g.h")),
    user(response("f", result="one"), response("f", sum=2.0, of=["a"]), response("g.h", error="three")),
    model(call("f")),
    user(response("f", result="four")),
    model({"text": "so"}, {"text": "", **SIGNED}),
    user({"text": "go on"}),
]


def test_valid_rounds_round_trip_unchanged():
    for name in ("gemini-2.5-flash", None):
        done = normalize({"model": name, "contents": ROUNDS}, to="gemini")
        assert done.fixes == []
        assert json.loads(done.body) == {"contents": ROUNDS}
        kept = {(entry.path, entry.fate) for entry in done.ledger}
        assert ("contents.1.parts.1.thoughtSignature", "kept") in kept
        assert {fate for _, fate in kept} == {"kept"}


def test_no_id_is_invented_for_a_model_with_ids():
    done = normalize({"model": "gemini-3-pro-preview", "contents": ROUNDS}, to="gemini")
    assert named(done.fixes) == [("signature_skipped", "contents.3.parts.0")]
    written = json.loads(done.body)["contents"]
    assert written[3]["parts"][0].pop("thoughtSignature") == "skip_thought_signature_validator"
    assert written == ROUNDS
    again = normalize({"model": "gemini-3-pro-preview", "contents": json.loads(done.body)["contents"]}, to="gemini")
    assert (again.body, again.fixes) == (done.body, [])


@pytest.mark.parametrize("name", ["gemini-2.5-flash", "gemini-3-pro-preview", None])
def test_ids_stay_on_their_parts(name):
    asked = {"functionCall": {"id": "a1", "name": "f", "args": {}}, **SIGNED}
    answered = {"functionResponse": {"id": "a1", "name": "f", "response": {"result": "one"}}}
    contents = [user({"text": "go"}), model(asked, call("g")), user(answered, response("g", result="two"))]
    done = normalize({"model": name, "contents": contents}, to="gemini")
    assert (json.loads(done.body)["contents"], done.fixes) == (contents, [])


def test_contents_one_by_one_equal_the_whole():
    session = session_of(*ROUNDS, targets=["gemini", "anthropic"])
    for target in session.targets:
        whole = normalize({"contents": ROUNDS}, to=target)
        assert session.request(target).body == whole.body
        assert session.request(target).fixes == whole.fixes


def test_other_providers_get_the_calls_with_ids_and_no_signature():
    done = normalize({"contents": ROUNDS}, to="anthropic")
    assert named(done.fixes) == [
        ("thinking_foreign", "contents.1.parts.0"),
        ("thinking_foreign", "contents.1.parts.1.thoughtSignature"),
        ("tool_name_rewritten", "contents.1.parts.3"),
        ("thinking_foreign", "contents.5.parts.1"),
    ]
    messages = json.loads(done.body)["messages"]
    calls = [block["id"] for block in messages[1]["content"]]
    assert calls[0] == "call_f"
    assert [block["tool_use_id"] for block in messages[2]["content"]] == calls
    assert [block["content"] for block in messages[2]["content"]] == ["one", '{"sum":2.0,"of":["a"]}', "three"]
    assert [block.get("is_error", False) for block in messages[2]["content"]] == [False, False, True]


@pytest.mark.parametrize(
    ("part", "blocks"),
    [
        ({"text": "so"}, [Text(text="so")]),
        ({"text": "hm", "thought": True}, [Thinking(thinking="hm", issuer=ISSUER)]),
        ({"text": "so", "thought": False}, [Text(text="so")]),
        ({"text": "so", **SIGNED}, [SEAL, Text(text="so")]),
        ({"text": "", **SIGNED}, [SEAL]),
        (
            {"functionCall": {"name": "f", "id": "A", "args": None}, "thoughtSignature": UNSIGNED.provider},
            [ToolUse(id="A", name="f", input=Raw(b"{}"), issuer=UNSIGNED)],
        ),
        (
            {"function_call": {"name": "f", "id": "A", "args": {"x": 1}}, "thought_signature": "c2ln"},
            [SEAL, ToolUse(id="A", name="f", input=Raw(b'{"x":1}'))],
        ),
        ({"inlineData": {"mimeType": "image/png", "data": PNG}}, [Image(source=Raw(SOURCE))]),
        (json.loads(AUDIO), [Unknown(kind="inlineData", raw=Raw(AUDIO), issuer=ISSUER)]),
        (json.loads(CODE), [Unknown(kind="executableCode", raw=Raw(CODE), issuer=ISSUER)]),
        ({}, [Text(text="")]),
    ],
)
def test_a_part(part, blocks):
    turn, fixes = one(model(part), source="gemini")
    assert turn.blocks == tuple(blocks)
    assert turn.paths == ("contents.0.parts.0.thoughtSignature", "contents.0.parts.0")[-len(blocks) :]
    assert (turn.role, turn.root, fixes) == ("assistant", "contents", [])


@pytest.mark.parametrize("own", [
    {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}},
    {"fileData": {"fileUri": "gs://a/b.mp4", "mimeType": "video/mp4"}, "videoMetadata": {"endOffset": "8s"}},
])  # fmt: skip
def test_user_parts_that_only_gemini_has_return_to_it_unchanged_and_to_no_other_target(own):
    contents = [user({"text": "q"}, own)]
    done = normalize({"contents": contents}, to="gemini")
    assert (json.loads(done.body)["contents"], done.fixes) == (contents, [])
    elsewhere = normalize({"contents": contents}, to="anthropic")
    assert named(elsewhere.fixes) == [("native_dropped", "contents.0.parts.1")]


def test_the_other_spelling_of_a_part_is_the_same_part():
    other = {
        "file_data": {"file_uri": "gs://a/b.mp3", "mime_type": "audio/mp3"},
        "video_metadata": {"end_offset": "8s"},
    }
    same = {"fileData": {"fileUri": "gs://a/b.mp3", "mimeType": "audio/mp3"}, "videoMetadata": {"endOffset": "8s"}}
    done = normalize({"contents": [user(other)]}, to="gemini")
    assert (json.loads(done.body)["contents"][0]["parts"], done.fixes) == ([same], [])


@pytest.mark.parametrize("spoilt", [
    {"inlineData": {"mimeType": "audio/wav", "data": "not base64"}},
    {"inlineData": {"data": "AAAA"}},
    {"fileData": {"fileUri": " "}},
    {"fileData": "gs://a/b.mp4"},
    {"videoMetadata": "8s"},
    {"executableCode": {"language": "PYTHON"}},
])  # fmt: skip
def test_a_malformed_part_is_dropped(spoilt):
    contents = [user({"text": "q"}, spoilt)]
    done = normalize({"contents": contents}, to="gemini")
    assert json.loads(done.body)["contents"] == [user({"text": "q"})]
    assert [fix.code for fix in done.fixes] == ["unknown_dropped"]


def test_code_that_the_provider_ran_keeps_its_signature():
    code = {"executableCode": {"language": "PYTHON", "code": "1", "id": "c"}, **SIGNED}
    ran = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1", "id": "c"}}
    contents = [user({"text": "q"}), model(code, ran, {"text": "one"}), user({"text": "go on"})]
    done = normalize({"contents": contents}, to="gemini")
    assert (json.loads(done.body)["contents"], done.fixes) == (contents, [])


def test_media_in_a_response_are_part_of_the_result():
    parts = [{"inlineData": {"mimeType": "image/png", "data": PNG}}]
    seen = {"name": "f", "id": "A", "response": {"result": "see"}, "parts": parts}
    turn, fixes = one(user({"functionResponse": seen}), source="gemini")
    (result,) = turn.blocks
    assert [type(inner) for inner in result.content] == [Text, Image]
    assert fixes == []


def test_a_response_without_an_id_belongs_to_the_function_that_it_names():
    contents = [
        user({"text": "q"}),
        model({"functionCall": {"name": "f", "id": "A", "args": {}}}),
        {"role": "function", "parts": [response("f", result="one")]},
    ]
    done = normalize({"contents": contents}, to="anthropic")
    assert done.fixes == []
    result = {"type": "tool_result", "tool_use_id": "A", "content": "one"}
    assert json.loads(done.body)["messages"][2]["content"] == [result]


def test_the_head():
    count = {"type": "ARRAY", "minItems": "1", "items": {"type": "INTEGER"}}
    schema = {"type": "OBJECT", "properties": {"type": {"type": "STRING", "nullable": True}, "n": count}}
    properties = {
        "type": {"type": ["string", "null"]},
        "n": {"type": "array", "minItems": 1, "items": {"type": "integer"}},
    }
    found = read(
        {
            "contents": [{"parts": [{"text": "q"}]}],
            "systemInstruction": {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
            "tools": [
                {"functionDeclarations": [{"name": "f", "parameters": schema}, {"name": "g"}], "codeExecution": {}},
                {"functionDeclarations": [{"name": "h", "parametersJsonSchema": {"type": "object"}}]},
                {"googleSearch": {}},
            ],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        }
    )
    given = found.conversation
    assert found.fixes == ()
    assert given.turns == (
        Turn(role="user", blocks=(Text(text="q"),), index=0, paths=("contents.0.parts.0",), root="contents"),
    )
    assert json.loads(bytes(given.system)) == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert [(tool.name, json.loads(bytes(tool.input_schema))) for tool in given.tools] == [
        ("f", {"type": "object", "properties": properties}),
        ("g", {"type": "object", "properties": {}}),
        ("", None),
        ("h", {"type": "object"}),
        ("", None),
    ]  # fmt: skip
    assert [tool.raw for tool in given.tools if isinstance(tool, Tool) and not tool.name] == [
        Raw(b'{"codeExecution":{}}'),
        Raw(b'{"googleSearch":{}}'),
    ]
    assert {key: json.loads(bytes(value)) for key, value in given.params.items()} == {
        "tool_choice": {"type": "tool", "name": "f"}
    }


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"functionCallingConfig": {"mode": "AUTO"}}, {"type": "auto"}),
        ({"functionCallingConfig": {"mode": "none"}}, {"type": "none", "mode": "none"}),
        ({"functionCallingConfig": {"mode": "ANY"}}, {"type": "any"}),
        ({"functionCallingConfig": {"mode": "VALIDATED"}}, None),
        ({"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"]}}, None),
        ({"includeServerSideToolInvocations": True}, None),
    ],
)
def test_a_choice_that_only_gemini_has_stays_a_parameter(config, choice):
    tools = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]
    document = {"contents": [{"parts": [{"text": "q"}]}], "tools": tools, "toolConfig": config}
    params = read(document).conversation.params
    assert set(params) == {"tool_choice" if choice else "toolConfig"}
    if choice:
        assert json.loads(bytes(params["tool_choice"])) == choice
    else:
        assert json.loads(normalize(document, to="gemini").body)["toolConfig"] == config


def test_a_role_that_no_content_has():
    content = {"role": "assistant", "parts": []}
    assert refusal(one, content, index=3, source="gemini") == ("unknown_role", "contents.3.role")


def test_an_object_response_stays_an_object_and_text_that_looks_like_one_stays_text():
    for issuer, written in ((ISSUER, {"a": 1}), (UNSET, {"result": '{"a":1}'})):
        result = ToolResult(tool_use_id="A", content='{"a":1}', issuer=issuer)
        session = session_of(
            Turn(role="user", blocks=(Text(text="q"),), index=0),
            Turn(role="assistant", blocks=(ToolUse(id="A", name="f", input=Raw(b"{}")),), index=1),
            Turn(role="user", blocks=(result,), index=2),
            targets=["gemini"],
        )
        last = json.loads(session.request().body)["contents"][2]
        assert last["parts"][0]["functionResponse"]["response"] == written


def called_and_answered(*parts):
    answer = {"name": "f", "response": {"result": "x"}, "parts": [*parts]}
    return [user({"text": "Hi"}), model(call("f")), user({"functionResponse": answer})]


@pytest.mark.parametrize(
    ("part", "texts", "lost"),
    [
        ({"text": "y"}, ["x", "y"], []),
        ({"text": "y", "note": 1}, ["x", "y"], ["0.note note: a number"]),
        ({"text": "y", **SIGNED}, ["x", "y"], ["0.thoughtSignature thinking in a result"]),
        ({"text": "y", "thought": True}, ["x"], ["0 thinking in a result"]),
        (call("g"), ["x"], ["0 tool_use in a result"]),
    ],
    ids=["text", "member", "signature", "thought", "call"],
)
def test_what_a_part_of_a_response_loses_is_recorded_at_its_place(part, texts, lost):
    found = read(called_and_answered(part))
    (result,) = found.conversation.turns[-1].blocks
    assert [block.text for block in result.content] == texts
    place = "contents.2.parts.0.functionResponse.parts"
    assert [(fix.code, f"{fix.path} {fix.detail}") for fix in found.fixes] == [
        ("field_dropped", f"{place}.{each}") for each in lost
    ]


def test_a_part_of_a_response_that_is_no_object_is_refused_at_its_place():
    place = "contents.2.parts.0.functionResponse.parts.1"
    assert refusal(read, called_and_answered({"text": "y"}, 7)) == ("wrong_type", place)
