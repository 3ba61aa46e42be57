"""Parameters with values that a provider refuses: a request goes out without them, or with the nearest value."""

import json

import pytest

from reknit import normalize, validate

MESSAGES = [{"role": "user", "content": "Hi, in json."}]
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai-chat": "gpt-4o",
    "openai-responses": "gpt-4o",
    "gemini": "gemini-2.5-flash",
    "bedrock-converse": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "mistral": "mistral-large-latest",
    "deepseek": "deepseek-chat",
    "moonshot": "kimi-k2.5",
    "vllm": "Qwen/Qwen3.5-9B",
}
CLAUDE = {"max_tokens": 2000, "messages": MESSAGES}
CHAT = {"messages": MESSAGES}
RESPONSES = {"input": MESSAGES}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]}
CONVERSE = {"messages": [{"role": "user", "content": [{"text": "Hi."}]}]}
NUMBERS = [None, 0, -1, 1.5, 10**30, True, "", "x", [], [None], {}, {"type": None}]
# The source, its history, and the places of parameters in it.
PLACES = [
    ("anthropic", CLAUDE, ["temperature", "top_p", "top_k", "stop_sequences", "thinking", "stream", "metadata"]),
    (
        "openai-chat",
        CHAT,
        [
            *("temperature", "top_p", "n", "seed", "logprobs", "top_logprobs", "presence_penalty", "metadata", "stop"),
            *("parallel_tool_calls", "reasoning_effort", "response_format", "stream_options", "store", "user"),
        ],
    ),
    (
        "openai-responses",
        RESPONSES,
        ["temperature", "top_p", "max_tool_calls", "text", "reasoning", "metadata", "parallel_tool_calls"],
    ),
    (
        "gemini",
        GEMINI,
        [
            "serviceTier",
            *(
                f"generationConfig.{name}"
                for name in ("temperature", "topP", "topK", "candidateCount", "seed", "logprobs", "stopSequences")
            ),
        ],
    ),
    (
        "bedrock-converse",
        CONVERSE,
        [
            *("inferenceConfig.temperature", "inferenceConfig.topP", "inferenceConfig.stopSequences"),
            *("guardrailConfig", "performanceConfig", "requestMetadata", "serviceTier", "outputConfig"),
        ],
    ),
]


def put(history, place, value):
    """The history with a value at a dotted place."""
    name, _, inner = place.partition(".")
    return {**history, name: put(history.get(name, {}), inner, value) if inner else value}


def sent(history, source, target, model=None):
    model = model or MODELS[target]
    done = normalize(json.dumps(history).encode(), to=target, source=source, model=model)
    assert done.body is not None, done.violations
    assert [each for each in validate(done.body, target, model) if each.severity == "hard"] == []
    return json.loads(done.body), [(fix.code, fix.detail) for fix in done.fixes]


def violations(body, target):
    return {each.rule for each in validate(json.dumps(body).encode(), target, MODELS[target])}


@pytest.mark.parametrize("target", MODELS)
@pytest.mark.parametrize(
    ("source", "history", "place"),
    [(source, history, place) for source, history, places in PLACES for place in places],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_odd_value_never_costs_the_request(target, source, history, place):
    for value in NUMBERS:
        sent(put(history, place, value), source, target)


@pytest.mark.parametrize("given", [{"a": None}, {"a": [1]}, {"a": {}}])
@pytest.mark.parametrize("target", ["openai-chat", "openai-responses", "mistral", "deepseek", "moonshot", "vllm"])
def test_metadata_keeps_what_a_text_can_say(target, given):
    body, fixes = sent({**CHAT, "metadata": {"n": 1, "yes": True, "s": "t", **given}}, "openai-chat", target)
    assert body["metadata"] == {"n": "1", "yes": "true", "s": "t"}
    assert [code for code, _ in fixes] == ["parameter_nearest"]
    body, fixes = sent({**CHAT, "metadata": given}, "openai-chat", target)
    assert ("metadata" in body, [code for code, _ in fixes]) == (False, ["parameter_unsupported"])


@pytest.mark.parametrize(("limit", "written"), [(0, 1), (-5, 1), (1, 1), (7, 7)])
@pytest.mark.parametrize(("model", "name"), [("gpt-4o", "max_tokens"), ("gpt-5", "max_completion_tokens")])
def test_the_least_limit_of_chat_is_one(limit, written, model, name):
    body, fixes = sent({**GEMINI, "generationConfig": {"maxOutputTokens": limit}}, "gemini", "openai-chat", model)
    assert body[name] == written
    assert fixes == ([] if limit == written else [("parameter_clamped", f"{limit} -> {written}")])


@pytest.mark.parametrize(
    ("budget", "limit", "written"),
    [(10**12, 2000, 1999), (2000, 2000, 1999), (1500, 2000, 1500), (0, 2000, 1024), (-1, 2000, 1024), (5, 1025, 1024)],
)
def test_a_budget_is_between_the_least_one_and_the_limit(budget, limit, written):
    thinking = {"type": "enabled", "budget_tokens": budget}
    body, fixes = sent({**CLAUDE, "max_tokens": limit, "thinking": thinking}, "anthropic", "anthropic")
    assert body["thinking"] == thinking | {"budget_tokens": written}
    detail = f"thinking.budget_tokens: {budget} -> {written}"
    assert fixes == ([] if budget == written else [("parameter_nearest", detail)])


STOPS = ["a", " ", "b", "", None, "c", "d", "e", "f"]


@pytest.mark.parametrize(
    ("target", "written"),
    [
        ("anthropic", ["a", "b", "c", "d", "e", "f"]),
        ("bedrock-converse", ["a", "b", "c", "d", "e", "f"]),
        ("gemini", ["a", " ", "b", "c", "d"]),
    ],
)
def test_stop_sequences_are_as_many_as_the_provider_takes_and_none_is_blank(target, written):
    body, fixes = sent({**CLAUDE, "stop_sequences": STOPS}, "anthropic", target)
    group = body.get("generationConfig") or body.get("inferenceConfig") or body
    assert next(value for name, value in group.items() if name.startswith("stop")) == written
    assert [code for code, _ in fixes] == ["parameter_nearest"]
    assert violations(body, target) & {"ANT-46", "BED-35", "BED-36g", "GEM-24c"} == set()
    body, _ = sent({**CLAUDE, "stop_sequences": ["", ""]}, "anthropic", target)
    assert "stop" not in json.dumps(body)


def test_gemini_gets_no_empty_list_of_stop_sequences():
    given = {**GEMINI, "generationConfig": {"stopSequences": [], "topK": 3}}
    assert "GEM-24d" in violations(given, "gemini")
    body, fixes = sent(given, "gemini", "gemini")
    assert (body["generationConfig"], [code for code, _ in fixes]) == ({"topK": 3}, ["parameter_unsupported"])
    assert "GEM-24d" not in violations(body, "gemini")


@pytest.mark.parametrize("tier", ["standard_only", "standard"])
@pytest.mark.parametrize("target", ["openai-chat", "openai-responses", "deepseek", "moonshot", "vllm"])
def test_a_tier_of_another_provider_has_its_name_here(target, tier):
    body, fixes = sent({**CLAUDE, "service_tier": tier}, "anthropic", target)
    assert body["service_tier"] == "default"
    assert ("parameter_nearest", f"service_tier: {tier} -> default") in fixes
    assert violations(body, target) & {"OAI-19c", "RSP-20c"} == set()
    assert violations({**body, "service_tier": tier}, target) & {"OAI-19c", "RSP-20c"} == (
        {"openai-chat": {"OAI-19c"}, "openai-responses": {"RSP-20c"}}.get(target, set())
    )


@pytest.mark.parametrize(
    ("source", "given", "metadata", "codes"),
    [
        ("openai-chat", {"user": "u"}, {"user_id": "u"}, []),
        ("openai-responses", {"safety_identifier": "u"}, {"user_id": "u"}, []),
        ("openai-chat", {"user": "u", "metadata": {"a": "1"}}, {"user_id": "u"}, ["parameter_unsupported"]),
        ("openai-chat", {"user": "u", "metadata": {"user_id": "v"}}, {"user_id": "v"}, ["param_dropped"]),
        ("openai-chat", {"user": 7}, None, ["param_dropped"]),
        ("openai-chat", {"user": "u", "metadata": [1]}, None, ["param_dropped", "parameter_unsupported"]),
    ],
)
def test_the_user_is_claudes_only_metadata(source, given, metadata, codes):
    history = {**(RESPONSES if source == "openai-responses" else CHAT), "max_tokens": 100, **given}
    if source == "openai-responses":
        history["max_output_tokens"] = history.pop("max_tokens")
    body, fixes = sent(history, source, "anthropic")
    assert (body.get("metadata"), [code for code, _ in fixes]) == (metadata, codes)


@pytest.mark.parametrize("value", [0, 1.5, True, {}])
def test_instructions_of_another_type_than_a_text_are_left_out(value):
    body, fixes = sent({**RESPONSES, "instructions": value}, "openai-responses", "openai-responses")
    assert ("instructions" in body, [code for code, _ in fixes]) == (False, ["parameter_unsupported"])


# Schemas of answers, and reasoning.

OPEN = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "object", "properties": {}, "additionalProperties": False}},
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", ["output_config", "output_format"])
@pytest.mark.parametrize(("schema", "codes"), [(OPEN, ["answer_schema_closed"]), (CLOSED, [])])
def test_a_schema_of_claudes_own_has_closed_objects(name, schema, codes):
    form = {"type": "json_schema", "schema": schema}
    given = {name: {"format": form} if name == "output_config" else form}
    body, fixes = sent({**CLAUDE, **given}, "anthropic", "anthropic")
    written = body[name]["format"] if name == "output_config" else body[name]
    assert (written["schema"], [code for code, _ in fixes]) == (CLOSED, codes)


@pytest.mark.parametrize("target", ["deepseek", "moonshot"])
@pytest.mark.parametrize(
    ("source", "history", "switch"),
    [
        ("gemini", {**GEMINI, "generationConfig": {"thinkingConfig": {"thinkingBudget": 2048}}}, "enabled"),
        ("gemini", {**GEMINI, "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}, "disabled"),
        ("anthropic", {**CLAUDE, "output_config": {"effort": "low"}}, "enabled"),
        ("anthropic", {**CLAUDE, "thinking": {"type": "disabled"}}, "disabled"),
    ],
)
def test_a_model_that_only_switches_thinking_has_it_switched(target, source, history, switch):
    body, _ = sent(history, source, target)
    assert body["thinking"] == {"type": switch}


@pytest.mark.parametrize(
    ("target", "model", "written"),
    [
        ("openai-chat", "gpt-5", {"reasoning_effort": "high"}),
        ("gemini", "gemini-3-pro-preview", {"generationConfig": {"thinkingConfig": {"thinkingLevel": "HIGH"}}}),
        (
            "bedrock-converse",
            "openai.gpt-oss-120b-1:0",
            {"additionalModelRequestFields": {"reasoning_effort": "high"}},
        ),
    ],
)
def test_a_switch_for_thinking_is_an_effort_elsewhere(target, model, written):
    body, fixes = sent({**CHAT, "thinking": {"type": "enabled"}}, "openai-chat", target, model)
    assert {name: body[name] for name in written} == written
    assert [code for code, _ in fixes] == ["setting_mapped"]


def test_the_older_name_of_reasoning_in_converse_is_read():
    fields = {"reasoning_config": {"type": "enabled", "budget_tokens": 2048}}
    history = {**CONVERSE, "additionalModelRequestFields": fields, "inferenceConfig": {"maxTokens": 4000}}
    body, fixes = sent(history, "bedrock-converse", "anthropic")
    assert (body["thinking"], fixes) == ({"type": "enabled", "budget_tokens": 2048}, [])


@pytest.mark.parametrize("level", ["high", 3, None])
@pytest.mark.parametrize(("model", "thinks"), [("gemini-2.0-flash", False), ("gemini-2.5-flash", True)])
def test_a_level_of_thinking_is_a_budget_before_gemini_3(level, model, thinks):
    history = {**GEMINI, "generationConfig": {"thinkingConfig": {"thinkingLevel": level}}}
    body, fixes = sent(history, "gemini", "gemini", model)
    config = body.get("generationConfig", {}).get("thinkingConfig")
    expected = {"thinkingBudget": 24576} if thinks and level == "high" else None
    assert config == (expected if level is not None else {"thinkingLevel": None})
    assert len(fixes) == (level is not None)


def test_a_deep_schema_of_converse_is_no_crash():
    deep = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"name": "n", "schema": "[" * 5000}}}}
    for target, model in MODELS.items():
        done = normalize({**CONVERSE, "outputConfig": deep}, to=target, source="bedrock-converse", model=model)
        assert done.body is not None or done.violations
