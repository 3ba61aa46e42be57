"""Mistral, DeepSeek and Moonshot: the differences of their writers, and a history that goes through all providers."""

from __future__ import annotations

import json

import pytest

from reknit import Session, normalize, validate
from reknit.pipeline.registry import SOURCES, TARGETS, shape_of
from reknit.pipeline.rules.refusals import read_refusal
from reknit.pipeline.serve.upstreams import DEFAULT_UPSTREAMS, Upstreams

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
TOOLS = [{"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}]
HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "Who is in the picture?"}, IMAGE]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I need the files.", "signature": "EqQBCgIYAhIM"},
            {"type": "text", "text": "Let me read."},
            {"type": "tool_use", "id": "toolu_01A", "name": "read", "input": {"path": "a"}},
            {"type": "tool_use", "id": "toolu_01B", "name": "read", "input": {"path": "b"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_01A", "content": [{"type": "text", "text": "alpha"}, IMAGE]},
            {"type": "tool_result", "tool_use_id": "toolu_01B", "content": "beta", "is_error": True},
            {"type": "text", "text": "Go on."},
        ],
    },
    {"role": "assistant", "content": "It is Ada."},
    {"role": "user", "content": "Thanks."},
]
ROUND = (
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-responses", "gpt-5-mini"),
    ("openai-chat", "gpt-5-mini"),
    ("gemini", "gemini-3-pro-preview"),
    ("deepseek", "deepseek-v4-pro"),
    ("mistral", "mistral-large-latest"),
    ("moonshot", "kimi-k2.6"),
    ("anthropic", "claude-sonnet-4-5"),
)
WORDS = ("Who is in the picture?", "Let me read.", "alpha", "beta", "Go on.", "It is Ada.", "Thanks.")


def document(model, **members):
    return {"model": model, "max_tokens": 4096, "system": "Be brief.", "tools": TOOLS, "messages": HISTORY, **members}


def refusals(body, target, model):
    return [found for found in validate(body, target, model) if found.severity == "hard"]


def sent(messages, target, model, **members):
    """Return the body of a request, and the codes of its fixes."""
    done = normalize({"model": model, "messages": messages, **members}, to=target)
    assert done.body is not None
    return json.loads(done.body), [fix.code for fix in done.fixes]


def test_a_body_goes_from_provider_to_provider_and_back():
    body = document("claude-sonnet-4-5", tool_choice={"type": "auto"})
    for target, model in ROUND:
        done = normalize(body | {"model": model}, to=target)
        assert refusals(done.body, target, model) == []
        assert [word for word in WORDS if word not in done.body.decode()] == [], target
        body = json.loads(done.body)
    calls = [block["id"] for block in body["messages"][1]["content"] if block["type"] == "tool_use"]
    results = [block["tool_use_id"] for block in body["messages"][2]["content"] if block["type"] == "tool_result"]
    assert len(calls) == 2
    assert results == calls


def test_settings_go_from_provider_to_provider_and_back():
    schema = SCHEMA | {"additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    body = document("claude-opus-4-5", output_config={"format": form, "effort": "low"})
    asked = []
    for target, model in (*ROUND[:-1], ("anthropic", "claude-opus-4-5")):
        done = normalize(body | {"model": model}, to=target)
        assert refusals(done.body, target, model) == []
        assert [word for word in WORDS if word not in done.body.decode()] == [], target
        body = json.loads(done.body)
        asked.append(any(word in done.body.decode() for word in ("json_schema", "responseJsonSchema", "json_object")))
    # Claude has no JSON output without a schema, and DeepSeek has the schema in its prompt.
    assert asked == [True] * 7 + [False]
    assert "matches this JSON schema" in json.dumps(body["system"])
    assert body["output_config"] == {"effort": "high"}  # Mistral has no lower one


@pytest.mark.parametrize("target", sorted({target for target, _ in ROUND} - {"anthropic", "gemini"}))
@pytest.mark.parametrize("form", [FORMAT, {"type": "json_object"}])
def test_a_format_for_answers_is_one_that_the_provider_takes(target, form):
    model = dict(ROUND)[target]
    messages = [*HISTORY[:-1], {"role": "user", "content": "Answer in JSON."}]
    done = normalize(document(model, response_format=form, messages=messages), to=target)
    assert refusals(done.body, target, model) == []
    assert not any(found.rule == "DSK-11" for found in done.violations)


def test_a_session_writes_for_all_of_them_turn_by_turn():
    for target, model in ROUND:
        session = Session((target,), model=model, system="Be brief.", tools=TOOLS)
        for message in HISTORY:
            session.append(message)
            assert refusals(session.request(target).body, target, model) == []


# Mistral


def test_mistral_gets_its_ids_and_an_answer_between_results_and_the_user():
    body, codes = sent(HISTORY, "mistral", "mistral-large-latest")
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant", "user"]
    calls = [call["id"] for call in body["messages"][1]["tool_calls"]]
    assert [message["tool_call_id"] for message in body["messages"][2:4]] == calls
    assert all(len(each) == 9 and each.isalnum() for each in calls)
    assert "assistant_inserted" in codes
    small, codes = sent(HISTORY, "mistral", "mistral-small-latest")
    assert [message["role"] for message in small["messages"]] == [*roles[:4], *roles[5:]]
    assert "assistant_inserted" not in codes


def test_mistrals_thinking_is_a_part_at_its_place():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "closed": True}
    spoken = [thinking, {"type": "text", "text": "42"}]
    messages = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": spoken}]
    messages.append({"role": "user", "content": "And twice that?"})
    assert sent(messages, "mistral", "mistral-small-latest") == (
        {"model": "mistral-small-latest", "messages": messages}, [],
    )  # fmt: skip
    body, codes = sent(messages, "mistral", "codestral-latest")
    assert body["messages"][1] == {"role": "assistant", "content": "42"}
    assert codes == ["thinking_foreign"]
    assert sent(messages, "deepseek", "deepseek-v4-flash")[0]["messages"][1]["reasoning_content"] == "hm"


def test_mistrals_thinking_is_not_left_alone_where_what_was_said_is_left_out():
    thinking = {"type": "thinking", "thinking": "hm", "issuer": {"provider": "openai-chat"}}
    answer = {"role": "assistant", "content": [thinking, {"type": "hologram", "depth": 3}]}
    given = {"model": "magistral-medium-latest", "messages": [{"role": "user", "content": "q"}, answer]}
    done = normalize(given, to="mistral", source="anthropic")
    part = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "closed": True}
    shown = json.loads(done.body)["messages"][1]["content"]
    assert (shown[0], shown[1]["type"], len(shown)) == (part, "text", 2)
    assert sorted(fix.code for fix in done.fixes) == ["tail_continued", "turn_stubbed", "unknown_dropped"]
    again = normalize(done.body, to="mistral")
    assert (again.body, again.fixes) == (done.body, [])
    alone = {"model": given["model"], "messages": [given["messages"][0], {"role": "assistant", "content": [thinking]}]}
    kept = normalize(
        alone, to="mistral", source="anthropic", policy={"mend": {"reasoning_alone": "observe"}, "tail": "keep"}
    )
    assert json.loads(kept.unjudged)["messages"][1]["content"] == [part]


def test_mistral_takes_documents_as_addresses():
    part = {"type": "document_url", "document_url": "https://x.example/a.pdf"}
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]
    assert sent(messages, "mistral", "mistral-small-latest")[0]["messages"] == messages
    document = sent(messages, "anthropic", "claude-sonnet-4-5", max_tokens=5)[0]["messages"][0]["content"][1]
    assert document == {"type": "document", "source": {"type": "url", "url": "https://x.example/a.pdf"}}
    assert sent([{"role": "user", "content": [document]}], "mistral", "m")[0]["messages"][0]["content"] == [part]


def test_only_the_last_answer_is_a_prefix():
    begun = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One", "prefix": True}]
    assert sent(begun, "mistral", "mistral-small-latest")[0]["messages"] == begun
    body, codes = sent([*begun, {"role": "user", "content": "On."}], "mistral", "mistral-small-latest")
    assert body["messages"][1] == {"role": "assistant", "content": "One"}
    assert codes == ["field_dropped"]


@pytest.mark.parametrize(
    ("given", "written", "codes"),
    [
        ({"seed": 5}, {"random_seed": 5}, []),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}, []),
        ({"reasoning_effort": "medium"}, {"reasoning_effort": "high"}, ["parameter_nearest"]),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}, []),
        ({"temperature": 2}, {"temperature": 1.5}, ["parameter_clamped"]),
        ({"store": True}, {}, ["param_dropped"]),
    ],
)
def test_mistrals_parameters(given, written, codes):
    body, made = sent([{"role": "user", "content": "hi"}], "mistral", "mistral-small-latest", **given)
    assert {name: value for name, value in body.items() if name not in ("model", "messages")} == written
    assert made == codes


@pytest.mark.parametrize("choice", ["any", "required", {"type": "any"}])
def test_mistral_has_two_words_for_a_forced_call(choice):
    body, codes = sent(HISTORY[:1], "mistral", "mistral-small-latest", tools=TOOLS, tool_choice=choice)
    assert body["tool_choice"] == (choice if isinstance(choice, str) else "any")
    assert codes == []


# DeepSeek


def test_deepseek_gets_reasoning_back_whoever_wrote_it():
    body, codes = sent(HISTORY, "deepseek", "deepseek-v4-flash")
    assert body["messages"][1]["reasoning_content"] == "I need the files."
    assert "thinking_foreign" not in codes
    chat, codes = sent(HISTORY, "deepseek", "deepseek-chat")
    assert "reasoning_content" not in chat["messages"][1]
    assert "thinking_foreign" in codes


def test_deepseek_gets_no_empty_reasoning_where_it_does_not_think():
    bare = [HISTORY[0], {"role": "assistant", "content": HISTORY[1]["content"][2:3]}]
    bare.append({"role": "user", "content": HISTORY[2]["content"][:1]})
    assert sent(bare, "deepseek", "deepseek-v4-flash")[0]["messages"][1]["reasoning_content"] == ""
    body, _ = sent(bare, "deepseek", "deepseek-v4-flash", thinking={"type": "disabled"})
    assert "reasoning_content" not in body["messages"][1]


def test_deepseek_takes_text_alone():
    body, codes = sent(HISTORY[:1], "deepseek", "deepseek-v4-flash")
    assert body["messages"][0]["content"][1] == {"type": "text", "text": "[Image left out: the model takes no images]"}
    assert codes == ["image_stubbed"]


def test_deepseek_is_told_the_schema_in_its_prompt():
    for form in ({"response_format": FORMAT}, {"text": {"format": {"type": "json_schema", **FORMAT["json_schema"]}}}):
        body, codes = sent(HISTORY[-1:], "deepseek", "deepseek-v4-flash", system="Be brief.", **form)
        assert body["response_format"] == {"type": "json_object"}
        prompt = body["messages"][0]["content"]
        assert prompt.startswith("Be brief.\n\n")
        assert json.loads(prompt[prompt.index("{") :]) == SCHEMA
        assert codes == ["schema_described"]


@pytest.mark.parametrize(
    ("target", "model", "members", "expected"),
    [
        ("deepseek", "deepseek-v4-flash", {}, (True, "disabled", ["thinking_yields"])),
        ("deepseek", "deepseek-v4-flash", {"thinking": {"type": "enabled"}}, (False, "enabled", ["param_dropped"])),
        ("deepseek", "deepseek-v4-flash", {"thinking": {"type": "disabled"}}, (True, "disabled", [])),
        ("deepseek", "deepseek-reasoner", {}, (False, "", ["param_dropped"])),
        ("deepseek", "deepseek-chat", {}, (True, "", [])),
        ("moonshot", "kimi-k2.6", {}, (True, "disabled", ["thinking_yields"])),
        ("moonshot", "kimi-k2.6", {"thinking": {"type": "disabled"}}, (True, "disabled", [])),
        ("moonshot", "kimi-k2-thinking", {}, (False, "", ["param_dropped"])),
        ("moonshot", "kimi-k3", {}, (False, "", ["param_dropped"])),
        ("moonshot", "kimi-k2-0905-preview", {}, (True, "", [])),
    ],
)
def test_no_call_is_forced_while_the_model_thinks(target, model, members, expected):
    for choice in ({"type": "tool", "name": "read"}, "required"):
        body, codes = sent(HISTORY[-1:], target, model, tools=TOOLS, tool_choice=choice, **members)
        assert ("tool_choice" in body, body.get("thinking", {}).get("type", ""), codes) == expected
        assert refusals(json.dumps(body), target, model) == []


def test_adaptive_thinking_is_thinking_that_is_enabled():
    body, _ = sent(HISTORY[-1:], "deepseek", "deepseek-v4-flash", thinking={"type": "adaptive"})
    assert body["thinking"] == {"type": "enabled"}


# Moonshot


def test_moonshots_sampling_is_fixed():
    given = {"temperature": 0.3, "top_p": 0.5, "n": 1}
    body, codes = sent(HISTORY[-1:], "moonshot", "kimi-k2.6", **given)
    assert (body.keys() & given.keys(), codes) == ({"n"}, ["parameter_unsupported", "parameter_unsupported"])
    kept, codes = sent(HISTORY[-1:], "moonshot", "kimi-k2.6", temperature=0.6, thinking={"type": "disabled"})
    assert (kept["temperature"], codes) == (0.6, [])
    free, codes = sent(HISTORY[-1:], "moonshot", "kimi-k2-0905-preview", temperature=1.5)
    assert (free["temperature"], codes) == (1, ["parameter_clamped"])


def test_moonshots_answer_to_continue_is_partial():
    begun = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One", "partial": True}]
    assert sent(begun, "moonshot", "kimi-k2-0905-preview") == (
        {"model": "kimi-k2-0905-preview", "messages": begun}, [],
    )  # fmt: skip
    marked, codes = sent(begun, "mistral", "mistral-small-latest")
    assert marked["messages"][1] == {"role": "assistant", "content": "One", "prefix": True}
    assert codes == ["field_dropped"]


def test_moonshot_gets_no_empty_content():
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    body, codes = sent(messages, "moonshot", "kimi-k2.6")
    assert body["messages"][1]["content"] is None
    assert codes == ["blank_dropped"]
    assert sent(messages, "deepseek", "deepseek-v4-flash")[0]["messages"][1]["content"] == ""


@pytest.mark.parametrize("target", ["moonshot", "mistral", "deepseek", "anthropic"])
def test_moonshots_own_ids_stay_there_and_become_such_as_another_target_takes(target):
    call = {"id": "functions.read:0", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "functions.read:0", "content": "done"},
    ]
    body, codes = sent(messages, target, dict(ROUND)[target], max_tokens=5)
    assert refusals(json.dumps(body), target, dict(ROUND)[target]) == []
    assert ("id_rewritten" in codes) == (target != "moonshot")
    assert ("functions.read:0" in json.dumps(body)) == (target == "moonshot")


def test_a_session_for_several_targets_keeps_moonshots_ids_for_moonshot():
    call = {"id": "functions.read:0", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    session = Session(("moonshot", "openai-chat"), model="kimi-k2.6")
    session.append({"role": "user", "content": "Read."})
    session.append({"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"})
    session.append({"role": "tool", "tool_call_id": "functions.read:0", "content": "done"})
    assert b"functions.read:0" in session.request("moonshot").body
    assert b"functions.read:0" not in session.request("openai-chat").body


# Their descriptions


@pytest.mark.parametrize("name", ["mistral", "deepseek", "moonshot"])
def test_each_is_a_target_and_a_source_with_an_upstream(name):
    assert shape_of(name) == "openai-chat"
    assert SOURCES[name].issuer == name
    upstreams = Upstreams(DEFAULT_UPSTREAMS, TARGETS)
    assert upstreams.find(f"/{name}/v1/chat/completions").endpoint.target == name


@pytest.mark.parametrize("name", ["deepseek", "moonshot"])
def test_the_endpoint_in_anthropics_shape_gets_thinking_back_unsigned(name):
    found = Upstreams(DEFAULT_UPSTREAMS, TARGETS).find(f"/{name}/anthropic/v1/messages")
    assert found.endpoint.target == "anthropic"
    thinking = {"type": "thinking", "thinking": "I need the files.", "signature": ""}
    spoken = {"role": "assistant", "content": [thinking, *HISTORY[1]["content"][2:3]]}
    messages = [HISTORY[-1], spoken, {"role": "user", "content": HISTORY[2]["content"][:1]}]
    settings = {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": messages}
    kept = normalize(settings, to="anthropic", policy=found.upstream.policy)
    assert json.loads(kept.body)["messages"][1]["content"][0]["thinking"] == "I need the files."
    left = normalize(settings, to="anthropic")
    assert "thinking_unsigned" in [fix.code for fix in left.fixes]


EXTRA = [{"type": "extra_forbidden", "loc": ["body", "x"], "msg": "Extra inputs are not permitted", "input": None}]
ORDER = "Unexpected role 'system' after role 'assistant'"
KIND = (
    "Failed to deserialize the JSON body into the target type: messages[0]: unknown variant `image_url`, expected "
    "`text`"
)
EMPTY = "Invalid request: the message at position 8 with role 'assistant' must not be empty"


@pytest.mark.parametrize(
    ("target", "status", "answer", "rule"),
    [
        ("mistral", 400, {"object": "error", "message": ORDER, "code": "3230"}, "MIS-04"),
        ("mistral", 422, {"detail": EXTRA}, "MIS-07"),
        ("mistral", 422, {"object": "error", "message": {"detail": EXTRA}, "code": None}, "MIS-07"),
        ("mistral", 422, {"object": "Error", "detail": EXTRA, "message": EXTRA, "code": 3001}, "MIS-07"),
        ("deepseek", 400, {"error": {"message": f"{KIND} at line 1 column 391"}}, "DSK-03"),
        ("moonshot", 400, {"error": {"message": EMPTY, "type": "invalid_request_error"}}, "KIM-03"),
    ],
)
def test_a_refusal_is_known_by_its_words(target, status, answer, rule):
    found = read_refusal(TARGETS[target].catalogue, status, json.dumps(answer))
    assert (found.outcome, found.rule) == ("missed", rule)


@pytest.mark.parametrize("answer", [{"detail": []}, {"detail": [5]}, {"message": {}}, {"detail": [{"msg": 5}]}])
def test_a_refusal_without_words_is_unknown(answer):
    assert read_refusal(TARGETS["mistral"].catalogue, 422, json.dumps(answer)).outcome == "unknown"


def test_deepseek_takes_no_audio_whatever_its_model_is_called():
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    history = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, audio]}]
    done = normalize({"model": "deepseek-audio", "messages": history}, to="deepseek", source="openai-chat")
    assert "input_audio" not in bytes(done.body).decode()
    assert [(fix.code, fix.path) for fix in done.fixes] == [("unknown_dropped", "messages.0.content.1")]


def test_mistral_gets_no_names():
    messages = [
        {"role": "system", "content": "Be brief.", "name": "house"},
        {"role": "user", "content": "a", "name": "ann"},
        {"role": "assistant", "content": "b", "name": "bot"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "prefix": True},
    ]
    body, codes = sent(messages, "mistral", "mistral-large-latest")
    assert body["messages"] == [{name: each[name] for name in each if name != "name"} for each in messages]
    assert codes == ["field_dropped"] * 3
    call = {"id": "NBKmvNAQF", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    answered = {"role": "tool", "tool_call_id": "NBKmvNAQF", "content": "files", "name": "ls"}
    loop = [messages[3], {"role": "assistant", "content": "", "tool_calls": [call]}, answered]
    assert sent(loop, "mistral", "mistral-large-latest") == ({"model": "mistral-large-latest", "messages": loop}, [])
    kept, codes = sent(messages[:4], "moonshot", "kimi-k2")
    assert (kept["messages"], codes) == (messages[:4], [])


def test_a_strict_template_gets_one_message_of_two_with_a_name():
    messages = [{"role": "user", "content": "a", "name": "ann"}, {"role": "user", "content": "b"}]
    body, codes = sent(messages, "vllm", "mistralai/Mistral-7B-Instruct-v0.3")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (body["messages"], codes) == ([{"role": "user", "content": parts}], ["turns_merged", "field_dropped"])
    assert sent(messages[:1], "vllm", "mistralai/Mistral-7B-Instruct-v0.3")[0]["messages"] == messages[:1]
