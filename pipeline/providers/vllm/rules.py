"""The rules of an OpenAI-style server of open models (vLLM), as a fold over a request's messages.

The server itself checks little; the model's chat template refuses the rest, and templates differ by family
(``TEMPLATES``). If the model's name does not show the family, every template rule has severity ``model``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple

from reknit.pipeline.providers.openai_chat.rules import catalogue as openai
from reknit.pipeline.providers.openai_chat.rules import is_object
from reknit.pipeline.providers.openai_chat.rules.catalogue import Call, FunctionCall, Message
from reknit.pipeline.providers.openai_chat.rules.look_alike import LookAlike, LookAlikeTurns, share_rules
from reknit.pipeline.rules._misfits import Unreadable
from reknit.pipeline.rules.base import Catalogue, Family


class Template(Family, frozen=True):
    """Requests that the chat template (or the tokenizer in its place) of one family of open models takes.

    Attributes:
        name: the family.
        loose_order: any order other than strictly alternating user and assistant messages, calls and results included.
        neighbours: two user turns or two assistant turns in a row, calls and results between them left out.
        later_system: a system message that is not the first.
        system_inside: a system message after the assistant's (mistral-small recorded to refuse).
        no_user: a request without a user message.
        parallel: several calls in one message.
        any_id: ids of calls that are not nine letters and digits.
        any_count: fewer or more results than calls.
        user_after_tool: a user message directly after a tool message (mistral-small recorded to take it).
        prefill: a final assistant message.
        control_tokens: names of tools that hold ``<|``.
        any_arguments: calls' arguments that are not a JSON object.
    """

    loose_order: bool | None = None
    neighbours: bool | None = None
    later_system: bool | None = None
    system_inside: bool | None = None
    no_user: bool | None = None
    parallel: bool | None = None
    any_id: bool | None = None
    any_count: bool | None = None
    user_after_tool: bool | None = None
    prefill: bool | None = None
    control_tokens: bool | None = None
    any_arguments: bool | None = None

    @property
    def takes_all(self) -> bool:
        return all(takes is True for takes in astuple(self)[1:])


def _template(name: str, **refused: bool) -> Template:
    """Return a known template, which takes everything that no report says it refuses."""
    facts = dict.fromkeys((fact for fact in Template.__struct_fields__ if fact != "name"), True)
    return Template(name, **{**facts, **refused})


UNKNOWN = Template("unknown")
_MISTRAL = {"system_inside": False, "any_id": False, "any_count": False, "prefill": False}
_TEMPLATES: tuple[tuple[re.Pattern[str], Template], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"gemma-?[123]", _template("gemma", loose_order=False)),
        (r"llama-?2(?!\d)", _template("llama-2", loose_order=False)),
        (r"llama-?3(?!\d)", _template("llama-3", parallel=False)),
        (r"devstral", _template("devstral", neighbours=False, **_MISTRAL)),
        (r"mistral-?(7b|nemo)|mixtral", _template("mistral-7b", neighbours=False, user_after_tool=False, **_MISTRAL)),
        (r"mistral|ministral|magistral|pixtral|codestral", _template("mistral", **_MISTRAL)),
        (r"qwen-?3[.-][56]", _template("qwen-3.5", later_system=False, no_user=False, any_arguments=False)),
        (r"qwen-?3-?coder", _template("qwen-3-coder", any_arguments=False)),
        (r"qwen", _template("qwen")),
        (r"glm-4", _template("glm-4", any_arguments=False)),
        (r"gpt-oss", _template("gpt-oss", control_tokens=False)),
    )
)
TEMPLATES = tuple(known for _, known in _TEMPLATES)


def template_of(model: str | None) -> Template:
    """Find the chat template's family by the name that a server gives its model (``mistralai/Devstral-Small-2507``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _TEMPLATES if pattern.search(name)), UNKNOWN)


CATALOGUE = Catalogue("vllm", TEMPLATES)
rule = CATALOGUE.rule

# fmt: off
# One paragraph a rule.
ALTERNATE = rule("VLM-01", "model", "Conversation roles must alternate user/assistant/user/assistant/...",
    summary="After a leading system message, every message is the user's or the assistant's, in turn.",
    repair="merge neighbours, prepend a user turn, write calls as text",
    source="run-llama/llama_index#11731; unslothai/unsloth#334; withcatai/node-llama-cpp#263", fact="loose_order")
ALTERNATE_TURNS = rule("VLM-02", "model",
    "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
    "calls and results.",
    summary="As VLM-01, calls and results left out (Devstral, Mistral 7B).",
    repair="merge neighbours", source="mistralai/mistral-vibe#1006; eclipse-theia/theia#17104", fact="neighbours")
SYSTEM_FIRST = rule("VLM-03", "model", "System message must be at the beginning.",
    summary="Only the first message is a system message (Qwen 3.5 and 3.6).",
    repair="hoist it", source="vllm-project/vllm#41114; ggml-org/llama.cpp#20733", fact="later_system")
NO_USER = rule("VLM-04", "model", "No user query found in messages.",
    summary="There is a user message (Qwen 3.5 and 3.6).",
    repair="append one", source="public source files", fact="no_user")
SINGLE_CALL = rule("VLM-05", "model", "This model only supports single tool-calls at once!",
    summary="A message has one call (Llama 3; servers with templates of their own were recorded to take several).",
    repair="write parallel calls as consecutive turns", source="public source files", fact="parallel")
NINE = rule("VLM-06", "model", "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.",
    summary="Ids of calls are nine letters and digits (Mistral; recordings have their ids removed).",
    repair="digest it, on both sides",
    source="editor-code-assistant/eca#233; karthink/gptel#1203; vllm-project/vllm#9019; jundot/omlx#1997",
    fact="any_id")
COUNTS = rule("VLM-07", "model", "Not the same number of function calls and responses",
    summary="As many results as calls follow a message with calls (Mistral).",
    repair="drop the surplus, make error results", source="mistralai/client-ts#106", fact="any_count")
AFTER_TOOL = rule("VLM-08", "model", "Unexpected role 'user' after role 'tool'",
    summary="The assistant speaks between results and the user (Mistral 7B; mistral-small recorded to take it).",
    repair="insert an assistant stub", source="BerriAI/litellm#6323; nicholasgriffintn/ai-platform#414",
    fact="user_after_tool")
SYSTEM_INSIDE = rule("VLM-08b", "model", "Unexpected role 'system' after role 'assistant'",
    summary="No system message follows the assistant's (Mistral).",
    repair="hoist it, or make it user text", source="recorded on mistral-small", fact="system_inside")
LAST_ASSISTANT = rule("VLM-09", "model",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    summary="The last message is the user's or a result, or a prefix (Mistral, code 3230; prefix recorded accepted).",
    repair="append a user turn, or set prefix", source="public source files", fact="prefill")
CONTROL = rule("VLM-10", "model", "unexpected tokens remaining in message header",
    summary="Names of tools hold no control token (gpt-oss).",
    repair="clean the name", source="vllm-project/vllm#23567", fact="control_tokens")
ARGUMENTS = rule("VLM-11", "model", "Can only get item pairs from a mapping",
    summary="A call's arguments decode to an object.",
    repair="wrap them", source="public source files", fact="any_arguments")
# fmt: on


# The server's own checks are hard. It takes parts and leaves out fields that the API does not (recorded). Pairing is
# the template's matter; a history that breaks it is still not sound.
_SHARED = share_rules(
    CATALOGUE,
    "VLM",
    hard=(openai.BAD_JSON, openai.NO_MESSAGES, openai.SHAPE, openai.ARGUMENTS),
    soft=(
        *(openai.UNANSWERED, openai.SAME_ID, openai.ORPHAN, openai.STRANGER, openai.ROLE),
        *(openai.NO_CONTENT, openai.MISSING, openai.KIND, openai.NO_MODEL, openai.SURROGATE),
    ),
)


class Turns(LookAlikeTurns, kw_only=True, eq=False):
    """The state of the conversation.

    Attributes:
        goes_on: the request asks to continue the last message.
        turn: the role of the last turn, "" before the first; messages that VLM-02 ignores do not count.
        last, last_at, prefix: the role of the last message that could be read, its index, whether it is a prefix.
        user: there was a user message.
        calls, results: the number of calls in the last message with calls, and of tool messages after it.
        asked_at: its index.
    """

    family: Template
    goes_on: bool = False
    turn: str = ""
    last: str = ""
    last_at: int = 0
    prefix: bool = False
    user: bool = False
    calls: int = 0
    results: int = 0
    asked_at: int = 0

    def judge_own_end(self) -> None:
        self._count()
        if self.index and not self.user:
            self.refuse(NO_USER, "messages")
        if self.last == "assistant" and not (self.prefix or self.goes_on):
            self.refuse(LAST_ASSISTANT, f"messages.{self.last_at}.role")

    def judge_item(self, message: Message) -> None:
        role, index = message.role, self.index
        if role != "tool" and (self.calls or self.results):
            self._count()
        if role == "system" and index:
            self.refuse(SYSTEM_FIRST, f"messages.{index}.role")
            if self.last == "assistant":
                self.refuse(SYSTEM_INSIDE, f"messages.{index}.role")
        elif role == "user":
            self.user = True
            if self.last == "tool":
                self.refuse(AFTER_TOOL, f"messages.{index}.role")
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
                self.refuse(ALTERNATE, f"messages.{index}.role")
        elif role not in ("user", "assistant") or message.tool_calls:
            return  # left out
        elif role != due:
            self.refuse(ALTERNATE_TURNS, f"messages.{index}.role")
        if role != "system" or index:
            self.turn = "user" if role == "user" else "assistant"

    def _count(self) -> None:
        """End the turn of the last calls: as many tool messages as calls."""
        if self.calls != self.results:
            self.refuse(COUNTS, f"messages.{self.asked_at}")
        self.calls = self.results = 0

    def _calls(self, calls: Sequence[Call | Unreadable], index: int) -> None:
        path = f"messages.{index}.tool_calls"
        self.calls, self.asked_at = len(calls), index
        if len(calls) > 1:
            self.refuse(SINGLE_CALL, path)
        for at, call in enumerate(calls):
            if isinstance(call, Unreadable):  # could not be read, and was reported
                continue
            if not (len(call.id) == 9 and call.id.isalnum() and call.id.isascii()):
                self.refuse(NINE, f"{path}.{at}.id", id=call.id)
            if isinstance(call, FunctionCall):
                if "<|" in call.function.name:
                    self.refuse(CONTROL, f"{path}.{at}.function.name")
                if not is_object(call.function.arguments):
                    self.refuse(ARGUMENTS, f"{path}.{at}.function.arguments")


class Vllm(LookAlike[Turns]):
    target = "vllm"
    not_json = _SHARED[openai.BAD_JSON.id]
    surrogate = _SHARED[openai.SURROGATE.id]

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        goes_on = head.get("continue_final_message") is True
        family, chat = template_of(model), self.chat.begin_walk(head, model)
        # A template that refuses nothing needs no tracking.
        walk = Turns(family=family, chat=chat, shared=_SHARED, is_plain=family.takes_all, goes_on=goes_on)
        walk.share()
        return walk


RULE_SET = Vllm()
