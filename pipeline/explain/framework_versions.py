"""Versions of the packages of frameworks with which CI runs the integrations, and loads what `convert` writes.

They are those of `tests/frameworks/*/requirements.txt`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

IN_CI: Final[Mapping[str, Mapping[str, str]]] = {
    "adk-events": {"google-adk": "2.13.0"},
    "ag-ui": {"ag-ui-protocol": "1.0.0"},
    "bedrock-converse": {"strands-agents": "1.62.0"},
    "langchain": {"langchain": "1.5.2", "langchain-core": "1.8.3", "langgraph": "1.2.24"},
    "openai-agents": {"openai-agents": "0.24.0"},
    "openai-chat": {"litellm": "1.108.7"},
    "otel-genai": {"opentelemetry-sdk": "1.45.2", "opentelemetry-util-genai": "1.3b0"},
    "pydantic-ai": {"pydantic-ai-slim": "2.68.0"},
}
"""The packages by the shape of their messages."""
