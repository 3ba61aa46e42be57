"""Recorded requests that a gateway publishes: the worker writes each of them as the gateway had it."""

from __future__ import annotations

import json
from collections import defaultdict

import msgspec
import pytest
from harmless import PROVIDERS, is_conversation
from multidict import CIMultiDict
from recorded import HOSTS, accepted, needs_corpus

from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.conversations import conversation_key
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.repair import repaired
from reknit.pipeline.serve.sent_requests import SentRequest, SessionLogs
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import chains_in
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

pytestmark = needs_corpus


def mismatches(rows, provider):
    """Recordings of one program in their order: whether a worker published each one and counted a mismatch."""
    logs, stages = SessionLogs(GatewayMetrics(), b""), defaultdict(TurnsStage)
    offset = 0
    for row in rows:
        body, model = row["request"], row["model"] or ""
        endpoint = Endpoint(provider, "" if "model" in body or "modelId" in body else model)
        data = json.dumps(body).encode()
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        session = conversation_key(b"", CIMultiDict(), members, upstream="", target=provider).hex()
        done = repaired(data, endpoint, Policy(), {})
        sent = SentRequest(
            session=session,
            endpoint=endpoint,
            request_id=row["id"],
            members=members,
            sent=done.body or data,
            written=done.written,
            policy=Policy(),
        )
        made = [
            Record(partition=0, offset=offset + at, key=session.encode(), value=each.value)
            for at, each in enumerate(logs.records(sent))
        ]
        offset += len(made)
        found = stages[session].process(made)
        requests = [each for each in found.outputs if each.topic == PROVIDER_REQUESTS]
        if done.written is not None and not chains_in(members):
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
