"""Arguments of callers besides messages, in any accepted form: a policy, and the setting of a request."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw

from reknit.pipeline.errors import InputError, PolicyError, expected_one_of
from reknit.pipeline.fixes import FIXES, OBSERVABLE
from reknit.pipeline.history.readers.shapes import read_setting
from reknit.pipeline.model import Tool
from reknit.pipeline.policy import Policy, RepairMode
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.targets import Setting

GivenPolicy: TypeAlias = Policy | Mapping[str, Any] | None
GivenSystem: TypeAlias = str | Raw | Sequence[Any] | None
GivenTools: TypeAlias = Iterable[Tool | Mapping[str, Any]]
# A policy's options, each with the words that it takes; none where it takes a number or a truth.
_REPAIR_MODES: Final = get_args(RepairMode)
# Options with dotted names.
_TABLES: Final = frozenset({"endpoints", "mend"})
POLICY_OPTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    name: get_args(kind) if get_origin(kind) is Literal else () for name, kind in get_type_hints(Policy).items()
}


def policy_from(given: GivenPolicy) -> Policy:
    """Return a policy. In a mapping, text such as ``"true"`` or ``"8"`` is converted to the field's type.

    The policy of a single repair is under ``mend``, or under a dotted name (``mend.CODE``, ``mend.TARGET.CODE``); so is
    an endpoint (``endpoints.TARGET.platform``).

    Raises:
        PolicyError: an option or a value does not exist, or a repair is always made.
    """
    if given is None:
        return Policy()
    if isinstance(given, Policy):
        check_repair_modes(given.mend)
        check_endpoints(given.endpoints)
        return given
    options: dict[str, Any] = {}
    for name, value in given.items():
        option, *inner = str(name).split(".")
        if option not in POLICY_OPTIONS or (inner and (option not in _TABLES or len(inner) > 2)):
            raise PolicyError("policy", expected_one_of(POLICY_OPTIONS, str(name)), path="policy")
        if POLICY_OPTIONS[option] and value not in POLICY_OPTIONS[option]:
            raise PolicyError("policy", expected_one_of(POLICY_OPTIONS[option], str(value)), path=f"policy.{option}")
        change = value
        for each in reversed(inner):
            change = {each: change}
        both = option in options and isinstance(change, Mapping)
        options[option] = with_repair_modes(options[option], change) if both else change
    check_repair_modes(options.get("mend", {}))
    check_endpoints(options.get("endpoints", {}))
    try:
        return msgspec.convert(options, Policy, strict=False)
    except msgspec.ValidationError as error:
        raise PolicyError("policy", str(error)) from None


def with_repair_modes(modes: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's entries for single repairs after a change, code by code.

    Codes that the change does not name stay.
    """
    both = dict(modes)
    for name, how in change.items():
        before = both.get(name)
        both[name] = {**before, **how} if isinstance(before, Mapping) and isinstance(how, Mapping) else how
    return both


def check_repair_modes(modes: Any, path: str = "policy.mend", targets: Container[str] = TARGETS) -> None:  # noqa: ANN401  whatever a caller gives
    """Check that every single repair that a policy names exists and can be switched off.

    Raises:
        PolicyError: the repair or the target does not exist, or the repair is always made, with the reason.
    """
    if not isinstance(modes, Mapping):
        raise PolicyError("policy", "expected an object of codes, or of targets with such an object each", path=path)
    for name, how in modes.items():
        place = f"{path}.{name}"
        if name in targets and isinstance(how, Mapping):
            check_repair_modes(how, place, targets=())
        elif name not in OBSERVABLE:
            why = FIXES[name].always if name in FIXES else ""
            said = f"{name} is always made: {why}" if why else expected_one_of(OBSERVABLE, str(name))
            raise PolicyError("policy", said, path=place)
        elif how not in _REPAIR_MODES:
            raise PolicyError("policy", expected_one_of(_REPAIR_MODES, str(how)), path=place)


def check_endpoints(endpoints: Any, path: str = "policy.endpoints") -> None:  # noqa: ANN401  whatever a caller gives
    """Check that every endpoint of a policy belongs to a target.

    Raises:
        PolicyError: there is no such target.
    """
    if not isinstance(endpoints, Mapping):
        raise PolicyError("policy", "expected an object of targets", path=path)
    for name in endpoints:
        if name not in TARGETS:
            raise PolicyError("policy", expected_one_of(TARGETS, str(name)), path=f"{path}.{name}")


def tools_from(tools: GivenTools) -> tuple[Tool, ...]:
    """Return tools as a setting has them.

    Raises:
        InputError: they are not valid.
    """
    return setting_from(None, tools, None, None).tools


def setting_from(
    system: GivenSystem, tools: GivenTools, model: str | None, params: Mapping[str, Any] | None
) -> Setting:
    """Return a setting. Values that are not the model's own structs are read like the members of a document.

    Raises:
        InputError: the system prompt, the tools or the parameters are not valid.
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
