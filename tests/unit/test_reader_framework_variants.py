"""Variants of frameworks' messages that no sample has: old versions, missing ids, copies, and live sessions."""

import json

import msgspec
import pytest
from msgspec import UNSET

from reknit.pipeline import Session, normalize
from reknit.pipeline.history.frameworks.parts import UNKNOWN_ISSUER
from reknit.pipeline.history.readers.shapes import read

SIGNED = "EgpzaWct+/8SEhISEhISEhISEhISEhISEhISEhISEhI="
SEALED = "gAAAAABoxxxxxxxx"
ASKED = {"role": "user", "content": "Hi"}


def blocks(history, source="auto"):
    return [block for turn in read(history, source).conversation.turns for block in turn.blocks]


def shown(history, source="auto"):
    """Return blocks as objects, without their own members."""
    return [
        {name: value for name, value in msgspec.json.decode(msgspec.json.encode(block)).items() if name != "own"}
        for block in blocks(history, source)
    ]


def codes(history, source="auto"):
    return [(fix.code, fix.path) for fix in read(history, source).fixes]


def spoken(history):
    return [(turn.role, [block.text for block in turn.blocks]) for turn in read(history).conversation.turns]


# LangChain.


def human(content="Hi"):
    return {"type": "human", "data": {"content": content}}


def ai(content, **members):
    return {"type": "ai", "data": {"content": content, **members}}


def test_a_reasoning_item_that_langchain_has_twice_is_read_once():
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]}
    message = ai([item, {"type": "text", "text": "x"}], additional_kwargs={"reasoning": item})
    assert [block["type"] for block in shown([human(), message])] == ["text", "thinking", "text"]
    alone = ai([{"type": "text", "text": "x"}], additional_kwargs={"reasoning": item})
    assert [block["type"] for block in shown([human(), alone])] == ["text", "thinking", "text"]


@pytest.mark.parametrize("name", ["annotations", "citations"])
def test_citations_of_langchain_are_a_named_loss(name):
    cited = ai([{"type": "text", "text": "x", name: [{"url": "https://e.com"}]}])
    assert codes([human(), cited]) == [("citations_dropped", "messages.1.data.content.0")]
    assert codes([human(), ai([{"type": "text", "text": "x", name: []}])]) == []


def test_googles_media_in_langchain_are_images_and_documents():
    data = {"type": "media", "mime_type": "image/png", "data": "iVBORw0KGgo="}
    linked = {"type": "media", "mime_type": "application/pdf", "file_uri": "https://e.com/a.pdf"}
    sound = {"type": "media", "mime_type": "audio/wav", "data": "aGk="}
    found = shown([human([data, linked, sound])])
    assert [block["type"] for block in found] == ["image", "document", "reknit.unknown"]


def test_parts_of_converse_in_langchain_are_those_of_converse():
    result = {"type": "tool", "data": {"content": [{"json": {"a": 1}}], "tool_call_id": "c1"}}
    call = ai("", tool_calls=[{"name": "f", "args": {}, "id": "c1", "type": "tool_call"}])
    found = shown([human(["Hi", {"cachePoint": {"type": "default"}}]), call, result])
    assert [block.get("kind") for block in found[:2]] == [None, "cachePoint"]
    (part,) = found[-1]["content"]
    assert (json.loads(part["text"]), part["structured"]) == ({"a": 1}, True)


# pydantic-ai, also in the messages of others.


def by_pydantic_ai(provider, **members):
    return {"provider_name": provider, **members}


OWN = [
    ("openai", {"id": "rs_1", "signature": SEALED}, "reasoning", {"thinking": "hm", "signature": SEALED}),
    ("anthropic", {"signature": SIGNED}, "", {"thinking": "hm", "signature": SIGNED}),
    ("google-gla", {"signature": "CiQB-_8="}, "", {"thinking": "hm"}),
]


@pytest.mark.parametrize(("provider", "members", "kind", "expected"), OWN, ids=[row[0] for row in OWN])
def test_reasoning_by_pydantic_ai_is_the_same_in_each_shape(provider, members, kind, expected):
    told = by_pydantic_ai(provider, **members)
    histories = [
        [
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]},
            {"kind": "response", "parts": [{"part_kind": "thinking", "content": "hm", **told}]},
        ],
        [{"id": "u", **ASKED}, {"id": "r", "role": "reasoning", "content": "hm", "encryptedValue": json.dumps(told)}],
        [
            {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hi"}]},
            {
                "id": "a",
                "role": "assistant",
                "parts": [{"type": "reasoning", "text": "hm", "providerMetadata": {"pydantic_ai": told}}],
            },
        ],
    ]
    found = [blocks(history)[1:] for history in histories]
    assert found[0] == found[1] == found[2]
    first = found[0][0]
    assert (first.own.kind if first.own is not UNSET else "") == kind
    assert expected.items() <= msgspec.json.decode(msgspec.json.encode(first)).items()
    # Gemini's signature is that of the next part.
    assert [block.signature for block in found[0][1:]] == (["CiQB+/8="] if provider == "google-gla" else [])


def test_citations_of_pydantic_ai_are_a_named_loss():
    part = {"part_kind": "text", "content": "x", "citations": [{"url": "https://e.com"}]}
    history = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]},
        {"kind": "response", "parts": [part]},
    ]
    assert codes(history) == [("citations_dropped", "messages.1.parts.0")]


def test_what_pydantic_ai_notes_of_an_answer_is_ignored():
    noted = {"metadata": {"a": 1}, "failed_attempts": [{"model_name": "m"}], "usage": {"input_tokens": 1}}
    history = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]},
        {"kind": "response", "parts": [{"part_kind": "text", "content": "x"}], **noted},
    ]
    assert (spoken(history), codes(history)) == ([("user", ["Hi"]), ("assistant", ["x"])], [])


# The AI SDK, and Mastra.


def ui(*parts, role="assistant", **members):
    return {"id": role[0], "role": role, "parts": list(parts), **members}


def text(words):
    return {"type": "text", "text": words}


PNG = {"name": "a.png", "contentType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="}


def test_attachments_of_version_4_are_files_unless_a_part_has_them():
    asked = ui(text("See."), role="user", experimental_attachments=[PNG])
    assert [block["type"] for block in shown([asked])] == ["text", "image"]
    part = {"type": "file", "mediaType": "image/png", "url": PNG["url"]}
    both = ui(text("See."), part, role="user", experimental_attachments=[PNG])
    assert [block["type"] for block in shown([both])] == ["text", "image"]


def test_an_output_that_is_not_final_is_a_named_loss():
    part = {"type": "tool-f", "toolCallId": "c1", "state": "output-available", "input": {}, "output": "so far"}
    history = [ui(text("Hi"), role="user"), ui({**part, "preliminary": True})]
    assert codes(history) == [("field_dropped", "messages.1.parts.0.output")]
    assert [block["type"] for block in shown(history)] == ["text", "tool_use"]


@pytest.mark.parametrize("metadata", [{}, {"providerMetadata": {"anthropic": {"signature": SIGNED}}}])
def test_details_of_reasoning_are_its_text_and_its_signatures(metadata):
    details = [{"type": "text", "text": "hm", "signature": SIGNED}, {"type": "redacted", "data": SIGNED}]
    part = {"type": "reasoning", "reasoning": "", "details": details, **metadata}
    content = {"format": 2, "parts": [part, text("So.")]}
    history = [
        {"id": "u", "role": "user", "content": {"format": 2, "parts": [text("Hi")]}},
        {"id": "a", "role": "assistant", "content": content},
    ]
    issuer = {"provider": "anthropic"}
    assert shown(history, "mastra")[1:3] == [
        {"type": "thinking", "thinking": "hm", "signature": SIGNED, "issuer": issuer},
        {"type": "redacted_thinking", "data": SIGNED, "issuer": issuer},
    ]


def test_a_result_of_a_call_that_the_provider_ran_is_the_providers():
    call = {"type": "tool-call", "toolCallId": "s1", "toolName": "search", "input": {}, "providerExecuted": True}
    output = {"type": "json", "value": [{"url": "https://e.com"}]}
    result = {"type": "tool-result", "toolCallId": "s1", "toolName": "search", "output": output}
    history = [ASKED, {"role": "assistant", "content": [call, result, text("So.")]}]
    assert [block.get("kind") for block in shown(history)] == [None, "tool-call", "tool-result", None]


def test_redacted_reasoning_of_version_4_is_anthropics():
    parts = [{"type": "redacted-reasoning", "data": SIGNED}, text("So.")]
    history = [ASKED, {"role": "assistant", "content": parts}]
    assert shown(history, "ai-sdk-model")[1] == {
        "type": "redacted_thinking",
        "data": SIGNED,
        "issuer": {"provider": "anthropic"},
    }


@pytest.mark.parametrize(("members", "issuer"), [({"kind": "openai.compaction"}, UNKNOWN_ISSUER), ({}, UNSET)])
def test_a_custom_part_of_the_ai_sdk_is_a_providers_if_it_names_one(members, issuer):
    parts = [{"type": "custom", **members}, text("So.")]
    part = blocks([ASKED, {"role": "assistant", "content": parts}], "ai-sdk-model")[1]
    assert (part.kind, part.issuer) == ("custom", issuer)


# Calls and results without ids.


def haystack(role, *content):
    return {"role": role, "meta": {}, "name": None, "content": list(content)}


def test_results_of_haystack_belong_to_the_call_with_their_arguments():
    calls = [{"tool_name": "f", "arguments": {"a": number, "b": 0}, "id": None} for number in (1, 2)]
    turned = {"tool_name": "f", "arguments": {"b": 0, "a": 2}, "id": None}
    history = [
        haystack("user", {"text": "Hi"}),
        haystack("assistant", *({"tool_call": call} for call in calls)),
        haystack("tool", {"tool_call_result": {"result": "two", "origin": turned, "error": False}}),
        haystack("tool", {"tool_call_result": {"result": "one", "origin": calls[0], "error": False}}),
    ]
    _, first, second, *results = shown(history)
    assert {block["tool_use_id"]: block["content"] for block in results} == {first["id"]: "one", second["id"]: "two"}
    session = Session(("anthropic",))
    for message in history:
        session.append(message)
    assert session.request().body == normalize(history).body


def otel(role, *parts):
    return {"role": role, "parts": list(parts)}


def test_results_of_opentelemetry_without_ids_and_names_are_in_the_order_of_the_calls():
    calls = [{"type": "tool_call", "name": name, "arguments": {}} for name in ("f", "g")]
    results = [{"type": "tool_call_response", "response": value} for value in ("one", "two")]
    history = [otel("user", {"type": "text", "content": "Hi"}), otel("assistant", *calls), otel("tool", *results)]
    found = shown(history)
    assert [(block["tool_use_id"], block["content"]) for block in found[3:]] == [("call_f", "one"), ("call_g", "two")]
    apart = [*history[:2], *(otel("tool", result) for result in results)]
    assert shown(apart) == found
    session = Session(("anthropic",))
    for message in apart:
        session.append(message)
    assert [fix.code for fix in session.request().fixes if "orphan" in fix.code] == []


# Signatures of Gemini, and live sessions.


def test_a_signature_that_the_agents_sdk_keeps_next_to_a_call_is_that_of_the_call():
    data = {"model": "gemini/gemini-3-pro", "thought_signature": "CiQB-_8="}
    call = {"type": "function_call", "id": "__fake_id__", "call_id": "c1", "name": "f", "arguments": "{}"}
    seal, used = shown([ASKED, {**call, "provider_data": data}])[1:]
    assert seal == {
        "type": "thinking",
        "thinking": "",
        "signature": "CiQB+/8=",
        "issuer": {"provider": "gemini", "model": "gemini-3-pro"},
    }
    assert used["id"] == "c1"
    other = {**data, "model": "anthropic/claude-sonnet-4-5"}
    assert len(shown([ASKED, {**call, "provider_data": other}])) == 2


def test_a_signature_that_cline_keeps_on_a_block_is_geminis():
    call = {"type": "tool_use", "id": "c1", "name": "f", "input": {}, "signature": "CiQB-_8="}
    answer = {"role": "assistant", "content": [call], "ts": 1}
    by_gemini = {**answer, "modelInfo": {"modelId": "gemini-3-pro", "providerId": "gemini"}}
    assert [block.get("signature") for block in shown([ASKED, by_gemini])] == [None, "CiQB+/8=", None]
    by_claude = {**answer, "modelInfo": {"modelId": "claude-sonnet-4-5", "providerId": "anthropic"}}
    assert codes([ASKED, by_claude]) == [("field_dropped", "messages.1.content.0.signature")]


def event(author, part, **members):
    role = "user" if author == "user" else "model"
    return {"author": author, "invocationId": "i", "id": author, "content": {"role": role, "parts": [part]}, **members}


def test_words_of_a_live_session_are_read_in_place_of_its_sound():
    sound = {"inlineData": {"mimeType": "audio/pcm", "data": "aGk="}}
    history = [
        event("user", sound, inputTranscription={"text": "Hello."}),
        event("bot", sound, output_transcription={"text": "Good day."}),
        {"author": "bot", "invocationId": "i", "id": "c", "outputTranscription": {"text": "And?"}},
        event("user", {"text": "Typed."}, inputTranscription={"text": "Typed."}),
    ]
    turns = read(history).conversation.turns
    assert [(turn.role, [block.text for block in turn.blocks]) for turn in turns] == [
        ("user", ["Hello."]),
        ("assistant", ["Good day."]),
        ("assistant", ["And?"]),
        ("user", ["Typed."]),
    ]


# Session files of Copilot and pi.


def copilot(number, kind, **data):
    return {"type": kind, "id": str(number), "timestamp": "2026-01-01T00:00:00Z", "parentId": None, "data": data}


COPILOT = [
    copilot(1, "system.message", content="Rules."),
    copilot(2, "user.message", content="Hi"),
    copilot(3, "assistant.message", content="Hello."),
]


def test_the_summary_of_a_compaction_of_copilot_takes_the_place_of_what_it_has_summarised():
    after = copilot(5, "user.message", content="Go on.")
    done = copilot(4, "session.compaction_complete", success=True, summaryContent="Greetings.")
    history = [*COPILOT, done, after]
    assert spoken(history) == [("system", ["Rules."]), ("user", ["Greetings."]), ("user", ["Go on."])]
    assert read(history).conversation.turns[1].synthetic
    assert codes(history) == []
    failed = copilot(4, "session.compaction_complete", success=False, error="no model")
    assert spoken([*COPILOT, failed, after]) == [*spoken(COPILOT), ("user", ["Go on."])]


@pytest.mark.parametrize(
    ("event", "left"),
    [(("session.snapshot_rewind", {"upToEventId": "3"}), 2), (("session.context_cleared", {}), 1)],
    ids=["rewind", "clear"],
)
def test_what_copilot_takes_back_is_left_out(event, left):
    kind, data = event
    assert spoken([*COPILOT, copilot(4, kind, **data)]) == spoken(COPILOT)[:left]


@pytest.mark.parametrize("name", ["reasoningOpaque", "encryptedContent"])
def test_reasoning_of_copilot_is_signed_by_either_member(name):
    answer = copilot(4, "assistant.message", content="So.", reasoningText="hm", model="m", **{name: SEALED})
    assert shown([*COPILOT, answer])[3] == {
        "type": "thinking",
        "thinking": "hm",
        "signature": SEALED,
        "issuer": {"provider": "copilot", "model": "m"},
    }
    assert codes([*COPILOT, answer]) == []


def test_attachments_of_copilot_are_media_if_their_data_is_there():
    image = {"type": "blob", "mimeType": "image/png", "data": "iVBORw0KGgo="}
    pdf = {"type": "blob", "mimeType": "application/pdf", "data": "JVBERi0xLjQK", "displayName": "a.pdf"}
    path = {"type": "file", "path": "/a", "displayName": "a"}
    history = [copilot(1, "user.message", content="See.", attachments=[image, pdf, path])]
    assert [(block["type"], block.get("title")) for block in shown(history)] == [
        ("text", None),
        ("image", None),
        ("document", "a.pdf"),
    ]
    assert [path for _, path in codes(history)] == ["messages.0.data.attachments.2"]


def test_results_of_copilot_have_their_blocks_their_text_or_their_error():
    calls = [{"toolCallId": name, "name": "f", "arguments": {}} for name in ("text", "blocks", "error", "message")]
    image = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    results = [
        {"toolCallId": "text", "success": True, "result": {"content": "one", "detailedContent": "long"}},
        {"toolCallId": "blocks", "success": True, "result": {"content": "", "contents": [image]}},
        {"toolCallId": "error", "success": False, "error": "none"},
        {"toolCallId": "message", "success": False, "error": {"message": "no file", "code": "f"}},
    ]
    answer = copilot(4, "assistant.message", content="", toolRequests=calls)
    events = [copilot(5 + at, "tool.execution_complete", **each) for at, each in enumerate(results)]
    _, blocks_of, *failed = found = [block for block in shown([*COPILOT, answer, *events]) if "tool_use_id" in block]
    assert [each.get("is_error", False) for each in found] == [False, False, True, True]
    assert found[0]["content"] == "one"
    assert [block["type"] for block in blocks_of["content"]] == ["image"]
    assert [each["content"] for each in failed] == ["none", "no file"]


def pi(number, **message):
    return {"type": "message", "id": str(number), "parentId": str(number - 1), "timestamp": "t", "message": message}


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("branchSummary", "The following is a summary of a branch that this conversation came back from:"),
        ("compactionSummary", "The conversation history before this point was compacted into the following summary:"),
    ],
)
def test_a_summary_among_the_messages_of_pi_has_the_words_of_its_kind(role, words):
    history = [pi(1, role=role, summary="Greetings.", fromId="x"), pi(2, role="user", content="Go on.")]
    assert spoken(history) == [("user", [f"{words}\n\n<summary>\nGreetings.\n</summary>"]), ("user", ["Go on."])]
    assert codes(history) == []


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"output": "a\n"}, "Ran `ls`\n```\na\n\n```"),
        ({"output": ""}, "Ran `ls`\n(no output)"),
        ({"output": "", "exitCode": 0}, "Ran `ls`\n(no output)"),
        ({"output": "", "exitCode": 2}, "Ran `ls`\n(no output)\n\nCommand exited with code 2"),
        ({"output": "", "exitCode": 2, "cancelled": True}, "Ran `ls`\n(no output)\n\n(command cancelled)"),
    ],
    ids=["output", "no output", "success", "exit code", "cancelled"],
)
def test_a_command_that_the_user_of_pi_ran_is_a_text(members, words):
    history = [pi(1, role="bashExecution", command="ls", **members), pi(2, role="user", content="Go on.")]
    assert spoken(history) == [("user", [words]), ("user", ["Go on."])]
    assert codes(history) == []
    hidden = pi(1, role="bashExecution", command="ls", excludeFromContext=True, **members)
    assert spoken([hidden, history[1]]) == [("user", ["Go on."])]


def test_the_time_of_a_part_of_mastra_is_ignored():
    parts = [{**text("Hi"), "createdAt": 1}, {"type": "reasoning", "reasoning": "hm", "details": [], "createdAt": 2}]
    history = [
        {"id": role, "role": role, "content": {"format": 2, "parts": [each]}}
        for role, each in zip(["user", "assistant"], parts, strict=True)
    ]
    assert [block["type"] for block in shown(history)] == ["text", "thinking"]
    assert codes(history) == []


def test_reasoning_in_a_result_of_pi_is_a_loss_at_its_place():
    content = [{"type": "text", "text": "x"}, {"type": "thinking", "thinking": "hm"}, {"type": "toolCall", "id": "d"}]
    call = {"type": "toolCall", "id": "c1", "name": "f", "arguments": {}}
    history = [
        pi(1, role="user", content="Hi"),
        pi(2, role="assistant", content=[call]),
        pi(3, role="toolResult", toolCallId="c1", content=content),
    ]
    assert [block["text"] for block in shown(history)[2]["content"]] == ["x"]
    assert [(fix.code, fix.path, fix.detail) for fix in read(history).fixes] == [
        ("field_dropped", "messages.2.message.content.1", "thinking in a result"),
        ("field_dropped", "messages.2.message.content.2", "tool_use in a result"),
    ]
