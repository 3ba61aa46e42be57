"""What callers give beside messages: a policy, and the setting of a request, in whichever form they have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw

from pipeline.errors import InputError, PolicyError, expected_one_of
from pipeline.history.readers import read_setting
from pipeline.model import Policy, Tool
from pipeline.targets import Setting

GivenPolicy: TypeAlias = Policy | Mapping[str, Any] | None
GivenSystem: TypeAlias = str | Raw | Sequence[Any] | None
GivenTools: TypeAlias = Iterable[Tool | Mapping[str, Any]]
# A policy's options, each with the words that it takes; none where it takes a number or a truth.
POLICY_OPTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    name: get_args(kind) if get_origin(kind) is Literal else () for name, kind in get_type_hints(Policy).items()
}


def policy_from(given: GivenPolicy) -> Policy:
    """A policy; of a mapping, text such as ``"true"`` or ``"8"`` is understood as what the field takes.

    Raises:
        PolicyError: no such option, or no such value of one.
    """
    if given is None:
        return Policy()
    if isinstance(given, Policy):
        return given
    for name, value in given.items():
        if name not in POLICY_OPTIONS:
            raise PolicyError("policy", expected_one_of(POLICY_OPTIONS, str(name)), path="policy")
        if POLICY_OPTIONS[name] and value not in POLICY_OPTIONS[name]:
            raise PolicyError("policy", expected_one_of(POLICY_OPTIONS[name], str(value)), path=f"policy.{name}")
    try:
        return msgspec.convert(dict(given), Policy, strict=False)
    except msgspec.ValidationError as error:
        raise PolicyError("policy", str(error)) from None


def setting_from(
    system: GivenSystem, tools: GivenTools, model: str | None, params: Mapping[str, Any] | None
) -> Setting:
    """A setting; what is not in the model's own structs is read as what stands beside a document's messages is.

    Raises:
        InputError: a system prompt, a tool or parameters that are none.
    """
    tools = list(tools)
    given: dict[str, Any] = {}
    typed = [tool for tool in tools if isinstance(tool, Tool)]
    if len(typed) < len(tools):
        if typed:
            raise InputError("wrong_type", "tools are given either as structs or as JSON", path="tools")
        given["tools"] = tools
    if system is not None and not isinstance(system, (str, Raw)):
        given["system"] = system
    if params:
        given["params"] = dict(params)
    if given:
        found = read_setting(given)
        return Setting(
            system=found.system if "system" in given else _as_given(system),
            tools=found.tools or tuple(typed),
            model=model,
            params=found.params,
        )
    return Setting(system=_as_given(system), tools=tuple(typed), model=model)


def _as_given(system: GivenSystem) -> str | Raw | None:
    return system if isinstance(system, (str, Raw)) else None
