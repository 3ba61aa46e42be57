"""The description of the Gemini CLI."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.gemini_cli import rules, stream, writer
from reknit.pipeline.streams.source import BY_RESULT, Source

PROVIDER = Provider(
    target=Target(writer=writer.GeminiCli(), rules=rules.RULE_SET, catalogue=rules.CATALOGUE, is_prompt=True),
    source=Source(
        name="gemini-cli",
        decoder=stream.GeminiCli,
        prefix="gemini-cli",
        self_driving=True,
        transcript="gemini-cli-transcript",
        final=BY_RESULT,
    ),
)
