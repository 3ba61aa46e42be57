"""Recorded requests that a gateway publishes: the worker writes each of them as the gateway had it."""

from __future__ import annotations

from collections import defaultdict

import pytest
from gateway_log import GatewayLog
from harmless import PROVIDERS, is_conversation
from recorded import HOSTS, accepted, needs_corpus

from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

pytestmark = needs_corpus


def mismatches(rows, provider):
    """Recordings of one program in their order: whether a worker published each one and counted a mismatch."""
    gateway, stages = GatewayLog(provider), defaultdict(TurnsStage)
    offset = 0
    for row in rows:
        body, model = row["request"], row["model"] or ""
        done = gateway.send(body, model="" if "model" in body or "modelId" in body else model)
        made = [
            Record(partition=0, offset=offset + at, key=each.session.encode(), value=each.value)
            for at, each in enumerate(gateway.records[-1])
        ]
        offset += len(made)
        found = stages[made[0].key if made else b""].process(made)
        requests = [each for each in found.outputs if each.topic == PROVIDER_REQUESTS]
        if done.written is not None:
            assert b"content_sha256" in made[-1].value
            yield row["id"], len(requests) == 1, found.tally.get(("reknit_gateway_mismatch_total", provider), 0)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_worker_writes_what_the_gateway_sent(provider):
    groups = defaultdict(list)
    for row in accepted(provider):
        # A request that only counts tokens has no max_tokens, and another path.
        if is_conversation(row) and (provider != "anthropic" or "max_tokens" in row["request"]):
            groups[row["group"]].append(row)
    judged = [each for rows in groups.values() for each in mismatches(rows, provider)]
    assert len(judged) > (20 if provider in HOSTS else 400)
    assert [name for name, is_published, differs in judged if differs or not is_published] == []
