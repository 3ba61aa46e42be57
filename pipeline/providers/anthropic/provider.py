"""The description of Anthropic's Messages API."""

from __future__ import annotations

from reknit.pipeline.providers.anthropic import rules, stream, writer
from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.rules.equalities import ANTHROPIC
from reknit.pipeline.streams.source import Source

PROVIDER = Provider(
    target=Target(
        writer=writer.Anthropic(),
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="anthropic",
        equalities=ANTHROPIC,
        blocks=("messages", "content"),
    ),
    source=Source(name="anthropic", decoder=stream.Anthropic, prefix="an", issuer="anthropic"),
)
