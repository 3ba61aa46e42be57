"""The Responses API: its refusals, in its words, and the members of an item.

Ids, texts and sources are those of the published reports named with each rule; "recorded" means seen in recorded
traffic, "the API's documentation" that no refusal was recorded or reported, and no recording contradicts the rule.
``{at}`` is the path with brackets; the other names are filled in when the rule is broken. All limits are in this
module.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Union

from msgspec import UNSET, Raw, Struct, UnsetType, defstruct, field

from reknit.pipeline.providers.openai.rules import listing, models, strict, values
from reknit.pipeline.providers.openai.rules.values import BOOLEAN, INTEGER, NUMBER, OBJECT, STRING, Bounds, Types
from reknit.pipeline.providers.openai_chat.rules.catalogue import NOT_JSON, PATTERN, TOO_LONG
from reknit.pipeline.rules.base import Catalogue

ID_LENGTH = 64
NAME_LENGTH = 64
MIN_OUTPUT_TOKENS = 16
BOUNDS: Bounds = {"temperature": (0, 2), "top_p": (0, 1), "top_logprobs": (0, 20), "max_tool_calls": (1, None)}
TYPES: Types = {
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_logprobs": INTEGER,
    "max_output_tokens": INTEGER,
    "max_tool_calls": INTEGER,
    "background": BOOLEAN,
    "parallel_tool_calls": BOOLEAN,
    "store": BOOLEAN,
    "stream": BOOLEAN,
    "instructions": STRING,
    "previous_response_id": STRING,
    "user": STRING,
    "metadata": OBJECT,
    "reasoning": OBJECT,
    "text": OBJECT,
}
# The tools of the provider that deep research takes, and its sources: a request has at least one of these.
RESEARCH_TOOLS = ("web_search_preview", "code_interpreter", "mcp", "file_search")
RESEARCH_SOURCES = ("web_search_preview", "mcp", "file_search")

CATALOGUE = Catalogue("openai-responses")
rule = CATALOGUE.rule

# fmt: off
# One paragraph a rule.

# Calls and outputs

UNANSWERED = rule("RSP-01", "hard", "No tool output found for {tool} {id}.",
    summary="Every call has an output after it.",
    repair="move the output back, or make an error output",
    source="lace-ai/gai#49; openai/openai-agents-python#2165, #873; never recorded accepted")
ORPHAN = rule("RSP-02", "hard", "No tool call found for {tool} output with call_id {id}.",
    summary=(
        "Every output has a call before it; after a previous response, a conversation or an item reference the call "
        "may be there (recorded)."
    ),
    repair="drop it", source="james-6-23/codex2api#414")
CALL_ID_TOO_LONG = rule("RSP-08", "hard", TOO_LONG,
    summary=f"call_id has at most {ID_LENGTH} characters.",
    repair="shorten both sides with a digest", source="AnswerDotAI/fastllm#45; decolua/9router#393")
NAME = rule("RSP-11", "hard", PATTERN,
    summary="Names of tools are letters, digits, _ and -.",
    repair="rewrite it in tools and history together", source="the API's documentation; never recorded accepted")
NAME_TOO_LONG = rule("RSP-11b", "soft", TOO_LONG,
    summary=f"Names of tools have at most {NAME_LENGTH} characters (not known for this API).",
    repair="shorten with a digest", source="as OAI-04b, by analogy")
NO_OBJECT_SCHEMA = rule("RSP-27", "hard",
    "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{got}\"'.",
    summary="A function's schema is of type object.",
    repair="set the type", source="chatanywhere/GPT_API_free#403")
TOP_LEVEL_UNION = rule("RSP-27b", "hard",
    "Invalid schema for function '{name}': schema must have type 'object' and not have "
    "'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
    summary="A function's schema has no alternatives, enum or not at its top level.",
    repair="merge the branches into one set of properties", source="langchain-ai/langchainjs#9804; cecli-dev/cecli#281")
SECOND_OUTPUT = rule("RSP-13", "soft", "{at}: there is an output for {id} already",
    summary="A call has one output (no refusal was seen).",
    repair="keep the first real one", source="no text seen")
OTHER_OUTPUT = rule("RSP-13b", "soft", UNANSWERED.message,
    summary="The output of a call is of the call's own type (all 289 recorded pairs are; no refusal was seen).",
    repair="send the type of output that answers the call", source="the words of RSP-01, which name the call's type")

# Reasoning, ids and references

NO_FOLLOWER = rule(
    "RSP-03", "hard", "Item '{id}' of type 'reasoning' was provided without its required following item.",
    summary=(
        "Reasoning with an id is directly before the item that it led to: a call, or, if the provider keeps items, a "
        "message with an id."
    ),
    repair="drop the reasoning with its call",
    source="vercel/ai#7099, #8379; continuedev/continue#8933; openai/openai-agents-js#326")
USER_FOLLOWS = rule("RSP-03b", "soft", NO_FOLLOWER.message,
    summary="Reasoning is not before a turn of the caller's (accepted by o3-mini).",
    repair="as RSP-03", source="openai/openai-node#1567")
rule("RSP-04", "hard",
    "Item '{id}' of type 'function_call' was provided without its required 'reasoning' item: '{reasoning}'.",
    summary="A call with an id keeps its reasoning.",
    repair="strip the item's id, keep its call_id",
    source="omnigent-ai/omnigent#5066; laravel/ai#1052; TanStack/ai#1365",
    unchecked="only the provider knows whether reasoning led to the call")
SAME_ID = rule("RSP-05", "hard",
    "Duplicate item found with id {id}. Remove duplicate items from your input and try again.",
    summary="Ids of items are unique.",
    repair="drop the repeat", source="vercel/ai#7883")
NOT_STORED = rule("RSP-06", "hard",
    "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` set "
    "to true, or remove this item from your input.",
    summary="Without store, nothing is referred to, and reasoning comes encrypted or without an id.",
    repair="strip the id, or send encrypted_content",
    source="vercel/ai#7543; earendil-works/pi#5059; openai/openai-agents-python#2020")
rule("RSP-07", "hard", "The encrypted content {start}... could not be verified.",
    summary="Encrypted reasoning is the issuer's, unchanged, of the same organisation and model.",
    repair="strip it", source="openai/codex#8119, #8145; Wei-Shaw/sub2api#2863",
    unchecked="only the issuer can read it")
ID_PREFIX = rule("RSP-09", "hard", "Invalid '{at}': '{id}'. Expected an ID that begins with '{prefix}'.",
    summary="An item's id begins as its type demands.",
    repair="leave the id out", source="nodetool-ai/nodetool#4252; prefixes as recorded")

# Items and parts

ROLE = rule("RSP-10", "hard", "Invalid value: '{value}'. Supported values are: {supported}.",
    summary="Roles are assistant, system, developer and user.",
    repair="make it a function_call_output", source="Chevey339/kelivo#281")
ASSISTANT_PART = rule("RSP-12", "hard", "Invalid value: '{value}'. Supported values are: 'output_text' and 'refusal'.",
    summary="The assistant's parts are output_text and refusal.",
    repair="map it", source="the API's documentation; never recorded accepted")
PART = rule("RSP-12b", "hard", "Invalid value: '{value}'. Supported values are: {supported}.",
    summary="Parts are of a known type.",
    repair="map it, or drop it", source="the API's documentation; never recorded accepted")
EXTRA_KEY = rule("RSP-14", "hard", "Unknown parameter: '{at}'.",
    summary="Items and parts have known keys only.",
    repair="project them on a whitelist", source="openai/openai-python#3146; never recorded accepted")
KIND = rule("RSP-15", "soft", "Invalid value: '{value}'. Supported values are: {supported}.",
    summary="Items are of a type that is known here; the API learns new ones.",
    repair="drop it, or convert it", source="the provider's own types")
SHAPE = rule("RSP-16", "hard", "Invalid type for '{at}': expected {wanted}, but got {got} instead.",
    summary="Every value has its type.",
    repair="depends on the field", source="recorded for OAI-13")
MISSING = rule("RSP-16b", "hard", "Missing required parameter: '{at}'.",
    summary="Every required field is there.",
    repair="depends on the field", source="recorded")
FILE_TYPE = rule("RSP-17", "hard",
    "Invalid file data: '{at}'. Expected a base64-encoded data URL with a valid file MIME type (e.g. "
    "'data:text/plain;base64,SGVsbG8sIFdvcmxkIQ=='), but got unsupported MIME type '{value}'. Please see "
    "https://platform.openai.com/docs/assistants/tools/file-search#supported-files for supported file types.",
    summary="A file is a document, not sound or film.",
    repair="replace it by a stub", source="recorded")
FILE_URL_TYPE = rule("RSP-17c", "hard", "Invalid file at '{name}': expected a document, but got audio or video.",
    summary="The file at an address is not audio or video, by its name.",
    repair="replace it by a stub", source="as RSP-17; no refusal was recorded in words of its own")
FILE_URL_FORMAT = rule("RSP-17d", "soft", "{name}: not every model reads documents other than PDF",
    summary="The file at an address is a PDF, by its name.",
    repair="send its text", source="the API's documentation")
FILE_URL_DATA = rule("RSP-17e", "hard", "Failed to download file from {scheme}",
    summary="The address of a file can be fetched; data are in file_data.",
    repair="put the data URL into file_data", source="recorded")
IMAGE_TYPE = rule("RSP-17b", "hard",
    "The image data you provided does not represent a valid image. Please check your input and try again with one of "
    "the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp'].",
    summary="Images are png, jpeg, gif or webp.",
    repair="replace it by a stub", source="the API's documentation")

# Parameters

NO_INPUT = rule("RSP-18", "hard",
    'One of "input" or "previous_response_id" or \'prompt\' or \'conversation_id\' must be provided.',
    summary="A request has input, or a state to continue from (an empty list was recorded accepted).",
    repair="insert a user turn", source="the API's documentation")
NO_MODEL = rule("RSP-19", "soft", "Missing required parameter: 'model'.",
    summary="A request names its model (the sender may add it; a prompt may hold it).",
    repair="set the model", source="the API's documentation", by_sender=True)
FEW_TOKENS = rule("RSP-20", "hard",
    "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= {limit}, but got {value} instead.",
    summary=f"max_output_tokens is at least {MIN_OUTPUT_TOKENS}.",
    repair="raise it", source="recorded")
OUT_OF_BOUNDS = rule("RSP-20b", "hard", values.OUT_OF_BOUNDS,
    summary="Numbers lie between their bounds: temperature between 0 and 2, top_p between 0 and 1.",
    repair="clamp it", source="recorded for OAI-19")
TIER = rule("RSP-20c", "soft", values.TIER,
    summary="A service tier has OpenAI's name (never recorded).",
    repair="take the tier of the same meaning", source="as OAI-19c")
EXTRA_PARAMETER = rule("RSP-21", "soft", EXTRA_KEY.message,
    summary="Parameters are known ones; new ones come.",
    repair="drop the parameter", source="the provider's own types")
MOVED_FORMAT = rule("RSP-21b", "hard",
    "Unsupported parameter: 'response_format'. In the Responses API, this parameter has moved to 'text.format'. Try "
    "again with the new parameter. See the API documentation for more information: "
    "https://platform.openai.com/docs/api-reference/responses/create.",
    summary="The format of the answer is in text.format.",
    repair="move it there", source="recorded")
JSON_UNSAID = rule("RSP-21c", "hard",
    "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'.",
    summary="Input has the word if the answer must be a JSON object; instructions do not count (recorded).",
    repair="say it in a message", source="recorded")

# Parameters of single models

MODEL_PARAMETER = rule("RSP-24", "hard", models.PARAMETER,
    summary="Parameters are those of the model; single rows of the table of models only warn.",
    repair="drop the parameter", source="recorded; each row of the table of models has its own source")
MODEL_VALUE = rule("RSP-24b", "hard",
    "Unsupported value: '{value}' is not supported with the '{model}' model. Supported values are: {supported}.",
    summary="Values are those that the model takes, such as levels of reasoning effort.",
    repair="take the nearest one", source="recorded; each row of the table of models has its own source")
MODEL_MODE = rule("RSP-24c", "hard", "`{at}` is not supported with this model.",
    summary="The mode of reasoning is a parameter from gpt-5.6 on.",
    repair="drop the parameter", source="recorded on gpt-5.4-nano and gpt-5.5; accepted on gpt-5.6-sol")
MODEL_FORMAT = rule("RSP-24d", "hard", models.FORMAT,
    summary="Answers follow a schema only with models that have structured outputs.",
    repair="choose another model", source="recorded for OAI-23d")
NO_RESEARCH = rule("RSP-25", "hard",
    f"Deep research models require at least one of {listing(RESEARCH_SOURCES, 'or')} tools.",
    summary="Deep research has something to search.",
    repair="add a search tool", source="recorded on o3-deep-research and o4-mini-deep-research")
NO_RESEARCH_TOOL = rule("RSP-25b", "hard",
    f"Deep research models only support the {listing(RESEARCH_TOOLS)} tools.",
    summary="Deep research has only tools of the provider's.",
    repair="drop the others", source="recorded on o3-deep-research and o4-mini-deep-research")
STRICT_SCHEMA = rule("RSP-26", "hard", strict.MESSAGE,
    summary="A strict schema closes every object, requires every property, and has no keyword outside of the subset.",
    repair="complete it, or leave strict mode",
    source="recorded; lastmile-ai/openai-agents-mcp#2; the API's documentation")

# The document itself

BAD_JSON = rule("RSP-22", "hard", NOT_JSON,
    summary="The body is a JSON object.",
    repair="send JSON", source="as OAI-21")
SURROGATE = rule("RSP-22b", "soft", NOT_JSON,
    summary="No lone surrogates (no report says what the API makes of them).",
    repair="replace them by U+FFFD", source="as ANT-32, by analogy")

# A policy's own

ENDS_WITH_ASSISTANT = rule(
    "RSP-23", "hard", "The last item is the assistant's, and the policy tail=reject refuses such a history.",
    summary="Under the policy tail=reject, a history does not end with the assistant.",
    repair="append a user turn, or choose another policy", source="Reknit: the API continues after it (recorded)",
    unchecked="the API takes it, the policy does not")
# fmt: on

MODEL_WORDS = models.Words(
    parameter=MODEL_PARAMETER,
    value=MODEL_VALUE,
    own={models.MODE: MODEL_MODE, models.FORMAT_TYPE: MODEL_FORMAT},
    places={
        "reasoning_effort": "reasoning.effort",
        "verbosity": "text.verbosity",
        models.FORMAT_TYPE: "text.format.type",
        **dict.fromkeys(models.CHAT_ONLY, ""),
    },
)

# Fields of items and parts, as the provider's own types have them (SDK 3.54, its beta included). Structs refuse unknown
# keys, so one typed decode settles the shape of a valid request; what fails it is read again, value by value.
# Free-form JSON is skipped, not kept.


class _Tagged(Struct, frozen=True, gc=False, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """A struct that its ``type`` names."""


class _Input(_Tagged, frozen=True, gc=False, kw_only=True):
    prompt_cache_breakpoint: Raw | UnsetType = UNSET


class InputText(_Input, frozen=True, gc=False, tag="input_text"):
    text: str


class InputImage(_Input, frozen=True, gc=False, tag="input_image"):
    """An image for the model: uploaded before, or a URL, which may hold the data."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Raw | UnsetType = UNSET


class InputFile(_Input, frozen=True, gc=False, tag="input_file"):
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Raw | UnsetType = UNSET


class OutputText(_Input, frozen=True, gc=False, tag="output_text"):
    """The assistant's text. An assistant's ``input_text``, which the library allows, is written as one."""

    text: str
    annotations: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET


class Refusal(_Tagged, frozen=True, gc=False, tag="refusal"):
    refusal: str


class SummaryText(_Tagged, frozen=True, gc=False, tag="summary_text"):
    text: str


class Screenshot(_Tagged, frozen=True, gc=False, tag="computer_screenshot"):
    image_url: str | None = None
    file_id: str | None = None
    detail: Raw | UnsetType = UNSET


Part: TypeAlias = InputText | InputImage | OutputText | Refusal | InputFile | Screenshot | SummaryText
OutputPart: TypeAlias = InputText | InputImage | InputFile
# As the provider lists them.
PARTS = (
    "input_text", "input_image", "output_text", "refusal", "input_file", "computer_screenshot", "summary_text",
)  # fmt: skip
ROLES = ("assistant", "system", "developer", "user")


class _Item(_Tagged, frozen=True, gc=False, kw_only=True):
    id: str | None = None
    status: Raw | UnsetType = UNSET
    agent: Raw | UnsetType = UNSET  # of the beta API: which of several agents the item is of


class Message(_Item, frozen=True, gc=False, tag="message"):
    """A message, whose type may be left out."""

    role: Literal["assistant", "system", "developer", "user"]
    content: str | list[Part]
    phase: Raw | UnsetType = UNSET


class _Called(_Item, frozen=True, gc=False, kw_only=True):
    call_id: str
    caller: Raw | UnsetType = UNSET


class _Call(_Called, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str | None = None
    is_async: bool | None = field(default=None, name="async")


class FunctionCall(_Call, frozen=True, gc=False, tag="function_call"):
    """A call of the caller's function, its arguments as JSON text."""

    arguments: str


class FunctionOutput(_Called, frozen=True, gc=False, tag="function_call_output"):
    output: str | list[OutputPart]
    name: str | None = None
    namespace: str | None = None


class CustomCall(_Call, frozen=True, gc=False, tag="custom_tool_call"):
    """A call of a tool that takes free text."""

    input: str


class CustomOutput(_Called, frozen=True, gc=False, tag="custom_tool_call_output"):
    output: str | list[OutputPart]


class Reasoning(_Item, frozen=True, gc=False, tag="reasoning"):
    """Reasoning, encrypted where the provider does not keep it."""

    summary: list[Raw]
    encrypted_content: str | None = None
    content: Raw | UnsetType = UNSET


class Reference(_Tagged, frozen=True, gc=False, tag="item_reference"):
    """An item that the provider keeps, by its id; its type may be left out."""

    id: str
    agent: Raw | UnsetType = UNSET


class Other(_Item, frozen=True, gc=False, kw_only=True):
    """An item of the provider's own tools; its fields change too often to be judged individually."""

    call_id: str | None = None
    execution: str | None = None


class ConfigurationUpdate(_Item, frozen=True, gc=False, tag="configuration_update"):
    reasoning: Raw | UnsetType = UNSET
    text: Raw | UnsetType = UNSET


# The items of the provider's own tools, by type, and the prefix of their ids, if it was recorded.
_OTHERS = {
    "file_search_call": "fs",
    "computer_call": "",
    "computer_call_output": "",
    "web_search_call": "ws",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "",
    "compaction": "cmp",
    "compaction_trigger": "",
    "image_generation_call": "ig",
    "code_interpreter_call": "ci",
    "local_shell_call": "",
    "local_shell_call_output": "",
    "shell_call": "",
    "shell_call_output": "",
    "apply_patch_call": "",
    "apply_patch_call_output": "",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "",
    "mcp_approval_response": "",
    "mcp_call": "mcp",
    "program": "",
    "program_output": "",
    "agent_message": "",
    "multi_agent_call": "",
    "multi_agent_call_output": "",
}
# All that any of them may have besides.
_FIELDS = (
    "caller", "action", "actions", "acknowledged_safety_checks", "approval_request_id", "approve", "arguments",
    "author", "background", "code", "container_id", "content", "encrypted_content", "environment", "error",
    "fingerprint", "max_output_length", "name", "operation", "output", "output_format", "outputs",
    "pending_safety_checks", "quality", "queries", "reason", "recipient", "result", "results", "revised_prompt",
    "role", "server_label", "size", "svg_usage", "tools",
)  # fmt: skip
_UNREAD = [(name, Raw | UnsetType, UNSET) for name in _FIELDS]
OTHERS: dict[str, Any] = {
    kind: defstruct(f"Other_{kind}", _UNREAD, bases=(Other,), tag=kind, frozen=True, gc=False, kw_only=True)
    for kind in _OTHERS
}
Item: TypeAlias = (
    Message | FunctionCall | FunctionOutput | CustomCall | CustomOutput | Reasoning | Reference | Other
    | ConfigurationUpdate
)  # fmt: skip
_TYPES: tuple[type[Struct], ...] = (
    *(Message, FunctionCall, FunctionOutput, CustomCall, CustomOutput, Reasoning, Reference),
    *OTHERS.values(),
    ConfigurationUpdate,
)
ITEM: Any = Union[_TYPES]  # noqa: UP007  made of a table
"""An item as it is decoded: each of the others by its own type."""
KINDS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in _TYPES}

# How the provider's ids of items begin, as recorded.
PREFIXES: dict[Any, str] = {Message: "msg", FunctionCall: "fc", CustomCall: "ctc", Reasoning: "rs"} | {
    OTHERS[kind]: prefix for kind, prefix in _OTHERS.items() if prefix
}

PARAMETERS = frozenset(
    {
        "access_programs", "background", "background_options", "client_metadata", "context_management", "conversation",
        "image", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
        "moderation", "multi_agent", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store",
        "stream", "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p",
        "truncation", "user",
    }
)  # fmt: skip


class FileSearchTool(Struct, frozen=True, gc=False):
    """The provider's file search, as far as it is judged."""

    vector_store_ids: Raw


class NamedTool(Struct, frozen=True, gc=False):
    """A tool of the caller's, as far as it is judged."""

    name: str
