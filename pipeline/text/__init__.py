"""Histories and tool calls as text: flattening for targets that take one prompt, tools told of and called in text.

The filters for what a planner says take it piece by piece: redaction, identity, tool calls, and all three in a row.
"""

from pipeline.text.call_json import ToolCall
from pipeline.text.environment import lift_environment
from pipeline.text.filters import Change
from pipeline.text.identity import IdentityRewriter
from pipeline.text.output import OutputFilter
from pipeline.text.preamble import tool_fallback, tool_preamble
from pipeline.text.redaction import MARKER, SOURCE_ROOTS, Redactor
from pipeline.text.tool_calls import Removed, ToolCallParser

__all__ = [
    "MARKER",
    "SOURCE_ROOTS",
    "Change",
    "IdentityRewriter",
    "OutputFilter",
    "Redactor",
    "Removed",
    "ToolCall",
    "ToolCallParser",
    "lift_environment",
    "tool_fallback",
    "tool_preamble",
]
