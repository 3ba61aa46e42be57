"""The rules of DeepSeek's own API, as a fold over a request's messages.

Its deserializer refuses what it has no variant for (400, formerly 422). The refusals of a model depend on whether it
thinks: the current models do, unless the request switches that off.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, Raw

from reknit.pipeline.providers.openai_chat.rules import catalogue as openai
from reknit.pipeline.providers.openai_chat.rules.catalogue import Message, Refusal, Text
from reknit.pipeline.providers.openai_chat.rules.look_alike import LookAlike, LookAlikeTurns, is_forced, share_rules
from reknit.pipeline.rules.base import Catalogue, Family, Rule

_ROLES = ("system", "user", "assistant", "tool")


class DeepSeek(Family, frozen=True):
    """Requests that one family of DeepSeek's models takes.

    Attributes:
        name: the family.
        unreturned: a message with calls without its reasoning, where the request does not say whether the model thinks.
        forced: a choice that forces a call, where the request does not say whether the model thinks.
        strict: the name was refused successive messages of one role in 2025.
    """

    unreturned: bool | None = None
    forced: bool | None = None
    strict: bool = False


UNKNOWN = DeepSeek("unknown")
_FAMILIES: tuple[tuple[re.Pattern[str], DeepSeek], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"deepseek-reasoner", DeepSeek("deepseek-reasoner", unreturned=False, forced=False, strict=True)),
        (r"deepseek-v4", DeepSeek("deepseek-v4", unreturned=False, forced=False)),
        (r"deepseek-(chat|coder)", DeepSeek("deepseek-chat", unreturned=True, forced=True)),
    )
)


def family_of(model: str | None) -> DeepSeek:
    """Find the family of a model's name (``deepseek-v4-flash``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _FAMILIES if pattern.search(name)), UNKNOWN)


CATALOGUE = Catalogue("deepseek", (known for _, known in _FAMILIES))
rule = CATALOGUE.rule

# fmt: off
# One paragraph a rule.
REASONING = rule("DSK-02", "model", "The `reasoning_content` in the thinking mode must be passed back to the API.",
    summary="A message with calls carries its reasoning while the model thinks (every recorded request of that kind "
    "has it; without thinking it may be absent, recorded).",
    repair="map thinking to reasoning_content, or switch thinking off",
    source="earendil-works/pi#3636; craft-ai-agents/craft-agents-oss#703; Gitlawb/openclaude#878", fact="unreturned")
TEXT_ONLY = rule("DSK-03", "hard",
    "Failed to deserialize the JSON body into the target type: messages[{index}]: unknown variant `{kind}`, expected "
    "`text`",
    summary="Parts are text.",
    repair="replace it by a line of text", source="recorded on deepseek-v4-flash")
FORCED = rule("DSK-04", "model", "Thinking mode does not support this tool_choice",
    summary="No choice forces a call while the model thinks.",
    repair="drop the choice, or switch thinking off",
    source="recorded; cloudwego/eino#994; deepseek-ai/awesome-deepseek-integration#598", fact="forced")
SCHEMA = rule("DSK-05", "hard", "This response_format type is unavailable now",
    summary="Answers have no schema: the formats are text and json_object.",
    repair="describe the schema in the system prompt",
    source="llm-exe/llm-exe#662; EvoScientist/EvoScientist#348; BerriAI/litellm#42245")
LAST_ASSISTANT = rule("DSK-06", "soft",
    "The last message of deepseek-reasoner must be a user message, or an assistant message with prefix mode on (refer "
    "to https://api-docs.deepseek.com/guides/chat_prefix_completion).",
    summary="The last message is the user's or a result, or has `prefix: true` (reported in 2025).",
    repair="append a user turn, or set prefix",
    source="BerriAI/litellm#8090; langgenius/dify#16860; gptme/gptme#467")
SUCCESSIVE = rule("DSK-07", "soft",
    "deepseek-reasoner does not support successive user or assistant messages (messages[{before}] and "
    "messages[{index}] in your input). You should interleave the user/assistant messages in the message sequence.",
    summary="deepseek-reasoner: user and assistant alternate (reported in 2025).",
    repair="merge neighbours", source="deepseek-ai/DeepSeek-R1#21; Aider-AI/aider#2933; BerriAI/litellm#8018")
FIRST_USER = rule("DSK-08", "soft",
    "The first message (except the system message) of deepseek-reasoner must be a user message, but an assistant "
    "message detected.",
    summary="deepseek-reasoner: the user speaks first (reported in 2025).",
    repair="prepend a user turn", source="ChatGPTNextWeb/NextChat#6343; pig-mesh/deepseek4j#80")
ROLE = rule("DSK-09", "hard",
    "Failed to deserialize the JSON body into the target type: messages[{index}].role: unknown variant `{role}`, "
    "expected one of `system`, `user`, `assistant`, `tool`, `latest_reminder`",
    summary="Roles are system, user, assistant and tool.",
    repair="map the role", source="earendil-works/pi#1048; eclipse-theia/theia#15144; BenedictKing/ccx#149")
NO_WORDS = rule("DSK-10", "hard", "Invalid assistant message: content or tool_calls must be set",
    summary="The assistant's message has content or calls.",
    repair="drop it, or write a stub", source="carlrobertoh/ProxyAI#830")
JSON_WORD = rule("DSK-11", "soft",
    "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.",
    summary="With the format json_object, a message has the word json (no report says which messages count).",
    repair="add it to the system prompt", source="vercel/ai#7913; Canner/WrenAI#1581; browserbase/stagehand#1204")
# fmt: on

_SHARED = share_rules(
    CATALOGUE,
    "DSK",
    hard=(openai.BAD_JSON, openai.NO_MESSAGES, openai.SHAPE, openai.UNANSWERED),
    soft=(
        *(openai.SAME_ID, openai.ORPHAN, openai.STRANGER, openai.ROLE, openai.KIND, openai.NO_CONTENT),
        *(openai.MISSING, openai.NO_MODEL, openai.SURROGATE, openai.NO_TOOLS, openai.CHOICE),
        *(openai.NAME, openai.NAME_TOO_LONG, openai.OUT_OF_BOUNDS),
    ),
)


class Turns(LookAlikeTurns, kw_only=True, eq=False):
    """The state of the conversation.

    Attributes:
        thinking: ``enabled`` or ``disabled`` by the request, "" where it does not say.
        needs_json: the request asks for JSON, and no message so far has the word.
        before: the role of the last message that is not the system's, "" before the first.
        last_at: the index of the last message; ``prefix``: it is a prefix.
    """

    family: DeepSeek
    thinking: str = ""
    needs_json: bool = False
    before: str = ""
    last_at: int = 0
    prefix: bool = False

    def refuse_thinking(self, rule: Rule, path: str, **values: object) -> None:
        """Report what a model does not take while it thinks."""
        if self.thinking == "enabled":
            self.found.append(rule.broken(path, "hard", **values))
        elif self.thinking != "disabled":
            self.refuse(rule, path, **values)

    def judge_item(self, message: Message) -> None:
        role, path = message.role, f"messages.{self.index}"
        if role not in _ROLES:
            self.refuse(ROLE, f"{path}.role", index=self.index, role=role)
        self._judge_parts(message, path)
        if role == "assistant":
            self._judge_assistant(message, path)
        if self.family.strict and role != "system":
            self._judge_turn(message, path)
        if self.needs_json and "json" in _words(message).lower():
            self.needs_json = False
        self.before = self.before if role == "system" else role
        self.last_at = self.index
        self.prefix = role != "assistant" or message.prefix is True

    def _judge_parts(self, message: Message, path: str) -> None:
        if isinstance(message.content, list):
            for at, part in enumerate(message.content):
                if not isinstance(part, Text | Refusal):
                    kind = part.__struct_config__.tag
                    self.refuse(TEXT_ONLY, f"{path}.content.{at}.type", index=self.index, kind=kind)

    def _judge_assistant(self, message: Message, path: str) -> None:
        if message.tool_calls:
            if message.reasoning_content is UNSET or message.reasoning_content == Raw(b"null"):
                self.refuse_thinking(REASONING, path)
        elif message.content is None or message.content is UNSET:
            self.refuse(NO_WORDS, path)

    def _judge_turn(self, message: Message, path: str) -> None:
        if not self.before and message.role == "assistant":
            self.refuse(FIRST_USER, f"{path}.role")
        elif message.role == self.before != "tool":
            self.refuse(SUCCESSIVE, f"{path}.role", before=self.last_at, index=self.index)

    def judge_own_end(self) -> None:
        if self.index and not self.prefix:
            self.refuse(LAST_ASSISTANT, f"messages.{self.last_at}.role")
        if self.index and self.needs_json:
            self.refuse(JSON_WORD, "response_format")


def _words(message: Message) -> str:
    """Return a message's text."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content if isinstance(part, Text))
    return message.content if isinstance(message.content, str) else ""


class DeepSeekRules(LookAlike[Turns]):
    target = "deepseek"
    not_json = _SHARED[openai.BAD_JSON.id]
    surrogate = _SHARED[openai.SURROGATE.id]

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        chat = self.chat.begin_walk(head, model)
        answer = head.get("response_format")
        form = answer.get("type") if isinstance(answer, dict) else None
        walk = Turns(
            family=family_of(model),
            chat=chat,
            shared=_SHARED,
            thinking=chat.thinking,
            needs_json=form == "json_object",
        )
        walk.share()
        if form == "json_schema":
            walk.refuse(SCHEMA, "response_format.type")
        if is_forced(head.get("tool_choice")):
            walk.refuse_thinking(FORCED, "tool_choice")
        return walk


RULE_SET = DeepSeekRules()
