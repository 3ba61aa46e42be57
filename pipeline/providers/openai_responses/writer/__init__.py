"""Requests for OpenAI's Responses API: a flat list of items instead of messages.

An item of this API is sent back unchanged, with its id. Such an id names an object that the provider stores, and then
an item must not be without its neighbour (RSP-03 to RSP-06), so the id is removed if the neighbour was. Reasoning is
sent back to its issuer only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.history.pieces import STRIPPED, FixLog, Message, TrackedBlock, is_blank
from reknit.pipeline.model import Block, RedactedThinking, Text, Thinking, Tool, ToolResult, ToolUse, Turn, Unknown
from reknit.pipeline.options import HeadOptions, MessageOptions, Structure
from reknit.pipeline.providers.openai.writer import (
    JSON_NOTE,
    OpenAIBlockAdapter,
    OpenAIDialect,
    Said,
    fitted_system,
    has_json,
    result_content,
    said_by_user,
    system_message,
    system_messages,
)
from reknit.pipeline.providers.openai.writer.models import fit_to_model
from reknit.pipeline.providers.openai.writer.parameters import (
    CHOICE,
    SAMPLING_BOUNDS,
    SCHEMA_MEMBERS,
    Function,
    openai_params,
    tool_name,
    with_choice,
    write_choice,
    write_tools,
)
from reknit.pipeline.providers.openai.writer.parts import encode, own_members
from reknit.pipeline.providers.openai.writer.settings import (
    JSON_OBJECT,
    asks_json,
    compiles_strict,
    efforts_of,
    own_form,
    takes_forms,
    takes_objects,
    write_form,
)
from reknit.pipeline.providers.openai_responses.writer.items import (
    NAMED_BY_ANOTHER,
    OWN,
    FunctionTool,
    ResponsesParts,
    call_item,
    fits_prefix,
    is_own_reasoning,
    is_plain_message,
    is_reasoning_block,
    led_to,
    message_item,
    native_id,
    output_part,
    reasoning_fault,
    reasoning_item,
    result_item,
    takes_trailing,
    unfit_reasoning,
    without_repeated_ids,
)
from reknit.pipeline.providers.openai_responses.writer.own_items import OwnItems
from reknit.pipeline.providers.openai_responses.writer.valid_run import WrittenItems
from reknit.pipeline.targets import STUB, Encoded, Ending, Row, Setting, in_common_words, row, stub_for
from reknit.pipeline.targets.head import HeadWriter, Params, WrittenHead, members_of, prompt_as_text
from reknit.pipeline.targets.settings import GROUPS, AnswerForm, OwnSettings, Reasoning, Written, mapped, nearest
from reknit.pipeline.targets.signatures import endpoint_of
from reknit.pipeline.targets.valid_run import EncodedRun, RunMessages

NAME: Final = "openai-responses"
PARAMETERS: Final = frozenset(
    {
        "access_programs", "background", "background_options", "client_metadata", "context_management", "conversation",
        "image", "include", "max_output_tokens", "max_tool_calls", "metadata", "moderation", "multi_agent",
        "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream",
        "stream_options", "temperature", "text", "tool_choice", "top_logprobs", "top_p", "truncation", "user",
    }
)  # fmt: skip
"""The parameters that the API's documentation and its library's types name."""

# The tools that the provider runs or defines itself, by type.
_OWN_TOOLS: Final = frozenset(
    {
        "apply_patch", "code_interpreter", "computer", "computer_use_preview", "custom", "file_search",
        "image_generation", "local_shell", "mcp", "namespace", "programmatic_tool_calling", "shell", "tool_search",
        "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
    }
)  # fmt: skip
# Parameters that lead to items outside of the request.
CHAINS: Final = ("previous_response_id", "conversation")
_NO: Final = Raw(b"false")
# The item that adds tools for the turns after it.
_BRINGS_TOOLS: Final = "additional_tools"


def write_head(setting: Setting) -> tuple[WrittenHead, bytes]:
    """The request without its items; and what it says of the choice among tools if items, and nothing else, bring them.

    A stored prompt may bring tools, too.
    """
    writer = HeadWriter(_HEAD, setting)
    params = openai_params(setting.params, "max_output_tokens", _in_own_words)
    if compiles_strict(writer):
        params = own_form(writer, params, "text", "format")
    params = writer.clamped(mapped(writer, params, _own_settings(setting, params)))
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    first = _instructions(writer, params)
    if isinstance(setting.system, str) and not first:
        keys["instructions"] = setting.system  # this API takes a blank one
    elif prompt := "\n\n".join(text for text in [*first, prompt_as_text(setting.system, NAME, writer.fixes)] if text):
        keys["instructions"] = prompt
    tools = write_tools(writer, _tool, _is_responses)
    if tools:
        keys["tools"] = tools
    chosen = with_choice(params, _write_choice, tools=True)
    if tools or "prompt" in params.values:
        return _written(writer, chosen, keys), b""
    params = with_choice(params, _write_choice, tools=False)
    choice = {name: chosen.values[name] for name in CHOICE if name in chosen.values}
    return _written(writer, params, keys), encode(choice)


def _instructions(writer: HeadWriter, params: Params) -> list[str]:
    """The instructions of the input, which come before the system prompt; none of another type than a text."""
    given = msgspec.json.decode(params.values.get("instructions", b"null"))
    if given is None or isinstance(given, str):
        return [] if given is None else [given]
    detail = f"instructions: {msgspec.json.encode(given).decode()}"
    writer.note_fix("parameter_unsupported", params.place("instructions"), before=given, detail=detail)
    return []


def _written(writer: HeadWriter, params: Params, keys: dict[str, Any]) -> WrittenHead:
    body = fit_to_model(writer, params, writer.placed(params, params.each_of(PARAMETERS)), responses=True)
    return WrittenHead(encode(keys | body), writer.fixes)


def _own_settings(setting: Setting, params: Params) -> OwnSettings:
    """The settings of the API, less those that the request has in its terms."""
    given = {name: members_of(params.values[name]) or {} for name in ("text", "reasoning") if name in params.values}
    efforts = efforts_of(setting.model)

    def form(answer: AnswerForm) -> tuple[Written, str] | None:
        if answer.schema is None:
            return ({"text": {"format": JSON_OBJECT}}, "") if takes_objects(setting.model) else None
        written = write_form(answer) if setting.model is None or takes_forms(setting.model) else None
        return None if written is None else ({"text": {"format": {"type": "json_schema", **written[0]}}}, written[1])

    def reasoning(asked: Reasoning) -> tuple[Written, str] | None:
        level = nearest(asked.level, efforts) if efforts else ""
        return ({"reasoning": {"effort": level}}, level) if level else None

    return OwnSettings(
        groups=GROUPS - {"text", "reasoning"},
        answers=frozenset({"text"} if "format" in given.get("text", {}) else ()),
        reasons=frozenset({"reasoning"} if "effort" in given.get("reasoning", {}) else ()),
        form=form,
        reasoning=reasoning,
    )


def _tool(function: Function) -> FunctionTool:
    strict = _NO if function.strict is UNSET else Raw(encode(function.strict))
    return FunctionTool(function.name, function.parameters, strict, function.description)


def _is_own(_tool: Tool, keys: Mapping[str, Any]) -> bool:
    kind = msgspec.json.decode(keys["type"]) if "type" in keys else None
    # A client's tool has a name and a schema, whatever type it says it is of; a custom one of chat has both inside.
    is_clients = "input_schema" in keys or keys.keys() >= {"name", "parameters"} or "custom" in keys
    return isinstance(kind, str) and kind in _OWN_TOOLS and not is_clients


def _is_responses(keys: Mapping[str, Any]) -> bool:
    return "name" in keys and bytes(keys.get("type", b"")) == b'"function"'


def _named(name: str) -> dict[str, str]:
    return {"type": "function", "name": name}


def _write_choice(value: Raw) -> tuple[Any, bool | None]:
    return write_choice(value, _named)


def _in_own_words(params: Params) -> Params:
    """Convert parameters of Chat Completions to their form in this API."""
    values = params.values
    if "reasoning_effort" in values:
        params = params.said_as("reasoning_effort", {"reasoning": Raw(encode({"effort": values["reasoning_effort"]}))})
    text = {"format": _format(values["response_format"])} if "response_format" in values else {}
    text |= {"verbosity": values["verbosity"]} if "verbosity" in values else {}
    if text:
        first, *rest = (name for name in ("response_format", "verbosity") if name in values)
        params = params.said_as(first, {"text": Raw(encode(text))})
        for name in rest:
            params = params.said_as(name, {})
    return params


def _format(value: Raw) -> Any:  # noqa: ANN401  any JSON
    given = msgspec.json.decode(value)
    inner = given.get("json_schema") if isinstance(given, dict) else None
    return {"type": "json_schema", **inner} if isinstance(inner, dict) else given


_HEAD: Final = HeadOptions(
    target=NAME,
    elsewhere=frozenset({"instructions"}),
    bounds={**SAMPLING_BOUNDS, "max_output_tokens": (16, math.inf), "max_tool_calls": (1, math.inf)},  # RSP-20, RSP-20b
    tool_name=tool_name,
    is_own=_is_own,
    schema_members=SCHEMA_MEMBERS,
)


# The number of remembered ids, by which a repeated one is recognised (RSP-05): a repetition is usually near.
_REMEMBERED = 64
_SYSTEM = ("system", "developer")


class ResponsesProgress(Struct, frozen=True, array_like=True):
    """The number of items written, the types of calls whose output has a type of its own, and the last ids.

    ``tools``: an item has brought tools.
    """

    count: int = 0
    asked: dict[str, str] = {}
    ids: list[str] = []
    tools: bool = False


class _Items(Struct, gc=False):
    """The items of one message, each with the places of its pieces.

    ``asked``, ``ids`` and ``tools`` are those of ``ResponsesProgress``, ``count`` is the number of items before;
    ``said`` is the next one's text, unchanged if ``said_stays``. ``lost``: the reasoning that led to the next item was
    removed.
    """

    book: FixLog
    asked: dict[str, str]
    ids: list[str]
    count: int
    tools: bool = False
    items: list[Any] = []
    rows: list[Row] = []
    said: list[TrackedBlock] = []
    said_stays: bool = True
    lost: bool = False

    @property
    def place(self) -> str:
        return f"input.{self.count + len(self.items)}"

    def put(self, item: Any, *rows: Row) -> None:  # noqa: ANN401  an item, ready to encode
        self.items.append(item)
        self.rows += rows

    def put_native(self, block: Unknown, piece: TrackedBlock) -> None:
        """Write a provider-specific item unchanged."""
        if name := native_id(block):
            self.ids.append(name)
        if block.kind == _BRINGS_TOOLS:
            self.tools = self.tools or bool(msgspec.json.decode(block.raw).get("tools"))
        self.put(block.raw, row(piece, self.place))

    def with_id(self, item: dict[str, Any], piece: TrackedBlock, *, stays: bool = True) -> TrackedBlock:
        """Remove the id of an item if it must not ``stay``, is a repetition, or does not belong to its type."""
        if "id" not in item or item["type"] in NAMED_BY_ANOTHER:
            return piece
        name = msgspec.json.decode(item["id"], type=str)
        stays = stays and fits_prefix(item["type"], name) and name not in self.ids
        if stays or not self.book.makes("item_id_dropped"):
            self.ids.append(name)
            return piece
        del item["id"]
        return self.book.change("item_id_dropped", piece, detail=name)

    def say(self, piece: TrackedBlock) -> None:
        """Say a text of the assistant's; an item of the provider's own stays one."""
        if self.said and self.said[0].turn != piece.turn:
            own = not (self.said[0].own is piece.own is UNSET)
            # An item has one id: two input items stay two. A blank text is never next to another text.
            if own or is_blank(piece) or is_blank(self.said[-1]):
                self.put_said()
        if not self.said:
            self.said_stays = not self.lost
        self.said.append(piece)

    def put_said(self) -> None:
        """Write what was said: one text is a string; several, a refusal, or what has an id or its own are parts."""
        if not self.said:
            return
        texts = [piece.block for piece in self.said if isinstance(piece.block, Text)]
        item = message_item("assistant", texts[0].text, own_members(self.said[0].own))
        self.said[0] = self.with_id(item, self.said[0], stays=self.said_stays)
        is_string = len(texts) == 1 and not (texts[0].refusal or "id" in item or own_members(texts[0].own))
        if not is_string:
            item["content"] = [output_part(text) for text in texts]
        place = f"{self.place}.content"
        rows = [row(piece, place if is_string else f"{place}.{at}") for at, piece in enumerate(self.said)]
        self.put(item, *rows)
        self.said = []

    def after(self) -> ResponsesProgress:
        return ResponsesProgress(self.count + len(self.items), self.asked, self.ids[-_REMEMBERED:], self.tools)


class ResponsesDialect(OpenAIDialect):
    state = ResponsesProgress()

    def __init__(self, setting: Setting, system: Sequence[TrackedBlock]) -> None:
        head, self._choice = write_head(setting)
        self.head, self.fixes = head.data, head.fixes
        self.prefix = head.before("input")
        self._model = setting.model
        self._endpoint = endpoint_of(setting, NAME)
        self._stored = bytes(setting.params.get("store", b"")) != b"false"
        # The structure repair leaves no id that is longer than the 64 characters of a call_id (RSP-08).
        self._options = MessageOptions(
            target=NAME,
            parts=ResponsesParts(),
            call_id=str,
            refusal_field=True,
            owners=OWN,
            result_media=True,
            observed=setting.observed,
        )
        book = FixLog(NAME, setting.observed)
        system = fitted_system(system, self._options, book)
        self.fixes += book.fixes
        first = system_messages("", system, self._options, joined=False, takes=_SYSTEM)
        self.system = [{"type": "message", **row} for row in first]
        given = members_of(setting.params.get("text", Raw(b"{}"))) or {}
        needs_json = "format" not in given and asks_json(head.data, "text", "format")
        # Instructions do not count (RSP-21c).
        if needs_json and not has_json(encode(self.system).decode()):
            note = system_messages(JSON_NOTE, [], self._options, joined=False, takes=_SYSTEM)
            self.json_system = [*({"type": "message", **row} for row in note), *self.system]

    def encode_message(self, message: Message, state: ResponsesProgress, *, final: bool) -> Encoded:
        """Write a message; ``final`` says that it is the assistant's and that nothing follows it."""
        book = FixLog(NAME, self._options.observed)
        first = [] if state.count else self.opening(message, book)
        written = _Items(book, dict(state.asked), list(state.ids), state.count + len(first), state.tools)
        message = in_common_words(message, book)
        if message.role == "assistant":
            self._assistant(message, written, final=final)
        elif message.role == "user":
            self._user(message, written)
        else:
            self._system_row(message, written)
        if not written.items and not _leaves_nothing(message, final=final):
            stub = stub_for(message, book)
            role = "assistant" if message.role == "assistant" else "user"
            written.put(message_item(role, STUB, {}), row(stub, f"{written.place}.content"))
        data = b",".join(map(encode, [*first, *written.items]))
        return Encoded(data=data, state=written.after(), rows=written.rows, fixes=book.fixes, dropped=book.dropped)

    def encode_valid_run(self, run: RunMessages, part: range, state: ResponsesProgress) -> EncodedRun | None:
        """Write the messages of a valid run as they are, if their tools' names can stay."""
        if any(tool_name(name) != name for name in run.names) or (self.json_system and not state.count):
            return None
        first = [] if state.count else self.system
        book = FixLog(NAME, self._options.observed)
        own = OwnItems(
            asked=state.asked,
            ids=state.ids,
            remembered=_REMEMBERED,
            is_stored=self._stored,
            drops_ids=book.makes("item_id_dropped"),
            parts=self._options.parts,
            fault=self._fault,
        )
        count = state.count + len(first)
        written = WrittenItems(count=count, options=self._options, own=own, fault=self._fault, book=book)
        written.write(run, part)
        if not written.origins:
            return None
        return EncodedRun(
            data=b",".join([*map(encode, first), written.data]),
            state=structs.replace(state, count=written.count, asked=own.asked, ids=own.ids),
            end=part.start + len(written.origins),
            origins=written.origins,
            fixes=book.fixes,
            dropped=book.dropped,
        )

    def _fault(self, block: Block, _: Turn) -> str:
        return reasoning_fault(block, self._model, self._endpoint, stored=self._stored)

    def encode_ending(
        self, messages: Sequence[Message], state: ResponsesProgress, settled: int, *, final: bool
    ) -> Ending:
        """Write the open messages and, after them, the choice among tools that only items bring."""
        del final
        # The API continues after an answer like after anything else; only reasoning must be followed by an item.
        ending = super().encode_ending(messages, state, settled, final=True)
        brought = (ending.parts[-1].state if ending.parts else state).tools
        if not brought or self._choice in {b"", b"{}"}:
            return ending
        head = self.head[:-1] + (b"," if len(self.head) > 2 else b"") + self._choice[1:]
        return structs.replace(ending, suffix=b"]," + self._choice[1:], head=head)

    def _system_row(self, message: Message, written: _Items) -> None:
        pieces = fitted_system(message.pieces, self._options, written.book)
        item = {"type": "message", **system_message(pieces, self._options, _SYSTEM)}
        many = isinstance(item["content"], list)
        place = f"{written.place}.content"
        written.put(item, *(row(piece, f"{place}.{at}" if many else place) for at, piece in enumerate(pieces)))

    def _assistant(self, message: Message, written: _Items, *, final: bool) -> None:
        book = written.book
        fitting = _ResponsesBlockAdapter(book=book, options=self._options, speaks=True)
        message = structs.replace(message, pieces=without_repeated_ids(message.pieces, written.ids, book))
        if not message.pieces:
            return
        unfit = unfit_reasoning(message, self._model, self._endpoint, stored=self._stored, final=final)
        for at, came in enumerate(message.pieces):
            block = came.block
            if at in unfit:
                book.drop(unfit[at], came, detail=block.kind if isinstance(block, Unknown) else "")
                written.lost = written.lost or is_own_reasoning(block)
                continue
            piece = fitting.fit_piece(came) or came  # none of these goes
            if isinstance(piece.block, Text):
                written.say(piece)
                continue
            written.put_said()
            if isinstance(piece.block, ToolUse):
                self._call(piece, piece.block, written)
            elif is_reasoning_block(block):
                written.lost = False
                item = reasoning_item(block)
                stays = not (self._stored and is_plain_message(led_to(message.pieces, at, unfit)))
                written.put(item, row(written.with_id(item, piece, stays=stays), written.place))
            elif isinstance(block, Unknown) and written.lost:
                book.drop("native_dropped", piece, detail=block.kind)
            elif isinstance(block, Unknown):
                written.put_native(block, piece)
        written.put_said()

    def _call(self, piece: TrackedBlock, use: ToolUse, written: _Items) -> None:
        item = call_item(use)
        piece = written.with_id(item, piece, stays=not written.lost)
        if use.own is not UNSET and use.own.kind:
            written.asked[use.id] = use.own.kind
        written.put(item, row(piece, written.place))

    def _user(self, message: Message, written: _Items) -> None:
        said: list[TrackedBlock] = []
        fitting = OpenAIBlockAdapter(book=written.book, options=self._options, speaks=False)
        for piece in fitting.fit_message(message.pieces):
            if isinstance(piece.block, ToolResult):
                self._result(piece, piece.block, written)
            else:
                said.append(piece)
        for each in said_by_user(said, self._options):
            if isinstance(each, Said):
                item = message_item("user", each.content, each.other_members)
                each.pieces[0] = written.with_id(item, each.pieces[0])
                written.put(item, *each.rows(f"{written.place}.content"))
            elif isinstance(each.block, Unknown):
                written.put_native(each.block, each)

    def _result(self, piece: TrackedBlock, result: ToolResult, written: _Items) -> None:
        content = result_content(result, self._options.parts)
        item = result_item(piece, result, content, written.asked.pop(result.tool_use_id, ""))
        place = f"{written.place}.output" if "output" in item else written.place
        written.put(item, row(written.with_id(item, piece), place))


def _leaves_nothing(message: Message, *, final: bool) -> bool:
    """Return True if a message without any output needs no replacement."""
    reasons = final and all(is_reasoning_block(piece.block) for piece in message.pieces)
    return reasons or all(piece.code == STRIPPED for piece in message.pieces)


class _ResponsesBlockAdapter(OpenAIBlockAdapter):
    """The assistant's content: ``unfit_reasoning`` decided before which reasoning and which items may be sent back."""

    def reasoning(self, piece: TrackedBlock, reasoning: Thinking | RedactedThinking) -> TrackedBlock:  # noqa: ARG002  decided before
        return piece

    def unknown(self, piece: TrackedBlock, unknown: Unknown, inside: ToolResult | None) -> TrackedBlock:  # noqa: ARG002  decided before
        return piece


class OpenAIResponses:
    name = NAME
    text = False
    # The API continues after any last item: only the policy refuses an assistant turn there.
    tail_rule = "RSP-23"
    tail_rules: frozenset[str] = frozenset()

    def structure(self, setting: Setting) -> Structure:
        """Return the structure of accepted recorded requests: items are independent, and roles need not alternate."""
        return Structure(
            assistant_first=True,
            assistant_last="always",
            neighbours=frozenset({"user", "assistant"}),
            flat=True,
            blank=frozenset({"user", "assistant"}),
            ids_again=True,
            system_inside=True,
            system_first=True,
            system_media=True,
            reasoning_alone=takes_trailing(setting.model),
            own=NAME,
            calls_elsewhere="always" if any(name in setting.params for name in CHAINS) else "referred",
        )

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> ResponsesDialect:
        return ResponsesDialect(setting, system)
