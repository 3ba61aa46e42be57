"""The Chat Completions API: its refusals, in its words, and the members of a message.

Ids, texts and sources are those of the published reports named with each rule; "recorded" means seen in recorded
traffic, "the API's documentation" that no refusal was recorded or reported, and no recording contradicts the rule.
``{at}`` is the path with brackets; the other names are filled in when the rule is broken. All limits are in this
module.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.providers.openai.rules import models, strict, values
from reknit.pipeline.providers.openai.rules.values import BOOLEAN, INTEGER, NUMBER, OBJECT, STRING, Bounds, Types
from reknit.pipeline.rules._misfits import Anything
from reknit.pipeline.rules.base import Catalogue, Family

# Words of both of OpenAI's APIs.
NOT_JSON = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
    "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON. If you have trouble "
    "figuring out how to fix this, please contact us through our help center at help.openai.com.)"
)
TOO_LONG = "Invalid '{at}': string too long. Expected a string with maximum length {limit}, but got a string with length {length} instead."  # noqa: E501 - the provider's text
PATTERN = (
    "Invalid '{at}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
)
ARRAY_TOO_LONG = (
    "Invalid '{at}': array too long. Expected an array with maximum length {limit}, but got an array with length "
    "{length} instead."
)
EMPTY_ARRAY = "Invalid '{at}': empty array. Expected an array with minimum length 1, but got an empty array instead."

ID_LENGTH = 40
NAME_LENGTH = 64
TOOLS = 128
STOPS = 4
BOUNDS: Bounds = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "top_logprobs": (0, 20),
    "n": (1, 128),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
}
TYPES: Types = {
    "temperature": NUMBER,
    "top_p": NUMBER,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "top_logprobs": INTEGER,
    "n": INTEGER,
    "seed": INTEGER,
    "max_tokens": INTEGER,
    "max_completion_tokens": INTEGER,
    "logprobs": BOOLEAN,
    "parallel_tool_calls": BOOLEAN,
    "store": BOOLEAN,
    "stream": BOOLEAN,
    "reasoning_effort": STRING,
    "user": STRING,
    "logit_bias": OBJECT,
    "metadata": OBJECT,
    "response_format": OBJECT,
    "stream_options": OBJECT,
}


class ChatFamily(Family, frozen=True):
    """Requests that one family of models takes through Chat Completions, at OpenAI or at a look-alike.

    Attributes:
        name: the family.
        system: messages of role system (o1-mini recorded to refuse; every other model is assumed to take them).
        max_tokens: the parameter (gpt-5-mini and gpt-5-nano recorded to refuse).
        audio: speech in a message (gpt-5-mini and gpt-4.1-mini recorded to refuse, gpt-audio to take).
        any_schema: a function's schema of any form.
        echo: the rule by which a message with calls must carry its reasoning, "" if there is none.
        thinks: the model always thinks; where False, the request decides.
    """

    system: bool = True
    max_tokens: bool = True
    audio: bool | None = None
    any_schema: bool | None = None
    echo: str = ""
    thinks: bool = False


UNKNOWN = ChatFamily("unknown")
_FAMILIES: tuple[tuple[re.Pattern[str], ChatFamily], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (
            r"(^|/)o1-(mini|preview)(?!\w)",
            ChatFamily("o1-mini", system=False, max_tokens=False, audio=False, any_schema=False),
        ),
        (r"(^|/)o\d(?![\w.])", ChatFamily("o", max_tokens=False, audio=False, any_schema=False)),
        (r"(^|/)gpt-5(?!\w)", ChatFamily("gpt-5", max_tokens=False, audio=False, any_schema=False)),
        (r"(^|/)gpt-(4o-(mini-)?)?audio(?!\w)", ChatFamily("gpt-audio", audio=True, any_schema=False)),
        (r"(^|/)gpt-4\.1(?!\w)", ChatFamily("gpt-4.1", audio=False, any_schema=False)),
        (r"deepseek-(v3[.-]2|v4|reasoner)", ChatFamily("deepseek", echo="DSK-01")),
        (r"kimi-k2-thinking", ChatFamily("kimi-thinking", echo="KIM-01", thinks=True)),
        (r"kimi-k2[.-]\d(?!\d)", ChatFamily("kimi", echo="KIM-01")),
    )
)


def family_of(model: str | None) -> ChatFamily:
    """Find the family of a chat model's name (``gpt-5-mini-2025-08-07``, ``openai/o3``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _FAMILIES if pattern.search(name)), UNKNOWN)


def _echoing(rule: str) -> tuple[str, ...]:
    return tuple(known.name for _, known in _FAMILIES if known.echo == rule)


_UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
)

CATALOGUE = Catalogue("openai-chat", (known for _, known in _FAMILIES))
rule = CATALOGUE.rule

# fmt: off
# One paragraph a rule.

# Calls and results

UNANSWERED = rule("OAI-01", "hard", _UNANSWERED + " The following tool_call_ids did not have response messages: {ids}",
    summary="Every call is answered by a tool message directly after it.",
    repair="move the result back, or make an error result",
    source="BerriAI/litellm#10083; QwenLM/qwen-code#606; MoonshotAI/kimi-cli#2405; never recorded accepted")
SAME_ID = rule("OAI-01b", "hard", "Duplicate value for 'tool_call_id' of {id} in message[{index}]",
    summary="A turn's calls have different ids, and each has one tool message; later turns may use an id again.",
    repair="keep one, or give the others new ids", source="public source files")
rule("OAI-01c", "hard", _UNANSWERED + " (insufficient tool messages following tool_calls message)",
    summary="OAI-01, at DeepSeek.",
    repair="as OAI-01", source="agno-agi/agno#3105; smallmain/vscode-unify-chat-provider#248",
    unchecked="another wording of OAI-01")
ORPHAN = rule("OAI-02", "hard",
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    summary="A tool message follows a message with calls.",
    repair="move it to its call, or drop it",
    source="miurla/morphic#136; dimagi/open-chat-studio#1659; never recorded accepted")
STRANGER = rule(
    "OAI-02b", "hard", "Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of previous message.",
    summary="A tool message names a call of the message that it follows.",
    repair="move it to its call, or drop it", source="dapr/dapr-agents#145")
ID_TOO_LONG = rule("OAI-03", "hard", TOO_LONG,
    summary=f"Ids of calls have at most {ID_LENGTH} characters.",
    repair="shorten both sides with a digest", source="openclaw/openclaw#875; vercel/ai#8132; microsoft/autogen#6377")
NAME = rule("OAI-04", "hard", PATTERN,
    summary="Names of tools are letters, digits, _ and -.",
    repair="rewrite it in tools and history together", source="mcp-use/mcp-use#90; nanbingxyz/5ire#33")
NAME_TOO_LONG = rule("OAI-04b", "hard", TOO_LONG,
    summary=f"Names of tools have at most {NAME_LENGTH} characters.",
    repair="shorten with a digest", source="home-assistant/core#121325")
NO_CALLS = rule("OAI-07", "hard", EMPTY_ARRAY,
    summary="An assistant message without calls has no tool_calls.",
    repair="delete the key", source="the API's documentation")
ARGUMENTS = rule("OAI-09", "hard", "Invalid type for '{at}': expected {wanted}, but got {got} instead.",
    summary="A call's arguments are a string of JSON.",
    repair="write the object as JSON text", source="the API's documentation")
ARGUMENTS_JSON = rule("OAI-09b", "soft", "{at}: the arguments are not the JSON text of an object",
    summary="A call's arguments decode to an object (others were recorded accepted; chat templates fail, VLM-11).",
    repair="wrap them", source="public source files")
rule("MMX-01", "model", "tool call result does not follow tool call",
    summary="OAI-01 and OAI-02, at MiniMax (code 2013).",
    repair="as OAI-02", source="imzodev/openaidy#487", families=("minimax",),
    unchecked="another wording of OAI-02")

# Messages and their parts

NO_CONTENT = rule("OAI-05", "hard", "Invalid value for 'content': expected a string, got null.",
    summary="A message has content, an assistant's with calls excepted.",
    repair="make it an empty string, or drop the message", source="the API's documentation; never recorded accepted")
NO_PARTS = rule("OAI-05b", "soft", EMPTY_ARRAY,
    summary="A list of parts is not empty (the assistant's may be; recorded).",
    repair="drop the message", source="the API's documentation")
NO_MESSAGES = rule("OAI-06", "hard", EMPTY_ARRAY,
    summary="The list of messages is not empty.",
    repair="insert a user turn", source="recorded")
ROLE = rule("OAI-08", "hard", "Invalid value: '{value}'. Supported values are: {supported}.",
    summary="Roles are system, developer, user, assistant, tool and function.",
    repair="map the role", source="the API's documentation")
IMAGE_ROLE = rule("OAI-10", "hard",
    "Invalid '{at}'. Image URLs are only allowed for messages with role 'user', but this message with role '{role}' "
    "contains an image URL.",
    summary="Images are the user's.",
    repair="put a user message with the image after all tool messages",
    source="recorded; OpenHands/OpenHands#7700; openai/openai-node#1030")
TOO_MANY_TOOLS = rule("OAI-11", "hard", ARRAY_TOO_LONG,
    summary=f"A request has at most {TOOLS} tools.",
    repair="select", source="public source files")
NO_TOOLS = rule("OAI-11b", "hard", EMPTY_ARRAY,
    summary="A request without tools has no key tools.",
    repair="delete the key", source="the API's documentation; never recorded accepted")
CHOICE = rule("OAI-11c", "hard", "Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.",
    summary="tool_choice and parallel_tool_calls need tools.",
    repair="delete the key", source="the API's documentation; never recorded accepted")
NO_OBJECT_SCHEMA = rule("OAI-25", "model",
    "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{got}\"'.",
    summary="A function's schema is of type object (OpenAI's own models; other hosts are not known).",
    repair="set the type", source="chatanywhere/GPT_API_free#403",
    fact="any_schema")
TOP_LEVEL_UNION = rule("OAI-25b", "model",
    "Invalid schema for function '{name}': schema must have type 'object' and not have "
    "'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
    summary="A function's schema has no alternatives, enum or not at its top level (OpenAI's own models).",
    repair="merge the branches into one set of properties",
    source="nspady/google-calendar-mcp#39; langchain-ai/langchainjs#9804; cecli-dev/cecli#281",
    fact="any_schema")
IMAGE_TYPE = rule("OAI-12", "hard",
    "You uploaded an unsupported image. Please make sure your image has of one the following formats: "
    "['png', 'jpeg', 'gif', 'webp'].",
    summary="Images are png, jpeg, gif or webp.",
    repair="replace it by a stub", source="marketing-factory/ai-filemetadata#18")
SHAPE = rule("OAI-13", "hard", "Invalid type for '{at}': expected {wanted}, but got {got} instead.",
    summary="Every value has its type.",
    repair="depends on the field", source="recorded")
MISSING = rule("OAI-13b", "hard", "Missing required parameter: '{at}'.",
    summary="Every required field is there.",
    repair="depends on the field", source="recorded")
UNKNOWN_FILE_DATA = rule("OAI-13c", "soft", "Unknown parameter: '{at}'.",
    summary="A file's bytes are in `file_data`, as a data URL; `data` next to it is not known.",
    repair="drop it", source="the API's documentation; the words are recorded for Responses")
KIND = rule("OAI-14", "hard", "Invalid value: '{value}'. Supported values are: {supported}.",
    summary="Parts and calls are of a known type.",
    repair="drop it, or convert it", source="recorded")
AUDIO = rule("OAI-15", "model", "Invalid '{at}'. Content blocks are expected to be either text or image_url type.",
    summary="Speech goes to models that hear.",
    repair="replace it by a stub", source="recorded on gpt-5-mini and gpt-4.1-mini; accepted on gpt-audio",
    fact="audio")
SYSTEM = rule("OAI-16", "model", "Unsupported value: '{at}' does not support '{role}' with this model.",
    summary="o1-mini and o1-preview take no message of the system's or the developer's.",
    repair="make it user text", source="recorded on o1-mini",
    fact="system")

# Reasoning, at look-alikes

DEEPSEEK_REASONING = rule(
    "DSK-01", "model", "The `reasoning_content` in the thinking mode must be passed back to the API.",
    summary="DeepSeek, when it thinks (it may be switched off; recorded): a message with calls carries its reasoning.",
    repair="map thinking to reasoning_content",
    source="earendil-works/pi#3636; OpenHands/software-agent-sdk#4249; rikkahub/rikkahub#1587",
    families=_echoing("DSK-01"))
KIMI_REASONING = rule("KIM-01", "model",
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}",
    summary="Kimi, when it thinks: a message with calls carries reasoning, be it empty.",
    repair="map thinking to reasoning_content, or add an empty one",
    source="anomalyco/opencode#10996; openclaw/openclaw#74846; bytedance/deer-flow#3043",
    families=_echoing("KIM-01"))

# Parameters

NO_MODEL = rule("OAI-17", "soft", "you must provide a model parameter",
    summary="A request names its model (the sender may add it; Azure has it in the address, recorded).",
    repair="set the model", source="the API's documentation", by_sender=True)
MAX_TOKENS = rule("OAI-18", "model",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    summary="Reasoning models take max_completion_tokens.",
    repair="rename it", source="recorded on gpt-5-mini and gpt-5-nano",
    fact="max_tokens")
BOTH_LIMITS = rule(
    "OAI-18b", "hard", "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    summary="One limit on tokens.",
    repair="drop max_tokens", source="recorded")
OUT_OF_BOUNDS = rule("OAI-19", "hard", values.OUT_OF_BOUNDS,
    summary="Numbers lie between their bounds: temperature between 0 and 2, top_p between 0 and 1.",
    repair="clamp it", source="recorded for temperature; the API's documentation")
TOO_MANY_STOPS = rule("OAI-19b", "hard", ARRAY_TOO_LONG,
    summary=f"At most {STOPS} stop sequences.",
    repair="keep the first ones", source="the API's documentation; never recorded accepted")
TIER = rule("OAI-19c", "soft", values.TIER,
    summary="A service tier has OpenAI's name (never recorded).",
    repair="take the tier of the same meaning", source="public source files; the API's documentation")
EXTRA_PARAMETER = rule("OAI-20", "soft", "Unrecognized request argument supplied: {name}",
    summary="Parameters are known ones; new ones come, and look-alikes have their own.",
    repair="drop the parameter", source="recorded")
MODEL_PARAMETER = rule("OAI-23", "hard", models.PARAMETER,
    summary="Parameters are those of the model; single rows of the table of models only warn.",
    repair="drop the parameter", source="recorded; each row of the table of models has its own source")
MODEL_VALUE = rule("OAI-23b", "hard",
    "Unsupported value: '{at}' does not support '{value}' with this model. Supported values are: {supported}.",
    summary="Values are those that the model takes, such as levels of reasoning effort.",
    repair="take the nearest one", source="egoist/chatwise-releases#1257; livekit/agents#3966")
MODEL_DEFAULT = rule("OAI-23c", "hard",
    "Unsupported value: '{at}' does not support {value} with this model. Only the default (1) value is supported.",
    summary="Reasoning models take the default temperature only.",
    repair="drop the parameter", source="tmc/langchaingo#1355; QwenLM/qwen-code#921")
MODEL_FORMAT = rule("OAI-23d", "hard", models.FORMAT,
    summary="Answers follow a schema only with models that have structured outputs.",
    repair="choose another model", source="recorded on gpt-4")
JSON_UNSAID = rule("OAI-26", "soft",
    "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
    summary="A message has the word if the answer must be a JSON object (never recorded; it is not known which count).",
    repair="ask for JSON in the system prompt",
    source="mem0ai/mem0#3559; meta-llama/PurpleLlama#94; ultimatejimmy/xray.koplugin#33")
STRICT_SCHEMA = rule("OAI-24", "hard", strict.MESSAGE,
    summary="A strict schema closes every object, requires every property, and has no keyword outside of the subset.",
    repair="complete it, or leave strict mode", source="recorded; ash-project/ash_ai#155; the API's documentation")

# The document itself

BAD_JSON = rule("OAI-21", "hard", NOT_JSON,
    summary="The body is a JSON object.",
    repair="send JSON", source="ChatGPTNextWeb/NextChat#4064")
SURROGATE = rule("OAI-21b", "soft", NOT_JSON,
    summary="No lone surrogates (no report says what the API makes of them).",
    repair="replace them by U+FFFD", source="as ANT-32, by analogy")

# A policy's own

ENDS_WITH_ASSISTANT = rule(
    "OAI-22", "hard", "The last message is the assistant's, and the policy tail=reject refuses such a history.",
    summary="Under the policy tail=reject, a history does not end with the assistant.",
    repair="append a user turn, or choose another policy", source="Reknit: the API continues after it (recorded)",
    unchecked="the API takes it, the policy does not")
# fmt: on

MODEL_WORDS = models.Words(
    parameter=MODEL_PARAMETER,
    value=MODEL_VALUE,
    default=MODEL_DEFAULT,
    own={models.FORMAT_TYPE: MODEL_FORMAT},
    places=dict.fromkeys(models.RESPONSES_ONLY, ""),
)

# The members of a message, of its parts and of its calls. Other keys are skipped: the provider was seen to take
# ``annotations`` and ``index``, and look-alikes have their own. Free-form JSON is skipped too, not kept.

Role: TypeAlias = Literal["system", "assistant", "user", "function", "tool", "developer"]


class ImageUrl(Struct, frozen=True, gc=False):
    """The location of an image: a URL, or the image itself as a data URL."""

    url: str


class FileData(Struct, frozen=True, gc=False):
    """A file uploaded before, or the file itself as a data URL with a name."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None
    data: Raw | UnsetType = UNSET  # of no version of the API


class Text(Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str


class Image(Struct, frozen=True, gc=False, tag_field="type", tag="image_url"):
    """An image; the bare string was recorded accepted."""

    image_url: str | ImageUrl


class Audio(Struct, frozen=True, gc=False, tag_field="type", tag="input_audio"):
    input_audio: Anything


class Refusal(Struct, frozen=True, gc=False, tag_field="type", tag="refusal"):
    refusal: str


class PriorAudio(Struct, frozen=True, gc=False, tag_field="type", tag="audio"):
    """Speech of the assistant's, by reference."""


class File(Struct, frozen=True, gc=False, tag_field="type", tag="file"):
    file: FileData


class Function(Struct, frozen=True, gc=False):
    """The function that a call names, its arguments as JSON text."""

    name: str
    arguments: str


class Custom(Struct, frozen=True, gc=False):
    """A custom tool's call: free text."""

    name: str
    input: str


class FunctionCall(Struct, frozen=True, gc=False, tag_field="type", tag="function"):
    id: str
    function: Function


class CustomCall(Struct, frozen=True, gc=False, tag_field="type", tag="custom"):
    """A call of a tool that takes free text."""

    id: str
    custom: Custom


Part: TypeAlias = Text | Image | Audio | Refusal | PriorAudio | File
Call: TypeAlias = FunctionCall | CustomCall
PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")  # as the provider lists them
ROLES = ("system", "assistant", "user", "function", "tool", "developer")


class Message(Struct, frozen=True, gc=False):
    """One message of any role; which fields a role has is the rules' matter."""

    role: Role
    content: str | list[Part] | UnsetType | None = UNSET
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: Raw | UnsetType = UNSET
    refusal: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    # Look-alikes': DeepSeek's and Kimi's; Mistral's.
    reasoning_content: Raw | UnsetType = UNSET
    prefix: bool | None = None


class _Named(Struct, frozen=True, gc=False):
    name: str


class FunctionTool(Struct, frozen=True, gc=False):
    """A tool of the caller's, as far as it is judged."""

    function: _Named


PARAMETERS = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "messages", "metadata", "modalities", "model", "moderation", "n", "parallel_tool_calls",
        "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
        "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
        "web_search_options",
    }
)  # fmt: skip
