"""The Responses API on the wire: what an input item and a part may hold.

Fields are those of the provider's own types (SDK 2.54). Structs refuse unknown keys, so one typed decode settles the
shape of a healthy request; what fails it is read again by ``shape``. Free-form JSON is skipped, not kept.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType


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


class FileSearchCall(Other, frozen=True, gc=False, tag="file_search_call"):
    """File search."""


class ComputerCall(Other, frozen=True, gc=False, tag="computer_call"):
    """An action on a computer."""


class ComputerOutput(Other, frozen=True, gc=False, tag="computer_call_output"):
    """What it led to."""


class WebSearchCall(Other, frozen=True, gc=False, tag="web_search_call"):
    """Web search."""


class ToolSearchCall(Other, frozen=True, gc=False, tag="tool_search_call"):
    """A search for tools."""


class ToolSearchOutput(Other, frozen=True, gc=False, tag="tool_search_output"):
    """The tools that it found."""


class ConfigurationUpdate(_Item, frozen=True, gc=False, tag="configuration_update"):
    reasoning: Raw | UnsetType = UNSET
    text: Raw | UnsetType = UNSET


class AdditionalTools(Other, frozen=True, gc=False, tag="additional_tools"):
    """Tools that become available."""


class Compaction(Other, frozen=True, gc=False, tag="compaction"):
    """The provider's summary of what came before."""


class CompactionTrigger(Other, frozen=True, gc=False, tag="compaction_trigger"):
    """Asks for such a summary."""


class ImageCall(Other, frozen=True, gc=False, tag="image_generation_call"):
    """An image that the model made."""


class CodeCall(Other, frozen=True, gc=False, tag="code_interpreter_call"):
    """Python code."""


class LocalShellCall(Other, frozen=True, gc=False, tag="local_shell_call"):
    """A shell command, for the caller to run."""


class LocalShellOutput(Other, frozen=True, gc=False, tag="local_shell_call_output"):
    """Its output."""


class ShellCall(Other, frozen=True, gc=False, tag="shell_call"):
    """Shell commands."""


class ShellOutput(Other, frozen=True, gc=False, tag="shell_call_output"):
    """Their output."""


class PatchCall(Other, frozen=True, gc=False, tag="apply_patch_call"):
    """A file edit."""


class PatchOutput(Other, frozen=True, gc=False, tag="apply_patch_call_output"):
    """What came of it."""


class McpTools(Other, frozen=True, gc=False, tag="mcp_list_tools"):
    """An MCP server's tools."""


class McpRequest(Other, frozen=True, gc=False, tag="mcp_approval_request"):
    """A call that waits for approval."""


class McpResponse(Other, frozen=True, gc=False, tag="mcp_approval_response"):
    """The approval."""


class McpCall(Other, frozen=True, gc=False, tag="mcp_call"):
    """A call that the provider sent to an MCP server, with its output."""


class Program(Other, frozen=True, gc=False, tag="program"):
    """Code that calls tools."""


class ProgramOutput(Other, frozen=True, gc=False, tag="program_output"):
    """Its result."""


Item: TypeAlias = (
    Message
    | FunctionCall
    | FunctionOutput
    | CustomCall
    | CustomOutput
    | Reasoning
    | Reference
    | FileSearchCall
    | ComputerCall
    | ComputerOutput
    | WebSearchCall
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | ConfigurationUpdate
    | Compaction
    | CompactionTrigger
    | ImageCall
    | CodeCall
    | LocalShellCall
    | LocalShellOutput
    | ShellCall
    | ShellOutput
    | PatchCall
    | PatchOutput
    | McpTools
    | McpRequest
    | McpResponse
    | McpCall
    | Program
    | ProgramOutput
)
KINDS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in Item.__args__}

# How the provider's ids of items begin, as recorded.
PREFIXES: dict[type, str] = {
    Message: "msg",
    FunctionCall: "fc",
    CustomCall: "ctc",
    Reasoning: "rs",
    WebSearchCall: "ws",
    FileSearchCall: "fs",
    ToolSearchCall: "tsc",
    ToolSearchOutput: "tso",
    Compaction: "cmp",
    ImageCall: "ig",
    McpTools: "mcpl",
    McpCall: "mcp",
    CodeCall: "ci",
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
