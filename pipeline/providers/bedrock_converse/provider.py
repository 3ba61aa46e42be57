"""The description of Amazon Bedrock's Converse API."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.bedrock_converse import rules, stream, writer
from reknit.pipeline.rules.equalities import CONVERSE
from reknit.pipeline.streams.source import BY_REASON, Source

PROVIDER = Provider(
    target=Target(
        writer=writer.BedrockConverse(),
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="bedrock-converse",
        equalities=CONVERSE,
        blocks=("messages", "content"),
    ),
    source=Source(
        name="bedrock-converse",
        decoder=stream.BedrockConverse,
        prefix="bc",
        issuer="bedrock-converse",
        final=BY_REASON,
    ),
)
