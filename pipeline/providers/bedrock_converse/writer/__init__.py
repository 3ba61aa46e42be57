"""Requests for Bedrock's Converse API.

The tool configuration is after the messages. Converse requires one as soon as the history has calls, even if the caller
gave no tools (BED-10): the tools that the history calls are then declared by their names. Since that list grows, its
place at the end keeps the bytes before it a prefix of the next request. The order of keys has no meaning for the
service; its prompt cache starts with the tools and is rebuilt when one is added, in any order. The model is in the URL,
so the body does not name it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock, is_point
from reknit.pipeline.model import RedactedThinking, Role, Text, Thinking, Tool, ToolResult, ToolUse
from reknit.pipeline.options import STRICT, HeadOptions, Structure
from reknit.pipeline.providers.anthropic.writer import NO_PREFILL_SINCE, is_thinking
from reknit.pipeline.providers.anthropic.writer.blocks import version_of
from reknit.pipeline.providers.anthropic.writer.models import fit_to_claude
from reknit.pipeline.providers.bedrock_converse.wire import written_message
from reknit.pipeline.providers.bedrock_converse.writer.blocks import (
    ConverseBlockAdapter,
    is_document,
    point_after,
    tool_name,
)
from reknit.pipeline.providers.bedrock_converse.writer.fitness import (
    NAME,
    SYSTEM_BLOCKS,
    fit_reasoning,
    unpaired_halves,
)
from reknit.pipeline.providers.bedrock_converse.writer.settings import own_form, own_settings, with_own_form
from reknit.pipeline.providers.bedrock_converse.writer.unchanged import piece_stays, written_in_one_pass
from reknit.pipeline.targets import (
    Encoded,
    Ending,
    ListDialect,
    Setting,
    row,
    stub_for,
    without_trailing_space,
)
from reknit.pipeline.targets.bound import void_of
from reknit.pipeline.targets.facts import Fitting, member
from reknit.pipeline.targets.fitting import MOST_MARKS, mark_of, point_of
from reknit.pipeline.targets.head import HeadWriter, Params, before_list
from reknit.pipeline.targets.schemas import COMBINATORS
from reknit.pipeline.targets.settings import mapped
from reknit.pipeline.targets.signatures import endpoint_of
from reknit.pipeline.targets.strict import StrictTools
from reknit.pipeline.targets.valid_run import EncodedRun, RunMessages

# The models that keep a prompt in a cache; others refuse breakpoints. Of Claude, those since 3.5 (positron#12142). A
# profile of the caller's own does not say which model it calls, so its breakpoints stay.
_CACHING_SINCE: Final = (3, 5)
_OPAQUE: Final = ("application-inference-profile/", "provisioned-model/")
# Parameters of Claude under Anthropic's name, in addition to the service's own.
_OF_CLAUDE: Final = ("top_k", "thinking", "output_config")
# Parameters of Claude that the service has under names of its own; it passes the others on.
_PLACES: Final = {
    "temperature": "inferenceConfig.temperature",
    "top_p": "inferenceConfig.topP",
    "max_tokens": "inferenceConfig.maxTokens",
}
# The types of parameters (BED-31); another provider may have one of another type under the same name.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "inferenceConfig.maxTokens": (int,),
    **dict.fromkeys(("inferenceConfig.temperature", "inferenceConfig.topP"), (int, float)),
    **dict.fromkeys(("inferenceConfig.stopSequences", "additionalModelResponseFieldPaths"), (list,)),
    **dict.fromkeys(
        (
            "guardrailConfig", "promptVariables", "requestMetadata", "performanceConfig", "serviceTier", "outputConfig",
            "additionalModelRequestFields",
        ),
        (dict,),
    ),
}  # fmt: skip
_STOPS: Final = "inferenceConfig.stopSequences"
# A block of a system prompt that is the service's own.
_GUARDED: Final = frozenset({frozenset({"guardContent"})})
_OWN_TOOLS: Final = ({"toolSpec"}, {"systemTool"}, {"cachePoint"})

_encode = msgspec.json.Encoder().encode


class ConverseHead(Struct, frozen=True):
    """The head as JSON objects: ``keys`` before the messages, ``tools`` (``b""`` without any) after them.

    ``points_left`` is the number of cache breakpoints that the messages may have.
    """

    keys: dict[str, Any]
    tools: bytes
    fixes: list[Fix]
    points_left: int


def write_head(setting: Setting, system: Sequence[TrackedBlock]) -> ConverseHead:
    """Return the parts around the messages of every request of a session."""
    model = (setting.model or "").lower()
    claude = not model or "claude" in model
    # The service requires the type, and Claude refuses alternatives (BED-38, BED-38b).
    options = structs.replace(_HEAD, schema_members=COMBINATORS if claude else frozenset())
    writer = HeadWriter(options, setting)
    keys: dict[str, Any] = {}
    most = MOST_MARKS if _caches(model) else 0
    prompt = [*_given_system(writer), *_system_rows(writer.system_rows(system))]
    prompt, left = _with_marks(prompt, "system", writer, most)
    if prompt:
        keys["system"] = prompt
    params = mapped(writer, with_own_form(writer.read_params(), model), own_settings(model, setting.params))
    given = params = own_form(writer, params, model)
    if "claude" in model:
        params = _with_fields(params)
    fitting = Fitting(writer=writer, params=params)
    placed = _with_stops(fitting, fitting.fit_types(writer.placed(params), _TYPES), claude="claude" in model)
    keys |= fit_to_claude(writer, given, placed, _place_of) if "claude" in model else placed
    # Nova takes breakpoints in the prompt and in messages (danny-avila/LibreChat#13838).
    for_tools = 0 if "nova" in model else left
    tools, unused = _with_marks([Raw(tool) for tool in _tools(writer)], "tools", writer, for_tools)
    left -= for_tools - unused
    choice = writer.choice(params, tools=bool(tools))
    config: dict[str, Any] = {"tools": tools}
    if choice is not None:
        config["toolChoice"] = {choice.kind: {"name": tool_name(choice.name)} if choice.kind == "tool" else {}}
    return ConverseHead(keys, _encode(config) if tools else b"", writer.fixes, left)


def _caches(model: str) -> bool:
    if "claude" in model:
        version = version_of(model)
        return version is None or version >= _CACHING_SINCE
    return not model or "nova" in model or any(name in model for name in _OPAQUE)


def stub_tools(names: Iterable[str]) -> bytes:
    """A tool configuration that declares the tools a history calls, by their names alone (BED-10)."""
    return _encode({"tools": [_specified(name, UNSET, Raw(b'{"type":"object","properties":{}}')) for name in names]})


def _place_of(parameter: str) -> str:
    return _PLACES.get(parameter, f"additionalModelRequestFields.{parameter}")


def _with_fields(params: Params) -> Params:
    """The parameters with those that Claude takes under Anthropic's names among the model's own; given ones win."""
    fields = {name: params.values[name] for name in _OF_CLAUDE if name in params.values}
    if not fields:
        return params
    given: Any = msgspec.json.decode(params.values.get("additionalModelRequestFields", b"{}"))
    joined = Raw(_encode({**fields, **given} if isinstance(given, dict) else fields))
    values = {name: value for name, value in params.values.items() if name not in fields}
    return structs.replace(params, values=values | {"additionalModelRequestFields": joined})


def _given_system(writer: HeadWriter) -> Iterator[Any]:
    for block in writer.prompt_texts(_GUARDED):
        if block.text:
            yield {"text": block.text}
        elif frozenset(block.keys) in _GUARDED:
            yield block.keys
        yield from _points(block.keys, f"system.{block.at}", writer)


def _points(keys: Mapping[str, Raw], path: str, writer: HeadWriter) -> Iterator[Raw]:
    """Return the breakpoint of a block or tool, as a separate block after it, if it has a valid one."""
    mark = keys.get("cache_control")
    if mark is None or bytes(mark) == b"null":
        return
    point = point_of(mark)
    if point is None:
        writer.note_fix("cache_mark_dropped", path, before=mark)
    else:
        yield point


def _system_rows(rows: Sequence[TrackedBlock]) -> Iterator[Any]:
    for piece in rows:
        if isinstance(piece.block, Text):
            yield {"text": piece.block.text}
            point = None if piece.block.cache_control is UNSET else point_of(piece.block.cache_control)
            if point is not None:
                yield point


def _any(_schema: Raw) -> bool:
    return True


def _tools(writer: HeadWriter) -> Iterator[bytes]:
    compiles = StrictTools().take if "claude" in (writer.setting.model or "").lower() else _any
    for each in writer.declared_tools():
        if each.own:
            yield _encode(each.given)
            continue
        made = _specified(each.tool.name, each.tool.description, each.tool.input_schema)
        if "strict" in each.members and writer.stays_strict(each, each.members["strict"], compiles):
            made["toolSpec"]["strict"] = each.members["strict"]
        writer.note_unread(each, "strict", "cache_control")
        yield _encode(made)
        yield from map(bytes, _points(each.given, each.path, writer))


def _is_own(tool: Tool, given: Mapping[str, Raw]) -> bool:
    return bytes(tool.input_schema) == b"null" and given.keys() in _OWN_TOOLS


def _with_stops(fitting: Fitting, body: dict[str, Any], *, claude: bool) -> dict[str, Any]:
    """Return a body without empty stop sequences, and for Claude without blank ones, which it refuses (ANT-46)."""
    stops = member(body, _STOPS)
    if not isinstance(stops, list):
        return body
    said = [stop for stop in stops if isinstance(stop, str) and (stop.strip() if claude else stop)]
    return body if said == stops else fitting.change(body, _STOPS, stops, said or None)


def _with_marks(items: list[Any], path: str, writer: HeadWriter, most: int) -> tuple[list[Any], int]:
    """Return the items with the last ``most`` of their breakpoints, and how many more there is room for."""
    marked = [at for at, item in enumerate(items) if mark_of(_encoded(item)) is not None]
    excess = set(marked[: max(0, len(marked) - most)])
    if excess:
        writer.note_fix("cache_mark_dropped", path)
    return [item for at, item in enumerate(items) if at not in excess], max(0, most - len(marked))


def _encoded(item: Any) -> Raw:  # noqa: ANN401  JSON
    return item if isinstance(item, Raw) else Raw(_encode(item))


def _specified(name: str, description: str | msgspec.UnsetType, schema: Raw) -> dict[str, Any]:
    said = {} if description is UNSET or not description else {"description": description}
    return {"toolSpec": {"name": name, **said, "inputSchema": {"json": schema}}}


_HEAD: Final = HeadOptions(
    target=NAME,
    places={
        "max_tokens": "inferenceConfig.maxTokens",
        "temperature": "inferenceConfig.temperature",
        "top_p": "inferenceConfig.topP",
        "stop_sequences": "inferenceConfig.stopSequences",
        **{
            name: name
            for name in (
                "guardrailConfig", "additionalModelRequestFields", "promptVariables",
                "additionalModelResponseFieldPaths", "requestMetadata", "performanceConfig", "serviceTier",
                "outputConfig",
            )
        },
    },
    elsewhere=frozenset({"messages", "model", "modelId", "system", "tools", "tool_choice"}),
    # Beyond these the service refuses a request (BED-34).
    bounds={"max_tokens": (1, math.inf), "temperature": (0, 1), "top_p": (0, 1)},
    tool_name=tool_name,
    is_own=_is_own,
    # There is no choice that forbids tools.
    choices=("auto", "any", "tool"),
)  # fmt: skip


# The text next to a document in a message without text (BED-21).
_DOCUMENT_TEXT: Final = "See the attached document."
# The assistant's text between results and words that must not share a turn (BED-17).
_BETWEEN: Final = "I have the results."
_RESULTS_ALONE: Final = ("llama", "mistral")

# Which Claude was recorded to begin with the assistant, and since which the end may be its with tools as well.
_ASSISTANT_FIRST: Final = (4, 5)
_PREFILL_SINCE: Final = (3, 5)
# Nova's second generation continues an answer.
_NOVA_2: Final = re.compile(r"(?<![a-z])nova-2(?![\w.])")


class ConverseProgress(Struct, frozen=True, array_like=True):
    """The number of messages, the names of their documents, and the called tools if the caller declared none.

    ``numbers`` are the last numbers that distinguish repeated names; state of before 0.2.0 has none. ``held`` are media
    of results that more results follow; empty once all messages of an exchange are written. ``points`` is the number of
    cache breakpoints in the messages.
    """

    count: int = 0
    documents: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    numbers: dict[str, int] = {}
    held: list[TrackedBlock] = []
    points: int = 0


class ConverseDialect(ListDialect):
    def __init__(self, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        self.state = ConverseProgress()
        self._observed = setting.observed
        self._model = (setting.model or "").lower()
        self._endpoint = endpoint_of(setting, NAME, "bedrock")
        self._bound = setting.is_prefix_bound(self._endpoint)
        self._void = setting.void_at(self._endpoint)
        self._results_alone = any(name in self._model for name in _RESULTS_ALONE)
        self._results_alone = self._results_alone and "assistant_inserted" not in self._observed
        head = write_head(setting, system)
        self.fixes = head.fixes
        self._before = _encode(head.keys)
        self._tools = head.tools
        self._points_left = head.points_left
        self.head = self._whole_head(head.tools)
        self.prefix = before_list(self._before, "messages")

    def encode_message(self, message: Message, state: ConverseProgress, *, final: bool) -> Encoded:
        """Write one message.

        Of the breakpoints of settled messages, those that came as blocks stay, up to the limit (BED-41): a request that
        keeps to it stays as it is. The others are not set, because only the newest ones are useful.
        """
        is_plain = bool(self._tools and message.pieces) and not (final or state.held or self._results_alone)
        if not is_plain or not all(map(piece_stays, message.pieces)):
            own = [piece.path for piece in message.pieces if is_point(piece.block)]
            return self._write(message, state, final=final, points=own[: self._room(state)])
        count = state.count
        return Encoded(
            data=_encode(written_message(message.role, [piece.block for piece in message.pieces])),
            state=structs.replace(state, count=count + 1),
            rows=[row(piece, f"messages.{count}.content.{at}") for at, piece in enumerate(message.pieces)],
        )

    def _write(self, message: Message, state: ConverseProgress, *, final: bool, points: Container[str] = ()) -> Encoded:
        book = FixLog(NAME, self._observed)
        fitting = ConverseBlockAdapter(
            book=book,
            model=self._model,
            before=state.documents,
            numbers=state.numbers,
            points=points,
            system=message.role == "system",
            results_follow=message.results_follow,
            held=state.held,
        )
        halves = () if "claude" in self._model else unpaired_halves(message, self._model)
        pieces = fitting.fit_message(message.pieces, dict.fromkeys(halves, "server_tool_unpaired"))
        # Reasoning is judged last: a turn that has lost a block to the fitting keeps none of it.
        changed = message.changed | fitting.dropped
        void = void_of(self._void, NAME)
        pieces = fit_reasoning(pieces, changed, self._model, self._endpoint, book, void=void, in_place=self._bound)
        pieces = _without_points_of_reasoning(pieces, book)
        if final:
            pieces = without_trailing_space(pieces, book)
        turns = self._turns(message, _worded(message, pieces, book), state.count, book)
        tools = state.tools
        if not self._tools:
            called = (piece.block.name for piece in fitting.out if isinstance(piece.block, ToolUse))
            tools = tuple(dict.fromkeys((*tools, *called)))
        return Encoded(
            data=b",".join(_encode(written_message(role, [piece.block for piece in pieces])) for role, pieces in turns),
            state=ConverseProgress(
                state.count + len(turns),
                fitting.titles,
                tools,
                fitting.numbers,
                fitting.held,
                state.points + sum(is_point(piece.block) for piece in pieces),
            ),
            rows=[
                row(piece, f"messages.{number}.content.{at}")
                for number, (_, pieces) in enumerate(turns, state.count)
                for at, piece in enumerate(pieces)
            ],
            fixes=book.fixes,
            dropped=book.dropped,
        )

    def encode_valid_run(self, run: RunMessages, part: range, state: ConverseProgress) -> EncodedRun | None:
        """Write the messages of a valid run, if their tools' names can stay and nothing is put between or into them."""
        if self._results_alone or not self._tools or any(tool_name(name) != name for name in run.names):
            return None
        book, void = FixLog(NAME, self._observed), void_of(self._void, NAME)
        data, origins = written_in_one_pass(run, part, self._model, self._endpoint, void, book=book)
        if not origins:
            return None
        return EncodedRun(
            data=data,
            state=structs.replace(state, count=state.count + len(origins)),
            end=part.start + len(origins),
            origins=origins,
            fixes=book.fixes,
            dropped=book.dropped,
        )

    def encode_ending(
        self, messages: Sequence[Message], state: ConverseProgress, settled: int, *, final: bool
    ) -> Ending:
        """Write the open messages and, after them, the tools; an answer to continue does not end in whitespace."""
        del settled
        write = partial(self._write, points=self._newest_points(messages, state))
        parts = self.encode_open(messages, state, final=final, write=write)
        state = parts[-1].state if parts else state
        if self._tools or not state.tools or "tools_stubbed" in self._observed:
            return Ending(parts=parts, suffix=self._suffix(self._tools), last=state.count - 1)
        tools = stub_tools(state.tools)
        fix = make("tools_stubbed", "toolConfig", target=NAME, detail=", ".join(state.tools))
        parts.append(Encoded(data=b"", state=state, fixes=[fix]))
        return Ending(parts=parts, suffix=self._suffix(tools), head=self._whole_head(tools), last=state.count - 1)

    def _room(self, state: ConverseProgress) -> int:
        """The number of breakpoints that later messages may have."""
        return max(0, self._points_left - state.points)

    def _newest_points(self, messages: Sequence[Message], state: ConverseProgress) -> frozenset[str]:
        """The places of the open breakpoints that there is room for after the settled ones."""
        room = self._room(state)
        marked = [
            piece.path
            for message in messages
            for piece in message.pieces
            if is_point(piece.block) or point_after(piece.block)
        ]
        return frozenset(marked[-room:] if room else ())

    def _turns(
        self, message: Message, pieces: list[TrackedBlock], count: int, book: FixLog
    ) -> list[tuple[Role, list[TrackedBlock]]]:
        """Return the message as one, or as three if its results must be separate."""
        if not self._results_alone:
            return [(message.role, pieces)]
        results = [piece for piece in pieces if isinstance(piece.block, ToolResult)]
        if not results or len(results) == len(pieces):
            return [(message.role, pieces)]
        words = [piece for piece in pieces if not isinstance(piece.block, ToolResult)]
        book.note_fix("assistant_inserted", f"messages.{count + 1}.content.0")
        between = TrackedBlock(Text(text=_BETWEEN), -1, "", fate="synthesised", code="assistant_inserted")
        return [("user", results), ("assistant", [between]), ("user", words)]

    def _suffix(self, tools: bytes) -> bytes:
        return b'],"toolConfig":%b}' % tools if tools else b"]}"

    def _whole_head(self, tools: bytes) -> bytes:
        if not tools:
            return self._before
        return self._before[:-1] + (b"," if len(self._before) > 2 else b"") + b'"toolConfig":%b}' % tools


def _without_points_of_reasoning(pieces: list[TrackedBlock], book: FixLog) -> list[TrackedBlock]:
    """Return the pieces without breakpoints directly after reasoning (BED-40)."""
    if not book.makes("cache_point_dropped"):
        return pieces
    kept: list[TrackedBlock] = []
    for piece in pieces:
        if kept and is_point(piece.block) and isinstance(kept[-1].block, (Thinking, RedactedThinking)):
            book.drop("cache_point_dropped", piece)
        else:
            kept.append(piece)
    return kept


def _worded(message: Message, pieces: list[TrackedBlock], book: FixLog) -> list[TrackedBlock]:
    """Return the pieces with required words added: next to a document, or in a turn without other content."""
    said = [piece for piece in pieces if not is_point(piece.block)]
    if not said:
        return [stub_for(message, book), *pieces]
    document = next((piece for piece in said if is_document(piece.block)), None)
    if document is None or any(isinstance(piece.block, Text) for piece in said):
        return pieces
    if not book.makes("document_text_added"):
        return pieces
    book.note_fix("document_text_added", document.path, tool_id=document.tool_id)
    added = TrackedBlock(Text(text=_DOCUMENT_TEXT), -1, "", fate="synthesised", code="document_text_added")
    return [*pieces, added]


def _structure_of_family(setting: Setting) -> Structure:
    model = (setting.model or "").lower()
    both: frozenset[Role] = frozenset({"user", "assistant"})
    if "claude" in model:
        version = version_of(model)
        prefill = version is not None and _PREFILL_SINCE <= version < NO_PREFILL_SINCE and not is_thinking(setting)
        return Structure(
            assistant_first=version == _ASSISTANT_FIRST,
            assistant_last="text" if prefill else "never",
            prefix_bound=setting.is_prefix_bound(endpoint_of(setting, NAME, "bedrock")),
        )
    if "nova" in model:
        prefill = _NOVA_2.search(model) is not None
        last: Literal["text", "never"] = "text" if prefill else "never"
        return Structure(assistant_last=last, neighbours=both, blank=both, blank_results=True, ids_again=True)
    return Structure(neighbours=both) if "titan" in model else STRICT


class BedrockConverse:
    name = NAME
    text = False
    tail_rule = "BED-11"
    tail_rules = frozenset({"BED-01", "BED-03b", "BED-11", "BED-11b"})

    def structure(self, setting: Setting) -> Structure:
        """Return the structure of accepted recorded requests, by the model's family."""
        return structs.replace(_structure_of_family(setting), system_blocks=SYSTEM_BLOCKS)

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> ConverseDialect:
        return ConverseDialect(setting, system)
