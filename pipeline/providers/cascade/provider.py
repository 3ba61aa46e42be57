"""The description of Cascade."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.cascade import rules, stream, writer
from reknit.pipeline.streams.source import Source

PROVIDER = Provider(
    target=Target(writer=writer.Cascade(), rules=rules.RULE_SET, catalogue=rules.CATALOGUE, has_filters=True),
    source=Source(name="cascade", decoder=stream.Cascade, prefix="cascade", issuer="cascade", rewrites=True),
)
