"""The description of the Claude CLI."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.claude_cli import rules, stream, writer
from reknit.pipeline.streams.source import BY_RESULT, Source

PROVIDER = Provider(
    target=Target(writer=writer.ClaudeCli(), rules=rules.RULE_SET, catalogue=rules.CATALOGUE, is_enveloped=True),
    source=Source(
        name="claude-cli",
        decoder=stream.ClaudeCli,
        prefix="cc",
        confirmed_by="message",
        self_driving=True,
        transcript="claude-cli-transcript",
        final=BY_RESULT,
    ),
)
