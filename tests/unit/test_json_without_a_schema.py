"""JSON output without a schema, by another provider's setting: a message has the word where the target requires it."""

import json

import pytest

from reknit.pipeline import Session, heal, normalize, validate

NOTE = "Answer with a JSON object."
MODELS = {
    "openai-chat": "gpt-4o",
    "openai-responses": "gpt-4o",
    "deepseek": "deepseek-chat",
    "mistral": "mistral-large-latest",
    "moonshot": "kimi-k2.5",
    "vllm": "Qwen/Qwen3.5-9B",
}
WANTING = ["openai-chat", "openai-responses", "deepseek"]
RULES = {"OAI-26", "RSP-21c", "DSK-11"}


def gemini(*said, system=None, **config):
    roles = ["user", "model"] * len(said)
    given = {
        "generationConfig": config or {"responseMimeType": "application/json"},
        "contents": [{"role": role, "parts": [{"text": text}]} for role, text in zip(roles, said, strict=False)],
    }
    return given | ({} if system is None else {"systemInstruction": {"parts": [{"text": system}]}})


def sent(history, target, source="gemini", model=None):
    model = model or MODELS[target]
    done = normalize(json.dumps(history).encode(), to=target, source=source, model=model)
    assert done.body is not None, done.violations
    return json.loads(done.body), [fix.code for fix in done.fixes]


def form_of(body):
    return body.get("response_format") or body.get("text", {}).get("format")


def system_of(body):
    said = body.get("messages") or body.get("input")
    return [each["content"] for each in said if each["role"] == "system"]


def broken(body, target):
    return {each.rule for each in validate(json.dumps(body).encode(), target, MODELS[target])} & RULES


@pytest.mark.parametrize("spelled", ["responseMimeType", "response_mime_type"])
@pytest.mark.parametrize("target", MODELS)
def test_the_form_is_a_json_object_and_the_word_is_added_where_it_is_required(target, spelled):
    body, fixes = sent(gemini("Hi.", **{spelled: "application/json"}), target)
    assert form_of(body) == {"type": "json_object"}
    assert (system_of(body), fixes) == (([NOTE], ["json_word_added"]) if target in WANTING else ([], []))
    assert broken(body, target) == set()


@pytest.mark.parametrize("target", WANTING)
@pytest.mark.parametrize("said", [("As json, please.",), ("As JSON?", "Yes.", "Go.")])
def test_a_first_message_with_the_word_suffices(target, said):
    body, fixes = sent(gemini(*said), target)
    assert (system_of(body), fixes, broken(body, target)) == ([], [], set())


@pytest.mark.parametrize("target", ["openai-chat", "deepseek"])
def test_a_system_prompt_with_the_word_suffices(target):
    body, fixes = sent(gemini("Hi.", system="Answer in Json."), target)
    assert (system_of(body), fixes) == (["Answer in Json."], [])
    body, fixes = sent(gemini("Hi.", system="Be short."), target)
    assert (system_of(body), fixes) == ([f"Be short.\n\n{NOTE}"], ["json_word_added"])


def test_instructions_are_no_message():
    body, fixes = sent(gemini("Hi.", system="Answer in JSON."), "openai-responses")
    assert (body["instructions"], system_of(body), fixes) == ("Answer in JSON.", [NOTE], ["json_word_added"])
    assert broken(body, "openai-responses") == set()


def test_a_system_message_of_chat_is_a_message_of_responses():
    given = {
        "response_format": {"type": "json_object"},
        "messages": [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": "Hi."}],
    }
    body, fixes = sent(given, "openai-responses", "openai-chat")
    assert (system_of(body), fixes) == (["Answer in JSON."], [])


@pytest.mark.parametrize("target", ["openai-chat", "deepseek"])
def test_a_request_of_the_targets_own_stays_as_it_is(target):
    given = {"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "Hi."}]}
    body, fixes = sent(given, target, "openai-chat")
    assert (system_of(body), fixes) == ([], [])
    assert broken(body, target) != set()


def test_a_schema_of_another_type_than_an_object_does_not_become_an_object():
    config = {"responseMimeType": "application/json", "responseJsonSchema": {"type": "array", "items": {}}}
    body, fixes = sent(gemini("Hi.", **config), "openai-chat")
    assert form_of(body) is None
    assert fixes == ["param_dropped", "param_dropped"]


@pytest.mark.parametrize("mime", ["text/plain", "text/x.enum", 1])
def test_other_types_of_answers_are_left_out(mime):
    body, fixes = sent(gemini("Hi.", responseMimeType=mime), "openai-chat")
    assert (form_of(body), fixes) == (None, ["param_dropped"])


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("gpt-4", False),
        ("gpt-4-0613", False),
        ("gpt-3.5-turbo-16k", False),
        ("o1-mini", False),
        ("gpt-4-turbo", True),
        ("gpt-3.5-turbo", True),
        ("gpt-4.1", True),
        ("o3", True),
        ("openai/gpt-4o", True),
    ],
)
@pytest.mark.parametrize("target", ["openai-chat", "openai-responses"])
def test_a_model_that_has_no_json_output_is_not_asked_for_it(target, model, takes):
    body, fixes = sent(gemini("Hi."), target, model=model)
    assert form_of(body) == ({"type": "json_object"} if takes else None)
    assert fixes == (["json_word_added"] if takes else ["param_dropped"])


@pytest.mark.parametrize("target", WANTING)
@pytest.mark.parametrize("said", [("Hi.", "Hello.", "As json."), ("In JSON!", "Hello.", "Go on.")])
def test_requests_of_a_session_begin_with_those_before(target, said):
    contents = gemini(*said)["contents"]
    session = Session(
        [target], model=MODELS[target], params={"generationConfig": {"responseMimeType": "application/json"}}
    )
    bodies = []
    for content in contents:
        session.append(content, "gemini")
        if content["role"] == "user":
            bodies.append(session.request(target).body)
    first, last = bodies
    assert last.startswith(first.removesuffix(b"]}"))
    assert json.loads(last) == sent(gemini(*said), target)[0]


def test_a_policy_may_observe_the_addition():
    policy = {"mend": {"json_word_added": "observe"}}
    done = normalize(
        json.dumps(gemini("Hi.")).encode(), to="openai-chat", source="gemini", model="gpt-4o", policy=policy
    )
    assert system_of(json.loads(done.body)) == []


# A request of the target's own, which the provider refuses because no message has the word.

_CHAT = "'response_format' of type 'json_object'."
REFUSED = {
    "openai-chat": f"'messages' must contain the word 'json' in some form, to use {_CHAT}",
    "openai-responses": (
        "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'."
    ),
    "deepseek": f"Prompt must contain the word 'json' in some form to use {_CHAT}",
}
OBJECT = {"type": "json_object"}
PART = {"type": "text", "text": "Hi."}
ITEMS = [{"type": "input_text", "text": "Hi."}]


@pytest.mark.parametrize(
    ("target", "body", "healed"),
    [
        ("openai-chat", [{"role": "user", "content": "Hi."}], [{"role": "user", "content": f"Hi.\n\n{NOTE}"}]),
        (
            "deepseek",
            [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": [PART]}],
            [
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": [PART, {"type": "text", "text": NOTE}]},
            ],
        ),
        ("openai-responses", "Hi.", f"Hi.\n\n{NOTE}"),
        (
            "openai-responses",
            [{"role": "user", "content": [{"type": "input_text", "text": "Hi."}]}],
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Hi."}, {"type": "input_text", "text": NOTE}],
                }
            ],
        ),
        ("openai-chat", [{"role": "assistant", "content": "Hi."}], None),
        ("openai-chat", [{"role": "user", "content": f"Hi.\n\n{NOTE}"}], None),
        ("deepseek", [{"role": "user", "content": [PART, {"type": "text", "text": NOTE}]}], None),
    ],
)
def test_a_refused_body_asks_for_json_in_its_first_message(target, body, healed):
    form = {"text": {"format": OBJECT}} if target == "openai-responses" else {"response_format": OBJECT}
    key = "input" if target == "openai-responses" else "messages"
    error = {"error": {"message": REFUSED[target], "type": "invalid_request_error"}}
    done = heal(json.dumps({"model": MODELS[target], **form, key: body}).encode(), target, status=400, error=error)
    assert (done and json.loads(done.body)[key]) == healed
    plain = json.dumps({"model": MODELS[target], key: body}).encode()
    assert heal(plain, target, status=400, error=error) is None


def test_a_session_remembers_that_the_word_was_missing():
    session = Session(["openai-chat"], model="gpt-4o", params={"response_format": OBJECT})
    session.append({"role": "user", "content": "Hi."})
    error = {"error": {"message": REFUSED["openai-chat"]}}
    first = session.refused("openai-chat", status=400, error=error)
    assert [(fix.code, fix.path, fix.lossless) for fix in first.fixes] == [
        ("healed_json_word", "messages.0.content", True)
    ]
    assert broken(json.loads(first.body), "openai-chat") == set()
    session.append({"role": "assistant", "content": "{}"})
    session.append({"role": "user", "content": "As JSON."})
    assert session.request().body.startswith(first.body.removesuffix(b"]}"))
    session.configure(params={})
    assert NOTE.encode() not in session.request().body
