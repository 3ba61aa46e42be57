"""The table of parameters that single models of OpenAI refuse: every row as it is judged, in both APIs."""

import itertools

import pytest

from reknit.pipeline.providers.openai.rules.models import CHAT_ONLY, DEFAULT_EFFORTS, MODE, TABLE
from reknit.pipeline.validation import validate

# A value that no row takes, by parameter.
REFUSED = {
    "reasoning_effort": "extreme",
    "temperature": 0.5,
    "top_p": 0.5,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logprobs": True,
    "top_logprobs": 3,
    "stop": ["a"],
    "parallel_tool_calls": False,
    "verbosity": "extreme",
    "response_format.type": "json_schema",
    MODE: "pro",
}
# Where the Responses API has a parameter under another name.
PLACES = {"reasoning_effort": "reasoning.effort", "verbosity": "text.verbosity", "response_format.type": "text.format"}
BY_MODEL = {"openai-chat": "OAI-23", "openai-responses": "RSP-24"}
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CASES = [
    pytest.param(row, parameter, target, id=f"{'-'.join(row.models[:2])}-{parameter}-{target}")
    for row in TABLE
    for parameter in row.parameters
    for target in BY_MODEL
    if parameter not in (CHAT_ONLY if target == "openai-responses" else (MODE,))
]


def body(target, model, **params):
    said = {"role": "user", "content": "hi"}
    if target == "openai-chat":
        return {"model": model, "tools": [{"type": "function", "function": TOOL}], "messages": [said], **params}
    moved = {}
    for name, value in params.items():
        outer, _, inner = PLACES.get(name, name).partition(".")
        moved[outer] = moved.get(outer, {}) | {inner: value} if inner else value
    return {"model": model, "tools": [{"type": "function", **TOOL}], "input": [said], **moved}


def given(parameter, value):
    if parameter == "response_format.type":
        return {"response_format": {"type": value}}
    return {parameter: value}


def found(target, model, **params):
    if "response_format" in params and target == "openai-responses":
        params = {"text": {"format": {"name": "answer", "schema": {}, **params.pop("response_format")}}, **params}
    judged = validate(body(target, model, **params), target)
    return [each.severity for each in judged if each.rule.startswith(BY_MODEL[target])]


@pytest.mark.parametrize(("row", "parameter", "target"), CASES)
def test_each_model_of_a_row_refuses_the_value(row, parameter, target):
    asked = {"reasoning_effort": "high"} if row.efforts and "high" not in row.efforts else {}
    for model in row.models:
        severities = found(target, model, **given(parameter, REFUSED[parameter]), **asked)
        assert row.severity in severities
        if not model[-4:].isdecimal():
            assert found(target, f"{model}-2026-01-31", **given(parameter, REFUSED[parameter]), **asked) == severities


@pytest.mark.parametrize(("row", "parameter", "target"), CASES)
def test_nothing_is_said_of_what_a_row_takes(row, parameter, target):
    for model, value in itertools.product(row.models, row.values):
        assert found(target, model, **given(parameter, value)) == []
    for model, effort in itertools.product(row.models, row.efforts):
        assert found(target, model, **given(parameter, REFUSED[parameter]), reasoning_effort=effort) == []


@pytest.mark.parametrize(("row", "parameter", "target"), CASES)
def test_no_row_holds_for_a_router_or_another_model(row, parameter, target):
    for model in row.models:
        for other in (f"openai/{model}", f"{model}-acme"):
            assert found(target, other, **given(parameter, REFUSED[parameter])) == []


def test_no_two_rows_say_something_about_the_same_parameter_of_a_model():
    pairs = [(model, parameter) for row in TABLE for model in row.models for parameter in row.parameters]
    assert len(pairs) == len(set(pairs))


def test_every_row_has_its_source():
    assert all(row.source and row.models and row.parameters for row in TABLE)
    assert {model for row in TABLE for model in row.models} >= DEFAULT_EFFORTS.keys()


@pytest.mark.parametrize("value", [None, True, ["low"], {"a": 1}])
def test_a_value_of_another_type_is_left_to_the_rules_of_types(value):
    assert found("openai-chat", "gpt-5", reasoning_effort=value) == []
