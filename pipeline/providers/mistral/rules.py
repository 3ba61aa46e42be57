"""The rules of Mistral's own API, as a fold over a request's messages.

The API's front door refuses unknown members and values of a wrong type (422, ``detail`` lists the places). Then the
conversation is checked as mistralai/mistral-common does it (400, code 3230). Open models on other servers have the
rules of ``vllm``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.providers.openai_chat.rules import catalogue as openai
from reknit.pipeline.providers.openai_chat.rules.catalogue import Call, Image, Refusal, Text
from reknit.pipeline.providers.openai_chat.rules.look_alike import LookAlike, LookAlikeTurns, share_rules
from reknit.pipeline.rules._misfits import Unreadable
from reknit.pipeline.rules.base import Catalogue, Family

TEMPERATURE = 1.5
ID_LENGTH = 9


class Mistral(Family, frozen=True):
    """Requests that one family of Mistral's models takes.

    Attributes:
        name: the family.
        user_after_tool: a user message directly after a tool message (mistral-small and ministral recorded to take it).
        images: an image in a message (mistral-small recorded to refuse, mistral-small-latest to take it).
        logprobs: the parameter (ministral and mistral-small recorded to refuse it).
    """

    user_after_tool: bool | None = None
    images: bool | None = None
    logprobs: bool | None = None


UNKNOWN = Mistral("unknown")
_FAMILIES: tuple[tuple[re.Pattern[str], Mistral], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        # In 2024 the name was that of a model without vision.
        (r"(^|/)mistral-small$", Mistral("mistral-small-2024", user_after_tool=True, images=False, logprobs=False)),
        (r"mistral-small", Mistral("mistral-small", user_after_tool=True, images=True, logprobs=False)),
        (r"ministral", Mistral("ministral", user_after_tool=True, logprobs=False)),
        (r"mistral-medium", Mistral("mistral-medium", images=True)),
        (r"devstral", Mistral("devstral", user_after_tool=False)),
        (r"mistral-?(7b|nemo)|mixtral", Mistral("mistral-7b", user_after_tool=False)),
    )
)


def family_of(model: str | None) -> Mistral:
    """Find the family of a model's name (``mistral-small-latest``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _FAMILIES if pattern.search(name)), UNKNOWN)


CATALOGUE = Catalogue("mistral", (known for _, known in _FAMILIES))
rule = CATALOGUE.rule

# fmt: off
# One paragraph a rule.
ID = rule("MIS-01", "hard", "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.",
    summary=f"Ids of calls and of results are {ID_LENGTH} letters and digits.",
    repair="digest it, on both sides",
    source="editor-code-assistant/eca#233; karthink/gptel#1203; BibekBhusal0/zen-custom-js#7")
COUNTS = rule("MIS-02", "hard", "Not the same number of function calls and responses",
    summary="As many results as calls follow a message with calls.",
    repair="drop the surplus, make error results", source="mistralai/client-ts#106; mistralai/mistral-common")
AFTER_TOOL = rule("MIS-03", "model", "Unexpected role 'user' after role 'tool'",
    summary="The assistant speaks between results and the user (mistral-small and ministral recorded to take it).",
    repair="insert an assistant stub",
    source="BerriAI/litellm#17761; onyx-dot-app/onyx#6458; datapizza-labs/datapizza-ai#98", fact="user_after_tool")
SYSTEM_AFTER = rule("MIS-04", "hard", "Unexpected role 'system' after role '{before}'",
    summary="No system message follows the assistant's or a result.",
    repair="hoist it, or make it user text", source="recorded; mistralai/mistral-common")
LAST_ASSISTANT = rule("MIS-05", "hard",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    summary="The last message is the user's or a result, or has `prefix: true` (code 3230).",
    repair="append a user turn, or set prefix", source="public source files; mistralai/mistral-common")
PREFIX_INSIDE = rule("MIS-05b", "soft", "Assistant message with prefix True must be last message",
    summary="Only the last message is a prefix.",
    repair="drop the member", source="mistralai/mistral-common")
NO_WORDS = rule("MIS-06", "hard", "Assistant message must have either content or tool_calls, but not none.",
    summary="The assistant's message has content or calls.",
    repair="drop it, or write a stub", source="solbrowse/extension#16; langchain-ai/langchain#21196")
EXTRA_MEMBER = rule("MIS-07", "hard", "Extra inputs are not permitted",
    summary="A message has no members that only other APIs have: `reasoning_content`, `refusal`, `audio`, "
    "`annotations`, `function_call`, and a user's `name`.",
    repair="drop the member; reasoning is a part of the content",
    source="charmbracelet/crush#1590; BerriAI/litellm#30835, #30882; Gage-Technologies/mistral-go#3")
EXTRA_PARAMETER = rule("MIS-08", "soft", "Extra inputs are not permitted",
    summary="Parameters are known ones; new ones come.",
    repair="drop the parameter",
    source="editor-code-assistant/eca#231; OpenHands/OpenHands-CLI#83; the API's documentation")
ROLE = rule("MIS-09", "soft",
    "Input tag '{role}' found using 'role' does not match any of the expected tags: 'assistant', 'system', 'tool', "
    "'user'",
    summary="Roles are system, user, assistant and tool.",
    repair="map the role", source="the API's documentation")
IMAGES = rule("MIS-10", "model",
    "A request containing images has been given to a model which does not have the 'vision' capability.",
    summary="Images go to models that see.",
    repair="replace it by a stub", source="recorded on mistral-small in 2024; accepted on mistral-small-latest",
    fact="images")
LOGPROBS = rule("MIS-11", "model", "Logprobs are not enabled for this model",
    summary="No probabilities of tokens.",
    repair="drop the parameter", source="recorded on ministral-3b-latest and mistral-small-latest", fact="logprobs")
TEMPERATURE_RANGE = rule("MIS-12", "soft", "Input should be less than or equal to 1.5",
    summary=f"Temperature lies between 0 and {TEMPERATURE}.",
    repair="clamp it", source="the API's documentation")
CHOICE = rule("MIS-13", "soft", "Input should be 'auto', 'none', 'any' or 'required'",
    summary="The choice among tools is one of four words, or a function.",
    repair="map it", source="the API's documentation; any and required recorded")
# fmt: on

_SHARED = share_rules(
    CATALOGUE,
    "MIS",
    hard=(openai.BAD_JSON, openai.NO_MESSAGES, openai.SHAPE),
    soft=(
        *(openai.UNANSWERED, openai.SAME_ID, openai.ORPHAN, openai.STRANGER, openai.ROLE, openai.KIND),
        *(openai.NO_CONTENT, openai.MISSING, openai.NO_MODEL, openai.SURROGATE, openai.NO_TOOLS, openai.CHOICE),
        *(openai.NAME, openai.NAME_TOO_LONG),
    ),
)


class DocumentUrl(Struct, frozen=True, gc=False, tag_field="type", tag="document_url"):
    """A document by its address, or as a data URL."""

    document_url: str


class Upload(Struct, frozen=True, gc=False, tag_field="type", tag="file"):
    file_id: str


class Thinking(Struct, frozen=True, gc=False, tag_field="type", tag="thinking"):
    thinking: Raw


class Reference(Struct, frozen=True, gc=False, tag_field="type", tag="reference"):
    reference_ids: Raw


class Speech(Struct, frozen=True, gc=False, tag_field="type", tag="input_audio"):
    input_audio: Raw


Part: TypeAlias = Text | Image | DocumentUrl | Upload | Thinking | Reference | Speech | Refusal


class Message(openai.Message, frozen=True, gc=False):
    """A message with the parts that Mistral has, and with members that it refuses."""

    content: str | list[Part] | UnsetType | None = UNSET  # type: ignore[assignment]  # the parts are Mistral's
    name: Raw | UnsetType = UNSET
    reasoning: Raw | UnsetType = UNSET
    annotations: Raw | UnsetType = UNSET


_FORBIDDEN = ("reasoning_content", "reasoning", "refusal", "audio", "annotations", "function_call")
PARAMETERS = frozenset(
    {
        "frequency_penalty", "guardrails", "max_tokens", "messages", "metadata", "model", "n", "parallel_tool_calls",
        "prediction", "presence_penalty", "prompt_cache_key", "prompt_mode", "random_seed", "reasoning_effort",
        "response_format", "safe_prompt", "stop", "stream", "temperature", "tool_choice", "tools", "top_p",
    }
)  # fmt: skip
_CHOICES = frozenset({"auto", "none", "any", "required"})


class Turns(LookAlikeTurns, kw_only=True, eq=False):
    """The state of the conversation.

    Attributes:
        before: the role of the last message that could be read, "" before the first.
        last_at: its index.
        prefix: it is a prefix.
        calls, results: the number of calls in the last message with calls, and of tool messages after it.
        asked_at: the index of the message with the calls, or of the first result without any.
    """

    family: Mistral
    before: str = ""
    last_at: int = 0
    prefix: bool = False
    calls: int = 0
    results: int = 0
    asked_at: int = 0

    def judge_item(self, message: Message) -> None:
        role, index = message.role, self.index
        path = f"messages.{index}"
        if self.prefix:
            self.refuse(PREFIX_INSIDE, f"messages.{self.last_at}.prefix")
        if role != "tool" and (self.calls or self.results):
            self._count()
        if role in ("developer", "function"):
            self.refuse(ROLE, f"{path}.role", role=role)
        elif role == "system" and self.before in ("assistant", "tool"):
            self.refuse(SYSTEM_AFTER, f"{path}.role", before=self.before)
        elif role == "user" and self.before == "tool":
            self.refuse(AFTER_TOOL, f"{path}.role")
        self._judge_members(message, path)
        if role == "tool":
            self._judge_result(message, path)
        elif role == "assistant":
            self._judge_assistant(message, path)
        self.before, self.last_at = role, index
        self.prefix = role == "assistant" and message.prefix is True

    def _judge_members(self, message: Message, path: str) -> None:
        for name in _FORBIDDEN:
            if getattr(message, name) is not UNSET:
                self.refuse(EXTRA_MEMBER, f"{path}.{name}")
        if message.name is not UNSET and message.role in ("user", "system", "assistant"):
            self.refuse(EXTRA_MEMBER, f"{path}.name")
        if isinstance(message.content, list):
            for at, part in enumerate(message.content):
                if isinstance(part, Image):
                    self.refuse(IMAGES, f"{path}.content.{at}")

    def _judge_result(self, message: Message, path: str) -> None:
        if not self.calls and not self.results:
            self.asked_at = self.index
        self.results += 1
        if message.tool_call_id is not None:
            self._judge_id(message.tool_call_id, f"{path}.tool_call_id")

    def _judge_assistant(self, message: Message, path: str) -> None:
        calls: Sequence[Call | Unreadable] = message.tool_calls or ()
        if not message.content and not calls:
            self.refuse(NO_WORDS, path)
        self.calls, self.asked_at = len(calls), self.index
        for at, call in enumerate(calls):
            if not isinstance(call, Unreadable):  # it was reported
                self._judge_id(call.id, f"{path}.tool_calls.{at}.id")

    def _judge_id(self, call_id: str, path: str) -> None:
        if not (len(call_id) == ID_LENGTH and call_id.isalnum() and call_id.isascii()):
            self.refuse(ID, path, id=call_id)

    def _count(self) -> None:
        """End the turn of the last calls: as many tool messages as calls."""
        if self.calls != self.results:
            self.refuse(COUNTS, f"messages.{self.asked_at}")
        self.calls = self.results = 0

    def judge_own_end(self) -> None:
        self._count()
        if self.before == "assistant" and not self.prefix:
            self.refuse(LAST_ASSISTANT, f"messages.{self.last_at}.role")


class MistralRules(LookAlike[Turns]):
    target = "mistral"
    not_json = _SHARED[openai.BAD_JSON.id]
    surrogate = _SHARED[openai.SURROGATE.id]
    message: ClassVar[type[openai.Message]] = Message
    items: ClassVar[msgspec.json.Decoder[list[Message]]] = msgspec.json.Decoder(list[Message])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        walk = Turns(family=family_of(model), chat=self.chat.begin_walk(head, model), shared=_SHARED)
        walk.share()
        temperature = head.get("temperature")
        if isinstance(temperature, int | float) and not 0 <= temperature <= TEMPERATURE:
            walk.refuse(TEMPERATURE_RANGE, "temperature")
        choice = head.get("tool_choice")
        if isinstance(choice, str) and choice not in _CHOICES:
            walk.refuse(CHOICE, "tool_choice")
        for name, value in head.items():
            if name in ("logprobs", "top_logprobs"):
                if value:
                    walk.refuse(LOGPROBS, name)
            elif name not in PARAMETERS:
                walk.refuse(EXTRA_PARAMETER, name)
        return walk


RULE_SET = MistralRules()
