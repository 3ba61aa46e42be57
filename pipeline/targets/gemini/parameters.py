"""A generateContent request without its contents. The model is in the URL, so the body does not name it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Piece
from pipeline.model import Text, Tool
from pipeline.targets.base import Setting, WrittenHead
from pipeline.targets.names import ToolNames, legal_name, read_choice, sort_params
from pipeline.text.flatten import prompt_texts

NAME: Final = "gemini"

# Gemini's names start with a letter or an underscore (GEM-10); of its alphabet, what every provider takes is enough.
_LEGAL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}").fullmatch
_LONGEST: Final = 64
_GENERATION: Final = (
    ("max_tokens", "maxOutputTokens"),
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("stop_sequences", "stopSequences"),
    ("n", "candidateCount"),
    ("seed", "seed"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
)
_GROUP: Final = "generationConfig."
# The API's own parameters besides, each also in its other spelling.
_OWN: Final = {
    "toolConfig": "toolConfig",
    "tool_config": "toolConfig",
    "safetySettings": "safetySettings",
    "safety_settings": "safetySettings",
    "cachedContent": "cachedContent",
    "cached_content": "cachedContent",
    "labels": "labels",
    "modelArmorConfig": "modelArmorConfig",
    "store": "store",
    "serviceTier": "serviceTier",
}
_ELSEWHERE: Final = frozenset(
    {"messages", "contents", "model", "system", "tools", "tool_choice", "systemInstruction", "cache_control"}
)
_OWN_TOOLS: Final = frozenset(
    {
        "functionDeclarations", "function_declarations", "googleSearch", "google_search", "googleSearchRetrieval",
        "codeExecution", "code_execution", "urlContext", "url_context", "fileSearch", "googleMaps", "computerUse",
        "enterpriseWebSearch", "retrieval",
    }
)  # fmt: skip
_MODES: Final = {"auto": "AUTO", "any": "ANY", "tool": "ANY", "none": "NONE"}
# What only a declaration of Gemini's says, as it is.
_OF_DECLARATIONS: Final = ("response", "responseJsonSchema", "behavior")
# What the readers take from a tool of any shape.
_READ: Final = {"type", "function", "toolSpec", "name", "description", "parameters", "input_schema", "inputSchema"}

_encode = msgspec.json.Encoder().encode


def function_name(name: str) -> str:
    """A function's name as the API takes it; two names never give one."""
    if _LEGAL(name):
        return name
    # A digest is what keeps the new names apart; every one of them has it.
    return f"_{legal_name(f' {name}', _LONGEST - 1)}".replace("__", "_", 1)


def write_head(setting: Setting, system: Sequence[Piece]) -> WrittenHead:
    """The head of every request of a session."""
    fixes: list[Fix] = []
    keys: dict[str, Any] = {}
    params = sort_params(setting.params)
    given = [each.text for each in prompt_texts(setting.system, NAME, fixes) if each.text]
    words = [*given, *(piece.block.text for piece in system if isinstance(piece.block, Text))]
    prompt = _instruction(words, params.rest.get("systemInstruction"))
    if prompt is not None:
        keys["systemInstruction"] = prompt
    functions, own = _tools(setting.tools, fixes)
    tools = [*([{"functionDeclarations": functions}] if functions else []), *own]
    if tools:
        keys["tools"] = tools
    choice = _choice(params.rest.get("tool_choice"), fixes, any_tool=bool(functions))
    if choice is not None:
        keys["toolConfig"] = choice
    generation: dict[str, Any] = {key: params.common[name] for name, key in _GENERATION if name in params.common}
    for name, value in params.rest.items():
        if name.startswith(_GROUP):
            generation[name.removeprefix(_GROUP)] = value
        elif name in _OWN:
            keys.setdefault(_OWN[name], value)
        elif name not in _ELSEWHERE:
            fixes.append(make("param_dropped", f"params.{name}", before=value, target=NAME, detail=name))
    if generation:
        keys["generationConfig"] = generation
    return WrittenHead(_encode(keys), fixes)


def _instruction(words: list[str], given: Raw | None) -> Any:  # noqa: ANN401  JSON
    """The system instruction: one in the API's own shape, then the texts."""
    parts: list[Any] = [{"text": text} for text in words]
    if given is None:
        return {"parts": parts} if parts else None
    if not parts:
        return given
    own = msgspec.json.decode(given)
    before = own.get("parts", []) if isinstance(own, dict) else []
    return {"parts": [*(before if isinstance(before, list) else [before]), *parts]}


def _tools(tools: Sequence[Tool], fixes: list[Fix]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The functions, and the API's own tools."""
    functions: list[dict[str, Any]] = []
    own: list[Any] = []
    names = ToolNames(NAME, function_name, fixes)
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        given = None if tool.raw is UNSET else msgspec.json.decode(tool.raw, type=dict[str, Raw])
        if given is not None and bytes(tool.input_schema) == b"null":
            if given.keys() <= _OWN_TOOLS:
                own.append(given)
            else:
                fixes.append(make("tool_foreign", path, before=given, target=NAME))
            continue
        name = names.declare(tool, given, path)
        if name is None:
            continue
        extras = _extras(given)
        if extras:
            fixes.append(make("field_dropped", path, before=given, target=NAME, detail=extras))
        said = {} if tool.description is UNSET else {"description": tool.description}
        # The other field, `parameters`, knows only a part of JSON Schema (GEM-20).
        more: dict[str, Any] = {key: given[key] for key in _OF_DECLARATIONS if key in given} if given else {}
        functions.append({"name": name, **said, "parametersJsonSchema": tool.input_schema, **more})
    return functions, own


def _extras(given: dict[str, Raw] | None) -> str:
    """The keys of a tool that a function here has no place for."""
    if given is None:
        return ""
    spec = next((given[key] for key in ("toolSpec", "function") if key in given), None)
    inner = given if spec is None else msgspec.json.decode(spec, type=dict[str, Raw])
    return ", ".join(sorted((inner.keys() | given.keys()) - _READ - {"cache_control", *_OF_DECLARATIONS}))


def _choice(value: Raw | None, fixes: list[Fix], *, any_tool: bool) -> dict[str, Any] | None:
    if value is None:
        return None
    choice = read_choice(value)
    if choice is None or not any_tool:
        fixes.append(make("param_dropped", "params.tool_choice", before=value, target=NAME, detail="tool_choice"))
        return None
    named = {"allowedFunctionNames": [function_name(choice.name)]} if choice.kind == "tool" else {}
    return {"functionCallingConfig": {"mode": _MODES[choice.kind], **named}}
