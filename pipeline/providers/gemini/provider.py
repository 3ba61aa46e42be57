"""The description of Gemini's generateContent API."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.gemini import rules, stream, writer
from reknit.pipeline.rules.equalities import GEMINI
from reknit.pipeline.streams.source import Source

PROVIDER = Provider(
    target=Target(
        writer=writer.Gemini(),
        rules=rules.RULE_SET,
        catalogue=rules.CATALOGUE,
        shape="gemini",
        equalities=GEMINI,
        blocks=("contents", "parts"),
    ),
    source=Source(name="gemini", decoder=stream.Gemini, prefix="gemini", issuer="gemini"),
)
