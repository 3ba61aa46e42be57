"""The targets by name. A new one is a module here and a line in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeline.errors import UnknownTargetError
from pipeline.targets.anthropic import Anthropic
from pipeline.targets.base import Dialect, Encoded, Ending, Setting, Target
from pipeline.targets.claude_cli import ClaudeCli

TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in (Anthropic(), ClaudeCli())})


def target_named(name: str) -> Target:
    """The target of a name.

    Raises:
        UnknownTargetError: there is none.
    """
    found = TARGETS.get(name)
    if found is None:
        raise UnknownTargetError("unknown_target", f"expected one of {', '.join(sorted(TARGETS))}, got {name!r}")
    return found


__all__ = ["TARGETS", "Dialect", "Encoded", "Ending", "Setting", "Target", "target_named"]
