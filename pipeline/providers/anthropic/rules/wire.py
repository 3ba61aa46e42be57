"""The Messages API on the wire: the members of a message and of each kind of block.

Fields are those of the provider's own types (SDK 2.12). Structs refuse unknown keys, so one typed decode checks the
shape of a valid request; a request that fails it is read again, value by value. Free-form JSON is skipped, not kept.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, field

from reknit.pipeline.rules._misfits import Anything


class CacheControl(Struct, frozen=True, gc=False, tag_field="type", tag="ephemeral", forbid_unknown_fields=True):
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None  # with a beta header


class _Tagged(Struct, frozen=True, gc=False, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """A struct that its ``type`` names."""


class _Block(_Tagged, frozen=True, gc=False, kw_only=True):
    cache_control: CacheControl | None = None


class Base64(_Tagged, frozen=True, gc=False, tag="base64"):
    media_type: str
    data: str


class Url(_Tagged, frozen=True, gc=False, tag="url"):
    """Media that the provider fetches."""

    url: str


class File(_Tagged, frozen=True, gc=False, tag="file"):
    """Media uploaded before; with a beta header."""

    file_id: str


class PlainText(_Tagged, frozen=True, gc=False, tag="text"):
    media_type: Literal["text/plain"]
    data: str


class Content(_Tagged, frozen=True, gc=False, tag="content"):
    """A document of the caller's own blocks."""

    content: Raw


class Text(_Block, frozen=True, gc=False, tag="text"):
    text: str
    citations: Raw | UnsetType = UNSET


class Image(_Block, frozen=True, gc=False, tag="image"):
    source: Base64 | Url | File
    transformations: Raw | UnsetType = UNSET


class Document(_Block, frozen=True, gc=False, tag="document"):
    source: Base64 | Url | File | PlainText | Content
    title: str | None = None
    context: str | None = None
    citations: Raw | UnsetType = UNSET


class SearchResult(_Block, frozen=True, gc=False, tag="search_result"):
    source: str
    title: str
    content: Raw
    citations: Raw | UnsetType = UNSET


class ToolReference(_Block, frozen=True, gc=False, tag="tool_reference"):
    """A tool that a tool search found."""

    tool_name: str


class BrowserState(_Block, frozen=True, gc=False, tag="browser_state"):
    tabs: Raw
    state_changes: Raw | UnsetType = UNSET


class Thinking(_Tagged, frozen=True, gc=False, tag="thinking"):
    thinking: str
    signature: str


class RedactedThinking(_Tagged, frozen=True, gc=False, tag="redacted_thinking"):
    """Reasoning that only its issuer can read."""

    data: str


class ToolUse(_Block, frozen=True, gc=False, tag="tool_use"):
    id: str
    name: str
    input: Anything
    caller: Raw | UnsetType = UNSET
    toolset_name: str | None = None


InResult: TypeAlias = Text | Image | SearchResult | Document | ToolReference | BrowserState


class ToolResult(_Block, frozen=True, gc=False, tag="tool_result"):
    tool_use_id: str
    content: str | list[InResult] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None


class ServerToolUse(_Block, frozen=True, gc=False, tag="server_tool_use"):
    id: str
    name: str
    input: Anything
    caller: Raw | UnsetType = UNSET


class McpToolUse(_Block, frozen=True, gc=False, tag="mcp_tool_use"):
    id: str
    name: str
    server_name: str
    input: Anything


class ServerResult(_Block, frozen=True, gc=False):
    """The answer to a server tool; abstract, its kinds follow."""

    tool_use_id: str
    content: Raw


class WebSearchResult(ServerResult, frozen=True, gc=False, tag="web_search_tool_result"):
    caller: Raw | UnsetType = UNSET


class WebFetchResult(ServerResult, frozen=True, gc=False, tag="web_fetch_tool_result"):
    caller: Raw | UnsetType = UNSET


class CodeExecutionResult(ServerResult, frozen=True, gc=False, tag="code_execution_tool_result"):
    """Python code."""


class BashResult(ServerResult, frozen=True, gc=False, tag="bash_code_execution_tool_result"):
    """Shell commands."""


class TextEditorResult(ServerResult, frozen=True, gc=False, tag="text_editor_code_execution_tool_result"):
    """File edits."""


SEARCHES = "tool_search_tool_"
"""The names of the tools that search for tools, and the types of their declarations, begin with this."""


class Reference(Struct, frozen=True, gc=False):
    """A tool that a search found, or that a message adds, as far as it is judged."""

    tool_name: str | None = None
    name: str | None = None


class FoundTools(Struct, frozen=True, gc=False):
    """The answer of a search for tools; an error has no references."""

    tool_references: list[Reference] | None = None


class ToolSearchResult(_Block, frozen=True, gc=False, tag="tool_search_tool_result"):
    """A search for tools."""

    tool_use_id: str
    content: FoundTools


class AdvisorResult(ServerResult, frozen=True, gc=False, tag="advisor_tool_result"):
    """Another model's advice."""


class McpResult(_Block, frozen=True, gc=False, tag="mcp_tool_result"):
    tool_use_id: str
    content: Raw | UnsetType = UNSET
    is_error: bool | None = None


class ContainerUpload(_Block, frozen=True, gc=False, tag="container_upload"):
    file_id: str


class Compaction(_Block, frozen=True, gc=False, tag="compaction"):
    """The provider's summary of what came before."""

    content: str | None = None
    encrypted_content: str | None = None
    signature: str | None = None
    tool_changes: Raw | UnsetType = UNSET


class ToolAddition(_Block, frozen=True, gc=False, tag="tool_addition"):
    tool: Reference


class ToolRemoval(_Block, frozen=True, gc=False, tag="tool_removal"):
    tool: Anything


class McpToolListing(_Tagged, frozen=True, gc=False, tag="mcp_tool_listing"):
    """An MCP server's tools, as a response carried them."""

    mcp_server_name: str
    tools: Raw


class Fallback(_Tagged, frozen=True, gc=False, tag="fallback"):
    """The place where another model continued."""

    origin: Anything = field(name="from")
    to: Anything
    trigger: Raw | UnsetType = UNSET


Block: TypeAlias = (
    Text
    | Image
    | Document
    | SearchResult
    | Thinking
    | RedactedThinking
    | ToolUse
    | ToolResult
    | ServerToolUse
    | McpToolUse
    | WebSearchResult
    | WebFetchResult
    | CodeExecutionResult
    | BashResult
    | TextEditorResult
    | ToolSearchResult
    | AdvisorResult
    | McpResult
    | ContainerUpload
    | Compaction
    | ToolAddition
    | ToolRemoval
    | McpToolListing
    | Fallback
)


class Message(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One message. Only a system message may be without content, and only it may have the last two fields."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | UnsetType = UNSET
    clear_at: str | None = None
    output_config: Raw | UnsetType = UNSET


# The last two are those of Bedrock and Vertex, which take the same body.
PARAMETERS = frozenset(
    {
        "model", "max_tokens", "system", "tools", "tool_choice", "thinking", "temperature", "top_p", "top_k",
        "stop_sequences", "stream", "metadata", "service_tier", "cache_control", "container", "context_management",
        "mcp_servers", "output_config", "output_format", "inference_geo", "diagnostics", "speed", "fallbacks",
        "fallback_credit_token", "compaction", "billing_policy", "thread", "user_profile_id", "workspace_id",
        "anthropic_version", "anthropic_beta",
    }
)  # fmt: skip
KINDS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in Block.__args__}

# The members of the types of the SDK's beta API (2.12) that a body shows: the feature of the header `anthropic-beta`
# that each requires, of any date. Members that the plain API has come to take, or that only change an answer (a finer
# stream, more tokens), require none.
BETA_PARAMETERS = {
    "compaction": ("compact",),
    "context_management": ("context-management", "compact"),
    "fallback_credit_token": ("fallback-credit",),
    "fallbacks": ("server-side-fallback",),
    "mcp_servers": ("mcp-client",),
    "output_config.task_budget": ("task-budgets",),
    "output_format": ("structured-outputs",),
    "thinking.block_binding": ("thinking-binding-controls",),
    "thread": ("message-threads",),
}
BETA_TOOLS = {
    "advisor_20260301": ("advisor-tool",),
    "bash_20241022": ("computer-use",),
    "computer_20241022": ("computer-use",),
    "computer_20250124": ("computer-use",),
    "computer_20251124": ("computer-use",),
    "mcp_toolset": ("mcp-client",),
    "text_editor_20241022": ("computer-use",),
}
BETA_BLOCKS: dict[type, tuple[str, ...]] = {
    AdvisorResult: ("advisor-tool",),
    Compaction: ("compact",),
    Fallback: ("server-side-fallback",),
    McpResult: ("mcp-client",),
    McpToolListing: ("mcp-client",),
    McpToolUse: ("mcp-client",),
    ToolAddition: ("mid-conversation-tool-changes", "inline-tools"),
    ToolRemoval: ("mid-conversation-tool-changes", "inline-tools"),
}
