"""The Responses API on the wire: what an input item and a part may hold.

Fields are those of the provider's own types (SDK 2.54). Structs refuse unknown keys, so one typed decode settles the
shape of a healthy request; what fails it is read again by ``shape``. Free-form JSON is skipped, not kept.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Union

from msgspec import UNSET, Raw, Struct, UnsetType, defstruct


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


class OutputText(_Tagged, frozen=True, gc=False, tag="output_text"):
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


class Message(_Item, frozen=True, gc=False, tag="message"):
    """A message; the only item whose type may be left out."""

    role: Literal["assistant", "system", "developer", "user"]
    content: str | list[Part]
    phase: Raw | UnsetType = UNSET


class _Called(_Item, frozen=True, gc=False, kw_only=True):
    call_id: str
    caller: Raw | UnsetType = UNSET


class FunctionCall(_Called, frozen=True, gc=False, tag="function_call"):
    """A call of the caller's function, its arguments as JSON text."""

    name: str
    arguments: str
    namespace: str | None = None


class FunctionOutput(_Called, frozen=True, gc=False, tag="function_call_output"):
    output: str | list[OutputPart]
    name: str | None = None
    namespace: str | None = None


class CustomCall(_Called, frozen=True, gc=False, tag="custom_tool_call"):
    """A call of a tool that takes free text."""

    name: str
    input: str
    namespace: str | None = None


class CustomOutput(_Called, frozen=True, gc=False, tag="custom_tool_call_output"):
    output: str | list[OutputPart]


class Reasoning(_Item, frozen=True, gc=False, tag="reasoning"):
    """Reasoning, encrypted where the provider does not keep it."""

    summary: list[Raw]
    encrypted_content: str | None = None
    content: Raw | UnsetType = UNSET


class Reference(_Tagged, frozen=True, gc=False, tag="item_reference"):
    """An item that the provider keeps, by its id."""

    id: str


class Other(_Item, frozen=True, gc=False, kw_only=True):
    """What the provider's own tools leave; their fields change too often to be judged one by one."""

    call_id: str | None = None
    caller: Raw | UnsetType = UNSET
    action: Raw | UnsetType = UNSET
    actions: Raw | UnsetType = UNSET
    acknowledged_safety_checks: Raw | UnsetType = UNSET
    approval_request_id: Raw | UnsetType = UNSET
    approve: Raw | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET
    code: Raw | UnsetType = UNSET
    container_id: Raw | UnsetType = UNSET
    encrypted_content: Raw | UnsetType = UNSET
    environment: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    execution: str | None = None
    fingerprint: Raw | UnsetType = UNSET
    max_output_length: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET
    operation: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET
    outputs: Raw | UnsetType = UNSET
    pending_safety_checks: Raw | UnsetType = UNSET
    queries: Raw | UnsetType = UNSET
    reason: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    results: Raw | UnsetType = UNSET
    role: Raw | UnsetType = UNSET
    server_label: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET


class ConfigurationUpdate(_Item, frozen=True, gc=False, tag="configuration_update"):
    reasoning: Raw | UnsetType = UNSET
    text: Raw | UnsetType = UNSET


# What the provider's own tools leave, by type, and how the ids of such items begin, where that was recorded.
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
}
OTHERS: dict[str, Any] = {
    kind: defstruct(f"Other_{kind}", (), bases=(Other,), tag=kind, frozen=True, gc=False, kw_only=True)
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
        "background", "client_metadata", "context_management", "conversation", "include", "input", "instructions",
        "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation", "parallel_tool_calls",
        "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options", "temperature", "text",
        "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
    }
)  # fmt: skip


class FileSearchTool(Struct, frozen=True, gc=False):
    """The provider's file search, as far as it is judged."""

    vector_store_ids: Raw


class NamedTool(Struct, frozen=True, gc=False):
    """A tool of the caller's, as far as it is judged."""

    name: str
