"""The rules of the Gemini API (generateContent): the walk through the contents, and the parameters of a request.

The API's refusals and known values are in its ``catalogue``.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct

from reknit.pipeline.providers.gemini.rules import catalogue as rules
from reknit.pipeline.providers.gemini.rules.catalogue import (
    CATALOGUE,
    DATA,
    NOTES,
    Blob,
    Content,
    FileData,
    FunctionCall,
    FunctionResponse,
    GeminiFamily,
    Part,
    place,
    rename,
    snake,
)
from reknit.pipeline.providers.gemini.rules.models import Asked, judge_model
from reknit.pipeline.rules._fold import Fold, Walk
from reknit.pipeline.rules._media import GEMINI
from reknit.pipeline.rules._misfits import Misfit, Spot, Unreadable, fit_with_items, without_unreadable

__all__ = ["CATALOGUE", "RULE_SET", "Gemini"]

# A function's schema as JSON Schema, and how the type of an object is spelt.
_JSON_SCHEMAS: Final = ("parametersJsonSchema", "parameters_json_schema")
_OBJECT_TYPES: Final = ("OBJECT", "object", "Object", 6)
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}").fullmatch
# The documentation's list, and what was recorded besides (text/csv, audio/mpeg, audio/x-wav).
_MIME_TYPES: Final = re.compile(
    r"image/(png|jpe?g|webp|heic|heif)|audio/(x-)?(wav|mp3|mpeg|mpga|mp4|m4a|aiff|aac|ogg|opus|pcm|flac|webm|l16).*"
    r"|video/(mp4|mpe?g|mov|quicktime|avi|x-flv|flv|webm|wmv|3gpp|mpegps|x-ms-wmv|x-msvideo)|text/.*"
    r"|application/(pdf|json|xml|rtf|x-javascript|javascript|x-python.*|typescript|x-typescript)",
    re.IGNORECASE,
).fullmatch

# The role of the current run of neighbouring contents; "" before the first.
Role: TypeAlias = Literal["", "user", "model"]


class Unsigned(Struct, frozen=True):
    """A part of the current turn with a call that should carry a signature."""

    path: str
    name: str
    position: int


class Turns(Walk, kw_only=True, eq=False):
    """The state of the conversation.

    Attributes:
        role: the role of the current run.
        calls: the number of calls in the last model run.
        responses: the number of responses in the user run after it.
        called_at: the last content with calls.
        unsigned: the calls without a signature since the user's last content other than responses.
    """

    family: GeminiFamily
    role: Role = ""
    calls: int = 0
    responses: int = 0
    called_at: int = 0
    unsigned: tuple[Unsigned, ...] = ()

    def judge_item(self, content: Content) -> None:
        if content.role not in ("user", "model", None, ""):
            rule = rules.FUNCTION_ROLE if content.role == "function" else rules.ROLE
            self.refuse(rule, f"contents.{self.index}.role")
        role: Role = "model" if content.role == "model" else "user"
        before = self.role
        if role != before:
            self._enter(role)
        if not content.parts:
            self.refuse(rules.NO_PARTS, f"contents.{self.index}.parts", n=self.index)
            return
        calls = responses = said = 0
        for at, part in enumerate(content.parts):
            if part.functionCall is not None:
                self._call(part, part.functionCall, at, first=not calls and (role != before or not self.calls))
                calls += 1
            elif part.functionResponse is not None:
                self._response(part.functionResponse, at)
                responses += 1
            else:
                said += 1
                if part.text is None or not part.text or part.mediaResolution is not UNSET:
                    self._other(part, at)
        if calls:
            self._calls(calls, role, before)
        if responses:
            self._responses(responses, role)
        # The API looks for signatures in the current turn alone, which begins with the user's words.
        if said and role == "user":
            self.unsigned = ()

    def _enter(self, role: Role) -> None:
        """Begin a run of ``role``; the one before is complete."""
        if role == "model":
            self._judge_counts()
            self.calls = self.responses = 0
        self.role = role

    def _judge_counts(self) -> None:
        """Compare the calls of a model run with the responses of the user run after it."""
        if self.role == "user" and self.calls and self.responses != self.calls:
            rule = rules.COUNT if self.responses else rules.UNANSWERED
            self.refuse(rule, f"contents.{self.called_at}")

    def _calls(self, count: int, role: Role, before: Role) -> None:
        if role != "model" or not before:
            self.refuse(rules.CALL_PLACE, f"contents.{self.index}")
        elif before == "model":
            self.refuse(rules.CALL_BESIDE, f"contents.{self.index}")
        if role == "model":
            self.calls += count
            self.called_at = self.index

    def _responses(self, count: int, role: Role) -> None:
        if role == "model" or not self.calls:
            self.refuse(rules.RESPONSE_PLACE, f"contents.{self.index}")
        else:
            self.responses += count

    def _call(self, part: Part, call: FunctionCall, at: int, *, first: bool) -> None:
        if not call.name or _LEGAL_NAME(call.name) is None:
            self._name(call.name, at, "functionCall")
        if first and not part.thoughtSignature and not self.family.unsigned_calls:
            self.unsigned += (Unsigned(f"contents.{self.index}.parts.{at}", call.name or "", self.index + 1),)

    def _response(self, response: FunctionResponse, at: int) -> None:
        if not response.name or _LEGAL_NAME(response.name) is None:
            self._name(response.name, at, "functionResponse")
        for inner_at, inner in enumerate(response.parts or ()):
            if isinstance(inner, Unreadable):
                continue  # it could not be read, and was reported
            path = f"contents.{self.index}.parts.{at}.functionResponse.parts.{inner_at}"
            self._media(inner.inlineData or inner.fileData, path)

    def _name(self, name: str | None, at: int, field: str) -> None:
        path = f"contents.{self.index}.parts.{at}.{field}.name"
        rule = rules.CALL_NAME if name else rules.NO_NAME
        self.refuse(rule, path, n=self.index, p=at, field=snake(field))

    def _other(self, part: Part, at: int) -> None:
        path = f"contents.{self.index}.parts.{at}"
        if part.mediaResolution is not UNSET:
            self.refuse(rules.MEDIA_RESOLUTION, f"{path}.mediaResolution", at=place(path))
        if part.text == "":
            # An empty text with a signature is the model's own, sent back unchanged.
            if not part.thoughtSignature:
                self.refuse(rules.EMPTY_TEXT, f"{path}.text")
        elif all(getattr(part, name) is None for name in DATA):
            is_noted = any(getattr(part, name) is not None for name in NOTES)
            rule = rules.ONLY_NOTES if is_noted else rules.NO_DATA
            self.refuse(rule, path, n=self.index, p=at)
        self._media(part.inlineData or part.fileData, path)

    def _media(self, media: Blob | FileData | None, path: str) -> None:
        if media is not None and media.mimeType and _MIME_TYPES(media.mimeType) is None:
            field = "inlineData" if isinstance(media, Blob) else "fileData"
            self.refuse(rules.MIME_TYPE, f"{path}.{field}.mimeType", mime=media.mimeType)

    def judge_end(self) -> None:
        if not self.index:
            self.refuse(rules.NO_CONTENTS, "contents")
        self._judge_counts()
        if self.size > GEMINI.body_bytes:
            self.refuse(rules.TOO_LARGE, "")
        if self.role == "model":
            self.refuse(rules.LAST_MODEL, f"contents.{self.index - 1}")
        for call in self.unsigned:
            self.refuse(rules.SIGNATURE, f"{call.path}.thoughtSignature", name=call.name, position=call.position)


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
_CAMEL = {snake(name): name for name in _GENERATION}
_NUMBERS = {
    "temperature": "TYPE_FLOAT",
    "topP": "TYPE_FLOAT",
    "topK": "TYPE_FLOAT",
    "maxOutputTokens": "TYPE_INT32",
    "candidateCount": "TYPE_INT32",
    "seed": "TYPE_INT32",
    "presencePenalty": "TYPE_FLOAT",
    "frequencyPenalty": "TYPE_FLOAT",
}
_MOST = {"temperature": 2.0, "topP": 1.0}
_ANSWER_TYPES = frozenset({"text/plain", "application/json", "application/xml", "application/yaml", "text/x.enum"})
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
            walk.refuse(rules.NO_MODEL, "model")
        for name in head:
            if name not in _PARAMETERS_BY_EITHER_NAME:
                walk.refuse(rules.UNKNOWN_PARAMETER, name, name=name)
        for name in _OBJECTS:
            if not isinstance(head.get(name), dict | None):
                walk.refuse(rules.SHAPE, name, at=snake(name), kind="an object")
        config = _either(head, "generationConfig")
        for name in config if isinstance(config, dict) else ():
            if name not in _GENERATION_BY_EITHER_NAME:
                walk.refuse(rules.UNKNOWN_GENERATION, f"generationConfig.{name}", name=name)
        functions = _functions(head.get("tools"), walk)
        _judge_functions(functions, walk)
        if functions and isinstance(config, dict) and _either(config, "responseMimeType") == "application/json":
            walk.refuse(rules.JSON_WITH_FUNCTIONS, "generationConfig.responseMimeType")
        settings = {_camel(name): value for name, value in config.items()} if isinstance(config, dict) else {}
        _judge_generation(settings, walk)
        system = _either(head, "systemInstruction")
        judge_model(walk, Asked(config=settings, functions=bool(functions), system=bool(system)), model)
        return walk

    def read_item(self, value: object, path: str, walk: Turns) -> Content | None:
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

        named = rename(value)
        try:
            return msgspec.convert(named, Content)
        except (msgspec.ValidationError, UnicodeEncodeError):  # a lone surrogate
            content, parts = fit_with_items(named, Content, Spot(path, path), report, field="parts", item=Part)
        if parts is not None:
            return Content(
                content.role if isinstance(content, Content) else None, without_unreadable(parts, Part, _UNREAD)
            )
        return content if isinstance(content, Content) else None

    def judge_no_list(self, walk: Turns, body: dict[str, Any]) -> None:
        """Absent contents are none; anything but a list is a misfit."""
        if body.get(self.key) is None:
            walk.judge_end()
        else:
            walk.refuse(rules.SHAPE, "contents", kind="TYPE_LIST")


def _either(value: dict[str, Any], name: str) -> object:
    return value.get(name, value.get(snake(name)))


def _camel(name: str) -> str:
    return _CAMEL.get(name, name)


def _judge_generation(config: dict[str, Any], walk: Turns) -> None:
    """Judge the values of single parameters; a number may be written as text, as in every protobuf."""
    for name, kind in _NUMBERS.items():
        value, path = config.get(name), f"generationConfig.{name}"
        if value is not None and (isinstance(value, bool | list | dict) or not _is_number(value)):
            walk.refuse(rules.SHAPE, path, at=place(path), kind=kind)
    for name, most in _MOST.items():
        value = config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value <= most:
            walk.refuse(rules.BOUNDS, f"generationConfig.{name}", name=snake(name), range=f"[0.0, {most}]")
    mime = config.get("responseMimeType")
    if isinstance(mime, str) and mime and mime not in _ANSWER_TYPES:
        walk.refuse(rules.ANSWER_TYPE, "generationConfig.responseMimeType")
    stops = config.get("stopSequences")
    if isinstance(stops, list) and not 0 < len(stops) <= rules.MOST_STOPS:
        walk.refuse(rules.STOPS if stops else rules.NO_STOPS, "generationConfig.stopSequences")


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _functions(tools: object, walk: Turns) -> list[tuple[str, dict[str, Any]]]:
    """Return the declared functions with their paths; a list of one may be without its brackets."""
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
        if not isinstance(name, str) or _LEGAL_NAME(name) is None:
            walk.refuse(rules.FUNCTION_NAME, f"{path}.name")
        elif name in names:
            walk.refuse(rules.SAME_FUNCTION, f"{path}.name", name=name)
        else:
            names.add(name)
        if isinstance(parameters, dict) and "additionalProperties" in parameters:
            inner = f"{path}.parameters"
            # The API leaves out the number of the only tool.
            at = place(inner).replace("tools[0]", "tools")
            walk.refuse(rules.ADDITIONAL, f"{inner}.additionalProperties", at=at)
        _judge_schema(function, path, walk)


def _judge_schema(function: dict[str, Any], path: str, walk: Turns) -> None:
    """Judge the top level of a function's schema, in either of the two dialects."""
    for key in ("parameters", *_JSON_SCHEMAS):
        schema, inner = function.get(key), f"{path}.{key}"
        if not isinstance(schema, dict):
            continue
        unknown = ("oneOf", "allOf") if key == "parameters" else ()
        for name in unknown:
            if name in schema:
                walk.refuse(rules.COMBINATORS, f"{inner}.{name}", name=name, at=place(inner))
        if schema.get("type") not in _OBJECT_TYPES:
            walk.refuse(rules.NO_OBJECT_SCHEMA, inner, name=function.get("name"))
        elif any(name in schema for name in ("anyOf", "any_of", "oneOf", "allOf") if name not in unknown):
            walk.refuse(rules.TOP_LEVEL_UNION, inner, name=function.get("name"))


RULE_SET = Gemini()
