"""Settings that both sides have are translated: every pair of a source and a target, as a table.

A row has one setting in the terms of each target; it is DROPPED where the target has no such setting. ``NEAREST`` has
settings that become others, with the words of the fix (``""`` without one).
"""

import json

import pytest

from reknit.pipeline import normalize, validate

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False}
PARAMETERS = {"type": "object", "properties": {}}
MODELS = {
    "anthropic": "claude-opus-4-8",
    "openai-chat": "gpt-5",
    "openai-responses": "gpt-5",
    "gemini": "gemini-3-flash-preview",
    "bedrock-converse": "us.anthropic.claude-opus-4-8",
}
ASKED = [{"role": "user", "content": "Answer in JSON."}]
TOOL_SPECS = [{"toolSpec": {"name": "f", "inputSchema": {"json": PARAMETERS}}}]
BASES = {
    "anthropic": {"max_tokens": 9000, "tools": [{"name": "f", "input_schema": PARAMETERS}], "messages": ASKED},
    "openai-chat": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
        "messages": ASKED,
    },
    "openai-responses": {"tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}], "input": ASKED},
    "gemini": {
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": PARAMETERS}]}],
        "contents": [{"role": "user", "parts": [{"text": "Answer in JSON."}]}],
    },
    "bedrock-converse": {
        "toolConfig": {"tools": TOOL_SPECS},
        "messages": [{"role": "user", "content": [{"text": "Answer in JSON."}]}],
    },
}
DROPPED = None


def converse_form(name):
    structure = {"jsonSchema": {"schema": json.dumps(SCHEMA, separators=(",", ":")), "name": name}}
    return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": structure}}}


def thinking(**given):
    return {"generationConfig": {"thinkingConfig": given}}


def fields(**given):
    return {"additionalModelRequestFields": given}


# The same settings in the terms of each target.
FORM = {
    "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "openai-chat": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
    },
    "openai-responses": {
        "text": {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}}
    },
    "gemini": {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}},
    "bedrock-converse": converse_form("answer"),
}
JSON_OBJECT = {
    "anthropic": DROPPED,
    "openai-chat": {"response_format": {"type": "json_object"}},
    "openai-responses": {"text": {"format": {"type": "json_object"}}},
    "gemini": {"generationConfig": {"responseMimeType": "application/json"}},
    "bedrock-converse": DROPPED,
}
LOW = {
    "anthropic": {"output_config": {"effort": "low"}},
    "openai-chat": {"reasoning_effort": "low"},
    "openai-responses": {"reasoning": {"effort": "low"}},
    "gemini": thinking(thinkingLevel="LOW"),
    "bedrock-converse": fields(output_config={"effort": "low"}),
}
HIGH = {
    "anthropic": {"output_config": {"effort": "high"}},
    "openai-chat": {"reasoning_effort": "high"},
    "openai-responses": {"reasoning": {"effort": "high"}},
    "gemini": thinking(thinkingLevel="HIGH"),
    "bedrock-converse": fields(output_config={"effort": "high"}),
}
OFF = {
    "anthropic": {"thinking": {"type": "disabled"}},
    "bedrock-converse": fields(thinking={"type": "disabled"}),
}
MINIMAL = {
    "openai-chat": {"reasoning_effort": "minimal"},
    "openai-responses": {"reasoning": {"effort": "minimal"}},
    "gemini": thinking(thinkingLevel="MINIMAL"),
}
SINGLE = {
    "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "openai-chat": {"parallel_tool_calls": False},
    "openai-responses": {"parallel_tool_calls": False},
    "gemini": DROPPED,
    "bedrock-converse": DROPPED,
}
ANY = {
    "anthropic": {"tool_choice": {"type": "any"}},
    "openai-chat": {"tool_choice": "required"},
    "openai-responses": {"tool_choice": "required"},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
    "bedrock-converse": {"toolConfig": {"tools": TOOL_SPECS, "toolChoice": {"any": {}}}},
}
ONE = {
    "anthropic": {"tool_choice": {"type": "tool", "name": "f"}},
    "openai-chat": {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    "openai-responses": {"tool_choice": {"type": "function", "name": "f"}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}},
    "bedrock-converse": {"toolConfig": {"tools": TOOL_SPECS, "toolChoice": {"tool": {"name": "f"}}}},
}
NONE = {
    "anthropic": {"tool_choice": {"type": "none"}},
    "openai-chat": {"tool_choice": "none"},
    "openai-responses": {"tool_choice": "none"},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
    "bedrock-converse": DROPPED,
}
SAME = {
    "form": FORM,
    "object": JSON_OBJECT,
    "low": LOW,
    "high": HIGH,
    "one at a time": SINGLE,
    "any": ANY,
    "one": ONE,
    "none": NONE,
}
# A setting, what it becomes, and the words of the fix.
NEAREST = [
    *(("openai-chat", {"reasoning_effort": "minimal"}, to, LOW[to], "minimal -> low") for to in OFF),
    ("openai-chat", {"reasoning_effort": "xhigh"}, "gemini", HIGH["gemini"], "xhigh -> high"),
    ("openai-chat", {"reasoning_effort": "xhigh"}, "anthropic", {"output_config": {"effort": "xhigh"}}, ""),
    ("openai-chat", {"reasoning_effort": "none"}, "anthropic", OFF["anthropic"], ""),
    ("openai-chat", {"reasoning_effort": "none"}, "bedrock-converse", OFF["bedrock-converse"], ""),
    ("anthropic", {"output_config": {"effort": "max"}}, "openai-chat", HIGH["openai-chat"], "max -> high"),
    ("anthropic", {"output_config": {"effort": "max"}}, "gemini", HIGH["gemini"], "max -> high"),
    *(("anthropic", OFF["anthropic"], to, MINIMAL[to], "none -> minimal") for to in MINIMAL),
    *(("gemini", thinking(thinkingBudget=0), to, OFF[to], "") for to in OFF),
    *(("anthropic", {"thinking": {"type": "adaptive"}}, to, HIGH[to], "adaptive -> high") for to in MINIMAL),
    *(
        ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 2000}}, to, LOW[to], "2000 tokens -> low")
        for to in MINIMAL
    ),
    *(
        ("gemini", thinking(thinkingBudget=15000), to, HIGH[to], "15000 tokens -> high")
        for to in ("anthropic", "openai-chat", "openai-responses", "bedrock-converse")
    ),
    ("gemini", thinking(thinkingBudget=-1), "openai-chat", HIGH["openai-chat"], "dynamic -> high"),
]  # fmt: skip


def written(source, given, target, model=None):
    body = BASES[source] | given
    plain = normalize(json.dumps(BASES[source]).encode(), to=target, source=source, model=model or MODELS[target])
    done = normalize(json.dumps(body).encode(), to=target, source=source, model=model or MODELS[target])
    assert [each for each in validate(done.body, target, model or MODELS[target]) if each.severity == "hard"] == []
    without, found = json.loads(plain.body), json.loads(done.body)
    if target == "gemini":  # the limit on tokens is in the same group
        for each in (without, found):
            each.get("generationConfig", {}).pop("maxOutputTokens", None)
    members = {name: value for name, value in found.items() if without.get(name) != value}
    return members, [(fix.code, fix.detail.partition(": ")[2]) for fix in done.fixes if fix not in plain.fixes]


def pairs():
    for name, row in SAME.items():
        for source, given in row.items():
            for target, expected in row.items():
                if given is not DROPPED and source != target:
                    yield pytest.param(source, given, target, expected, id=f"{name}-{source}-{target}")


@pytest.mark.parametrize(("source", "given", "target", "expected"), list(pairs()))
def test_a_setting_that_both_have_is_the_same_setting(source, given, target, expected):
    members, fixes = written(source, given, target)
    if expected is DROPPED:
        assert members in ({}, {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}}, AUTO)
        assert [code for code, _ in fixes] == ["param_dropped"]
        return
    if given in (FORM["openai-chat"], FORM["openai-responses"], FORM["bedrock-converse"]) and target in UNNAMED:
        fixes.remove(("setting_mapped", "without name"))
    said = members.pop("tool_choice", None) if members.keys() > expected.keys() else None
    assert said in (None, "auto")  # the choice next to which Claude says that calls come one at a time
    assert (members, fixes) == (expected, [])


# Targets without a name for the form of an answer.
UNNAMED = ("anthropic", "gemini")
AUTO = {"toolConfig": {"tools": TOOL_SPECS, "toolChoice": {"auto": {}}}}


@pytest.mark.parametrize(("source", "given", "target", "expected", "words"), NEAREST)
def test_a_setting_becomes_the_nearest_one(source, given, target, expected, words):
    members, fixes = written(source, given, target)
    assert members == expected
    assert fixes == ([("setting_mapped", words)] if words else [])


@pytest.mark.parametrize(
    ("model", "more", "expected"),
    [
        ("claude-sonnet-4-5", {}, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("claude-sonnet-4-5", {"max_tokens": 1500}, {"thinking": {"type": "enabled", "budget_tokens": 1499}}),
        ("claude-sonnet-4-5", {"max_tokens": 1000}, {}),  # no room
        ("claude-sonnet-4-5", {"temperature": 0.5}, {}),
        ("claude-sonnet-4-5", {"tool_choice": "required"}, {}),  # ANT-40
        ("claude-opus-4-5", {}, {"output_config": {"effort": "low"}}),
        ("claude-3-5-sonnet-20241022", {"max_tokens": 8000}, {}),
        ("kimi-k2", {}, {}),
    ],
)
def test_an_older_model_thinks_where_nothing_forbids_it(model, more, expected):
    given = {"max_tokens": 9000, "reasoning_effort": "low", **more}
    body = BASES["openai-chat"] | given
    done = normalize(json.dumps(body).encode(), to="anthropic", source="openai-chat", model=model)
    found = json.loads(done.body)
    assert {name: found[name] for name in ("thinking", "output_config") if name in found} == expected
    assert validate(done.body, "anthropic", model) == []


@pytest.mark.parametrize(
    ("target", "model", "given"),
    [
        ("openai-chat", "gpt-4", FORM["anthropic"]),
        ("openai-chat", "gpt-4.1", LOW["anthropic"]),
        ("openai-chat", "gpt-5.4", LOW["anthropic"]),  # with tools
        ("openai-responses", "gpt-4o", LOW["anthropic"]),
        ("gemini", "gemini-2.5-flash", FORM["anthropic"]),  # with functions: GEM-19
        ("gemini", "gemini-2.0-flash", LOW["anthropic"]),
        ("bedrock-converse", "us.amazon.nova-pro-v1:0", FORM["anthropic"]),
    ],
)
def test_a_model_without_the_setting_is_not_asked_for_it(target, model, given):
    members, fixes = written("anthropic", given, target, model)
    assert members == {}
    assert [code for code, _ in fixes] == ["param_dropped"]


@pytest.mark.parametrize(
    ("schema", "target", "expected", "words"),
    [
        (
            {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]},
            "anthropic",
            {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            "without minimum",
        ),
        (
            {"type": "object", "properties": {"n": {"type": "object", "additionalProperties": {"type": "string"}}}},
            "anthropic",
            {"type": "object", "properties": {"n": {"type": "object", "additionalProperties": False}}},
            "without additionalProperties",
        ),
    ],
)
def test_a_schema_of_an_answer_is_one_that_claude_takes(schema, target, expected, words):
    given = {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": schema}}
    members, fixes = written("gemini", given, target)
    assert members["output_config"]["format"]["schema"] == expected | {"additionalProperties": False}
    assert fixes == [("setting_mapped", words)]


def test_a_schema_that_cannot_be_strict_is_not_strict():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    given = {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": schema}}
    members, fixes = written("gemini", given, "openai-chat")
    form = {"name": "answer", "strict": False, "schema": schema}
    assert members == {"response_format": {"type": "json_schema", "json_schema": form}}
    assert fixes == [("setting_mapped", "strict -> not strict")]


def test_a_setting_of_the_targets_own_wins():
    given = {"thinking": {"type": "disabled"}, "reasoning_effort": "high", **FORM["anthropic"], **FORM["gemini"]}
    members, fixes = written("anthropic", given, "anthropic")
    assert members == {"thinking": {"type": "disabled"}, **FORM["anthropic"]}
    assert {code for code, _ in fixes} == {"param_dropped"}


def test_a_setting_that_lacks_a_member_is_a_fix():
    form = {"name": "person", "description": "A person.", "strict": True, "schema": SCHEMA}
    _, fixes = written("openai-chat", {"response_format": {"type": "json_schema", "json_schema": form}}, "anthropic")
    assert fixes == [("setting_mapped", "without name, description")]
    _, fixes = written("anthropic", {"thinking": {"type": "adaptive", "display": "summarized"}}, "openai-chat")
    assert fixes == [("setting_mapped", "adaptive -> high, without display")]


def test_two_settings_of_one_thing_become_one():
    both = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    members, fixes = written("anthropic", both, "openai-chat")
    assert (members, fixes) == (LOW["openai-chat"], [("setting_mapped", "adaptive -> low")])
    members, fixes = written("anthropic", both | {"thinking": {"type": "disabled"}}, "openai-responses")
    assert members == MINIMAL["openai-responses"]
    assert fixes == [("setting_mapped", "low -> minimal"), ("setting_mapped", "none -> minimal")]


LIMITED = SCHEMA | {"properties": {"x": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 5}}}
UNLIMITED = SCHEMA | {"properties": {"x": {"type": "array", "items": {"type": "string"}}}}
NOT_COMPILED = SCHEMA | {"properties": {"x": {"oneOf": [{"type": "string"}, {"type": "null"}]}}}


@pytest.mark.parametrize(
    ("target", "given", "expected"),
    [
        (
            "anthropic",
            {"output_config": {"format": {"type": "json_schema", "schema": LIMITED}}},
            {"output_config": {"format": {"type": "json_schema", "schema": UNLIMITED}}},
        ),
        (
            "bedrock-converse",
            {"outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": LIMITED}}}}},
            {
                "outputConfig": {
                    "textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": UNLIMITED}}}
                }
            },
        ),
        (
            "openai-chat",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "r", "strict": True, "schema": {"type": "object"}},
                }
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "r", "strict": False, "schema": {"type": "object"}},
                }
            },
        ),
        (
            "openai-chat",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "r", "strict": True, "schema": NOT_COMPILED},
                }
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "r", "strict": False, "schema": NOT_COMPILED},
                }
            },
        ),
        (
            "openai-responses",
            {"text": {"format": {"type": "json_schema", "name": "r", "strict": True, "schema": NOT_COMPILED}}},
            {"text": {"format": {"type": "json_schema", "name": "r", "strict": False, "schema": NOT_COMPILED}}},
        ),
    ],
)
def test_a_form_of_the_targets_own_loses_what_is_refused(target, given, expected):
    for form in (given, expected):
        inner = form.get("outputConfig", {}).get("textFormat", {}).get("structure", {}).get("jsonSchema", {})
        if isinstance(inner.get("schema"), dict):
            inner["schema"] = json.dumps(inner["schema"], separators=(",", ":"))
    members, fixes = written(target, given, target)
    assert members == expected
    assert [code for code, _ in fixes] == ["answer_schema_loosened"]
    assert written(target, expected, target) == (expected, [])


def test_settings_survive_a_way_through_all_targets_and_back():
    body = BASES["anthropic"] | {"output_config": FORM["anthropic"]["output_config"] | {"effort": "low"}}
    source, data = "anthropic", json.dumps(body).encode()
    for target in ("openai-chat", "gemini", "openai-responses", "bedrock-converse", "anthropic"):
        done = normalize(data, to=target, source=source, model=MODELS[target])
        assert [each for each in validate(done.body, target, MODELS[target]) if each.severity == "hard"] == []
        source, data = target, done.body
    found = json.loads(data)
    assert found["output_config"] == body["output_config"]
    assert [tool["name"] for tool in found["tools"]] == ["f"]
