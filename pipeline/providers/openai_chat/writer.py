"""Requests for OpenAI's Chat Completions API, and the chat that every server of its shape takes, message by message.

A turn of the repaired history becomes one or several messages: an assistant's turn one with its calls; a user's turn a
tool message for each result, then one user message with media out of the results and what the user said. The system
prompt is the first message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, structs

from reknit.pipeline.history.pieces import CHAT, FixLog, Message, TrackedBlock
from reknit.pipeline.model import Text, Thinking, ToolResult, ToolUse, Unknown
from reknit.pipeline.options import MessageOptions, ModelOptions, Parts, Structure
from reknit.pipeline.providers.openai.writer import (
    JSON_NOTE,
    OpenAIBlockAdapter,
    OpenAIDialect,
    Said,
    content_of,
    fitted_system,
    has_json,
    result_content,
    said_by_user,
    system_message,
    system_messages,
)
from reknit.pipeline.providers.openai.writer.parameters import (
    ChatHead,
    chat_model,
    switched_thinking,
    tool_name,
    write_chat_head,
)
from reknit.pipeline.providers.openai.writer.parts import ChatParts, call, custom_call, encode, own_members
from reknit.pipeline.providers.openai.writer.settings import asks_json
from reknit.pipeline.providers.openai_chat.valid_run import written_in_one_pass
from reknit.pipeline.targets import STUB, Encoded, Row, Setting, in_common_words, nine, row, shortened, stub_for
from reknit.pipeline.targets.fitting import only_message_members
from reknit.pipeline.targets.head import WrittenHead, prompt_as_text
from reknit.pipeline.targets.valid_run import EncodedRun, RunMessages

_PREFILL_MARKS: Final = frozenset({"prefix", "partial"})
_EMPTY: Final = (msgspec.Raw(b'""'), msgspec.Raw(b"[]"))
_TRUE: Final = msgspec.Raw(b"true")
# The assistant's text between results and the user, if the model requires one.
ANSWERED: Final = "Understood."


class Waiting(Struct, frozen=True, array_like=True):
    """A call whose result comes with the next turn; it is written with that if it has not been already."""

    id: str
    name: str = ""
    arguments: str = ""


class ChatProgress(Struct, frozen=True, array_like=True):
    """The number of messages written, and the calls of the last one if it may have only one at a time.

    ``held`` is what waits for the last of several messages with results: media, and results whose calls are written one
    at a time. It is empty once all messages of an exchange are written.
    """

    count: int = 0
    waiting: list[Waiting] = []
    held: list[TrackedBlock] = []


class ChatDialect(OpenAIDialect):
    state = ChatProgress()

    def __init__(
        self,
        options: MessageOptions,
        head: WrittenHead,
        setting: Setting,
        system: Sequence[TrackedBlock],
        *,
        model: ModelOptions,
    ) -> None:
        self.head = head.data
        self.fixes = head.fixes
        self.prefix = head.before("messages")
        self._options = options
        self._model = model
        prompt = "\n\n".join(filter(None, (prompt_as_text(setting.system, options.target, self.fixes), head.note)))
        # One joined system message has no place for whose each was.
        book = FixLog(options.target, options.observed)
        owners = frozenset[str]() if model.joined_system else options.owners
        system = fitted_system(self._with_members(system, book), structs.replace(options, owners=owners), book)
        self.fixes += book.fixes
        written = partial(system_messages, system=system, options=options, takes=model.system_roles)
        self.system = written(prompt, joined=model.joined_system)
        is_foreign = "response_format" not in setting.params
        needs_json = model.json_word and is_foreign and asks_json(head.data, "response_format")
        if needs_json and not has_json(encode(self.system).decode()):
            self.json_system = written("\n\n".join(filter(None, (prompt, JSON_NOTE))), joined=model.joined_system)

    def encode_message(self, message: Message, state: ChatProgress, *, final: bool) -> Encoded:
        book = FixLog(self._options.target, self._options.observed)
        message = in_common_words(message, book)
        if self._model.message_members is not None:
            message = structs.replace(message, pieces=self._with_members(message.pieces, book))
        rows: list[Row] = []
        first = [] if state.count else self.opening(message, book)
        count = state.count + len(first)
        waiting: list[Waiting] = []
        held: list[TrackedBlock] = []
        if message.role == "system":
            written = [self._system_row(message, count, book, rows)]
        elif message.role == "assistant":
            written, waiting = self._assistant(message, count, book, rows, final=final)
        else:
            written, waiting, held = self._user(message, state, count, book, rows)
        data = b",".join(map(encode, [*first, *written]))
        after = ChatProgress(count + len(written), waiting, held)
        return Encoded(data=data, state=after, rows=rows, fixes=book.fixes, dropped=book.dropped)

    def encode_valid_run(self, run: RunMessages, part: range, state: ChatProgress) -> EncodedRun | None:
        """Write the messages of a valid run as they are, if their tools' names can stay and calls are calls."""
        if state.waiting or state.held or self._options.calls_as_text or (self.json_system and not state.count):
            return None
        if any(tool_name(name) != name for name in run.names):
            return None
        first = [] if state.count else self.system
        book = FixLog(self._options.target, self._options.observed)
        data, origins, count = written_in_one_pass(
            run, part, state.count + len(first), self._options, self._model, book=book
        )
        if not origins:
            return None
        return EncodedRun(
            data=b",".join([*map(encode, first), data]),
            state=ChatProgress(count),
            end=part.start + len(origins),
            origins=origins,
            fixes=book.fixes,
            dropped=book.dropped,
        )

    def _with_members(self, pieces: Sequence[TrackedBlock], book: FixLog) -> list[TrackedBlock]:
        """The pieces with those members of their message that the model takes; a result may have its tool's name."""
        taken = self._model.message_members
        if taken is None:
            return [*pieces]
        return [
            piece if isinstance(piece.block, ToolResult) else only_message_members(piece, taken, book)
            for piece in pieces
        ]

    def _assistant(
        self, message: Message, count: int, book: FixLog, rows: list[Row], *, final: bool
    ) -> tuple[list[Any], list[Waiting]]:
        pieces = OpenAIBlockAdapter(book=book, options=self._options, speaks=True).fit_message(message.pieces)
        spoken = _sorted(pieces, in_content=self._model.reasoning_parts)
        # Parts of reasoning stay alone where that is only observed.
        if spoken.is_empty and (not spoken.content or book.makes("reasoning_alone")):
            pieces.append(stub_for(message, book))
            spoken.content.append(Text(text=STUB))
        waiting: list[Waiting] = []
        calls = spoken.calls
        if self._model.single_call and len(calls) > 1:
            pieces = _serialised(pieces, book)
            waiting = [
                Waiting(call["id"], call["function"]["name"] if at else "", call["function"]["arguments"] if at else "")
                for at, call in enumerate(calls)
            ]
            calls = calls[:1]
        rows += _assistant_rows(pieces, f"messages.{count}", count if waiting else None, spoken=spoken)
        written: dict[str, Any] = {"role": "assistant", "content": None}
        for piece in message.pieces:
            if piece.own is not UNSET and piece.own.provider in self._options.owners:
                written |= piece.own.members
        if not self._model.empty_content and written["content"] in _EMPTY:
            written["content"] = None
            book.note_fix("blank_dropped", f"{message.pieces[0].message}.content")
        for block in spoken.speech:
            written |= msgspec.json.decode(block.raw, type=dict[str, msgspec.Raw])
        if spoken.content:
            written["content"] = content_of(spoken.content, self._options.parts)
        if spoken.refusals:
            written["refusal"] = "\n".join(spoken.refusals)
        reasoning = "\n".join(spoken.thoughts)
        if reasoning or (calls and self._model.reasoning_required):
            written["reasoning_content"] = reasoning
        if calls:
            written["tool_calls"] = calls
        self._mark_prefill(written, message, book, final=final)
        return [written], waiting

    def _mark_prefill(self, written: dict[str, Any], message: Message, book: FixLog, *, final: bool) -> None:
        """Mark an answer to continue as the model's API does; no other message has such a mark."""
        mark = self._model.prefill_mark
        for name in _PREFILL_MARKS & written.keys():
            if name != mark or (not final and written[name] == _TRUE):
                del written[name]
                book.note_fix("field_dropped", f"{message.pieces[0].message}.{name}", name)
        if final and mark:
            # Always the last member, also where it came with the message.
            written.pop(mark, None)
            written[mark] = True

    def _system_row(self, message: Message, count: int, book: FixLog, rows: list[Row]) -> dict[str, Any]:
        pieces = fitted_system(message.pieces, self._options, book)
        written = system_message(pieces, self._options, self._model.system_roles)
        place = f"messages.{count}.content"
        many = isinstance(written["content"], list)
        rows += [row(piece, f"{place}.{at}" if many else place) for at, piece in enumerate(pieces)]
        return written

    def _user(
        self, message: Message, state: ChatProgress, count: int, book: FixLog, rows: list[Row]
    ) -> tuple[list[Any], list[Waiting], list[TrackedBlock]]:
        """A user's messages; then the calls that still wait for their result, and the pieces that are held."""
        held_results, held_media = _by_results(state.held)
        fitting = OpenAIBlockAdapter(
            book=book, options=self._options, speaks=False, results_follow=message.results_follow, held=held_media
        )
        pieces = fitting.fit_message(message.pieces) or [stub_for(message, book)]
        results, others = _by_results(pieces)
        results = _in_order_of([*held_results, *results], state.waiting)
        if state.waiting and message.results_follow:
            return [], state.waiting, [*results, *fitting.held]
        said = said_by_user(others, self._options)
        if len(said) > 1 and "user" not in self._model.structure.neighbours and book.makes("turns_merged"):
            # A piece with a name would begin another message.
            others = [only_message_members(piece, (), book) for piece in others]
            said = said_by_user(others, self._options)
        written = _in_turn(state.waiting, [_answer(piece, self._options) for piece in results])
        places = [at for at, each in enumerate(written, count) if each["role"] == "tool"]
        rows += [row(piece, f"messages.{at}.content") for piece, at in zip(results, places, strict=True)]
        if written and said and self._model.answer_required:
            place = f"messages.{count + len(written)}.content"
            book.note_fix("assistant_inserted", place)
            written.append({"role": "assistant", "content": ANSWERED})
            rows.append(("", "synthesised", "assistant_inserted", place))
        for each in said:
            assert isinstance(each, Said)  # noqa: S101  a chat has no items
            rows += each.rows(f"messages.{count + len(written)}.content")
            written.append({"role": "user", "content": each.content, **each.other_members})
        return written, [], fitting.held


class _Spoken(Struct):
    """The content of an assistant's message, by the member that it is written into."""

    calls: list[dict[str, Any]] = []
    content: list[Text | Thinking] = []
    refusals: list[str] = []
    thoughts: list[str] = []
    speech: list[Unknown] = []

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is said: parts of reasoning are content, but say nothing."""
        said = any(isinstance(block, Text) for block in self.content)
        return not (said or self.calls or self.refusals or self.speech)

    @property
    def is_list(self) -> bool:
        """Return True if the content has parts."""
        return len(self.content) > 1 or (bool(self.content) and isinstance(self.content[0], Thinking))


def _sorted(pieces: Sequence[TrackedBlock], *, in_content: bool) -> _Spoken:
    """Sort an assistant's pieces; ``in_content`` says that reasoning is a part of the content."""
    spoken = _Spoken()
    for piece in pieces:
        match piece.block:
            case ToolUse() as use:
                spoken.calls.append(_call(use))
            case Thinking() as thinking if in_content:
                spoken.content.append(thinking)
            case Thinking(thinking=thought):
                spoken.thoughts.append(thought)
            case Text() as text if text.refusal:
                spoken.refusals.append(text.text)
            case Text() as text:
                spoken.content.append(text)
            case Unknown() as unknown:
                spoken.speech.append(unknown)
    return spoken


def _call(use: ToolUse) -> dict[str, Any]:
    is_custom = use.own is not UNSET and use.own.kind == "custom"
    return (custom_call if is_custom else call)(use.id, use.name, use.input) | own_members(use.own)


def _by_results(pieces: Sequence[TrackedBlock]) -> tuple[list[TrackedBlock], list[TrackedBlock]]:
    """The results among the pieces, and the other pieces."""
    results: list[TrackedBlock] = []
    others: list[TrackedBlock] = []
    for piece in pieces:
        (results if type(piece.block) is ToolResult else others).append(piece)
    return results, others


def _in_order_of(results: list[TrackedBlock], waiting: Sequence[Waiting]) -> list[TrackedBlock]:
    """The results in the order of the calls that wait for them; those of other calls last."""
    if not waiting:
        return results
    places = {one.id: at for at, one in enumerate(waiting)}

    def place(piece: TrackedBlock) -> int:
        assert isinstance(piece.block, ToolResult)  # noqa: S101  the caller looked
        return places.get(piece.block.tool_use_id, len(places))

    return sorted(results, key=place)


def _answer(piece: TrackedBlock, options: MessageOptions) -> dict[str, Any]:
    result = piece.block
    assert isinstance(result, ToolResult)  # noqa: S101  the caller looked
    content = result_content(result, options.parts)
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": content, **own_members(piece.own)}


def _serialised(pieces: Sequence[TrackedBlock], book: FixLog) -> list[TrackedBlock]:
    """The pieces, of whose calls all but the first follow in messages of their own."""
    calls = [at for at, piece in enumerate(pieces) if isinstance(piece.block, ToolUse)]
    return [book.change("calls_serialised", piece) if at in calls[1:] else piece for at, piece in enumerate(pieces)]


def _assistant_rows(pieces: Sequence[TrackedBlock], place: str, alone: int | None, *, spoken: _Spoken) -> list[Row]:
    """Return the rows of an assistant's message; with ``alone``, its number, further calls have later ones."""
    in_content, is_list = not spoken.thoughts, spoken.is_list
    rows: list[Row] = []
    said = called = 0
    for piece in pieces:
        match piece.block:
            case ToolUse():
                at = f"{place}.tool_calls.{called}"
                if alone is not None and called:
                    # Calls and results alternate: call, result, call, result.
                    at = f"messages.{alone + 2 * called}.tool_calls.0"
                called += 1
            case Thinking() if not in_content:
                at = f"{place}.reasoning_content"
            case Text(refusal=True):
                at = f"{place}.refusal"
            case Unknown():
                at = f"{place}.audio"
            case _:
                at = f"{place}.content.{said}" if is_list else f"{place}.content"
                said += 1
        rows.append(row(piece, at))
    return rows


def _in_turn(waiting: Sequence[Waiting], answers: list[dict[str, Any]]) -> list[Any]:
    """The tool messages; where a message has one call at a time, each after its own call."""
    if not waiting:
        return answers
    by_id = {answer["tool_call_id"]: answer for answer in answers}
    written: list[Any] = []
    for one in waiting:
        if one.name:
            again = call(one.id, one.name, msgspec.Raw(one.arguments.encode()))
            written.append({"role": "assistant", "content": None, "tool_calls": [again]})
        if (answer := by_id.pop(one.id, None)) is not None:
            written.append(answer)
    return [*written, *by_id.values()]


# Repairs that follow from an option of a model. A policy may ask that the model's refusal is observed instead.
_REPAIRS: Final = {
    "assistant_inserted": "answer_required",
    "calls_serialised": "single_call",
    "calls_as_text": "calls_as_text",
}


class ChatWriter(Struct, frozen=True, kw_only=True):
    """The writer of one host that has this API. A look-alike is ``structs.replace(OPENAI_CHAT, name=…, …)``.

    Attributes:
        name: the target.
        tail_rule: the rule against a request that ends with the assistant.
        tail_rules: the rules that only look at the end.
        models: returns the options of a model by its name.
        head: the parameters that the host takes.
        parts: the form of each block.
        owners: the providers whose specific members and readable reasoning are sent back.
        refusal_field: an assistant message has a field of its own for a refusal.
        text: whether the body is a text; here it never is.
    """

    name: str
    tail_rule: str
    tail_rules: frozenset[str]
    models: Callable[[str | None], ModelOptions] = chat_model
    head: ChatHead = ChatHead()
    parts: Parts = ChatParts()
    owners: frozenset[str] = frozenset()
    refusal_field: bool = True
    text: bool = False

    def call_id(self, model: str | None) -> Callable[[str], str]:
        """Return the writer of ids for a model."""
        return nine if self.models(model).short_ids else shortened

    def structure(self, setting: Setting) -> Structure:
        """Return the structure that a model takes."""
        return self.models(setting.model).structure

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> ChatDialect:
        model = self.models(setting.model)
        if switched_thinking(setting.params) == "disabled":
            model = structs.replace(model, reasoning_required=False)
        if unmade := setting.observed & _REPAIRS.keys():
            model = structs.replace(model, **{_REPAIRS[code]: False for code in unmade})
        options = MessageOptions(
            target=self.name,
            parts=self.parts,
            call_id=nine if model.short_ids else shortened,
            model=setting.model,
            reasoning_issuers=self.owners if model.reasoning else frozenset(),
            user_blocks=model.user_blocks,
            calls_as_text=model.calls_as_text,
            refusal_field=self.refusal_field,
            images=model.images,
            reasoning_parts=model.reasoning_parts,
            any_reasoning=model.any_reasoning,
            owners=self.owners,
            observed=setting.observed,
        )
        head = write_chat_head(setting, self.name, self.head, model)
        return ChatDialect(options, head, setting, system, model=model)


# The API itself, and hosts without a target of their own that are as strict (Groq). Readable reasoning is kept
# where the model is not one of OpenAI's, which write none.
OPENAI_CHAT: Final = ChatWriter(
    name=CHAT,
    # The API itself takes an assistant message at the end: only the policy refuses it.
    tail_rule="OAI-22",
    tail_rules=frozenset({"OAI-06"}),
    owners=frozenset({CHAT}),
)
