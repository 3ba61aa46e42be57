"""The description of OpenAI's Chat Completions API."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.openai_chat import rules, stream, writer
from reknit.pipeline.rules.equalities import CHAT
from reknit.pipeline.streams.source import BY_REASON, Source

PROVIDER = Provider(
    target=Target(
        writer=writer.OPENAI_CHAT,
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="openai-chat",
        equalities=CHAT,
    ),
    source=Source(
        name="openai-chat",
        decoder=stream.OpenAiChat,
        prefix="chat",
        issuer=stream.OpenAiChat.issuer,
        final=BY_REASON,
    ),
)
