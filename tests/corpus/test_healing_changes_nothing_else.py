"""Recorded sessions that no provider refused: their requests and their state are the same with healing on and off."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import islice

import msgspec
import pytest
from harmless import PROVIDERS, is_conversation
from recorded import HOSTS, accepted, needs_corpus

from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.mirrored import Conversations, Logged
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

pytestmark = needs_corpus

MOST_REQUESTS = 300


def logs(provider):
    """Yield the records of each recorded session, in their order."""
    groups = defaultdict(list)
    for row in islice(filter(is_conversation, accepted(provider)), MOST_REQUESTS):
        groups[row["group"]].append(row)
    for rows in groups.values():
        conversations, values = Conversations(), defaultdict(list)
        for row in rows:
            given = msgspec.json.decode(json.dumps(row["request"]), type=dict[str, msgspec.Raw])
            session, records = conversations.records_of(Logged(provider, given, model=row["model"] or ""))
            values[session] += [msgspec.json.encode(record) for record in records]
        yield from values.items()


def processed(key, values, **policy):
    """Return the outputs of a session's history side, and the session's state without the policy ``heal``."""
    stage = TurnsStage(Defaults(policy=Policy(**policy)))
    outputs = []
    for offset, value in enumerate(values):
        record = Record(partition=0, offset=offset, key=key.encode(), value=value, headers=())
        outputs += [(each.topic, each.key, each.value, each.headers) for each in stage.process([record]).outputs]
    entry = stage._states.find(key.encode())  # its records are differences between heads, so the policy moves them
    if entry is None:  # its records could not be used
        return outputs, {}
    head = msgspec.msgpack.decode(entry.session.head())
    head["policy"].pop("heal", None)
    return outputs, head, entry.session.log(), entry.sent


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_session_that_is_never_refused_is_the_same_with_healing_on_and_off(provider):
    requests = 0
    for key, values in logs(provider):
        outputs, *state = processed(key, values, heal="on")
        assert processed(key, values, heal="off") == (outputs, *state)
        assert "refused" not in state[0]
        requests += sum(topic == PROVIDER_REQUESTS for topic, *_ in outputs)
    assert requests > (20 if provider in HOSTS else 100)


def test_another_policy_is_seen_in_the_state():
    (key, values) = next(logs("anthropic"))
    assert processed(key, values, tail="keep")[1] != processed(key, values)[1]
