"""The list of providers, and everything that is looked up by the name of a target or a source.

A provider is added by one line here, and its rules by one line in `reknit.pipeline.rules.sets`. A registered target
(`register`) is available wherever Reknit's own targets are: ``normalize``, ``validate``, ``Session`` and the
conformance kit (``reknit.pipeline.testing``). Register it when the program starts. The targets that a worker's
configuration names must be registered in the worker's process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType

from reknit.pipeline.errors import InputError, UnknownTargetError, expected_one_of
from reknit.pipeline.providers.anthropic.provider import PROVIDER as ANTHROPIC
from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.bedrock_converse.provider import PROVIDER as BEDROCK_CONVERSE
from reknit.pipeline.providers.cascade.provider import PROVIDER as CASCADE
from reknit.pipeline.providers.claude_cli.provider import PROVIDER as CLAUDE_CLI
from reknit.pipeline.providers.codex_cli.provider import PROVIDER as CODEX_CLI
from reknit.pipeline.providers.copilot_cli.provider import PROVIDER as COPILOT_CLI
from reknit.pipeline.providers.deepseek.provider import PROVIDER as DEEPSEEK
from reknit.pipeline.providers.gemini.provider import PROVIDER as GEMINI
from reknit.pipeline.providers.gemini_cli.provider import PROVIDER as GEMINI_CLI
from reknit.pipeline.providers.mistral.provider import PROVIDER as MISTRAL
from reknit.pipeline.providers.moonshot.provider import PROVIDER as MOONSHOT
from reknit.pipeline.providers.openai_chat.provider import PROVIDER as OPENAI_CHAT
from reknit.pipeline.providers.openai_responses.provider import PROVIDER as OPENAI_RESPONSES
from reknit.pipeline.providers.vllm.provider import PROVIDER as VLLM
from reknit.pipeline.rules.base import Catalogue, Family, Rule, RuleSet
from reknit.pipeline.rules.equalities import Equality
from reknit.pipeline.rules.sets import RULE_SETS, RULES
from reknit.pipeline.streams.source import Source
from reknit.pipeline.targets import Writer

PROVIDERS: Final[tuple[Provider, ...]] = (
    ANTHROPIC,
    CLAUDE_CLI,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    VLLM,
    MISTRAL,
    DEEPSEEK,
    MOONSHOT,
    BEDROCK_CONVERSE,
    GEMINI,
    COPILOT_CLI,
    CODEX_CLI,
    GEMINI_CLI,
    CASCADE,
)
TARGETS: Final[dict[str, Target]] = {
    provider.target.name: provider.target for provider in PROVIDERS if provider.target is not None
}
"""Targets by name: Reknit's own, then the registered ones."""
SOURCES: Final[dict[str, Source]] = {
    provider.source.name: provider.source for provider in PROVIDERS if provider.source is not None
}
"""Sources by name."""


def target_named(name: str) -> Target:
    """Return the target of this name.

    Raises:
        UnknownTargetError: the target does not exist.
    """
    found = TARGETS.get(name)
    if found is None:
        raise UnknownTargetError("unknown_target", expected_one_of(TARGETS, name))
    return found


def shape_of(name: str) -> str:
    """Return the shape of a target's requests, which look-alikes share; of any other target its name."""
    target = TARGETS.get(name)
    return target.shape if target is not None and isinstance(target.shape, str) else name


def find_source(name: str) -> Source:
    """Return the source of this name.

    Raises:
        UnknownTargetError: the source does not exist.
    """
    found = SOURCES.get(name)
    if found is None:
        raise UnknownTargetError("unknown_source", expected_one_of(SOURCES, name))
    return found


def source_of_transcript(name: str) -> Source | None:
    """Return the source whose program writes transcripts of this name, or None."""
    return next((source for source in SOURCES.values() if source.transcript == name), None) if name else None


def register(
    writer: Writer,
    rules: RuleSet[Any],
    catalogue: Mapping[str, Rule] | None = None,
    *,
    shape: str | UnsetType | None = UNSET,
    families: Iterable[Family] = (),
    equalities: Sequence[Equality] | None = None,
    blocks: tuple[str, str] | None = None,
) -> Target:
    """Add a target.

    Args:
        writer: writes the requests. Its name is the target's.
        rules: judges them, independently of the writer.
        catalogue: the rules by id that are not among Reknit's own. ``writer.tail_rule`` is one of either.
        shape: the shape in which a body can be read as a history again (``anthropic``). None where the body is not a
            history, which holds for every text. For any other body without a stated shape, the kit asks for it.
        families: the families of its models, where rules differ between them.
        equalities: when two bodies say the same, where bodies must be compared.
        blocks: the key of the body's list and the key of an item's blocks, where every block can be counted.

    Raises:
        InputError: a name or a rule's id is taken, or the parts do not belong together.
    """
    known = Catalogue(writer.name, families)
    known.rules.update(catalogue or {})
    taken = [f"rule {rule}" for rule in known.rules if rule in RULES]
    if writer.name in TARGETS:
        taken.append(f"target {writer.name}")
    if taken:
        raise InputError("name_taken", f"{', '.join(taken)}: there is one of that name already")
    if rules.target != writer.name:
        raise InputError("wrong_rules", f"target {writer.name!r} comes with the rules of {rules.target!r}")
    if writer.tail_rule not in RULES and writer.tail_rule not in known.rules:
        raise InputError("unknown_rule", f"target {writer.name!r} names a tail_rule that does not exist")
    if shape is UNSET and writer.text:
        shape = None
    target = Target(
        writer=writer,
        rules=rules,
        catalogue=known,
        shape=shape,
        equalities=equalities,
        blocks=blocks,
        is_registered=True,
    )
    RULES.update(known.rules)
    RULE_SETS[target.name] = rules
    TARGETS[target.name] = target
    return target


def unregister(name: str) -> None:
    """Remove a registered target and its rules.

    Raises:
        UnknownTargetError: no target of this name was registered. Reknit's own targets cannot be removed.
    """
    target = TARGETS.get(name)
    if target is None or not target.is_registered:
        raise UnknownTargetError("unknown_target", f"no target {name!r} was registered")
    for rule in target.catalogue.rules:
        del RULES[rule]
    del RULE_SETS[name], TARGETS[name]
