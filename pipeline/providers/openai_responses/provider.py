"""The description of OpenAI's Responses API."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.openai_responses import rules, stream, writer
from reknit.pipeline.rules.equalities import RESPONSES
from reknit.pipeline.streams.source import Source

PROVIDER = Provider(
    target=Target(
        writer=writer.OpenAIResponses(),
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="openai-responses",
        equalities=RESPONSES,
    ),
    source=Source(name="openai-responses", decoder=stream.OpenAiResponses, prefix="resp", issuer="openai-responses"),
)
