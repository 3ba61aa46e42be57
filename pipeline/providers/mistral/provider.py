"""The description of Mistral's API."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.mistral import rules, stream, writer
from reknit.pipeline.rules.equalities import MISTRAL
from reknit.pipeline.streams.source import BY_REASON, Source

PROVIDER = Provider(
    target=Target(
        writer=writer.MISTRAL,
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="openai-chat",
        equalities=MISTRAL,
        hosts=("mistral.ai",),
    ),
    source=Source(
        name="mistral", decoder=stream.Mistral, prefix="mistral", issuer=stream.Mistral.issuer, final=BY_REASON
    ),
)
