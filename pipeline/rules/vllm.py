"""The rules of an OpenAI-style server of open models (vLLM), as a fold over a request's messages.

The server itself checks little; the model's chat template refuses the rest, and templates differ by family (one table
in ``models``). A family that the model's name does not tell has every template rule with severity ``model``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pipeline.rules._fold import Fold
from pipeline.rules._shape import Hole
from pipeline.rules.base import Rule, Severity, Violation
from pipeline.rules.models import UNKNOWN_TEMPLATE, Template, template, templates_having
from pipeline.rules.openai_chat import OpenAIChat
from pipeline.rules.openai_chat import State as Chat
from pipeline.rules.openai_chat import catalogue as openai
from pipeline.rules.openai_chat.walk import is_object
from pipeline.rules.openai_chat.wire import Call, FunctionCall, Message

RULES: dict[str, Rule] = {}


def _rule(rule_id: str, fact: str, message: str, *, summary: str, repair: str, source: str) -> Rule:
    """Enter the rule of the templates for which ``fact`` is not so."""
    families = templates_having(fact, value=False)
    made = Rule(
        id=rule_id,
        target="vllm",
        summary=summary,
        message=message,
        severity="model",
        repair=repair,
        source=source,
        families=families,
    )
    RULES[rule_id] = made
    return made


# fmt: off
# One paragraph a rule.
ALTERNATE = _rule(
    "VLM-01", "loose_order", "Conversation roles must alternate user/assistant/user/assistant/...",
    summary="After a leading system message, every message is the user's or the assistant's, in turn.",
    repair="merge neighbours, prepend a user turn, write calls as text",
    source="run-llama/llama_index#11731; unslothai/unsloth#334; withcatai/node-llama-cpp#263",
)
ALTERNATE_TURNS = _rule(
    "VLM-02", "neighbours",
    "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
    "calls and results.",
    summary="As VLM-01, calls and results left out (Devstral, Mistral 7B).",
    repair="merge neighbours", source="mistralai/mistral-vibe#1006; eclipse-theia/theia#17104",
)
SYSTEM_FIRST = _rule(
    "VLM-03", "later_system", "System message must be at the beginning.",
    summary="Only the first message is a system message (Qwen 3.5 and 3.6).",
    repair="hoist it", source="vllm-project/vllm#41114; ggml-org/llama.cpp#20733",
)
NO_USER = _rule(
    "VLM-04", "no_user", "No user query found in messages.",
    summary="There is a user message (Qwen 3.5 and 3.6).",
    repair="append one", source="public source files",
)
SINGLE_CALL = _rule(
    "VLM-05", "parallel", "This model only supports single tool-calls at once!",
    summary="A message has one call (Llama 3; servers with templates of their own were recorded to take several).",
    repair="write parallel calls as consecutive turns", source="public source files",
)
NINE = _rule(
    "VLM-06", "any_id", "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.",
    summary="Ids of calls are nine letters and digits (Mistral; recordings have their ids removed).",
    repair="digest it, on both sides",
    source="editor-code-assistant/eca#233; karthink/gptel#1203; vllm-project/vllm#9019; jundot/omlx#1997",
)
COUNTS = _rule(
    "VLM-07", "any_count", "Not the same number of function calls and responses",
    summary="As many results as calls follow a message with calls (Mistral).",
    repair="drop the surplus, make error results", source="mistralai/client-ts#106",
)
AFTER_TOOL = _rule(
    "VLM-08", "user_after_tool", "Unexpected role 'user' after role 'tool'",
    summary="The assistant speaks between results and the user (Mistral 7B; mistral-small recorded to take it).",
    repair="insert an assistant stub", source="BerriAI/litellm#6323; nicholasgriffintn/ai-platform#414",
)
SYSTEM_INSIDE = _rule(
    "VLM-08b", "system_inside", "Unexpected role 'system' after role 'assistant'",
    summary="No system message follows the assistant's (Mistral).",
    repair="hoist it, or make it user text", source="recorded on mistral-small",
)
LAST_ASSISTANT = _rule(
    "VLM-09", "prefill",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    summary="The last message is the user's or a result, or a prefix (Mistral, code 3230; prefix recorded accepted).",
    repair="append a user turn, or set prefix", source="public source files",
)
CONTROL = _rule(
    "VLM-10", "control_tokens", "unexpected tokens remaining in message header",
    summary="Names of tools hold no control token (gpt-oss).",
    repair="clean the name", source="vllm-project/vllm#23567",
)
ARGUMENTS = _rule(
    "VLM-11", "any_arguments", "Can only get item pairs from a mapping",
    summary="A call's arguments decode to an object.",
    repair="wrap them", source="public source files",
)
# fmt: on


def _shared(severity: Severity, rules: Sequence[Rule]) -> dict[str, Rule]:
    """Take over rules of the API that the server imitates; it is laxer with some."""
    return {
        rule.id: replace(rule, id=f"VLM-{rule.id}", target="vllm", severity=severity, families=()) for rule in rules
    }


# The server's own checks are hard. It takes parts and leaves out fields that the API does not (recorded). Pairing is
# the template's matter; a history that breaks it is still not sound.
_SHARED = _shared("hard", [openai.BAD_JSON, openai.NO_MESSAGES, openai.SHAPE, openai.ARGUMENTS]) | _shared(
    "soft",
    [
        *(openai.UNANSWERED, openai.SAME_ID, openai.ORPHAN, openai.STRANGER, openai.ROLE),
        *(openai.NO_CONTENT, openai.MISSING, openai.KIND, openai.NO_MODEL, openai.SURROGATE),
    ],
)
RULES.update({rule.id: rule for rule in _SHARED.values()})


class State(Struct, frozen=True):
    """Where the conversation stands.

    Attributes:
        chat: where calls and tool messages stand.
        family: what the template takes.
        goes_on: the request asks for the last message to be continued.
        turn: the role of the last turn, "" before the first; messages that VLM-02 leaves out are none.
        last, last_at, prefix: the role of the last message that could be read, its index, whether it is a prefix.
        user: a user message was seen.
        calls, results: how many the last message with calls has, and how many tool messages followed it.
        asked_at: its index.
    """

    chat: Chat = Chat()
    family: Template = UNKNOWN_TEMPLATE
    goes_on: bool = False
    turn: str = ""
    last: str = ""
    last_at: int = 0
    prefix: bool = False
    user: bool = False
    calls: int = 0
    results: int = 0
    asked_at: int = 0


class Vllm(Fold[State, Message]):
    """The rule set of the target ``vllm``."""

    target = "vllm"
    key = "messages"
    not_json = _SHARED[openai.BAD_JSON.id]
    surrogate = _SHARED[openai.SURROGATE.id]
    items: ClassVar[msgspec.json.Decoder[list[Message]]] = OpenAIChat.items
    _chat: ClassVar[OpenAIChat] = OpenAIChat()

    def judge_head(self, head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
        """Judge the parameters; the model's name chooses the template."""
        chat, found = self._chat.judge_head(head, model)
        named = head.get("model")
        family = template(model if model is not None else named if isinstance(named, str) else None)
        return State(chat, family, goes_on=head.get("continue_final_message") is True), _as_ours(found)

    def read(self, values: Sequence[object], index: int) -> tuple[list[Message | None], list[Violation]]:
        """Make messages of JSON values tolerantly."""
        messages, found = self._chat.read(values, index)
        return messages, _as_ours(found)

    def walk(self, inner: State, items: Sequence[Message | None], index: int) -> tuple[State, list[Violation]]:
        """Judge messages: by the shared rules, then as the template does."""
        chat, found = self._chat.walk(inner.chat, items, index)
        found = _as_ours(found)
        walk = _Walk(inner, found)
        for at, message in enumerate(items, index):
            if message is not None:
                walk.message(message, at)
        return walk.settle(chat), found

    def judge_end(self, inner: State, count: int) -> list[Violation]:
        """Judge the end of the messages."""
        found = _as_ours(self._chat.judge_end(inner.chat, count))
        walk = _Walk(inner, found)
        walk.count()
        if count and not inner.user:
            walk.refuse(NO_USER, inner.family.no_user, "messages")
        if inner.last == "assistant" and not (inner.prefix or inner.goes_on):
            walk.refuse(LAST_ASSISTANT, inner.family.prefill, f"messages.{inner.last_at}.role")
        return found

    def judge_no_list(self, body: dict[str, Any], inner: State) -> list[Violation]:
        """Judge a body without a list of messages, which no server takes."""
        found = _as_ours(self._chat.judge_no_list(body, inner.chat))
        return [replace(violation, severity="hard") for violation in found]


def _as_ours(found: list[Violation]) -> list[Violation]:
    """Keep what the server shares with the API that it imitates, under the rules' names here."""
    return [
        Violation(ours.id, violation.path, violation.message, ours.severity)
        for violation in found
        if (ours := _SHARED.get(violation.rule)) is not None
    ]


class _Walk:
    """The machine while a step works on it."""

    __slots__ = (
        "asked_at",
        "calls",
        "family",
        "found",
        "last",
        "last_at",
        "prefix",
        "results",
        "state",
        "turn",
        "user",
    )

    def __init__(self, state: State, found: list[Violation]) -> None:
        self.state = state
        self.family = state.family
        self.found = found
        self.turn = state.turn
        self.last = state.last
        self.last_at = state.last_at
        self.prefix = state.prefix
        self.user = state.user
        self.calls = state.calls
        self.results = state.results
        self.asked_at = state.asked_at

    def settle(self, chat: Chat) -> State:
        """Return what the next step goes on from."""
        return replace(
            self.state,
            chat=chat,
            turn=self.turn,
            last=self.last,
            last_at=self.last_at,
            prefix=self.prefix,
            user=self.user,
            calls=self.calls,
            results=self.results,
            asked_at=self.asked_at,
        )

    def refuse(self, rule: Rule, taken: bool | None, path: str, **values: object) -> None:  # noqa: FBT001 - a fact
        """Report a breach, unless the family is known to take it."""
        if not taken:
            self.found.append(rule.broken(path, "model" if taken is None else "hard", **values))

    def message(self, message: Message, index: int) -> None:
        """Judge one message as the template does."""
        role = message.role
        if role != "tool" and (self.calls or self.results):
            self.count()
        if role == "system" and index:
            self.refuse(SYSTEM_FIRST, self.family.later_system, f"messages.{index}.role")
            if self.last == "assistant":
                self.refuse(SYSTEM_INSIDE, self.family.system_inside, f"messages.{index}.role")
        elif role == "user":
            self.user = True
            if self.last == "tool":
                self.refuse(AFTER_TOOL, self.family.user_after_tool, f"messages.{index}.role")
        self._alternate(message, index)
        if role == "tool":
            if not self.calls and not self.results:
                self.asked_at = index
            self.results += 1
        elif message.tool_calls:
            self._calls(message.tool_calls, index)
        self.last, self.last_at = role, index
        self.prefix = message.prefix is True

    def _alternate(self, message: Message, index: int) -> None:
        """Judge whose turn it is; after a breach, the one who spoke has had the turn."""
        role = message.role
        due = "assistant" if self.turn == "user" else "user"
        if self.family.loose_order is False:
            if role != due and (role != "system" or index):
                self.refuse(ALTERNATE, taken=False, path=f"messages.{index}.role")
        elif role not in ("user", "assistant") or message.tool_calls:
            return  # left out
        elif role != due:
            self.refuse(ALTERNATE_TURNS, self.family.neighbours, f"messages.{index}.role")
        if role != "system" or index:
            self.turn = "user" if role == "user" else "assistant"

    def count(self) -> None:
        """End the turn of the last calls: as many tool messages as calls."""
        if self.calls != self.results:
            self.refuse(COUNTS, self.family.any_count, f"messages.{self.asked_at}")
        self.calls = self.results = 0

    def _calls(self, calls: Sequence[Call | Hole], index: int) -> None:
        path = f"messages.{index}.tool_calls"
        self.calls, self.asked_at = len(calls), index
        if len(calls) > 1:
            self.refuse(SINGLE_CALL, self.family.parallel, path)
        for at, call in enumerate(calls):
            if isinstance(call, Hole):  # could not be read, and was reported
                continue
            if not (len(call.id) == 9 and call.id.isalnum() and call.id.isascii()):
                self.refuse(NINE, self.family.any_id, f"{path}.{at}.id", id=call.id)
            if isinstance(call, FunctionCall):
                if "<|" in call.function.name:
                    self.refuse(CONTROL, self.family.control_tokens, f"{path}.{at}.function.name")
                if not is_object(call.function.arguments):
                    self.refuse(ARGUMENTS, self.family.any_arguments, f"{path}.{at}.function.arguments")
