"""The examples: for each fix a history or a stream that needs it, for each rule a body that breaks it.

They are data, ``fixes.jsonl``, ``streams.jsonl`` and ``rules.jsonl`` beside this module, one example a line. Where a
string has to be long, ``{"repeat": TEXT, "times": N}`` stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import Struct


class FixExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """A history that needs the fix ``code`` when it goes to the target ``to``.

    ``source`` is the history's shape (``from`` in the data) and ``policy`` what differs from the default policy. A
    history that is a string is a transcript or JSON text as it is. ``also`` names the fixes that come with it.
    """

    code: str
    history: Any
    also: tuple[str, ...] = ()
    to: str = "anthropic"
    source: str = "auto"
    policy: dict[str, Any] = {}


class StreamExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """Events of the source ``from`` that need the fix ``code``, in a session that speaks under the name ``model``."""

    code: str
    events: tuple[Any, ...]
    also: tuple[str, ...] = ()
    source: str = "cascade"
    model: str = "claude-sonnet-4-5"


class RuleExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body that breaks the rule ``code``; a string is the body's exact text, written in ``encoding``.

    ``also`` names the other rules that such a body cannot help but break.
    """

    code: str
    body: Any
    also: tuple[str, ...] = ()
    encoding: str = "utf-8"


class _Repeat(Struct, forbid_unknown_fields=True):
    repeat: str
    times: int


Row = TypeVar("Row", FixExample, StreamExample, RuleExample)


def _load(name: str, kind: type[Row]) -> Mapping[str, Row]:
    lines = files(__package__).joinpath(name).read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=kind) for line in lines]
    return MappingProxyType({row.code: row for row in rows})


def written_out(value: Any) -> Any:  # noqa: ANN401  any JSON
    """The value with its long strings in full."""
    if isinstance(value, list):
        return [written_out(element) for element in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"repeat", "times"}:
        long = msgspec.convert(value, _Repeat)
        return long.repeat * long.times
    return {key: written_out(element) for key, element in value.items()}


FIX_EXAMPLES = _load("fixes.jsonl", FixExample)
STREAM_EXAMPLES = _load("streams.jsonl", StreamExample)
RULE_EXAMPLES = _load("rules.jsonl", RuleExample)
