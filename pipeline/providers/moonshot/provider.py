"""The description of Moonshot's API in OpenAI's shape; the one in Anthropic's shape is an endpoint of ``anthropic``."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.moonshot import rules, stream, writer
from reknit.pipeline.rules.equalities import CHAT
from reknit.pipeline.streams.source import BY_REASON, Source

PROVIDER = Provider(
    target=Target(
        writer=writer.MOONSHOT,
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="openai-chat",
        equalities=CHAT,
        hosts=("moonshot.ai", "moonshot.cn", "kimi.com", "kimi.ai"),
    ),
    source=Source(
        name="moonshot", decoder=stream.Moonshot, prefix="moonshot", issuer=stream.Moonshot.issuer, final=BY_REASON
    ),
)
