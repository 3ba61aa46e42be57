"""The table of parameters that only some Claude models take: every row as it is judged."""

import itertools

import pytest

from reknit.pipeline.providers.anthropic.rules.models import LEVELS, TABLE, row_of
from reknit.pipeline.validation import validate

TOOL = {"name": "f", "input_schema": {"type": "object"}}
RULES = {
    "sampling": ("ANT-42", {"temperature": 0.5}),
    "samplers": ("ANT-42b", {"temperature": 0.5, "top_p": 0.5}),
    "enabled": ("ANT-43", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    "adaptive": ("ANT-43b", {"thinking": {"type": "adaptive"}}),
    "effort": ("ANT-44", {"output_config": {"effort": "low"}}),
    "level": ("ANT-44b", {"output_config": {"effort": "xhigh"}}),
    "output": ("ANT-45", {"max_tokens": 1_000_000}),
    "forced": ("ANT-40b", {"tools": [TOOL], "tool_choice": {"type": "any"}}),
}
LINES = ("opus", "sonnet", "haiku", "fable")
VERSIONS = ((3, 0), (3, 5), (3, 7), (4, 0), (4, 1), (4, 5), (4, 6), (4, 7), (4, 8), (5, 0), (5, 1), (6, 0))
MODELS = {f"claude-{line}-{at[0]}-{at[1]}": (line, at) for line, at in itertools.product(LINES, VERSIONS)}


def found(model, rule, **params):
    body = {"model": model, "max_tokens": 2048, "messages": [{"role": "user", "content": "hi"}], **params}
    return [each.severity for each in validate(body, "anthropic") if each.rule == rule]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.fact}-{'-'.join(row.lines)}-{row.since}")
def test_each_row_is_judged_for_its_models_and_the_first_one_counts(row):
    rule, params = RULES[row.fact]
    inside = [model for model, named in MODELS.items() if row.holds(*named)]
    first = [model for model in inside if row_of(row.fact, model) == row]
    assert first
    assert row.source
    for model in first:
        assert found(model, rule, **params) == [row.severity]
        assert found(f"us.anthropic.{model}-20260131-v1:0", rule, **params) == [row.severity]
        assert found(f"{model}-acme", rule, **params) == []


@pytest.mark.parametrize("fact", RULES)
def test_nothing_is_said_of_the_models_of_no_row(fact):
    rule, params = RULES[fact]
    others = [model for model in MODELS if row_of(fact, model) is None]
    assert others
    assert [model for model in others if found(model, rule, **params)] == []


@pytest.mark.parametrize("row", [row for row in TABLE if row.values])
def test_the_levels_of_a_row_are_taken(row):
    models = [model for model in MODELS if row_of("level", model) == row]
    for model, level in itertools.product(models, LEVELS):
        assert bool(found(model, "ANT-44b", output_config={"effort": level})) is (level not in row.values)


@pytest.mark.parametrize("row", [row for row in TABLE if row.most])
def test_the_most_of_a_row_is_taken(row):
    models = [model for model in MODELS if row_of("output", model) == row]
    assert [model for model in models if found(model, "ANT-45", max_tokens=row.most)] == []
    assert [model for model in models if not found(model, "ANT-45", max_tokens=row.most + 1)] == []
