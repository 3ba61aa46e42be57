"""Converse, Gemini and the Copilot command line, case by case: heads, tools, reasoning, results, media, names."""

from __future__ import annotations

import json

import build
import pytest
from build import image, png, result, said, session_of, text, thinking, user

from reknit.pipeline import normalize
from reknit.pipeline.providers.gemini.writer.blocks import function_name
from reknit.pipeline.registry import TARGETS

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
LLAMA = "us.meta.llama3-3-70b-instruct-v1:0"
PICTURE = image()


def call(call_id, name="read"):
    return build.call(call_id, name, n=1.0)


def thought(words, signature, provider):
    return thinking(words, provider, signature=signature)


def request_of(to, messages, **beside):
    done = normalize({"messages": messages, **beside}, to=to)
    return json.loads(done.body), [fix.code for fix in done.fixes]


LOOP = [user("go"), said(call("a")), user(result("a"))]


def test_all_three_are_in_the_registry():
    assert {"bedrock-converse", "gemini", "copilot-cli"} <= TARGETS.keys()


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 5, "top_p": 0.5, "stop_sequences": ["x"]},
        {"max_completion_tokens": 5, "top_p": 0.5, "stop": "x"},
        {"inferenceConfig": {"maxTokens": 5, "topP": 0.5, "stopSequences": ["x"]}},
        {"generationConfig": {"maxOutputTokens": 5, "topP": 0.5, "stopSequences": ["x"]}},
    ],
)
def test_parameters_get_the_targets_names(params):
    messages = [user("q")]
    body, fixes = request_of("bedrock-converse", messages, params=params)
    assert (body["inferenceConfig"], fixes) == ({"maxTokens": 5, "topP": 0.5, "stopSequences": ["x"]}, [])
    body, fixes = request_of("gemini", messages, params=params)
    assert (body["generationConfig"], fixes) == ({"maxOutputTokens": 5, "topP": 0.5, "stopSequences": ["x"]}, [])


def test_unsupported_parameters_are_recorded():
    body, fixes = request_of("bedrock-converse", [user("q")], model=LLAMA, params={"top_k": 3, "logprobs": True})
    assert (list(body), fixes) == (["messages"], ["param_dropped", "param_dropped"])
    body, fixes = request_of("bedrock-converse", [user("q")], model=CLAUDE, params={"top_k": 3})
    assert (body["additionalModelRequestFields"], fixes) == ({"top_k": 3}, [])


def test_tools_follow_the_messages_for_converse():
    tools = [{"name": "read file", "description": "reads", "input_schema": {"type": "object"}}]
    choice = {"type": "tool", "name": "read file"}
    body, fixes = request_of("bedrock-converse", [user("q")], tools=tools, params={"tool_choice": choice})
    name = body["toolConfig"]["tools"][0]["toolSpec"]["name"]
    assert list(body) == ["messages", "toolConfig"]
    assert name.startswith("read_file-")
    assert body["toolConfig"] == {
        "tools": [{"toolSpec": {"name": name, "description": "reads", "inputSchema": {"json": {"type": "object"}}}}],
        "toolChoice": {"tool": {"name": name}},
    }
    assert fixes == ["tool_name_rewritten"]


def test_called_tools_are_declared_if_none_are_given():
    body, fixes = request_of("bedrock-converse", [*LOOP, said(call("b", "list")), user(result("b"))])
    assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["read", "list"]
    assert fixes == ["tools_stubbed"]


def test_a_tool_called_later_does_not_change_the_settled_bytes():
    session = session_of(*LOOP, targets=["bedrock-converse"])
    before = session.request()
    for message in (said(call("b", "list")), user(result("b")), said("ok"), user("more")):
        session.append(message)
    after = session.request()
    assert before.violations == after.violations
    assert b'"list"' not in before.body
    assert after.body[: before.prefix_bytes] == before.body[: before.prefix_bytes]


def test_results_are_separate_messages_for_llama():
    history = [user("go"), said(call("a")), user(result("a"), "and")]
    body, fixes = request_of("bedrock-converse", history, model=LLAMA)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    blocks = [list(block) for message in body["messages"][2:] for block in message["content"]]
    assert blocks == [["toolResult"], ["text"], ["text"]]
    assert fixes == ["assistant_inserted", "tools_stubbed"]
    assert len(request_of("bedrock-converse", history, model=CLAUDE)[0]["messages"]) == 3


def test_an_empty_error_gets_a_text_for_converse():
    body, fixes = request_of("bedrock-converse", [user("go"), said(call("a")), user(result("a", "", is_error=True))])
    shown = {"toolUseId": "a", "content": [{"text": "(no output)"}], "status": "error"}
    assert body["messages"][2]["content"] == [{"toolResult": shown}]
    assert fixes == ["error_filled", "tools_stubbed"]


def test_reasoning_is_sent_back_to_converse_first_in_its_turn():
    history = [user("q"), said("a", thought("hm", "s", "bedrock-converse")), user("go")]
    body, fixes = request_of("bedrock-converse", history, model=CLAUDE)
    assert body["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
        {"text": "a"},
    ]
    assert fixes == ["thinking_moved"]
    history[1] = said(thought("hm", "s", "anthropic"), "a")
    assert request_of("bedrock-converse", history, model=CLAUDE)[1] == ["thinking_foreign"]


def test_documents_get_unique_names_and_a_text_block():
    source = {"type": "text", "media_type": "text/plain", "data": "w"}
    pair = [{"type": "document", "title": "a", "source": source}] * 2
    body, fixes = request_of("bedrock-converse", [user(*pair)])
    content = body["messages"][0]["content"]
    assert [block["document"]["name"] for block in content[:2]] == ["a", "a (2)"]
    assert content[0]["document"] == {"name": "a", "format": "txt", "source": {"bytes": "dw=="}}
    assert list(content[2]) == ["text"]
    assert fixes == ["document_renamed", "document_text_added"]


@pytest.mark.parametrize("name", ["資料 (最終)", "a.pdf"])
def test_a_renamed_document_has_its_own_name_in_the_detail(name):
    own = {"document": {"format": "txt", "name": name, "source": {"text": "w"}}}
    named = {"type": "document", "title": name, "source": {"type": "text", "media_type": "text/plain", "data": "w"}}
    for block in (own, named):
        done = normalize([user({"type": "text", "text": "q"}, block)], to="bedrock-converse")
        assert [(fix.code, fix.detail) for fix in done.fixes] == [("document_renamed", name)]


def test_documents_in_converses_format_are_kept():
    own = {"document": {"format": "txt", "name": "a", "source": {"text": "words"}}}
    ill = {"document": {"format": "txt", "name": "b", "source": {"text": "words", "bytes": "dw=="}}}
    history = [user({"text": "q"}, own, own, ill)]
    body, fixes = request_of("bedrock-converse", history)
    second = {"document": own["document"] | {"name": "a (2)"}}
    assert body["messages"][0]["content"] == [{"text": "q"}, own, second]
    assert fixes == ["document_renamed", "unknown_dropped"]


@pytest.mark.parametrize(
    ("to", "model", "answer", "end"),
    [
        (
            "bedrock-converse",
            CLAUDE,
            [text("a", cache_control={"type": "ephemeral"})],
            b'[{"text":"a"},{"cachePoint":{"type":"default"}}]}]}',
        ),
        (
            "moonshot",
            "kimi-k2.6",
            [thinking("hm", "moonshot"), text("a")],
            b'"content":"a","reasoning_content":"hm","partial":true}]}',
        ),
    ],
)
def test_an_answer_to_continue_is_one_when_it_is_read_again(to, model, answer, end):
    once = normalize({"messages": [user("q"), said(*answer)], "model": model}, to=to)
    twice = normalize(once.body, to=to, model=model)
    assert once.body.endswith(end)
    assert (twice.body, twice.fixes) == (once.body, [])


def test_a_prefill_for_converse_ends_without_whitespace():
    done = normalize([user("q"), said("a ")], to="bedrock-converse", policy={"tail": "prefill"})
    assert json.loads(done.body)["messages"][1]["content"] == [{"text": "a"}]
    assert [fix.code for fix in done.fixes] == ["prefill_trimmed"]


def test_gemini_matches_responses_by_order_and_names_them():
    history = [
        user("go"),
        said(call("a", "one"), call("b", "two")),
        user(result("b", "2"), result("a", [text("1"), PICTURE])),
    ]
    body, fixes = request_of("gemini", history, model="gemini-2.5-flash")
    assert body["contents"][2]["parts"] == [
        {"functionResponse": {"name": "one", "response": {"result": "1"}}},
        {"functionResponse": {"name": "two", "response": {"result": "2"}}},
        {"inlineData": {"mimeType": "image/png", "data": png()}},
    ]
    assert fixes == ["result_media_moved", "result_moved", "result_moved"]


def test_gemini_3_gets_its_signatures_back_and_a_placeholder_for_foreign_ones():
    history = [user("go"), said(thought("", "s", "gemini"), call("a"), call("b")), user(result("a"), result("b"))]
    body, fixes = request_of("gemini", history, model="gemini-3-pro-preview")
    parts = body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == ["s", None]
    assert [part["functionCall"]["id"] for part in parts] == ["a", "b"]
    assert fixes == ["signature_joined"]
    body, fixes = request_of("gemini", LOOP, model="gemini-3-pro-preview")
    assert body["contents"][1]["parts"][0]["thoughtSignature"] == "skip_thought_signature_validator"
    assert fixes == ["signature_skipped"]
    assert "thoughtSignature" not in request_of("gemini", LOOP, model="gemini-2.5-pro")[0]["contents"][1]["parts"][0]


def test_schemas_for_gemini_are_unchanged():
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}, {"googleSearch": {}}]
    body, fixes = request_of("gemini", [user("q")], tools=tools, params={"tool_choice": "required"}, system="be")
    assert body["systemInstruction"] == {"parts": [{"text": "be"}]}
    assert body["tools"] == [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": schema}]}, tools[1]]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    assert fixes == []


def test_names_of_functions_start_with_a_letter_and_are_unique():
    assert function_name("mcp.server:read-file") == "mcp.server:read-file"
    names = ["1a", "-a", " a", "_a", "a b", "a_b", "n" * 150, "n" * 151]
    made = [function_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(len(name) <= 64 and (name[0] == "_" or name[0].isalpha()) for name in made)


def test_a_prompt_is_one_text_with_the_system_prompt_first():
    history = [user("a"), said("b"), user("c")]
    done = normalize({"system": "be brief", "messages": history}, to="copilot-cli")
    assert done.text == (
        "## Conversation so far\n\n### System\nbe brief\n\n### User\na\n\n### Assistant\nb\n\n## Current input\nc"
    )
    assert done.fixes == []
    assert normalize([{"role": "user", "content": " a "}], to="copilot-cli").text == " a "


def test_a_prompt_has_neither_media_nor_a_nul():
    done = normalize([user("a\0b", PICTURE)], to="copilot-cli")
    assert done.text == "a\ufffdb\n[image attachment]"
    assert [fix.code for fix in done.fixes] == ["nul_replaced", "image_stubbed"]
    piped = normalize([user("a\0b", PICTURE)], to="codex-cli")
    assert piped.text == "a\0b\n[image attachment]"
    assert [fix.code for fix in piped.fixes] == ["image_stubbed"]
    done = normalize([user({"type": "hologram"})], to="copilot-cli")
    assert done.text == "[Nothing of this turn can be shown to this model.]"
    assert [fix.code for fix in done.fixes] == ["unknown_dropped", "turn_stubbed"]


def test_an_error_result_with_an_image_elsewhere_is_repaired_in_the_middle_of_a_history():
    where = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    failed = {"type": "tool_result", "tool_use_id": "a", "content": [where], "is_error": True}
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    body, codes = request_of(
        "bedrock-converse",
        [user("go"), said(call("a")), user(failed), said("well"), user("on")],
        model=CLAUDE,
        tools=tools,
    )
    assert codes == ["image_stubbed", "error_media_moved", "error_filled"]
    assert body["messages"][2]["content"][0]["toolResult"]["status"] == "error"
