"""Gemini's generateContent: a turn is a content, a block a part of it.

Calls and responses are matched by their order and number, so responses come in the order of their calls. Ids that came
in this shape go back; those of other shapes are sent to the models that write ids themselves, Gemini 3 and later, as
some older surfaces refuse them (GEM-11). Ids that reading made up are never sent. The model is in the URL, so the body
does not name it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.history.exchanges import calls_last
from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock
from reknit.pipeline.history.readers.head import DECLARED_SCHEMAS
from reknit.pipeline.model import Text, Thinking, Tool, ToolUse
from reknit.pipeline.options import Choice, HeadOptions, Structure
from reknit.pipeline.providers.gemini.reader import either_spelling
from reknit.pipeline.providers.gemini.writer.blocks import (
    NAME,
    GeminiBlockAdapter,
    function_name,
    in_order,
    reasoning_fault,
    shows_id,
    signed,
    unfit_reasoning,
    wants_signatures,
    written,
)
from reknit.pipeline.providers.gemini.writer.models import fit_to_gemini
from reknit.pipeline.providers.gemini.writer.settings import own_settings
from reknit.pipeline.providers.gemini.writer.valid_run import WrittenContents
from reknit.pipeline.targets import Encoded, ListDialect, Setting, in_common_words, row, stub_for
from reknit.pipeline.targets.head import HeadWriter, WrittenHead
from reknit.pipeline.targets.schemas import COMBINATORS
from reknit.pipeline.targets.settings import mapped
from reknit.pipeline.targets.signatures import endpoint_of
from reknit.pipeline.targets.valid_run import EncodedRun, RunMessages
from reknit.pipeline.text.flatten import PromptText

_GROUP: Final = "generationConfig."
_TOOLS: Final = (
    "codeExecution", "computerUse", "enterpriseWebSearch", "exaAiSearch", "fileSearch", "functionDeclarations",
    "googleMaps", "googleSearch", "googleSearchRetrieval", "mcpServers", "parallelAiSearch", "retrieval", "urlContext",
)  # fmt: skip
_OWN_TOOLS: Final = frozenset(either_spelling(_TOOLS))
_MODES: Final[dict[Choice, str]] = {"auto": "AUTO", "any": "ANY", "tool": "ANY", "none": "NONE"}
# Members that only Gemini's declarations have, unchanged.
_OF_DECLARATIONS: Final = ("response", "responseJsonSchema", "response_json_schema", "behavior")
_NOT_ITS_OWN: Final = re.compile(rb'"(additionalProperties|oneOf|allOf)"\s*:')
_COMBINED: Final = re.compile(rb'"(oneOf|allOf)"\s*:')
_DECLARATION: Final = frozenset({"name", "description", "parameters", *_OF_DECLARATIONS} | DECLARED_SCHEMAS)

_encode = msgspec.json.Encoder().encode


def write_head(setting: Setting, system: Sequence[TrackedBlock]) -> WrittenHead:
    writer = HeadWriter(_HEAD, setting)
    keys: dict[str, Any] = {}
    params = mapped(writer, writer.read_params(), own_settings(setting))
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
    places = {**_HEAD.places, **{name: name for name in params.values if name.startswith(_GROUP)}}
    top_level = writer.placed(params, places)
    top_level = fit_to_gemini(writer, params, top_level)
    generation = top_level.pop("generationConfig", None)
    keys = top_level | keys
    if generation:
        keys["generationConfig"] = generation
    return WrittenHead(_encode(keys), writer.fixes)


def _text_of(said: PromptText) -> str | None:
    """Return a text, a blank one unchanged, because this API takes it; None if there is none."""
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
        if _is_declaration(given, _NOT_ITS_OWN):
            functions.append(given | {"name": each.tool.name})
            continue
        more: dict[str, Any] = {key: given[key] for key in _OF_DECLARATIONS if key in given}
        schema = {"parametersJsonSchema": each.tool.input_schema}
        functions.append({"name": each.tool.name, **each.described, **schema, **more})
    return functions, own


def _is_declaration(given: Mapping[str, Raw], unknown: re.Pattern[bytes] = _COMBINED) -> bool:
    """Return True for a declaration in the API's words; `parameters` has a part of JSON Schema (GEM-20, GEM-20b)."""
    in_own_dialect = unknown.search(bytes(given.get("parameters", b""))) is None
    return bool(given) and given.keys() <= _DECLARATION and in_own_dialect


def _is_own(tool: Tool, given: Mapping[str, Raw]) -> bool:
    return bytes(tool.input_schema) == b"null" and given.keys() <= _OWN_TOOLS


_HEAD: Final = HeadOptions(
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
    schema_members=COMBINATORS,
    keeps_schema=_is_declaration,
)


class GeminiProgress(Struct, frozen=True, array_like=True):
    """The number of contents, and the calls of the last one: the function's name by the call's id.

    ``unnamed`` are the ids of those calls that were written without their id. ``held`` are media of results that more
    results follow; none once all contents of an exchange are written.
    """

    count: int = 0
    calls: dict[str, str] = {}
    unnamed: frozenset[str] = frozenset()
    held: list[TrackedBlock] = []


class GeminiDialect(ListDialect):
    def __init__(self, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        self.state = GeminiProgress()
        self._model = setting.model
        self._observed = setting.observed
        self._endpoint = endpoint_of(setting, NAME)
        self._newer = wants_signatures(setting.model)
        head = write_head(setting, system)
        self.fixes = head.fixes
        self.head = head.data
        self.prefix = head.before("contents")

    def encode_message(self, message: Message, state: GeminiProgress, *, final: bool) -> Encoded:  # noqa: ARG002  an answer to continue is written like any other
        book = FixLog(NAME, self._observed)
        message = in_common_words(message, book)
        fitting = GeminiBlockAdapter(
            book=book, media_in_results=self._newer, results_follow=message.results_follow, held=state.held
        )
        pieces = fitting.fit_message(message.pieces, unfit_reasoning(message, self._model, self._endpoint))
        if all(isinstance(piece.block, Thinking) for piece in pieces) and (not pieces or book.makes("reasoning_alone")):
            for piece in pieces:
                book.drop("reasoning_alone", piece)
            pieces = [stub_for(message, book)]
        # A response names its call's function, which is in the previous turn.
        calls, unnamed = state.calls, state.unnamed
        if message.role == "assistant":
            if book.fixes:
                # A line of text may now replace an image after a call.
                pieces = calls_last(pieces, set(), book)
            called = {piece.block.id: piece for piece in pieces if isinstance(piece.block, ToolUse)}
            calls = {call_id: piece.block.name for call_id, piece in called.items()}  # type: ignore[union-attr]  # calls
            named = {each for each, piece in called.items() if shows_id(piece, calls[each], always=self._newer)}
            if named and not self._newer:
                # Next to a call with its id, one without would take the results of both.
                named = {each for each, piece in called.items() if shows_id(piece, calls[each], always=True)}
            unnamed = frozenset(calls.keys() - named)
        else:
            pieces = in_order(pieces, calls, book)
        parts = signed(pieces, state.count, book, placeholders=self._newer)
        role = "model" if message.role == "assistant" else message.role
        shown = [written(part, calls, unnamed, always=self._newer) for part in parts]
        return Encoded(
            data=_encode({"role": role, "parts": shown}),
            state=GeminiProgress(state.count + 1, calls, unnamed, fitting.held),
            rows=[row(part.piece, f"contents.{state.count}.parts.{at}") for at, part in enumerate(parts)],
            fixes=book.fixes,
            dropped=book.dropped,
        )

    def encode_valid_run(self, run: RunMessages, part: range, state: GeminiProgress) -> EncodedRun | None:
        """Write the messages of a valid run as they are, if their functions' names can stay."""
        if state.held or any(function_name(name) != name for name in run.names):
            return None
        written = WrittenContents(
            count=state.count,
            calls=state.calls,
            unnamed=state.unnamed,
            newer=self._newer,
            book=FixLog(NAME, self._observed),
            fault=lambda block, _: reasoning_fault(block, self._model, self._endpoint),
        )
        written.write(run, part)
        if not written.contents:
            return None
        return EncodedRun(
            data=written.data,
            state=GeminiProgress(written.count, written.calls, written.unnamed),
            end=part.start + len(written.contents),
            origins=written.origins,
            fixes=written.book.fixes,
            dropped=written.book.dropped,
        )


class Gemini:
    name = NAME
    text = False
    tail_rule = "GEM-09"
    tail_rules = frozenset({"GEM-05", "GEM-09"})

    def structure(self, setting: Setting) -> Structure:  # noqa: ARG002  all models have it from the API, images that some of them draw included
        return Structure(
            leads=True,
            assistant_last="always",
            neighbours=frozenset({"user"}),
            assistant_media=True,
            unanswered=True,
            blank=frozenset({"user", "assistant"}),
            ids_again=True,
            own=NAME,
        )

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> GeminiDialect:
        return GeminiDialect(setting, system)
