"""One history in, one request out."""

from __future__ import annotations

from typing import Any, TypeAlias

from pipeline.given import GivenPolicy, policy_from
from pipeline.history.readers import read
from pipeline.outcome import Normalized
from pipeline.targets import Setting, target_named
from pipeline.work import Work

GivenHistory: TypeAlias = bytes | str | list[Any] | dict[str, Any]


def normalize(
    history: GivenHistory, to: str = "anthropic", source: str = "auto", policy: GivenPolicy = None
) -> Normalized:
    """Mend a history into a request that the target ``to`` accepts.

    ``history`` is a list of messages, a document with ``messages`` and, beside them, ``system``, ``tools``, ``model``
    and ``params``, or the JSON of either, or a transcript; ``source`` names its shape where it is not to be guessed.

    Raises:
        InputError: the input cannot be used.
        UnknownTargetError: no such target or shape.
        PolicyError: no such policy.
    """
    target, mended_by = target_named(to), policy_from(policy)
    found = read(history, source)
    given = found.conversation
    setting = Setting(system=given.system, tools=given.tools, model=given.model, params=given.params)
    work = Work((target,), mended_by, setting)
    work.note(found.fixes)
    work.begin(given.turns, found.stretch)
    return work.request(to)
