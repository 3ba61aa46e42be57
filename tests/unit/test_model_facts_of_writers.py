"""The writers' tables of what a model refuses: every row against the judge, which has a table of its own."""

import itertools
import json

import pytest

from reknit.pipeline import normalize
from reknit.pipeline.providers.anthropic.writer.models import FACTS as CLAUDE
from reknit.pipeline.providers.gemini.writer.models import THINKING
from reknit.pipeline.providers.openai.rules.models import TABLE
from reknit.pipeline.providers.openai.writer.models import FACTS as OPENAI
from reknit.pipeline.targets.facts import nearest
from reknit.pipeline.targets.strict import StrictTools, openai_compiles

SAID = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
CODES = {"parameter_unsupported", "parameter_nearest"}
REFUSED = {
    "reasoning_effort": ("none", "minimal", "xhigh", "max"),
    "output_config.effort": ("none", "minimal", "low", "xhigh"),
    "verbosity": ("low", "high"),
    "reasoning.mode": ("pro",),
    "stop": (["a"],),
    "parallel_tool_calls": (False,),
}
NAMES = sorted({model for row in TABLE for model in row.models} | {"gpt-5.5", "gpt-5.4"})
CLAUDES = [
    f"claude-{line}-{major}-{minor}"
    for line, (major, minor) in itertools.product(
        ("opus", "sonnet", "haiku", "fable"), ((4, 0), (4, 1), (4, 5), (4, 6), (4, 7), (4, 8), (5, 0))
    )
]
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


def written(target, model, params, **more):
    history = {"model": model, "params": {"max_tokens": 4096, **params}, "messages": SAID, **more}
    done = normalize(json.dumps(history).encode(), to=target)
    # Deep research takes none of the caller's tools (RSP-25b), whatever the parameters.
    found = [each.severity for each in done.violations if not each.rule.startswith("RSP-25")]
    return done, [fix for fix in done.fixes if fix.code in CODES], found


def of(parameter, value):
    outer, _, inner = parameter.partition(".")
    return {outer: {inner: value} if inner else value}


OPENAI_CASES = [
    pytest.param(fact, model, target, id=f"{model}-{fact.parameter}-{target}")
    for fact in OPENAI
    for model in NAMES
    for target in ("openai-chat", "openai-responses")
    if fact.holds(model)
    # Parameters that one of the APIs does not have.
    and (target == "openai-chat" or fact.parameter not in {"stop", "presence_penalty", "frequency_penalty"})
    and (target == "openai-responses" or fact.parameter != "reasoning.mode")
]


@pytest.mark.parametrize(("fact", "model", "target"), OPENAI_CASES)
def test_what_a_row_of_openai_refuses_is_written_so_that_the_judge_takes_it(fact, model, target):
    for value in REFUSED.get(fact.parameter, (0.5,)):
        effort = {"reasoning_effort": "high"} if fact.efforts else {}
        _, fixes, found = written(target, model, {**of(fact.parameter, value), **effort}, tools=TOOLS)
        if value not in fact.takes:
            assert fixes
            assert all(fix.detail and fix.path.startswith("params.") for fix in fixes)
        assert "hard" not in found


@pytest.mark.parametrize(("fact", "model", "target"), OPENAI_CASES)
def test_what_a_row_of_openai_takes_stays(fact, model, target):
    for value in fact.takes:
        assert written(target, model, of(fact.parameter, value), tools=TOOLS)[1] == []
    for effort in fact.efforts:
        given = {**of(fact.parameter, 0.5), "reasoning_effort": effort}
        assert written(target, model, given, tools=TOOLS)[1] == []
    assert fact.source


CLAUDE_CASES = [
    pytest.param(fact, model, target, id=f"{model}-{fact.parameter}-{target}")
    for fact in CLAUDE
    for model in CLAUDES
    for target in ("anthropic", "bedrock-converse")
    if fact.holds(model.removeprefix("claude-")) and (target == "anthropic" or fact.parameter != "output_config.effort")
]


@pytest.mark.parametrize(("fact", "model", "target"), CLAUDE_CASES)
def test_what_a_row_of_claude_refuses_is_written_so_that_the_judge_takes_it(fact, model, target):
    others = {fact.with_other: 0.5} if fact.with_other else {}
    value = 3 if fact.parameter == "top_k" else 0.5
    for each in REFUSED.get(fact.parameter, (value,)):
        _, fixes, found = written(target, model, {**of(fact.parameter, each), **others})
        if each not in fact.takes:
            assert fixes
        assert "hard" not in found
    assert fact.source


@pytest.mark.parametrize("model", CLAUDES)
@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse"])
@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 2048}, {"type": "adaptive"}])
def test_thinking_is_written_as_a_model_takes_it_and_the_samplers_with_it(model, target, thinking):
    samplers = {"temperature": 0.5, "top_k": 3}
    _, _, found = written(target, model, {"thinking": thinking, **samplers})
    assert "hard" not in found


def test_thinking_without_room_for_a_budget_is_left_out():
    done, fixes, _ = written("anthropic", "claude-haiku-4-5", {"thinking": {"type": "adaptive"}, "max_tokens": 500})
    assert "thinking" not in json.loads(done.body)
    assert [fix.code for fix in fixes] == ["parameter_unsupported"]


@pytest.mark.parametrize("row", THINKING, ids=lambda row: row.models)
def test_a_budget_outside_of_the_bounds_of_gemini_becomes_the_nearest(row):
    model = row.models.split("(")[0].replace("\\", "")
    for budget, near in ((0, row.least), (row.most + 1, row.most), (row.most, row.most), (-1, -1)):
        given = {"generationConfig": {"thinkingConfig": {"thinkingBudget": budget}}}
        done, fixes, found = written("gemini", model, given)
        assert json.loads(done.body)["generationConfig"]["thinkingConfig"]["thinkingBudget"] == near
        assert bool(fixes) is (near != budget)
        assert found == [] or "hard" not in found


@pytest.mark.parametrize(("level", "budget"), [("LOW", 1024), ("high", 24576), ("other", None)])
def test_a_level_becomes_a_budget_before_gemini_3(level, budget):
    given = {"generationConfig": {"thinkingConfig": {"thinkingLevel": level, "includeThoughts": True}}}
    done, fixes, _ = written("gemini", "gemini-2.5-flash", given)
    config = json.loads(done.body)["generationConfig"]["thinkingConfig"]
    assert config == {"includeThoughts": True} | ({} if budget is None else {"thinkingBudget": budget})
    assert [fix.code for fix in fixes] == ["parameter_nearest"]
    assert written("gemini", "gemini-3-pro-preview", given)[1] == []


@pytest.mark.parametrize(
    ("value", "takes", "better"),
    [
        ("minimal", ("low", "medium", "high"), "low"),
        ("xhigh", ("low", "medium", "high"), "high"),
        ("max", ("none", "low", "xhigh"), "xhigh"),
        ("minimal", ("none", "low"), "none"),
        ("extreme", ("low",), None),
        ("low", (), None),
        (0.5, (1,), None),
        (["a"], ("low",), None),
    ],
)
def test_the_nearest_level_is_not_above_the_wish_unless_there_is_no_lower_one(value, takes, better):
    assert nearest(value, takes) == better


CLOSED = b'{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'


@pytest.mark.parametrize(
    ("schema", "openai", "claude"),
    [
        (CLOSED, True, True),
        (b'{"type":"object"}', False, False),
        (CLOSED.replace(b'["a"]', b"[]"), False, True),
        (CLOSED.replace(b'"string"', b'"integer","minimum":1'), True, False),
        (CLOSED.replace(b'"string"', b'"array"'), False, True),
        (CLOSED.replace(b'{"type":"string"}', b'{"oneOf":[{"type":"string"}]}'), False, True),
        (CLOSED[:-1] + b',"$defs":{"N":{"anyOf":[{"$ref":"#/$defs/N"}]}}}', True, False),
    ],
)
def test_a_tool_is_strict_only_with_a_schema_that_is_compiled(schema, openai, claude):
    assert (openai_compiles(schema), StrictTools().take(schema)) == (openai, claude)
    tools = [{"name": "f", "input_schema": json.loads(schema), "strict": True}]
    for target, model, stays in (
        ("openai-chat", "gpt-4o", openai),
        ("openai-responses", "gpt-4o", openai),
        ("anthropic", "claude-sonnet-4-5", claude),
        ("bedrock-converse", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", claude),
    ):
        done, fixes, found = written(target, model, {}, tools=tools)
        assert ('"strict":true' in done.body.decode()) is stays
        assert [fix.detail for fix in fixes] == ([] if stays else ["strict: true"])
        assert "hard" not in found


def test_of_more_strict_tools_than_claude_takes_the_last_ones_are_not_strict():
    tools = [{"name": f"f{at}", "input_schema": json.loads(CLOSED), "strict": True} for at in range(22)]
    done, fixes, found = written("anthropic", "claude-sonnet-4-6", {}, tools=tools)
    assert done.body.decode().count('"strict":true') == 20
    assert [fix.path for fix in fixes] == ["tools.20", "tools.21"]
    assert "hard" not in found


def test_values_of_other_providers_do_not_go_to_anthropic():
    params = {"service_tier": "default", "metadata": {"user_id": "u", "trace": "t"}, "stop": ["END", "\n"]}
    done, fixes, _ = written("anthropic", "claude-sonnet-4-5", params)
    body = json.loads(done.body)
    assert (body["service_tier"], body["metadata"], body["stop_sequences"]) == (
        "standard_only",
        {"user_id": "u"},
        ["END"],
    )
    assert [fix.path for fix in fixes] == ["params.service_tier", "params.stop", "params.metadata.trace"]


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_repair_that_a_policy_only_observes_is_made_where_the_judge_would_refuse_the_request(code):
    params = {"reasoning": {"effort": "minimal"}, "temperature": 0.5}
    history = {"model": "o4-mini", "params": params, "messages": SAID}
    done = normalize(json.dumps(history).encode(), to="openai-responses", policy={"mend": {code: "observe"}})
    assert [fix.code for fix in done.watched] == [code]
    assert (done.prefix_reset, done.violations) == ("mended", [])


@pytest.mark.parametrize("name", ["openai/o3", "my-o3", "o3-acme"])
def test_no_row_holds_for_a_router_or_another_model(name):
    assert written("openai-chat", name, {"temperature": 0.5, "stop": ["a"]})[1] == []


@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse"])
@pytest.mark.parametrize("model", ["claude-3-5-haiku-20241022", *CLAUDES])
def test_the_limit_of_an_answer_is_at_most_what_the_model_writes(target, model):
    done, fixes, found = written(target, model, {"max_tokens": 1_000_000})
    body = json.loads(done.body)
    limit = body.get("max_tokens") or body["inferenceConfig"]["maxTokens"]
    assert (limit < 1_000_000) is bool(fixes)
    assert "hard" not in found
    _, again, _ = written(target, model, {"max_tokens": limit})
    assert again == []


@pytest.mark.parametrize(
    ("target", "given", "sent"),
    [
        ("openai-chat", {"temperature": 5, "n": 500}, {"temperature": 2, "n": 128}),
        ("openai-chat", {"frequency_penalty": -3, "top_p": 1.5}, {"frequency_penalty": -2, "top_p": 1}),
        ("openai-responses", {"temperature": -1, "top_logprobs": 50}, {"temperature": 0, "top_logprobs": 20}),
    ],
)
def test_numbers_lie_within_the_bounds_of_openais_apis(target, given, sent):
    done = normalize(json.dumps({"model": "gpt-4o", "params": given, "messages": SAID}).encode(), to=target)
    body = json.loads(done.body)
    assert {name: body[name] for name in sent} == sent
    assert [fix.code for fix in done.fixes] == ["parameter_clamped"] * len(given)
