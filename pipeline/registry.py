"""Targets of one's own, made known to this process beside ours.

A registered target is taken by name wherever ours are: ``normalize``, ``validate``, ``Session`` and the conformance kit
(``pipeline.testing``). Register when the program starts; a worker's configuration names what its process knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import InputError, UnknownTargetError
from pipeline.rules import RULE_SETS, RULES, Rule, RuleSet
from pipeline.targets import TARGETS, Target

_OWN: dict[str, tuple[str, ...]] = {}
"""The registered targets with the ids of the rules that came with each."""


def register(target: Target, rules: RuleSet[Any], catalogue: Mapping[str, Rule] | None = None) -> None:
    """Make a target known: how requests for it are written, and the rules that they are judged by.

    ``catalogue`` holds the rules by id that are not among ours; ``target.tail_rule`` is one of either.

    Raises:
        InputError: a name or a rule's id is taken, or the parts do not belong together.
    """
    own = dict(catalogue or {})
    taken = [f"rule {rule}" for rule in own if rule in RULES]
    if target.name in TARGETS or target.name in RULE_SETS:
        taken.append(f"target {target.name}")
    if taken:
        raise InputError("name_taken", f"{', '.join(taken)}: there is one of that name already")
    if rules.target != target.name:
        raise InputError("wrong_rules", f"target {target.name!r} comes with the rules of {rules.target!r}")
    if target.tail_rule not in RULES and target.tail_rule not in own:
        raise InputError("unknown_rule", f"target {target.name!r} names a tail_rule that does not exist")
    _OWN[target.name] = tuple(own)
    RULES.update(own)
    RULE_SETS[target.name] = rules
    TARGETS[target.name] = target


def unregister(name: str) -> None:
    """Forget a target that was registered, with the rules that came with it.

    Raises:
        UnknownTargetError: no such target was registered; our own stay.
    """
    if name not in _OWN:
        raise UnknownTargetError("unknown_target", f"no target {name!r} was registered")
    for rule in _OWN.pop(name):
        del RULES[rule]
    del RULE_SETS[name], TARGETS[name]
