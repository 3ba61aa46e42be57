"""Placeholders for results that are missing: the texts that Reknit and others write, and their recognition.

Frameworks that find a call without a result write a text in its place. Such a text keeps a request valid, but it is not
the tool's result: if the real result is present too, or arrives later, it replaces the placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from reknit.pipeline.model import Text, ToolResult

# Reknit's own placeholders.
INTERRUPTED = "[No result was recorded for this tool call: it was interrupted, or its result was lost.]"

# Exact texts that frameworks write, and who does. Nothing is matched by pattern: a tool may well return a text that
# merely begins like one of these.
PLACEHOLDERS: Mapping[str, str] = MappingProxyType(
    {
        INTERRUPTED: "this project",
        "[Request interrupted by user]": "Claude Code",
        "[Request interrupted by user for tool use]": "Claude Code",
        "[Tool result missing due to internal error]": "Claude Code",
        "Tool result missing": "agent loops over the Messages API",
        "Tool was interrupted.": "strands-agents: missing tool results",
        "[Tool execution was interrupted]": "opencode: message-v2",
        "Tool execution was interrupted before completion.": "Roo Code, Kilo Code: validateToolResultIds",
        "aborted": "OpenAI Codex: context normalisation",
        "[openclaw] missing tool result in session history; inserted synthetic error result for transcript repair.": (
            "OpenClaw: session-transcript-repair"
        ),
    }
)

# Texts that name the call: ``{name}`` and ``{id}`` are filled in before comparing.
TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "[System: Tool execution skipped/interrupted by user. No result provided for tool '{name}'.]": "LiteLLM",
        "Tool call {name} with id {id} was cancelled - another message came in before it could be completed.": (
            "deepagents: PatchToolCallsMiddleware"
        ),
    }
)


# Longer than any placeholder with a name and an id, and their first characters: they exclude most real results.
LONGEST_PLACEHOLDER = 400
_STARTS = frozenset(text[0] for text in (*PLACEHOLDERS, *TEMPLATES))


def is_placeholder(result: ToolResult, name: str, call_id: str) -> bool:
    """True if a result is one of the published texts and nothing else; ``name`` and ``call_id`` are its call's."""
    content = result.content
    if isinstance(content, list):
        if len(content) != 1 or not isinstance(content[0], Text):
            return False
        content = content[0].text
    if not isinstance(content, str) or len(content) > LONGEST_PLACEHOLDER:
        return False
    start = content[:1]
    if start not in _STARTS and not start.isspace():
        return False
    text = content.strip()
    return text in PLACEHOLDERS or any(
        text == template.replace("{name}", name).replace("{id}", call_id) for template in TEMPLATES
    )
