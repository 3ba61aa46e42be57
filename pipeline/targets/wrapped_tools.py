"""The tools that accept no object, which requests declare in a wrapped form."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from reknit.pipeline.model import Tool
from reknit.pipeline.targets.head import as_json_schema
from reknit.pipeline.targets.schemas import accepts_objects


def wrapped_tools(tools: Iterable[Tool]) -> frozenset[str]:
    """The names of the tools whose calls are unwrapped.

    The tool's own schema decides, not the request: no object is a valid call of such a tool, whoever declared it.
    """
    return frozenset(tool.name for tool in tools if _is_wrapped(tool))


def _is_wrapped(tool: Tool) -> bool:
    schema = msgspec.json.decode(as_json_schema(tool.input_schema))
    return isinstance(schema, dict) and not accepts_objects(schema)
