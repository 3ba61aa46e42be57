"""The description of a provider: the target that its requests are written for, and the source of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, UnsetType

from reknit.pipeline.rules.base import Catalogue, RuleSet
from reknit.pipeline.rules.equalities import Equality
from reknit.pipeline.streams.source import Source
from reknit.pipeline.targets import Writer


class Target(Struct, frozen=True, kw_only=True):
    """The writer of requests for one provider, and the rules that judge them.

    The writer and the rules share no code, so that each checks the other.

    Attributes:
        writer: writes the requests. Its name is the target's.
        rules: judges them.
        catalogue: the rules by id that ``rules`` reports, and the model families among which they differ.
        shape: the shape in which a body can be read as a history again (``anthropic``). None where the body is not a
            history, unset where a registered target does not state it. The conformance kit then asks for it.
        equalities: when two bodies say the same. None where bodies can only be compared byte for byte.
        blocks: the key of the body's list, and the key of an item's blocks, where every output block can be counted.
            None where one output block may hold several input blocks.
        hosts: the domains of an API that imitates OpenAI's Chat Completions, whose requests there are this target's.
        is_enveloped: a program takes one message a line, in an envelope whose type is the role.
        is_prompt: the request is the text of a prompt instead of JSON.
        has_filters: the model's output is filtered: calls written as text, the planner's names and paths.
        is_registered: the target was added by `reknit.pipeline.registry.register` and can be removed again.
    """

    writer: Writer
    rules: RuleSet[Any]
    catalogue: Catalogue
    shape: str | UnsetType | None = None
    equalities: Sequence[Equality] | None = None
    blocks: tuple[str, str] | None = None
    hosts: tuple[str, ...] = ()
    is_enveloped: bool = False
    is_prompt: bool = False
    has_filters: bool = False
    is_registered: bool = False

    @property
    def name(self) -> str:
        return self.writer.name

    @property
    def is_text(self) -> bool:
        return self.writer.text


class Provider(Struct, frozen=True, kw_only=True):
    """One provider or agent program: the target that Reknit writes for, and the source that it reads.

    Attributes:
        target: its requests and the rules that judge them. None if only its streams are known.
        source: its streams. None if it has none.
    """

    target: Target | None = None
    source: Source | None = None
