"""The description of servers of open models, such as vLLM."""

from __future__ import annotations

from reknit.pipeline.providers.base import Provider, Target
from reknit.pipeline.providers.vllm import rules, stream, writer
from reknit.pipeline.rules.equalities import CHAT
from reknit.pipeline.streams.source import BY_REASON, Source

PROVIDER = Provider(
    target=Target(
        writer=writer.VLLM, rules=rules.RULE_SET, catalogue=rules.CATALOGUE, shape="openai-chat", equalities=CHAT
    ),
    source=Source(name="vllm", decoder=stream.Vllm, prefix="vllm", issuer=stream.Vllm.issuer, final=BY_REASON),
)
