"""The description of the Codex CLI."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.codex_cli import rules, stream, writer
from reknit.pipeline.streams.source import BY_RESULT, Source

PROVIDER = Provider(
    target=Target(writer=writer.CodexCli(), rules=rules.RULE_SET, catalogue=rules.CATALOGUE, is_prompt=True),
    source=Source(
        name="codex-cli",
        decoder=stream.CodexCli,
        prefix="codex",
        confirmed_by="block",
        self_driving=True,
        final=BY_RESULT,
    ),
)
