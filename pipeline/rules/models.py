"""Model families: which of the rules that differ between models each of them has.

True and False are known, from recorded traffic or from the reports named beside the column; None is not known, and
the rule is then reported with severity ``model``.
"""

from __future__ import annotations

import re

from msgspec import Struct


class Family(Struct, frozen=True):
    """What one family of Claude models takes.

    Attributes:
        name: the family, with the line (opus, sonnet) where that makes a difference.
        prefill: a request may end with an assistant message. Refused from 4.6 on (anthropics/claude-code#52433,
            skyvern#4795, recorded for Sonnet 5); Sonnet 4.6 is contested: snap-stanford/Biomni#284 saw it refuse,
            aws/bedrock-agentcore-sdk-python#547 saw it accept.
        system_turns: ``role: system`` inside messages; 4.8 and later (recorded, and LiteLLM's live probes).
        empty_thinking: a signed thinking block with no text, as 4.7 and later write them (recorded).
        thinking_first: with thinking enabled, the turn of the current tool loop starts with a thinking block
            (reports of 2025: anomalyco/opencode#3077, deepset-ai/haystack-core-integrations#2146). The documentation
            of 2026 says that thinking is switched off silently instead, so it is not known for later models.
        media_sniffed: the declared media type of an image is compared with its bytes (vybestack/llxprt-code#2130);
            Claude 3.5 took a JPEG declared as PNG (recorded).
    """

    name: str
    prefill: bool | None = None
    system_turns: bool | None = None
    empty_thinking: bool | None = None
    thinking_first: bool | None = None
    media_sniffed: bool | None = None


YES, NO = True, False
UNKNOWN = Family("unknown")

# Version -> family; a line's own entry wins over the version's.
#                                      prefill system empty  first  sniffed
_FAMILIES: dict[tuple[int, int] | tuple[int, int, str], Family] = {
    (2, 0): Family("claude-2", YES, NO, NO, NO, None),
    (2, 1): Family("claude-2", YES, NO, NO, NO, None),
    (3, 0): Family("claude-3", YES, NO, NO, NO, NO),
    (3, 5): Family("claude-3-5", YES, NO, NO, NO, NO),
    (3, 7): Family("claude-3-7", YES, NO, NO, YES, None),
    (4, 0): Family("claude-4", YES, NO, NO, YES, YES),
    (4, 1): Family("claude-4-1", YES, NO, NO, None, YES),
    (4, 5): Family("claude-4-5", YES, NO, NO, None, YES),
    (4, 6): Family("claude-4-6", NO, NO, NO, None, YES),
    (4, 6, "sonnet"): Family("claude-sonnet-4-6", None, NO, NO, None, YES),
    (4, 7): Family("claude-4-7", NO, NO, YES, None, YES),
    (4, 8): Family("claude-4-8", NO, YES, YES, None, YES),
    (5, 0): Family("claude-5", NO, YES, YES, None, YES),
}

_LINE = re.compile(r"opus|sonnet|haiku|instant|fable|mythos")
_NUMBERS = re.compile(r"(?<![a-z0-9])(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


def family(model: str | None) -> Family:
    """Find the family of a model name, in any provider's spelling (``us.anthropic.claude-opus-4-8-v1:0``)."""
    name = (model or "").lower().partition("claude")[2].split("@")[0].split(":")[0]
    numbers = _NUMBERS.search(name)
    if numbers is None:
        return UNKNOWN
    major, minor = int(numbers[1]), int(numbers[2] or 0)
    line = _LINE.search(name)
    known = _FAMILIES.get((major, minor, line[0])) if line else None
    return known or _FAMILIES.get((major, minor), UNKNOWN)


def having(fact: str, *, value: bool) -> tuple[str, ...]:
    """Name the families for which ``fact`` is known to be ``value``."""
    return tuple(dict.fromkeys(known.name for known in _FAMILIES.values() if getattr(known, fact) is value))


class Gemini(Struct, frozen=True):
    """What one family of Gemini models takes.

    Attributes:
        name: the family.
        signed_calls: in the current turn, the first call of each step must carry its signature (Gemini 3:
            lbjlaq/Antigravity-Manager#3202; 2.0 and 2.5 recorded without).
        json_with_functions: a JSON response type beside declared functions (2.5 recorded to refuse, 3 to take).
    """

    name: str
    signed_calls: bool | None = None
    json_with_functions: bool | None = None


_GEMINI = {
    "1": Gemini("gemini-1", NO, None),
    "2": Gemini("gemini-2", NO, NO),
    "3": Gemini("gemini-3", YES, YES),
}
_UNKNOWN_GEMINI = Gemini("unknown")
_GEMINI_NAME = re.compile(r"gemini-(?:[a-z]+-)*(\d)(?![0-9])")


def gemini_family(model: str | None) -> Gemini:
    """Find the family of a Gemini model name (``models/gemini-2.5-flash``)."""
    named = _GEMINI_NAME.search((model or "").lower())
    return _GEMINI.get(named[1], _UNKNOWN_GEMINI) if named else _UNKNOWN_GEMINI


def gemini_having(fact: str, *, value: bool) -> tuple[str, ...]:
    """Name the Gemini families for which ``fact`` is known to be ``value``."""
    return tuple(known.name for known in _GEMINI.values() if getattr(known, fact) is value)


class Converse(Struct, frozen=True):
    """What one family of models takes through Bedrock's Converse API.

    Attributes:
        name: the family; for Claude, that of ``family``.
        assistant_first: a conversation may start with the assistant (refused for Claude 3.5: langgenius/dify#12340;
            recorded for Sonnet 4.5).
        neighbours: two messages of one role in a row (refused for Claude 3.5: langgenius/dify#9294; recorded for Nova
            and Titan).
        blank_text: text blocks of whitespace (refused for Claude: aws/aws-sdk-net#4015; recorded for Nova).
        mixed_results: tool results beside other blocks (refused for Llama and Mistral: strands-agents/harness-sdk#1223,
            langchain-ai/langchain-aws#141; recorded for Claude and Nova).
        reasoning: reasoning may be sent back (refused for DeepSeek: langchain-ai/langchain-aws#401).
        unsigned_reasoning: reasoning without a signature.
        anthropic: the rules of Anthropic's own API hold behind Converse's.
        prefill: a conversation may end with the assistant.
        prefill_with_tools: also when it has tools (Claude 3 recorded to refuse).
        video, s3_images: video blocks; images by S3 location (Claude recorded to refuse, Nova to take).
        files_in_results: documents and videos inside a tool result (Nova 2 recorded to refuse).
    """

    name: str
    assistant_first: bool | None = None
    neighbours: bool | None = None
    blank_text: bool | None = None
    mixed_results: bool | None = None
    reasoning: bool | None = None
    unsigned_reasoning: bool | None = None
    anthropic: bool | None = None
    prefill: bool | None = None
    prefill_with_tools: bool | None = None
    video: bool | None = None
    s3_images: bool | None = None
    files_in_results: bool | None = None


def _claude_on_converse(known: Family) -> Converse:
    old = known.name in ("claude-3", "claude-3-5")
    return Converse(
        name=known.name if known is not UNKNOWN else "claude",
        assistant_first=False if old else True if known.name == "claude-4-5" else None,
        neighbours=False if known.name == "claude-3-5" else None,
        blank_text=False,
        mixed_results=True,
        reasoning=True,
        unsigned_reasoning=False,
        anthropic=True,
        prefill=known.prefill,
        prefill_with_tools=False if known.name == "claude-3" else None,
        video=False,
        s3_images=False,
        files_in_results=True,
    )


_CLAUDE_ON_CONVERSE = {known.name: _claude_on_converse(known) for known in (*_FAMILIES.values(), UNKNOWN)}
_ON_CONVERSE: dict[str, Converse] = {
    "nova": Converse(
        "nova",
        anthropic=False,
        neighbours=True,
        blank_text=True,
        mixed_results=True,
        video=True,
        s3_images=True,
        files_in_results=False,
    ),
    "titan": Converse("titan", anthropic=False, neighbours=True),
    "llama": Converse("llama", anthropic=False, mixed_results=False, files_in_results=True),
    "mistral": Converse("mistral", anthropic=False, mixed_results=False, files_in_results=True),
    "deepseek": Converse("deepseek", anthropic=False, reasoning=False),
}
_UNKNOWN_ON_CONVERSE = Converse("unknown")


def converse_family(model: str | None) -> Converse:
    """Find the family of a Bedrock model id or inference profile (``us.amazon.nova-pro-v1:0``)."""
    name = (model or "").lower()
    if "claude" in name:
        return _CLAUDE_ON_CONVERSE[family(name).name]
    return next((known for part, known in _ON_CONVERSE.items() if part in name), _UNKNOWN_ON_CONVERSE)


def converse_having(fact: str, *, value: bool) -> tuple[str, ...]:
    """Name the families for which ``fact`` is known to be ``value`` through Converse."""
    families = (*_CLAUDE_ON_CONVERSE.values(), *_ON_CONVERSE.values())
    return tuple(dict.fromkeys(known.name for known in families if getattr(known, fact) is value))


class ChatFamily(Struct, frozen=True):
    """What one family of models takes through Chat Completions, at OpenAI or at a look-alike.

    Attributes:
        name: the family.
        system: messages of role system (o1-mini recorded to refuse; every other model is taken to take them).
        max_tokens: the parameter (gpt-5-mini and gpt-5-nano recorded to refuse).
        audio: speech in a message (gpt-5-mini and gpt-4.1-mini recorded to refuse, gpt-audio to take).
        echo: the rule by which a message with calls must carry its reasoning, "" where there is none.
        thinks: the model cannot do otherwise; where False, the request decides.
    """

    name: str
    system: bool = True
    max_tokens: bool = True
    audio: bool | None = None
    echo: str = ""
    thinks: bool = False


UNKNOWN_CHAT = ChatFamily("unknown")
_CHAT: tuple[tuple[re.Pattern[str], ChatFamily], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"(^|/)o1-(mini|preview)", ChatFamily("o1-mini", system=False, max_tokens=False, audio=False)),
        (r"(^|/)o\d", ChatFamily("o", max_tokens=False, audio=False)),
        (r"(^|/)gpt-5", ChatFamily("gpt-5", max_tokens=False, audio=False)),
        (r"gpt-(4o-(mini-)?)?audio", ChatFamily("gpt-audio", audio=True)),
        (r"gpt-4\.1", ChatFamily("gpt-4.1", audio=False)),
        (r"deepseek-(v3[.-]2|v4|reasoner)", ChatFamily("deepseek", echo="DSK-01")),
        (r"kimi-k2-thinking", ChatFamily("kimi-thinking", echo="KIM-01", thinks=True)),
        (r"kimi-k2[.-]\d(?!\d)", ChatFamily("kimi", echo="KIM-01")),
    )
)


def chat_family(model: str | None) -> ChatFamily:
    """Find the family of a chat model's name (``gpt-5-mini-2025-08-07``, ``openai/o3``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _CHAT if pattern.search(name)), UNKNOWN_CHAT)


def chat_having(fact: str, *, value: bool) -> tuple[str, ...]:
    """Name the chat families for which ``fact`` is known to be ``value``."""
    return tuple(known.name for _, known in _CHAT if getattr(known, fact) is value)


def echoing(rule: str) -> tuple[str, ...]:
    """Name the chat families that have an echo ``rule``."""
    return tuple(known.name for _, known in _CHAT if known.echo == rule)


class Template(Struct, frozen=True):
    """What the chat template of one family of open models, or the tokenizer that stands in for it, takes.

    Attributes:
        name: the family.
        loose_order: anything but the user's and the assistant's messages strictly in turn, calls and results included.
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

    name: str
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


def _template(name: str, **refused: bool) -> Template:
    """Describe a known template: what no report says that it refuses, it takes."""
    facts = dict.fromkeys((fact for fact in Template.__struct_fields__ if fact != "name"), True)
    return Template(name, **{**facts, **refused})


UNKNOWN_TEMPLATE = Template("unknown")
_MISTRAL = {"system_inside": NO, "any_id": NO, "any_count": NO, "prefill": NO}
_TEMPLATES: tuple[tuple[re.Pattern[str], Template], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"gemma-?[123]", _template("gemma", loose_order=NO)),
        (r"llama-?2", _template("llama-2", loose_order=NO)),
        (r"llama-?3", _template("llama-3", parallel=NO)),
        (r"devstral", _template("devstral", neighbours=NO, **_MISTRAL)),
        (r"mistral-?(7b|nemo)|mixtral", _template("mistral-7b", neighbours=NO, user_after_tool=NO, **_MISTRAL)),
        (r"mistral|ministral|magistral|pixtral|codestral", _template("mistral", **_MISTRAL)),
        (r"qwen-?3[.-][56]", _template("qwen-3.5", later_system=NO, no_user=NO, any_arguments=NO)),
        (r"qwen-?3-?coder", _template("qwen-3-coder", any_arguments=NO)),
        (r"qwen", _template("qwen")),
        (r"glm-4", _template("glm-4", any_arguments=NO)),
        (r"gpt-oss", _template("gpt-oss", control_tokens=NO)),
    )
)


def template(model: str | None) -> Template:
    """Find the chat template's family by the name that a server gives its model (``mistralai/Devstral-Small-2507``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _TEMPLATES if pattern.search(name)), UNKNOWN_TEMPLATE)


def templates_having(fact: str, *, value: bool) -> tuple[str, ...]:
    """Name the template families for which ``fact`` is known to be ``value``."""
    return tuple(known.name for _, known in _TEMPLATES if getattr(known, fact) is value)
