"""The rules of Moonshot's own API (Kimi), as a fold over a request's messages.

The refusals of a model depend on whether it thinks: the current models do, unless the request switches that off.
Nothing was recorded at the API itself; the refusals are those of published reports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.providers.openai_chat.rules import catalogue as openai
from reknit.pipeline.providers.openai_chat.rules.catalogue import Audio, File, Image, PriorAudio, Refusal, Text
from reknit.pipeline.providers.openai_chat.rules.look_alike import LookAlike, LookAlikeTurns, is_forced, share_rules
from reknit.pipeline.rules._misfits import Unreadable
from reknit.pipeline.rules.base import Catalogue, Family, Rule

TEMPERATURE = 1
_FIXED: Mapping[str, float] = MappingProxyType({"top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0})
_name = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*").fullmatch
_LINKS = ("http://", "https://")


class Kimi(Family, frozen=True):
    """Requests that one family of Moonshot's models takes.

    Attributes:
        name: the family.
        unreturned: a message with calls without its reasoning, where the request does not say whether the model thinks.
        forced: a choice that forces a call, where the request does not say whether the model thinks.
        free: parameters of sampling with other values than the model's own.
    """

    unreturned: bool | None = None
    forced: bool | None = None
    free: bool | None = None


UNKNOWN = Kimi("unknown")
_FAMILIES: tuple[tuple[re.Pattern[str], Kimi], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"kimi-k2-thinking", Kimi("kimi-k2-thinking", unreturned=False, forced=False, free=True)),
        (r"kimi-k2[.-]\d(?!\d)", Kimi("kimi-k2.5", unreturned=False, forced=False, free=False)),
        (r"kimi-k3|(^|/)k3(?!\d)", Kimi("kimi-k3", unreturned=False, forced=False, free=False)),
        (r"kimi-k2|moonshot-v1", Kimi("kimi-k2", unreturned=True, forced=True, free=True)),
    )
)


def family_of(model: str | None) -> Kimi:
    """Find the family of a model's name (``kimi-k2.5``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _FAMILIES if pattern.search(name)), UNKNOWN)


CATALOGUE = Catalogue("moonshot", (known for _, known in _FAMILIES))
rule = CATALOGUE.rule

# fmt: off
# One paragraph a rule.
REASONING = rule("KIM-02", "model",
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}",
    summary="A message with calls carries reasoning while the model thinks, be it empty.",
    repair="map thinking to reasoning_content, or add an empty one",
    source="anomalyco/opencode#10996; openclaw/openclaw#74846; routatic/proxy#1; mastra-ai/mastra#12592",
    fact="unreturned")
EMPTY = rule("KIM-03", "hard", "Invalid request: the message at position {index} with role '{role}' must not be empty",
    summary="No message of the assistant's without calls, and none of the user's or the system's, is empty.",
    repair="drop it, or write a stub",
    source="MoonshotAI/kimi-code#1985; anomalyco/opencode#37887; AstrBotDevs/AstrBot#7200")
EMPTY_TEXT = rule("KIM-04", "soft", "text content is empty",
    summary="A message with calls has no empty text as its content, and no part is an empty text.",
    repair="leave it out", source="MoonshotAI/kimi-cli#2621")
TEMPERATURE_FIXED = rule("KIM-05", "model", "invalid temperature: only {only} is allowed for this model",
    summary="Current models have one temperature: 1 while they think, 0.6 where the request switches that off.",
    repair="drop the parameter",
    source="NousResearch/hermes-agent#12668; odysseus-dev/odysseus#3959; HKUDS/nanobot#4962; HKUDS/nanobot#202",
    fact="free")
SAMPLING_FIXED = rule("KIM-06", "soft", "invalid {name}: only {only} is allowed for this model",
    summary="Current models have one value of top_p, n, presence_penalty and frequency_penalty.",
    repair="drop the parameter", source="iOfficeAI/gemini-cli-pro#30; the API's documentation")
FORCED = rule("KIM-07", "model", "tool_choice '{choice}' is incompatible with thinking enabled",
    summary="No choice forces a call while the model thinks.",
    repair="drop the choice, or switch thinking off",
    source="can1357/oh-my-pi#827, #1077, #5994; simstudioai/sim#5716", fact="forced")
NAME = rule("KIM-08", "soft",
    "function name is invalid, must start with a letter and can contain letters, numbers, underscores, and dashes",
    summary="Names of functions begin with a letter.",
    repair="rewrite it in tools and history together", source="MoonshotAI/kimi-cli#1773")
ROLE = rule("KIM-09", "soft", "Invalid request: unsupported role '{role}'",
    summary="Roles are system, user, assistant and tool (no report has the refusal).",
    repair="map the role", source="the API's documentation")
LAST_ASSISTANT = rule("KIM-10", "soft", "The last message is the assistant's, and has no `partial: true`.",
    summary="An answer to continue is marked by `partial: true` (no report says that it is refused without).",
    repair="append a user turn, or set partial", source="the API's documentation")
TEMPERATURE_RANGE = rule("KIM-11", "soft", "invalid temperature: must be between 0 and 1",
    summary=f"Temperature lies between 0 and {TEMPERATURE} (no report has the refusal).",
    repair="clamp it", source="the API's documentation")
IMAGE_LINK = rule("KIM-12", "soft", "unsupported image url",
    summary="Images are data URLs, or `ms://` and the id of a file (no report has the refusal).",
    repair="send the data", source="the API's documentation")
# fmt: on

_SHARED = share_rules(
    CATALOGUE,
    "KIM",
    hard=(openai.BAD_JSON, openai.NO_MESSAGES, openai.SHAPE, openai.UNANSWERED, openai.ORPHAN, openai.STRANGER),
    soft=(
        *(openai.SAME_ID, openai.ROLE, openai.KIND, openai.MISSING, openai.NO_MODEL, openai.SURROGATE),
        *(openai.NO_TOOLS, openai.CHOICE, openai.NAME_TOO_LONG),
    ),
)
_ROLES = ("system", "user", "assistant", "tool")


class VideoUrl(Struct, frozen=True, gc=False, tag_field="type", tag="video_url"):
    """A video; the bare string is an address too."""

    video_url: Raw


Part: TypeAlias = Text | Image | VideoUrl | Audio | Refusal | PriorAudio | File


class Message(openai.Message, frozen=True, gc=False):
    """A message with Moonshot's parts and its mark of an answer to continue."""

    content: str | list[Part] | UnsetType | None = UNSET  # type: ignore[assignment]  # the parts are Moonshot's
    partial: bool | None = None


class Turns(LookAlikeTurns, kw_only=True, eq=False):
    """The state of the conversation.

    Attributes:
        thinking: ``enabled`` or ``disabled`` by the request, "" where it does not say.
        ends: the last message is the user's, a result, or an answer to continue.
        last_at: its index.
    """

    family: Kimi
    thinking: str = ""
    ends: bool = True
    last_at: int = 0

    def refuse_thinking(self, rule: Rule, path: str, **values: object) -> None:
        """Report what a model does not take while it thinks."""
        if self.thinking == "enabled":
            self.found.append(rule.broken(path, "hard", **values))
        elif self.thinking != "disabled":
            self.refuse(rule, path, **values)

    def judge_item(self, message: Message) -> None:
        role, path = message.role, f"messages.{self.index}"
        if role not in _ROLES:
            self.refuse(ROLE, f"{path}.role", role=role)
        self._judge_content(message, path)
        if role == "assistant" and message.tool_calls:
            if message.reasoning_content is UNSET or message.reasoning_content == Raw(b"null"):
                self.refuse_thinking(REASONING, path, index=self.index)
            for at, call in enumerate(message.tool_calls):
                if not isinstance(call, Unreadable) and isinstance(call, openai.FunctionCall):
                    self.judge_name(call.function.name, f"{path}.tool_calls.{at}.function.name")
        self.last_at = self.index
        self.ends = role != "assistant" or message.partial is True

    def judge_name(self, name: object, path: str) -> None:
        if isinstance(name, str) and not _name(name):
            self.refuse(NAME, path)

    def _judge_content(self, message: Message, path: str) -> None:
        content = message.content
        if not content:
            if message.tool_calls:
                if content == "":
                    self.refuse(EMPTY_TEXT, f"{path}.content")
            elif message.role != "tool":
                self.refuse(EMPTY, f"{path}.content", index=self.index, role=message.role)
        elif isinstance(content, list):
            for at, part in enumerate(content):
                if isinstance(part, Text) and not part.text:
                    self.refuse(EMPTY_TEXT, f"{path}.content.{at}.text")
                elif isinstance(part, Image) and _address(part).startswith(_LINKS):
                    self.refuse(IMAGE_LINK, f"{path}.content.{at}.image_url")

    def judge_own_end(self) -> None:
        if self.index and not self.ends:
            self.refuse(LAST_ASSISTANT, f"messages.{self.last_at}.role")


def _address(image: Image) -> str:
    return image.image_url if isinstance(image.image_url, str) else image.image_url.url


class MoonshotRules(LookAlike[Turns]):
    target = "moonshot"
    not_json = _SHARED[openai.BAD_JSON.id]
    surrogate = _SHARED[openai.SURROGATE.id]
    message: ClassVar[type[openai.Message]] = Message
    items: ClassVar[msgspec.json.Decoder[list[Message]]] = msgspec.json.Decoder(list[Message])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        chat = self.chat.begin_walk(head, model)
        walk = Turns(family=family_of(model), chat=chat, shared=_SHARED, thinking=chat.thinking)
        walk.share()
        _judge_sampling(head, walk)
        choice = head.get("tool_choice")
        if is_forced(choice):
            walk.refuse_thinking(FORCED, "tool_choice", choice="required" if choice == "required" else "specified")
        tools = head.get("tools")
        for at, tool in enumerate(tools if isinstance(tools, list) else ()):
            function = tool.get("function") if isinstance(tool, dict) else None
            if isinstance(function, dict):
                walk.judge_name(function.get("name"), f"tools.{at}.function.name")
        return walk


def _judge_sampling(head: dict[str, Any], walk: Turns) -> None:
    temperature = head.get("temperature")
    if isinstance(temperature, int | float):
        only = 0.6 if walk.thinking == "disabled" else 1
        if temperature != only:
            walk.refuse_where_known(TEMPERATURE_FIXED, "temperature", only=only)
        if not 0 <= temperature <= TEMPERATURE:
            walk.refuse(TEMPERATURE_RANGE, "temperature")
    if walk.family.free is False:
        for name, value in _FIXED.items():
            if head.get(name) not in (None, value):
                walk.refuse(SAMPLING_FIXED, name, name=name, only=value)


RULE_SET = MoonshotRules()
