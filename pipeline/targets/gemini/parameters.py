"""A generateContent request without its contents. The model is in the URL, so the body does not name it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from pipeline.history.pieces import Piece
from pipeline.history.readers.head import DECLARED_SCHEMAS
from pipeline.model import Text, Tool
from pipeline.targets.base import Setting, legal_name
from pipeline.targets.head import Choice, HeadShape, HeadWriter, WrittenHead
from pipeline.text.flatten import PromptText

NAME: Final = "gemini"

# Gemini's names start with a letter or an underscore (GEM-10); of its alphabet, what every provider takes is enough.
_LEGAL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}").fullmatch
_LONGEST: Final = 64
_GROUP: Final = "generationConfig."
_OWN_TOOLS: Final = frozenset(
    {
        "functionDeclarations", "function_declarations", "googleSearch", "google_search", "googleSearchRetrieval",
        "codeExecution", "code_execution", "urlContext", "url_context", "fileSearch", "googleMaps", "computerUse",
        "enterpriseWebSearch", "retrieval",
    }
)  # fmt: skip
_MODES: Final[dict[Choice, str]] = {"auto": "AUTO", "any": "ANY", "tool": "ANY", "none": "NONE"}
# What only a declaration of Gemini's says, as it is.
_OF_DECLARATIONS: Final = ("response", "responseJsonSchema", "response_json_schema", "behavior")
_OPEN: Final = b'"additionalProperties"'
_DECLARATION: Final = frozenset({"name", "description", "parameters", *_OF_DECLARATIONS} | DECLARED_SCHEMAS)

_encode = msgspec.json.Encoder().encode


def function_name(name: str) -> str:
    """A function's name as the API takes it; two names never give one."""
    if _LEGAL(name):
        return name
    # A digest is what keeps the new names apart; every one of them has it.
    return f"_{legal_name(f' {name}', _LONGEST - 1)}".replace("__", "_", 1)


def write_head(setting: Setting, system: Sequence[Piece]) -> WrittenHead:
    writer = HeadWriter(_SHAPE, setting)
    keys: dict[str, Any] = {}
    params = writer.read_params()
    given = [_text_of(each) for each in writer.prompt_texts(keeps_blanks=True)]
    words = [text for text in given if text is not None]
    words += [piece.block.text for piece in writer.system_rows(system) if isinstance(piece.block, Text)]
    prompt = _instruction(words, params.values.get("systemInstruction"))
    if prompt is not None:
        keys["systemInstruction"] = prompt
    functions, own = _tools(writer)
    tools = [*([{"functionDeclarations": functions}] if functions else []), *own]
    if tools:
        keys["tools"] = tools
    choice = writer.choice(params, tools=bool(functions))
    if choice is not None:
        named = {"allowedFunctionNames": [function_name(choice.name)]} if choice.kind == "tool" else {}
        keys["toolConfig"] = {"functionCallingConfig": {"mode": choice.spelt or _MODES[choice.kind], **named}}
    places = {**_SHAPE.places, **{name: name for name in params.values if name.startswith(_GROUP)}}
    beside = writer.placed(params, places)
    generation = beside.pop("generationConfig", None)
    keys = beside | keys
    if generation:
        keys["generationConfig"] = generation
    return WrittenHead(_encode(keys), writer.fixes)


def _text_of(said: PromptText) -> str | None:
    """A text, a blank one as it was given, which this API takes; None where there is none."""
    if said.text or "text" not in said.keys:
        return said.text or None
    blank = msgspec.json.decode(said.keys["text"])
    return blank if isinstance(blank, str) else None


def _instruction(words: list[str], given: Raw | None) -> Any:  # noqa: ANN401  JSON
    parts: list[Any] = [{"text": text} for text in words]
    if given is None:
        return {"parts": parts} if parts else None
    if not parts:
        return given
    own = msgspec.json.decode(given)
    before = own.get("parts", []) if isinstance(own, dict) else []
    return {"parts": [*(before if isinstance(before, list) else [before]), *parts]}


def _tools(writer: HeadWriter) -> tuple[list[dict[str, Any]], list[Any]]:
    functions: list[dict[str, Any]] = []
    own: list[Any] = []
    for each in writer.declared_tools():
        given = each.given
        if each.own:
            own.append(given)
            continue
        writer.note_unread(each, "cache_control", *_OF_DECLARATIONS)
        # The field `parameters` knows only a part of JSON Schema (GEM-20).
        if given and given.keys() <= _DECLARATION and _OPEN not in bytes(given.get("parameters", b"")):
            functions.append(given | {"name": each.tool.name})
            continue
        more: dict[str, Any] = {key: given[key] for key in _OF_DECLARATIONS if key in given}
        schema = {"parametersJsonSchema": each.tool.input_schema}
        functions.append({"name": each.tool.name, **each.described, **schema, **more})
    return functions, own


def _is_own(tool: Tool, given: Mapping[str, Raw]) -> bool:
    return bytes(tool.input_schema) == b"null" and given.keys() <= _OWN_TOOLS


_SHAPE: Final = HeadShape(
    target=NAME,
    places={
        "max_tokens": "generationConfig.maxOutputTokens",
        "temperature": "generationConfig.temperature",
        "top_p": "generationConfig.topP",
        "top_k": "generationConfig.topK",
        "stop_sequences": "generationConfig.stopSequences",
        "n": "generationConfig.candidateCount",
        "seed": "generationConfig.seed",
        "presence_penalty": "generationConfig.presencePenalty",
        "frequency_penalty": "generationConfig.frequencyPenalty",
        # The API's own parameters besides, each also in its other spelling.
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
    },
    elsewhere=frozenset(
        {"messages", "contents", "model", "system", "tools", "tool_choice", "systemInstruction", "cache_control"}
    ),
    # `temperature must be in the range [0.0, 2.0]`, as the API's documentation has it too.
    bounds={"temperature": (0, 2), "top_p": (0, 1)},
    tool_name=function_name,
    is_own=_is_own,
    choices=tuple(_MODES),
)
