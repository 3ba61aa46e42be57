"""What stands beside the messages: the system slot with its preamble, and the parameters that are passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Piece
from pipeline.model import Text, Tool
from pipeline.targets.base import Setting
from pipeline.targets.names import ToolNames, read_choice, sort_params, unread_keys
from pipeline.text.flatten import given_system
from pipeline.text.preamble import tool_fallback, tool_preamble

NAME: Final = "cascade"

_PASSED: Final = frozenset({"metadata", "stream", "user"})
_ELSEWHERE: Final = frozenset({"cache_control", "messages", "model", "system", "tool_choice", "tools"})
_encode = msgspec.json.Encoder().encode


class Head(Struct, frozen=True):
    """A request without its messages, but for the environment, which the messages may have to tell.

    Attributes:
        keys: model and parameters.
        tools: those that can be called in text.
        choice: the tool choice, in any shape.
        prompt: the caller's own system prompt.
        line: the fallback for the user's turn, ``""`` where there is nothing to call.
        fixes: what was mended.
    """

    keys: Mapping[str, Any]
    tools: tuple[Tool, ...]
    choice: Any
    prompt: str
    line: str
    fixes: list[Fix]

    def written(self, environment: str) -> bytes:
        """The head as a JSON object, with the lines of an environment."""
        system = "\n\n".join(filter(None, [tool_preamble(self.tools, self.choice, environment), self.prompt]))
        model = {key: self.keys[key] for key in ("model",) if key in self.keys}
        return _encode(model | ({"system": system} if system else {}) | dict(self.keys))


def prepare_head(setting: Setting, system: Sequence[Piece]) -> Head:
    """The head of every request of a session."""
    fixes: list[Fix] = []
    params = sort_params(setting.params)
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    keys |= params.common
    for name, value in params.rest.items():
        if name in _PASSED:
            keys[name] = value
        elif name not in _ELSEWHERE:
            fixes.append(_dropped(name, value))
    tools = _tools(setting.tools, fixes)
    choice = _choice(params.rest.get("tool_choice"), fixes) if tools else None
    words = [*given_system(setting.system, NAME, fixes), *system]
    prompt = "\n\n".join(piece.block.text for piece in words if isinstance(piece.block, Text))
    line = "" if _forbids(choice) else tool_fallback(tools)
    return Head(keys=keys, tools=tools, choice=choice, prompt=prompt, line=line, fixes=fixes)


def _tools(tools: Sequence[Tool], fixes: list[Fix]) -> tuple[Tool, ...]:
    """The tools that the model can be told of; the others are recorded."""
    told: list[Tool] = []
    names = ToolNames(NAME, str, fixes)
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        given = None if tool.raw is UNSET else msgspec.json.decode(tool.raw, type=dict[str, Raw])
        if bytes(tool.input_schema) == b"null":
            fixes.append(make("tool_foreign", path, before=given or tool, target=NAME))
            continue
        declared = names.declare(tool, given, path)
        if declared is None:
            continue
        told.append(declared)
        if untold := unread_keys(given, "cache_control"):
            fixes.append(make("field_dropped", path, before=given, target=NAME, detail=untold))
    return tuple(told)


def _choice(value: Raw | None, fixes: list[Fix]) -> Any:  # noqa: ANN401  any shape of it
    if value is None:
        return None
    choice = msgspec.json.decode(value)
    if read_choice(value) is None:
        fixes.append(_dropped("tool_choice", value))
        return None
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        fixes.append(_dropped("tool_choice.disable_parallel_tool_use", Raw(b"true")))
    return choice


def _forbids(choice: Any) -> bool:  # noqa: ANN401  any shape of it
    """Whether no tool may be called, so that the user's turn must not show how to."""
    return (choice.get("type") if isinstance(choice, dict) else choice) == "none"


def _dropped(name: str, value: Raw) -> Fix:
    return make("param_dropped", f"params.{name}", before=value, target=NAME, detail=name)
