"""The rules of the Gemini API (generateContent): a request's parameters here, contents in ``walk``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.rules._fold import Fold
from pipeline.rules._json import Misfit, Report, Spot, fit_with_items, without_holes
from pipeline.rules.gemini import catalogue as rules
from pipeline.rules.gemini.catalogue import CATALOGUE, rule
from pipeline.rules.gemini.walk import LEGAL_NAME, Turns
from pipeline.rules.gemini.wire import Content, Part, place, rename, snake

__all__ = ["CATALOGUE", "Gemini"]

# fmt: off
# One paragraph a rule.
SAME_FUNCTION = rule("GEM-18", "hard", "Duplicate function declaration found: {name}",
    summary="Names of declared functions are unique.",
    repair="rename or drop", source="recorded")
JSON_WITH_FUNCTIONS = rule(
    "GEM-19", "model", "Function calling with a response mime type: 'application/json' is unsupported",
    summary="A JSON response type goes with no functions (Gemini 2; 3 takes both, recorded).",
    repair="drop the response type", source="recorded",
    fact="json_with_functions")
ADDITIONAL = rule("GEM-20", "soft",
    "Invalid JSON payload received. Unknown name \"additionalProperties\" at '{at}': Cannot find field.",
    summary="Schemas under `parameters` hold no additionalProperties (recorded on AI Studio).",
    repair="send the schema as parametersJsonSchema", source="recorded")
UNKNOWN_PARAMETER = rule("GEM-21", "soft", 'Invalid JSON payload received. Unknown name "{name}": Cannot find field.',
    summary="Parameters are those of the API's schema.",
    repair="drop the parameter", source="recorded")
UNKNOWN_GENERATION = rule("GEM-21b", "soft",
    "Invalid JSON payload received. Unknown name \"{name}\" at 'generation_config': Cannot find field.",
    summary="Members of generationConfig are those of the API's schema; new ones come.",
    repair="drop the member", source="recorded")
NO_MODEL = rule("GEM-22", "soft", "model is not specified",
    summary="Somebody names the model: the body, or the URL that the sender makes.",
    repair="set the model", source="the API's own URL", by_sender=True)
# fmt: on

_PARAMETERS = frozenset(
    {
        "model", "tools", "toolConfig", "safetySettings", "systemInstruction", "generationConfig", "cachedContent",
        "labels", "modelArmorConfig", "store", "serviceTier",
    }
)  # fmt: skip
_PARAMETERS_BY_EITHER_NAME = _PARAMETERS | {snake(name) for name in _PARAMETERS}
_GENERATION = frozenset(
    {
        "_responseJsonSchema", "audioTimestamp", "audioTranscriptionConfig", "candidateCount", "enableAffectiveDialog",
        "enableEnhancedCivicAnswers", "frequencyPenalty", "imageConfig", "logprobs", "maxOutputTokens",
        "mediaResolution", "modelConfig", "modelSelectionConfig", "presencePenalty", "responseFormat",
        "responseJsonSchema", "responseLogprobs", "responseMimeType", "responseModalities", "responseSchema",
        "routingConfig", "seed", "speechConfig", "stopSequences", "temperature", "thinkingConfig", "topK", "topP",
        "translationConfig",
    }
)  # fmt: skip
_GENERATION_BY_EITHER_NAME = _GENERATION | {snake(name) for name in _GENERATION}
# Null is absent.
_OBJECTS = tuple(
    spelled
    for name in ("generationConfig", "toolConfig", "systemInstruction")
    for spelled in dict.fromkeys((name, snake(name)))
)
_KINDS = {
    "Input should be a valid string": "TYPE_STRING",
    "Input should be a valid boolean": "TYPE_BOOL",
    "Input should be a valid list": "TYPE_LIST",
}
# A part that could not be read was reported; an odd one in its place says nothing more.
_UNREAD = Part(text="-")


class Gemini(Fold[Turns, Content]):
    """The rule set of the target ``gemini``.

    The body's contents may spell their fields either way; paths use the spelling in camel case.
    """

    target = "gemini"
    key = "contents"
    not_json = rules.BAD_JSON
    surrogate = rules.HALF_CHARACTER
    items = msgspec.json.Decoder(list[Content])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        walk = Turns(family=rules.family_of(model))
        if not model:
            walk.refuse(NO_MODEL, "model")
        for name in head:
            if name not in _PARAMETERS_BY_EITHER_NAME:
                walk.refuse(UNKNOWN_PARAMETER, name, name=name)
        for name in _OBJECTS:
            if not isinstance(head.get(name), dict | None):
                walk.refuse(rules.SHAPE, name, at=snake(name), kind="an object")
        config = _either(head, "generationConfig")
        for name in config if isinstance(config, dict) else ():
            if name not in _GENERATION_BY_EITHER_NAME:
                walk.refuse(UNKNOWN_GENERATION, f"generationConfig.{name}", name=name)
        functions = _functions(head.get("tools"), walk)
        _judge_functions(functions, walk)
        if functions and isinstance(config, dict) and _either(config, "responseMimeType") == "application/json":
            walk.refuse(JSON_WITH_FUNCTIONS, "generationConfig.responseMimeType")
        return walk

    def read_items(self, values: Sequence[object], walk: Turns) -> list[Content | None]:
        def report(spot: Spot, misfit: Misfit, words: str) -> None:
            above, _, name = spot.path.rpartition(".")
            if misfit == "extra":
                walk.refuse(rules.UNKNOWN_NAME, spot.path, at=place(above), name=name)
            elif name in ("args", "response"):
                walk.refuse(rules.STRUCT, spot.path, at=place(spot.path))
            elif name == "role":
                walk.refuse(rules.ROLE, spot.path)
            else:
                walk.refuse(rules.SHAPE, spot.path, at=place(spot.path), kind=_KINDS.get(words, "an object"))

        return [_read(rename(value), f"contents.{at}", report) for at, value in enumerate(values, walk.index)]

    def judge_no_list(self, walk: Turns, body: dict[str, Any]) -> None:
        """Absent contents are none; anything but a list is a misfit."""
        if body.get(self.key) is None:
            walk.judge_end()
        else:
            walk.refuse(rules.SHAPE, "contents", kind="TYPE_LIST")


def _read(value: object, path: str, report: Report) -> Content | None:
    try:
        return msgspec.convert(value, Content)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a lone surrogate
        content, parts = fit_with_items(value, Content, Spot(path, path), report, field="parts", item=Part)
    if parts is not None:
        return Content(content.role if isinstance(content, Content) else None, without_holes(parts, Part, _UNREAD))
    return content if isinstance(content, Content) else None


def _either(value: dict[str, Any], name: str) -> object:
    return value.get(name, value.get(snake(name)))


def _functions(tools: object, walk: Turns) -> list[tuple[str, dict[str, Any]]]:
    """Collect the declared functions with their paths; a list of one may stand without its brackets."""
    if tools is None:
        return []
    if not isinstance(tools, list | dict):
        walk.refuse(rules.SHAPE, "tools", at="tools", kind="TYPE_LIST")
        return []
    functions: list[tuple[str, dict[str, Any]]] = []
    for at, tool in enumerate(tools) if isinstance(tools, list) else [("", tools)]:
        path = f"tools.{at}".rstrip(".")
        if not isinstance(tool, dict):
            walk.refuse(rules.SHAPE, path, at=place(path), kind="an object")
            continue
        declared = _either(tool, "functionDeclarations")
        for number, function in enumerate(declared if isinstance(declared, list) else []):
            inner = f"{path}.functionDeclarations.{number}"
            if isinstance(function, dict):
                functions.append((inner, function))
            else:
                walk.refuse(rules.SHAPE, inner, at=place(inner), kind="an object")
    return functions


def _judge_functions(functions: list[tuple[str, dict[str, Any]]], walk: Turns) -> None:
    names: set[str] = set()
    for path, function in functions:
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or LEGAL_NAME(name) is None:
            walk.refuse(rules.FUNCTION_NAME, f"{path}.name")
        elif name in names:
            walk.refuse(SAME_FUNCTION, f"{path}.name", name=name)
        else:
            names.add(name)
        if isinstance(parameters, dict) and "additionalProperties" in parameters:
            inner = f"{path}.parameters"
            # The API leaves out the number of the only tool.
            at = place(inner).replace("tools[0]", "tools")
            walk.refuse(ADDITIONAL, f"{inner}.additionalProperties", at=at)
