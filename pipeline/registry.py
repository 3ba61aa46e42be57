"""The targets: one descriptor each, of how its requests are written, what judges them, and how they can be read.

The writer and the rules of a provider share no code, so that one checks the other; here they are joined. A registered
target is available by name wherever Reknit's are: ``normalize``, ``validate``, ``Session`` and the conformance kit
(``reknit.pipeline.testing``). Register when the program starts; a worker's configuration names what its
process knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from reknit.pipeline.errors import InputError, UnknownTargetError, expected_one_of
from reknit.pipeline.providers.anthropic.writer import Anthropic
from reknit.pipeline.providers.bedrock_converse.writer import BedrockConverse
from reknit.pipeline.providers.cascade.writer import Cascade
from reknit.pipeline.providers.gemini.writer import Gemini
from reknit.pipeline.providers.openai_chat.writer import OpenAIChat, Vllm
from reknit.pipeline.providers.openai_responses.writer import OpenAIResponses
from reknit.pipeline.providers.programs.writer import ClaudeCli, CodexCli, CopilotCli, GeminiCli
from reknit.pipeline.rules.base import Family, Rule, RuleSet
from reknit.pipeline.rules.equalities import ANTHROPIC, CHAT, CONVERSE, GEMINI, RESPONSES, Equality
from reknit.pipeline.rules.judge import CATALOGUES, RULE_SETS, RULES
from reknit.pipeline.targets import Writer


class Target(Struct, frozen=True):
    """All that is known of a target.

    Attributes:
        name: what callers call it.
        writer: how its requests are written.
        rules: what judges them.
        shape: the shape in which its body can be read as a history again; None where a body is none, and unset where
            whoever registered the target said nothing, so that the kit has to be told.
        families: the families of its models, as far as rules differ between them; they stand beside the rules.
        equalities: what says the same in a body; None where bodies cannot be compared by what they say.
        blocks: the list of a body, and the key of an item's blocks, where every block stands for itself; None where
            output blocks cannot be counted so.
        enveloped: whether a program takes its messages a line each, in an envelope whose type is the role.
        prompt: whether its request is the words of a prompt, and no JSON.
        speaks: whether what its model says is filtered on the way back: calls in text, the planner's names and paths.
        own_rules: the ids of the rules that came with it; our own targets' are in the catalogue from the start.
    """

    name: str
    writer: Writer
    rules: RuleSet[Any]
    shape: str | UnsetType | None
    families: tuple[Family, ...] = ()
    equalities: Sequence[Equality] | None = None
    blocks: tuple[str, str] | None = None
    enveloped: bool = False
    prompt: bool = False
    speaks: bool = False
    own_rules: tuple[str, ...] | None = None

    @property
    def text(self) -> bool:
        return self.writer.text


def _ours(writer: Writer, shape: str | None, **known: Any) -> Target:  # noqa: ANN401  fields of a descriptor
    name = writer.name
    return Target(name, writer, RULE_SETS[name], shape, CATALOGUES[name].families, **known)


_OURS = (
    _ours(Anthropic(), "anthropic", equalities=ANTHROPIC, blocks=("messages", "content")),
    _ours(ClaudeCli(), None, enveloped=True),
    _ours(OpenAIChat(), "openai-chat", equalities=CHAT),
    _ours(OpenAIResponses(), "openai-responses", equalities=RESPONSES),
    _ours(Vllm(), "openai-chat", equalities=CHAT),
    _ours(BedrockConverse(), "bedrock-converse", equalities=CONVERSE, blocks=("messages", "content")),
    _ours(Gemini(), "gemini", equalities=GEMINI, blocks=("contents", "parts")),
    _ours(CopilotCli(), None, prompt=True),
    _ours(CodexCli(), None, prompt=True),
    _ours(GeminiCli(), None, prompt=True),
    _ours(Cascade(), None, speaks=True),
)
TARGETS: dict[str, Target] = {target.name: target for target in _OURS}


def target_named(name: str) -> Target:
    """The target of a name.

    Raises:
        UnknownTargetError: there is none.
    """
    found = TARGETS.get(name)
    if found is None:
        raise UnknownTargetError("unknown_target", expected_one_of(TARGETS, name))
    return found


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
    """Make a target known: how requests for it are written, and the rules that they are judged by.

    Args:
        writer: writes the requests; its name is the target's.
        rules: judges them, apart from the writer.
        catalogue: the rules by id that are not among ours; ``writer.tail_rule`` is one of either.
        shape: the shape in which a body can be read as a history again (``anthropic``), None where it is none. A text
            is none; of any other body the kit asks for it, if nothing is said here.
        families: the families of its models, where rules differ between them.
        equalities: what says the same in a body, where bodies are to be compared.
        blocks: where a body's blocks can be counted: the key of its list and that of an item's blocks.

    Raises:
        InputError: a name or a rule's id is taken, or the parts do not belong together.
    """
    own = dict(catalogue or {})
    taken = [f"rule {rule}" for rule in own if rule in RULES]
    if writer.name in TARGETS or writer.name in RULE_SETS:
        taken.append(f"target {writer.name}")
    if taken:
        raise InputError("name_taken", f"{', '.join(taken)}: there is one of that name already")
    if rules.target != writer.name:
        raise InputError("wrong_rules", f"target {writer.name!r} comes with the rules of {rules.target!r}")
    if writer.tail_rule not in RULES and writer.tail_rule not in own:
        raise InputError("unknown_rule", f"target {writer.name!r} names a tail_rule that does not exist")
    if shape is UNSET and writer.text:
        shape = None
    target = Target(writer.name, writer, rules, shape, tuple(families), equalities, blocks, own_rules=tuple(own))
    RULES.update(own)
    RULE_SETS[target.name] = rules
    TARGETS[target.name] = target
    return target


def unregister(name: str) -> None:
    """Forget a target that was registered, with the rules that came with it.

    Raises:
        UnknownTargetError: no such target was registered; our own stay.
    """
    target = TARGETS.get(name)
    if target is None or target.own_rules is None:
        raise UnknownTargetError("unknown_target", f"no target {name!r} was registered")
    for rule in target.own_rules:
        del RULES[rule]
    del RULE_SETS[name], TARGETS[name]
