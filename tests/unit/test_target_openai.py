"""Chat Completions, the Responses API and vLLM: the encoding of turns, and the head of a request."""

from __future__ import annotations

import json

import pytest
from build import call, image, png, result, rounds, said, session_of, text, thinking, user
from reader_results import hard

from reknit.pipeline import Session, normalize
from reknit.pipeline.history.pieces import NATIVE_TYPES

IMAGE = image()
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png()}"}}
LLAMA, MISTRAL, GEMMA = "meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3", "google/gemma-3-4b"
ENCRYPTED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


def chat_call(call_id="a", name="ls", arguments="{}"):
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


def tool(call_id="a", content="files"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def item(role, content):
    return {"type": "message", "role": role, "content": content}


def made(*messages, to="openai-chat", **head):
    done = normalize({"messages": list(messages), **head}, to=to)
    assert done.body is not None, done.violations
    body = json.loads(done.body)
    return body.get("messages", body.get("input")), [fix.code for fix in done.fixes]


def head(to="openai-chat", **given):
    done = normalize({"messages": [user("q")], **given}, to=to)
    assert done.body is not None, done.violations
    body = json.loads(done.body)
    body.pop("messages", body.pop("input", None))
    return body, [fix.code for fix in done.fixes]


# A chat's messages.


def test_a_turn_with_results_becomes_tool_messages_followed_by_a_user_message():
    messages, fixes = made(
        user("q"),
        said("looking", call("a", path="x"), call("b")),
        user(result("a"), result("b", ""), "and?"),
        system="S",
    )
    assert messages == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "looking",
            "tool_calls": [chat_call("a", arguments='{"path":"x"}'), chat_call("b")],
        },
        tool("a"),
        tool("b", ""),
        {"role": "user", "content": "and?"},
    ]
    assert fixes == []


def test_images_of_results_follow_all_of_them():
    messages, fixes = made(
        user("q"), said(call("a"), call("b")), user(result("a", [text("one"), IMAGE]), result("b"), "and?")
    )
    assert messages[2:] == [
        tool("a", [text("one"), text("[Shown in the next user message]")]),
        tool("b"),
        user(CHAT_IMAGE, "and?"),
    ]
    assert fixes == ["result_media_moved"]


@pytest.mark.parametrize(
    ("content", "sent"),
    [("no such file", "[Tool error] no such file"), ("", "[Tool error]"), ([text("a"), text("b")], None)],
)
def test_an_error_is_marked_in_its_text(content, sent):
    messages, fixes = made(user("q"), said(call()), user(result(content=content, is_error=True)))
    assert messages[-1]["content"] == (sent or [text("[Tool error] a"), text("b")])
    assert fixes == []


def test_a_long_id_is_shortened_on_both_sides():
    messages, fixes = made(user("q"), said(call("x" * 60)), user(result("x" * 60)))
    short = messages[1]["tool_calls"][0]["id"]
    assert len(short) == 40
    assert messages[2]["tool_call_id"] == short
    assert fixes == ["id_rewritten", "id_rewritten"]


def test_a_name_is_rewritten_in_tools_and_history_alike():
    given = {"name": "files.read", "input_schema": {"type": "object"}}
    done = normalize(
        {"tools": [given], "messages": [user("q"), said(call(name="files.read")), user(result())]}, to="openai-chat"
    )
    body = json.loads(done.body)
    name = body["tools"][0]["function"]["name"]
    assert name.startswith("files_read-")
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == name


def test_documents_are_files_or_text():
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}
    plain = {"type": "text", "media_type": "text/plain", "data": "a log"}
    blocks = [
        {"type": "document", "source": pdf, "title": "p.pdf"},
        {"type": "document", "source": plain, "title": "t", "context": "notes"},
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
    ]
    messages, fixes = made(user(*blocks))
    assert messages[0]["content"] == [
        {"type": "file", "file": {"filename": "p.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQK"}},
        text("[Document: t]\nnotes\na log"),
        text("[Document left out: url]"),
    ]
    assert fixes == ["document_as_text", "document_stubbed"]
    items, fixes = made(user(*blocks), to="openai-responses")
    assert [part["type"] for part in items[0]["content"]] == ["input_file", "input_text", "input_file"]
    assert items[0]["content"][2] == {"type": "input_file", "file_url": "https://example.org/a.pdf"}
    assert fixes == ["document_as_text"]


def test_images_are_checked_by_their_bytes():
    inline = {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{png()}"}}
    messages, fixes = made(user(image(media_type="image/bmp"), image("SUkqAA==", "image/tiff"), inline))
    assert messages[0]["content"] == [CHAT_IMAGE, text("[Image left out: media type image/tiff]"), CHAT_IMAGE]
    assert fixes == ["image_type_corrected", "image_stubbed"]


# Reasoning.


def test_reasoning_is_sent_back_to_its_issuer():
    history = [user("q"), said(thinking("hm", "openai-chat"), call()), user(result())]
    messages, fixes = made(*history, model="deepseek-reasoner")
    assert messages[1] == {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [chat_call()]}
    assert fixes == []
    messages, fixes = made(*history, model="gpt-5-mini")
    assert "reasoning_content" not in messages[1]
    assert fixes == ["thinking_foreign"]


def test_anthropics_reasoning_is_not_sent():
    signed = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    messages, fixes = made(user("q"), said(signed, call()), user(result()), model="kimi-k2-thinking")
    assert messages[1]["reasoning_content"] == ""
    assert fixes == ["thinking_foreign"]


def test_encrypted_reasoning_precedes_the_items_that_it_led_to():
    items, fixes = made(user("q"), said(ENCRYPTED, "so", call()), user(result()), to="openai-responses")
    assert items[1:3] == [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, item("assistant", "so")]
    assert fixes == []


def test_text_after_a_call_stays_there_with_the_reasoning_before_it():
    items, fixes = made(user("q"), said(ENCRYPTED, call(), "so"), user(result()), to="openai-responses")
    assert [each["type"] for each in items[1:4]] == ["reasoning", "function_call", "message"]
    assert fixes == []


RESPONSES = {each.kind: each for each in NATIVE_TYPES if each.provider == "openai-responses"}
# Outputs of the calls that the client runs, without those of free text, whose other members are canonical.
ANSWERS = {
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "shell_call": "shell_call_output",
    "tool_search_call": "tool_search_output",
}
ALONE = [name for name, known in RESPONSES.items() if not known.opens and not known.answers and name != "reasoning"]


def test_every_type_of_responses_is_tested():
    tried = {*ANSWERS, *ANSWERS.values(), *ALONE, "reasoning", "custom_tool_call", "custom_tool_call_output"}
    assert tried == set(RESPONSES)


@pytest.mark.parametrize("name", [*ANSWERS, *ALONE])
def test_responses_specific_items_round_trip_and_have_a_fix_elsewhere(name):
    own = [{"type": name, "status": "completed"}]
    if name in ANSWERS:
        answer = ANSWERS[name]
        own = [own[0] | {RESPONSES[name].opens: "c1"}, {"type": answer, RESPONSES[answer].answers: "c1", "output": "y"}]
    elif name == "item_reference":
        own = [{"type": name, "id": "msg_1"}]
    items = [item("user", "q"), *own, item("assistant", "so"), item("user", "and?")]
    done = normalize({"input": items}, to="openai-responses")
    assert (done.fixes, json.loads(done.body)["input"]) == ([], items)
    elsewhere = normalize({"input": items}, to="openai-chat")
    codes = [fix.code for fix in elsewhere.fixes]
    assert codes == (["tool_as_function"] * 2 if name in ANSWERS else ["native_dropped"])


@pytest.mark.parametrize(
    ("blocks", "code"),
    [
        ([{"type": "reasoning", "id": "rs_1", "summary": []}, "a"], "thinking_unsigned"),
        (["a", ENCRYPTED], "thinking_trailing"),
        ([ENCRYPTED, {"type": "web_search_call", "id": "ws_1"}, "a"], "thinking_of_changed_turn"),
        ([thinking("hm", "openai-chat"), "a"], "thinking_foreign"),
        ([thinking("hm", "openai-responses"), "a"], "thinking_unsigned"),
    ],
)
def test_reasoning_that_cannot_be_sent_back_is_reported(blocks, code):
    items, fixes = made(user("q"), said(*blocks), user("and?"), to="openai-responses")
    assert items[1:] == [item("assistant", "a"), item("user", "and?")]
    assert code in fixes


def test_thinking_of_the_responses_api_is_an_item():
    blocks = [thinking("sum", "openai-responses", signature="gAAA"), call("a", path="x")]
    items, fixes = made(user("q"), said(*blocks), user(result()), to="openai-responses")
    assert items[1:] == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "sum"}], "encrypted_content": "gAAA"},
        {"type": "function_call", "call_id": "a", "name": "ls", "arguments": '{"path":"x"}'},
        {"type": "function_call_output", "call_id": "a", "output": "files"},
    ]
    assert fixes == []


# Chat templates.


def test_llama_gets_one_call_at_a_time():
    messages, fixes = made(
        user("q"),
        said("both", call("a"), call("b")),
        user(result("b", "2"), result("a", "1"), "and?"),
        to="vllm",
        model=LLAMA,
    )
    assert messages[1:] == [
        {"role": "assistant", "content": "both", "tool_calls": [chat_call("a")]},
        tool("a", "1"),
        {"role": "assistant", "content": None, "tool_calls": [chat_call("b")]},
        tool("b", "2"),
        {"role": "user", "content": "and?"},
    ]
    assert fixes == ["calls_serialised"]


def test_mistral_gets_ids_of_nine_characters_and_an_assistant_message_before_the_user():
    messages, fixes = made(user("q"), said(call("a")), user(result(), "and?"), to="vllm", model=MISTRAL)
    nine = messages[1]["tool_calls"][0]["id"]
    assert len(nine) == 9
    assert nine.isalnum()
    assert messages[2:] == [
        tool(nine),
        {"role": "assistant", "content": "Understood."},
        {"role": "user", "content": "and?"},
    ]
    assert fixes == ["id_rewritten", "id_rewritten", "assistant_inserted"]


def test_ids_of_nine_characters_do_not_collide():
    session = session_of(*rounds(200), targets=["vllm"], model=MISTRAL)
    body = json.loads(session.request().body)
    assert len({made["id"] for row in body["messages"] for made in row.get("tool_calls", ())}) == 200


def test_gemma_gets_calls_as_text():
    messages, fixes = made(
        user("q"), said("look", call(path="x")), user(result(content=[IMAGE]), "and?"), to="vllm", model=GEMMA
    )
    assert messages[1:] == [
        said("look", '[Tool call: ls({"path": "x"})]'),
        user("[Tool result]\n[Shown in the next user message]", CHAT_IMAGE, "and?"),
    ]
    assert sorted(fixes) == ["calls_as_text", "calls_as_text", "result_media_moved"]


def test_a_prefill_is_a_prefix_for_mistral():
    done = normalize({"model": MISTRAL, "messages": [user("q"), said("The")]}, to="vllm", policy={"tail": "prefill"})
    assert json.loads(done.body)["messages"][-1] == {"role": "assistant", "content": "The", "prefix": True}


# The end and the beginning of a history.


@pytest.mark.parametrize("target", ["openai-chat", "openai-responses", "vllm"])
def test_a_history_that_must_not_end_with_the_assistant_is_rejected(target):
    done = normalize([user("q"), said("a")], to=target, policy={"tail": "reject"})
    assert done.body is None
    rule = {"openai-chat": "OAI-22", "openai-responses": "RSP-23", "vllm": "VLM-09"}[target]
    assert [(found.rule, found.path) for found in hard(done)] == [(rule, "messages.1")]


@pytest.mark.parametrize("target", ["openai-chat", "vllm"])
def test_a_system_prompt_without_other_messages_stays(target):
    done = normalize([{"role": "system", "content": "S"}], to=target, policy={"tail": "keep"})
    assert json.loads(done.body)["messages"] == [{"role": "system", "content": "S"}]


# The head.


def test_parameters_of_other_providers_are_translated():
    body, fixes = head(
        params={
            "max_tokens": 5,
            "stop_sequences": ["x"],
            "metadata": {"user_id": "u"},
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "top_k": 3,
        },
        tools=[{"name": "ls", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
        model="gpt-5.4",
    )
    assert body == {
        "model": "gpt-5.4",
        "tools": [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
        "max_completion_tokens": 5,
        "stop": ["x"],
        "user": "u",
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    assert fixes == ["param_dropped"]


def test_converses_parameters_are_translated_too():
    body, fixes = head("vllm", inferenceConfig={"maxTokens": 5, "topP": 0.5, "stopSequences": ["x"]})
    assert body == {"max_tokens": 5, "top_p": 0.5, "stop": ["x"]}
    assert fixes == []


def test_parameters_get_the_names_of_the_responses_api():
    body, fixes = head(
        "openai-responses",
        system="S",
        params={
            "max_completion_tokens": 50,
            "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
            "tool_choice": {"type": "tool", "name": "ls"},
            "stop": ["x"],
        },
        tools=[{"name": "ls", "description": "List.", "input_schema": {"type": "object"}}, {"type": "web_search"}],
    )
    assert body == {
        "instructions": "S",
        "tools": [
            {
                "type": "function",
                "name": "ls",
                "parameters": {"type": "object"},
                "strict": False,
                "description": "List.",
            },
            {"type": "web_search"},
        ],
        "max_output_tokens": 50,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "tool_choice": {"type": "function", "name": "ls"},
    }
    assert fixes == ["param_dropped"]


def test_parameters_that_need_tools_are_dropped_without_them():
    body, fixes = head(tool_choice={"type": "auto"}, parallel_tool_calls=True)
    assert body == {}
    assert fixes == []


def test_tools_of_other_providers_are_dropped():
    web = {"type": "web_search_20250305", "name": "web_search"}
    same = {"name": "ls", "input_schema": {"type": "object"}}
    body, fixes = head(tools=[web, same, same])
    assert [each["function"]["name"] for each in body["tools"]] == ["ls"]
    assert fixes == ["tool_foreign", "tool_repeated"]


def test_a_saved_session_keeps_a_tool_choice_that_depends_on_an_items_tools():
    tool = {"type": "function", "name": "rate", "parameters": {"type": "object"}}
    choice = {"type": "function", "name": "rate"}
    params = {"tool_choice": choice, "parallel_tool_calls": False}
    session = session_of(user("hello"), targets=["openai-responses"], params=params)
    assert "tool_choice" not in json.loads(session.request().body)
    session.append({"type": "additional_tools", "role": "developer", "tools": [tool]})
    for message in rounds(10):
        session.append(message)
    segments = session.take_segments(flush=True)
    session = Session.load(session.head(), [record for _, record in segments])
    before = session.request()
    session.append(user("more"))
    body = json.loads(session.request().body)
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (choice, False)
    assert session.request().body[: before.prefix_bytes] == before.body[: before.prefix_bytes] != b""


# Ids of the items of Responses (RSP-05): the API stores items, and finds them by these.


def spoken(words, name):
    content = [{"type": "output_text", "text": words}]
    return {"type": "message", "content": content, "role": "assistant", "id": name}


def sent_items(*items, model="gpt-5-mini"):
    done = normalize({"model": model, "input": list(items)}, to="openai-responses")
    assert hard(done) == []
    return json.loads(done.body)["input"], [(fix.code, fix.path) for fix in done.fixes]


ASKED = {"type": "message", "content": "q", "role": "user"}
REASONED = {"type": "reasoning", "summary": [], "id": "rs_1", "encrypted_content": "gAAAA"}


def reference(name):
    return {"type": "item_reference", "id": name}


def test_a_reference_to_an_item_that_is_there_is_left_out():
    assert sent_items(ASKED, spoken("a", "msg_1"), reference("msg_1"), ASKED) == (
        [ASKED, spoken("a", "msg_1"), ASKED], [("item_repeated", "input.2")],
    )  # fmt: skip
    stored = [ASKED, reference("msg_1"), reference("msg_2"), ASKED]
    assert sent_items(*stored) == (stored, [])


def test_an_item_that_was_referred_to_before_loses_its_id():
    items, fixes = sent_items(ASKED, reference("msg_1"), ASKED, spoken("a", "msg_1"), ASKED)
    assert items[3] == {"type": "message", "content": "a", "role": "assistant"}
    assert fixes == [("item_id_dropped", "input.3.content.0")]


def test_reasoning_before_a_message_that_loses_its_id_loses_its_own():
    items, fixes = sent_items(ASKED, spoken("a", "msg_1"), REASONED, spoken("b", "msg_1"), ASKED)
    without = {name: value for name, value in REASONED.items() if name != "id"}
    plain = {"type": "message", "content": "b", "role": "assistant"}
    assert items == [ASKED, spoken("a", "msg_1"), without, plain, ASKED]
    assert fixes == [("item_id_dropped", "input.3.content.0"), ("item_id_dropped", "input.2")]


def test_o3_mini_takes_reasoning_before_the_user_and_none_before_a_result():
    called = {"type": "function_call", "call_id": "y", "name": "f", "arguments": "{}"}
    answered = {"type": "function_call_output", "call_id": "y", "output": "r"}
    trailing = [ASKED, spoken("a", "msg_1"), REASONED, ASKED]
    assert sent_items(*trailing, model="o3-mini") == (trailing, [])
    items, fixes = sent_items(ASKED, called, REASONED, answered, ASKED, model="o3-mini")
    assert (items, fixes) == ([ASKED, called, answered, ASKED], [("thinking_trailing", "input.2")])
