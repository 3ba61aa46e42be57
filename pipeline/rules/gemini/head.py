"""Everything of a request but its contents: parameters, functions, the system instruction."""

from __future__ import annotations

from typing import Any

from pipeline.rules.base import Severity, Violation
from pipeline.rules.gemini import catalogue as rules
from pipeline.rules.gemini.catalogue import rule
from pipeline.rules.gemini.shape import place
from pipeline.rules.gemini.state import State
from pipeline.rules.gemini.walk import LEGAL_NAME
from pipeline.rules.gemini.wire import snake
from pipeline.rules.models import gemini_family, gemini_having

# fmt: off
# One paragraph a rule.
SAME_FUNCTION = rule(
    "GEM-18", "hard", "Duplicate function declaration found: {name}",
    summary="Names of declared functions are unique.",
    repair="rename or drop", source="recorded",
)
JSON_WITH_FUNCTIONS = rule(
    "GEM-19", "model", "Function calling with a response mime type: 'application/json' is unsupported",
    summary="A JSON response type goes with no functions (Gemini 2; 3 takes both, recorded).",
    repair="drop the response type", source="recorded",
    families=gemini_having("json_with_functions", value=False),
)
ADDITIONAL = rule(
    "GEM-20", "soft",
    "Invalid JSON payload received. Unknown name \"additionalProperties\" at '{at}': Cannot find field.",
    summary="Schemas under `parameters` hold no additionalProperties (recorded on AI Studio).",
    repair="send the schema as parametersJsonSchema", source="recorded",
)
UNKNOWN_PARAMETER = rule(
    "GEM-21", "soft", 'Invalid JSON payload received. Unknown name "{name}": Cannot find field.',
    summary="Parameters are those of the API's schema.",
    repair="drop the parameter", source="recorded",
)
NO_MODEL = rule(
    "GEM-22", "soft", "model is not specified",
    summary="Somebody names the model: the body, or the URL that the sender makes.",
    repair="set the model", source="the API's own URL", by_sender=True,
)
# fmt: on

_PARAMETERS = frozenset(
    {
        "model", "tools", "toolConfig", "safetySettings", "systemInstruction", "generationConfig", "cachedContent",
        "labels", "modelArmorConfig", "store", "serviceTier",
    }
)  # fmt: skip
_PARAMETERS_BY_EITHER_NAME = _PARAMETERS | {snake(name) for name in _PARAMETERS}


def judge_head(head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
    """Judge the parameters and make the state before the first content."""
    named = head.get("model")
    model = model if model is not None else named if isinstance(named, str) else None
    family = gemini_family(model)
    found = [] if model else [NO_MODEL.broken("model")]
    found += [UNKNOWN_PARAMETER.broken(name, name=name) for name in head if name not in _PARAMETERS_BY_EITHER_NAME]
    found += _judge_objects(head)
    functions = _functions(head.get("tools"), found)
    _judge_functions(functions, found)
    if functions and family.json_with_functions is not True and _wants_json(head):
        severity: Severity = "model" if family.json_with_functions is None else "hard"
        found.append(JSON_WITH_FUNCTIONS.broken("generationConfig.responseMimeType", severity))
    return State(family), found


def _judge_objects(head: dict[str, Any]) -> list[Violation]:
    """Judge the types of the parameters that are objects; null is absent."""
    names = ("generationConfig", "toolConfig", "systemInstruction")
    wrong = (
        spelled for name in names for spelled in (name, snake(name)) if not isinstance(head.get(spelled), dict | None)
    )
    return [rules.SHAPE.broken(name, at=snake(name), kind="an object") for name in wrong]


def _wants_json(head: dict[str, Any]) -> bool:
    config = _either(head, "generationConfig")
    return isinstance(config, dict) and _either(config, "responseMimeType") == "application/json"


def _either(value: dict[str, Any], name: str) -> object:
    return value.get(name, value.get(snake(name)))


def _functions(tools: object, found: list[Violation]) -> list[tuple[str, dict[str, Any]]]:
    """Collect the declared functions with their paths; a list of one may stand without its brackets."""
    if tools is None:
        return []
    if not isinstance(tools, list | dict):
        found.append(rules.SHAPE.broken("tools", at="tools", kind="TYPE_LIST"))
        return []
    functions: list[tuple[str, dict[str, Any]]] = []
    for at, tool in enumerate(tools) if isinstance(tools, list) else [("", tools)]:
        path = f"tools.{at}".rstrip(".")
        if not isinstance(tool, dict):
            found.append(rules.SHAPE.broken(path, at=place(path), kind="an object"))
            continue
        declared = _either(tool, "functionDeclarations")
        for number, function in enumerate(declared if isinstance(declared, list) else []):
            inner = f"{path}.functionDeclarations.{number}"
            if isinstance(function, dict):
                functions.append((inner, function))
            else:
                found.append(rules.SHAPE.broken(inner, at=place(inner), kind="an object"))
    return functions


def _judge_functions(functions: list[tuple[str, dict[str, Any]]], found: list[Violation]) -> None:
    names: set[str] = set()
    for path, function in functions:
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or LEGAL_NAME(name) is None:
            found.append(rules.FUNCTION_NAME.broken(f"{path}.name"))
        elif name in names:
            found.append(SAME_FUNCTION.broken(f"{path}.name", name=name))
        else:
            names.add(name)
        if isinstance(parameters, dict) and "additionalProperties" in parameters:
            inner = f"{path}.parameters"
            # The API leaves out the number of the only tool.
            at = place(inner).replace("tools[0]", "tools")
            found.append(ADDITIONAL.broken(f"{inner}.additionalProperties", at=at))
