"""What stands beside the messages: the system slot with its preamble, and the parameters that are passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from pipeline.fixes import Fix
from pipeline.history.pieces import Piece
from pipeline.model import Text, Tool
from pipeline.targets.base import Setting
from pipeline.targets.fitting import system_rows
from pipeline.targets.names import CHOICES, COMMON, chosen, declared_tools, sort_params
from pipeline.text.flatten import given_system
from pipeline.text.preamble import tool_fallback, tool_preamble

NAME: Final = "cascade"

_PASSED: Final = COMMON | {"metadata", "stream", "user"}
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
    keys |= params.at_places({name: name for name in params.values if name in _PASSED}, NAME, fixes, _ELSEWHERE)
    tools = _tools(setting.tools, fixes)
    choice = chosen(params, NAME, fixes, kinds=CHOICES) if tools else None
    words = [*given_system(setting.system, NAME, fixes), *system_rows(system, NAME, fixes)]
    prompt = "\n\n".join(piece.block.text for piece in words if isinstance(piece.block, Text))
    # Where no tool may be called, the user's turn must not show how to.
    line = "" if choice is not None and choice.kind == "none" else tool_fallback(tools)
    given = None if choice is None else msgspec.json.decode(params.values["tool_choice"])
    return Head(keys=keys, tools=tools, choice=given, prompt=prompt, line=line, fixes=fixes)


def _tools(tools: Sequence[Tool], fixes: list[Fix]) -> tuple[Tool, ...]:
    """The tools that the model can be told of; the others are recorded."""
    told: list[Tool] = []
    for each in declared_tools(tools, NAME, str, lambda _tool, _given: False, fixes):
        told.append(each.tool)
        each.note_unread(NAME, fixes, "cache_control")
    return tuple(told)
