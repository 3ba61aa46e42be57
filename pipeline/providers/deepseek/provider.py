"""The description of DeepSeek's API in OpenAI's shape; the one in Anthropic's shape is an endpoint of ``anthropic``."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.deepseek import rules, stream, writer
from reknit.pipeline.rules.equalities import DEEPSEEK
from reknit.pipeline.streams.source import BY_REASON, Source

PROVIDER = Provider(
    target=Target(
        writer=writer.DEEPSEEK,
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="openai-chat",
        equalities=DEEPSEEK,
        hosts=("deepseek.com",),
    ),
    source=Source(
        name="deepseek", decoder=stream.DeepSeek, prefix="deepseek", issuer=stream.DeepSeek.issuer, final=BY_REASON
    ),
)
