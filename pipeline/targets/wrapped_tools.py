"""The tools that accept no object, which requests declare in a wrapped form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from reknit.pipeline.model import Tool
from reknit.pipeline.targets import legal_name
from reknit.pipeline.targets.head import as_json_schema
from reknit.pipeline.targets.schemas import accepts_objects

# The longest names of tools, by provider: a longer or an illegal one is sent in another form.
_LONGEST: Final = (64, 128)


def wrapped_tools(tools: Iterable[Tool]) -> frozenset[str]:
    """The names of the tools whose calls are unwrapped, both as declared and as sent.

    The tool's own schema decides, not the request: no object is a valid call of such a tool, whoever declared it. Names
    that another tool has, which accepts objects, are left out.
    """
    wrapped: set[str] = set()
    others: set[str] = set()
    for tool in tools:
        names = {tool.name, *(legal_name(tool.name, longest) for longest in _LONGEST)}
        (wrapped if _is_wrapped(tool) else others).update(names)
    return frozenset(wrapped - others)


def _is_wrapped(tool: Tool) -> bool:
    schema = msgspec.json.decode(as_json_schema(tool.input_schema))
    return isinstance(schema, dict) and not accepts_objects(schema)
