"""The table of parameters that only some models of the Gemini API take: every row as it is judged."""

import pytest

from reknit.pipeline.providers.gemini.rules.models import TABLE, rows_of
from reknit.pipeline.validation import validate

# Models by the facts that hold for them.
MODELS = {
    "gemini-2.5-flash": {"penalty", "budget", "level"},
    "gemini-2.5-flash-lite": {"penalty", "budget", "level"},
    "gemini-2.5-pro": {"budget", "level"},
    "gemini-2.5-pro-preview-06-05": {"budget", "level"},
    "gemini-2.5-flash-image": {"json", "functions", "level"},
    "gemini-2.0-flash-exp-image-generation": {"json", "system", "level", "thinking"},
    "gemini-2.5-flash-preview-tts": {"functions", "system", "speech", "level", "penalty"},
    "gemini-2.0-flash": {"level", "thinking"},
    "gemini-1.5-flash": {"thinking"},
    "gemma-3n-e4b-it": {"json", "functions", "system"},
    "gemini-3-pro-preview": set(),
    "gemini-3.1-flash-lite-image": set(),
    "gemini-flash-latest": set(),
    "gpt-5": set(),
}
TOOLS = [{"functionDeclarations": [{"name": "f"}]}]
REQUESTS = {
    "penalty": ("GEM-25", {"generationConfig": {"frequencyPenalty": 0.5}}),
    "json": ("GEM-25b", {"generationConfig": {"responseMimeType": "application/json"}}),
    "functions": ("GEM-25c", {"tools": TOOLS}),
    "system": ("GEM-25d", {"systemInstruction": {"parts": [{"text": "Be brief."}]}}),
    "speech": ("GEM-25e", {}),
    "budget": ("GEM-26", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 100_000}}}),
    "level": ("GEM-26c", {"generationConfig": {"thinkingConfig": {"thinkingLevel": "low"}}}),
    "thinking": ("GEM-26d", {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}),
}


def found(model, fact):
    rule, params = REQUESTS[fact]
    body = {**params, "contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    return [each.severity for each in validate(body, "gemini", model) if each.rule == rule]


@pytest.mark.parametrize("fact", REQUESTS)
@pytest.mark.parametrize("model", MODELS)
def test_each_fact_is_judged_for_its_models_and_no_others(model, fact):
    severities = [row.severity for row in rows_of(model) if row.fact == fact]
    assert bool(severities) is (fact in MODELS[model])
    assert found(model, fact) == severities
    assert found(f"models/{model}", fact) == severities


def test_every_row_has_a_model_here_and_a_source():
    reached = {id(row) for model in MODELS for row in rows_of(model)}
    assert [row.models for row in TABLE if id(row) not in reached] == []
    assert all(row.source for row in TABLE)


@pytest.mark.parametrize("row", [row for row in TABLE if row.fact == "budget"], ids=lambda row: row.models)
def test_the_budgets_inside_the_bounds_of_a_row_are_taken(row):
    model = next(model for model in MODELS if row in rows_of(model))
    taken = {row.least or 1, row.most, -1, *([0] if row.off else [])}
    for budget in {*taken, 0, row.least - 1, row.most + 1}:
        config = {"thinkingConfig": {"thinkingBudget": budget}}
        body = {"generationConfig": config, "contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        refused = [each for each in validate(body, "gemini", model) if each.rule.startswith("GEM-26")]
        assert bool(refused) is (budget not in taken)
