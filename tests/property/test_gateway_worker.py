"""A worker renders each request of a gateway as the gateway sent it, also after answered requests with an open end."""

from __future__ import annotations

from collections import Counter

import pytest
from gateway_conversations import body_of, conversations
from gateway_log import GatewayLog
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_runs import restored
from strategies import SCALE

from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.memory import GatewayMemory
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.kept import Records
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

MISMATCH = "reknit_gateway_mismatch_total"
# The last one binds reasoning to its prefix.
MODELS = [("anthropic", ""), ("anthropic", "claude-sonnet-5-5"), ("openai-chat", ""), ("openai-responses", "")]
POLICIES = [
    Policy(),
    Policy(missing_result="drop"),
    Policy(late_result="turn"),
    Policy(late_result="drop", open_exchanges=1),
    Policy(orphan_result="text"),
]


class Worker:
    """A worker that may be started again after each record, from its ``changelog`` or a ``store``; its outputs."""

    def __init__(self, restart=""):
        self.outputs, self.tally = [], Counter()
        self._restart, self._state, self._store, self._offset = restart, {}, Records(), 0
        self._begin()

    def _begin(self):
        self._stage = TurnsStage()
        if self._restart == "store":
            self._stage.keep_in(self._store)
        else:
            restored(self._stage, self._state)

    def take(self, written, *, begins_again=False):
        batch = [
            Record(partition=0, offset=self._offset + at, key=each.session.encode(), value=each.value)
            for at, each in enumerate(written)
        ]
        made = self._stage.process(batch)
        self._offset += len(batch)
        self.outputs += made.outputs
        self.tally.update(made.tally)
        self._state |= made.changes
        if self._restart == "store":
            self._stage.committed(made.changes, 0)
        if begins_again:
            self._begin()

    @property
    def requests(self):
        return [each.value for each in self.outputs if each.topic == PROVIDER_REQUESTS]

    @property
    def mismatches(self):
        return sum(count for key, count in self.tally.items() if key[0] == MISMATCH)


def send(gateway, data, body, length, history):
    """Send a conversation up to a length; the gateway may be started again before it, or lose its memory."""
    match data.draw(st.integers(0, 9), "gateway"):
        case 0:
            gateway.begin_again()
        case 1:
            gateway.memory = GatewayMemory(None)
    return gateway.send(body(history[:length]), is_accepted=data.draw(st.integers(0, 5), "accepted") > 0)


def drawn(data, lengths, history):
    """Yield the histories that are sent: at times an earlier one again, or one whose client has changed a message."""
    for length in lengths:
        yield length, history
        match data.draw(st.integers(0, 9), "client"):
            case 0:
                yield data.draw(st.sampled_from(lengths), "again"), history
            case 1 if length > 1:
                at = data.draw(st.integers(0, length - 1), "changed")
                changed = {**history[at], "content": [{"type": "text", "text": "something else"}]}
                yield length, [*history[:at], changed, *history[at + 1 :]]


@pytest.mark.parametrize(("target", "model"), MODELS)
@settings(max_examples=20 * SCALE, deadline=None)
@given(conversation=conversations(), data=st.data())
def test_every_request_is_compared_and_equal(target, model, conversation, data):
    lengths, history = conversation
    gateway = GatewayLog(target, data.draw(st.sampled_from(POLICIES), "policy"))
    for length, messages in drawn(data, lengths, history):
        send(gateway, data, lambda given: body_of(target, given, model), length, messages)
    whole, restarted = Worker(), Worker(data.draw(st.sampled_from(["changelog", "store"]), "state"))
    written = [record for made in gateway.records for record in made]
    whole.take(written)
    for record in written:
        restarted.take([record], begins_again=data.draw(st.booleans(), "restart"))
    assert all(b"content_sha256" in made[-1].value for made in gateway.records)
    assert (whole.mismatches, restarted.mismatches) == (0, 0)
    assert whole.outputs == restarted.outputs
    assert len(whole.requests) == len(gateway.bodies)
