"""Schemas of tools on every target: which are rewritten, into what, and that the target's judge then takes them."""

import json
from itertools import pairwise

import pytest

from reknit.pipeline import normalize, validate
from reknit.pipeline.targets.schemas import COMBINATORS, WRAPPER, object_schema

ID = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ONE_OF = {
    "type": "object",
    "description": "Opens a page.",
    "properties": {"id": {"type": "string"}, "path": {"type": "string"}},
    "oneOf": [{"required": ["id"]}, {"required": ["path"]}],
}
CLOSED = {"anyOf": [ID | {"additionalProperties": False}, PATH | {"additionalProperties": False}]}
BOTH = {"id": {"type": "string"}, "path": {"type": "string"}}
KINDS = {
    "oneOf": [
        {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
        {"properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        {"type": "string"},
    ]
}
REFERRED = {
    "$defs": {"Id": ID, "More": {"properties": {"deep": {"$ref": "#/$defs/Id"}}}},
    "allOf": [{"$ref": "#/$defs/Id"}, {"$ref": "#/$defs/More"}],
}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}

# The schema, and what it becomes where combinators at the top level are refused.
REWRITTEN = [
    ("one_of_required", ONE_OF, {"type": "object", "description": "Opens a page.", "properties": BOTH}),
    ("closed_branches", CLOSED, {"type": "object", "properties": BOTH, "additionalProperties": False}),
    (
        "discriminated",
        KINDS,
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "n": {"anyOf": [{"type": "integer"}, {}]}},
            "required": ["kind"],
        },
    ),
    (
        "all_of_references",
        REFERRED,
        {
            "$defs": REFERRED["$defs"],
            "type": "object",
            "properties": {"id": {"type": "string"}, "deep": {"$ref": "#/$defs/Id"}},
            "required": ["id"],
        },
    ),
    ("reference", {"$defs": {"Id": ID}, "$ref": "#/$defs/Id"}, {"$defs": {"Id": ID}} | ID),
    (
        "reference_with_neighbours",
        {"$defs": {"Id": ID}, "$ref": "#/$defs/Id", "required": ["path"], "maxProperties": 3},
        {"$defs": {"Id": ID}, "type": "object", "properties": {**ID["properties"], "path": {}}}
        | {"required": ["path", "id"], "maxProperties": 3},
    ),
    # Before draft 2019-09 the neighbours of a reference had no meaning.
    (
        "reference_of_an_older_draft",
        {**DRAFT_7, "definitions": {"Id": ID}, "$ref": "#/definitions/Id", "required": ["path"], "maxProperties": 3},
        {**DRAFT_7, "definitions": {"Id": ID}} | ID,
    ),
    ("untyped", {"properties": {"id": {}}}, {"properties": {"id": {}}, "type": "object"}),
    ("nullable", {"type": ["object", "null"]}, {"type": "object"}),
    ("nothing", {}, {"type": "object"}),
    ("unknown_reference", {"$ref": "https://example.org/s.json"}, {"type": "object", "properties": {}}),
    (
        "text",
        {"type": "string", "enum": ["a"]},
        {"type": "object", "properties": {WRAPPER: {"type": "string", "enum": ["a"]}}, "required": [WRAPPER]},
    ),
    (
        "anchors",
        {"anyOf": [{"$anchor": "x", "properties": {"a": {"$ref": "#y"}}, "required": ["a"]}]},
        {"type": "object", "properties": {"a": {}}, "required": ["a"]},
    ),
    (
        "reference_to_the_whole",
        {"properties": {"left": {"$ref": "#"}}, "anyOf": [{"required": ["left"]}]},
        {
            "$defs": {
                "root": {"properties": {"left": {"$ref": "#/$defs/root"}}, "anyOf": [{"required": ["left"]}]},
            },
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/root"}},
            "required": ["left"],
        },
    ),
]
TARGETS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-chat", "gpt-5"),
    ("openai-chat", "mistral-large-latest"),
    ("openai-responses", "gpt-5"),
    ("bedrock-converse", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    ("gemini", "gemini-3-pro-preview"),
]


@pytest.mark.parametrize(("schema", "expected"), [pytest.param(*case, id=name) for name, *case in REWRITTEN])
def test_a_schema_becomes_one_of_an_object(schema, expected):
    assert object_schema(schema, COMBINATORS) == expected
    assert object_schema(expected, COMBINATORS) == expected


def test_many_references_to_references_are_read_in_bounded_time():
    names = [f"d{at}" for at in range(40)]
    definitions = {
        name: {"anyOf": [{"$ref": f"#/$defs/{after}"}, {"$ref": f"#/$defs/{after}"}]} for name, after in pairwise(names)
    }
    definitions["d39"] = ID
    found = object_schema({"$defs": definitions, "$ref": "#/$defs/d0"})
    assert found == {"$defs": definitions, "type": "object", "properties": {}}


SCHEMAS = ("input_schema", "parameters", "parametersJsonSchema", "inputSchema")
OPEN_IT = [{"role": "user", "content": "Open it."}]
ALTERNATIVES = {"tools": [{"name": "open", "input_schema": ONE_OF}], "messages": OPEN_IT}


def schema_in(body):
    tools = body.get("tools") or body["toolConfig"]["tools"]
    tool = tools[0]
    tool = tool.get("functionDeclarations", [tool])[0]
    tool = tool.get("function") or tool.get("toolSpec") or tool
    return next(
        tool[key] for key in ("input_schema", "parameters", "parametersJsonSchema", "inputSchema") if key in tool
    )


@pytest.mark.parametrize(("target", "model"), TARGETS)
@pytest.mark.parametrize(("schema", "expected"), [pytest.param(*case, id=name) for name, *case in REWRITTEN])
def test_the_judge_takes_the_schema_that_a_target_is_sent(target, model, schema, expected):
    history = {
        "model": model,
        "max_tokens": 100,
        "tools": [{"name": "open", "input_schema": schema}],
        "messages": OPEN_IT,
    }
    done = normalize(json.dumps(history).encode(), to=target, model=model)
    sent = schema_in(json.loads(done.body))
    assert sent.get("json", sent) == expected
    assert [fix.code for fix in done.fixes] in (["schema_merged"], ["schema_typed"], ["schema_wrapped"])
    again = normalize(done.body, to=target, model=model, source=target)
    assert again.body == done.body
    words = [violation for violation in validate(done.body, target, model) if "schema" in violation.message]
    assert words == []


@pytest.mark.parametrize(
    ("target", "model"), [("vllm", "Qwen/Qwen3.5-9B"), ("bedrock-converse", "us.amazon.nova-pro-v1:0")]
)
def test_a_target_that_takes_alternatives_gets_them(target, model):
    done = normalize(json.dumps(ALTERNATIVES).encode(), to=target, model=model)
    assert done.fixes == []
    sent = schema_in(json.loads(done.body))
    assert sent.get("json", sent) == ONE_OF


@pytest.mark.parametrize("target", ["openai-chat", "openai-responses"])
def test_a_merged_schema_is_not_a_strict_one(target):
    function = {"name": "open", "strict": True, "parameters": CLOSED}
    tool = (
        {"type": "function", **function} if target == "openai-responses" else {"type": "function", "function": function}
    )
    history = {"tools": [tool], "messages": [{"role": "user", "content": "Open it."}]}
    done = normalize(json.dumps(history).encode(), to=target, model="gpt-5")
    assert '"strict":true' not in done.body.decode()
    assert [(fix.code, fix.detail) for fix in done.fixes] == [("schema_merged", "anyOf, strict")]


def test_a_policy_may_leave_a_schema_that_some_endpoints_of_a_provider_take():
    done = normalize(json.dumps(ALTERNATIVES).encode(), to="gemini", policy={"mend.schema_merged": "observe"})
    assert schema_in(json.loads(done.body)) == ONE_OF


@pytest.mark.parametrize(
    ("key", "schema", "stays"),
    [
        ("parametersJsonSchema", ONE_OF, True),
        ("parameters", {"anyOf": [{"type": "OBJECT", "properties": {"id": {"type": "STRING"}}}]}, True),
        ("parameters", ONE_OF, False),  # the field has no oneOf
    ],
)
def test_geminis_own_declarations_stay_where_no_refusal_is_known(key, schema, stays):
    history = {
        "tools": [{"functionDeclarations": [{"name": "open", key: schema}]}],
        "contents": [{"role": "user", "parts": [{"text": "Open it."}]}],
    }
    done = normalize(json.dumps(history).encode(), to="gemini")
    assert (json.loads(done.body)["tools"] == history["tools"]) is stays
    assert [fix.code for fix in done.fixes] == [] if stays else ["schema_merged"]


OPEN = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
OPTIONAL = {"type": "object", "properties": {"id": {"type": "string"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("target", "model", "schema", "strict"),
    [
        ("openai-chat", "gpt-4o-mini", OPEN, False),
        ("openai-chat", "gpt-5", OPTIONAL, False),
        ("openai-chat", "gpt-5", OPEN | {"additionalProperties": False}, True),
        ("openai-chat", "mistral-large-latest", OPEN, True),  # no refusal is known
        ("openai-responses", "gpt-4o", OPEN, False),
        ("openai-responses", "gpt-5", OPEN, False),
    ],
)
def test_strict_calls_need_closed_objects_with_all_properties(target, model, schema, strict):
    function = {"name": "open", "strict": True, "parameters": schema}
    inner = function if target == "openai-responses" else {"function": function}
    history = {"tools": [{"type": "function", **inner}], "messages": OPEN_IT}
    done = normalize(json.dumps(history).encode(), to=target, model=model)
    tool = json.loads(done.body)["tools"][0]
    assert (tool.get("function") or tool).get("strict") is strict
    assert [fix.code for fix in done.fixes] == ([] if strict else ["parameter_unsupported"])
    assert [each for each in validate(done.body, target, model) if each.severity == "hard"] == []


def strict_tools(schemas):
    return [{"name": f"f{at}", "strict": True, "input_schema": schema} for at, schema in enumerate(schemas)]


def complete(**properties):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


NODE = {"$defs": {"Node": complete(next={"$ref": "#/$defs/Node"})}}
CLAUDE = [("anthropic", "claude-sonnet-4-6"), ("bedrock-converse", "us.anthropic.claude-sonnet-4-5-20250929-v1:0")]


@pytest.mark.parametrize(("target", "model"), CLAUDE)
@pytest.mark.parametrize(
    ("schemas", "loose"),
    [
        ([complete(a={"type": "array", "items": {"type": "string"}, "maxItems": 5})], [0]),
        ([complete(a={"type": "array", "items": {"type": "string"}, "minItems": 2}), complete()], [0]),
        ([complete(a={"type": "array", "items": {"type": "string"}, "minItems": 1})], []),
        ([complete(a={"type": "integer", "multipleOf": 5})], [0]),
        ([complete(a={"type": "string", "minLength": 2, "maxLength": 5}, maxItems={"type": "string"})], []),
        ([complete(a={"$ref": "#/$defs/Node"}) | NODE], [0]),
        ([complete(a={"$ref": "#/$defs/Leaf"}) | {"$defs": {"Leaf": complete()}}], []),
        ([complete()] * 22, [20, 21]),
        ([complete(**{f"p{at}": {"type": ["string", "null"]} for at in range(9)})] * 2, [1]),
    ],
)
def test_claude_compiles_the_schemas_of_strict_tools(target, model, schemas, loose):
    history = {"model": model, "max_tokens": 100, "tools": strict_tools(schemas), "messages": OPEN_IT}
    done = normalize(json.dumps(history).encode(), to=target, model=model)
    body = json.loads(done.body)
    written = body.get("tools") or [tool["toolSpec"] for tool in body["toolConfig"]["tools"]]
    assert [at for at, tool in enumerate(written) if tool.get("strict") is not True] == loose
    assert [(fix.code, fix.path) for fix in done.fixes] == [("parameter_unsupported", f"tools.{at}") for at in loose]
    assert [each for each in validate(done.body, target, model) if each.severity == "hard"] == []
