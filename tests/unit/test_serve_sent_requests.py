"""The records of requests: a session with a gap begins again, and a fault stops nothing."""

import json

import msgspec
import pytest
from build import said, user
from stage_runs import records

from reknit.pipeline.policy import Policy
from reknit.pipeline.serve import sent_requests
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.repair import repaired
from reknit.pipeline.serve.sent_requests import SentRequest, SessionLogs
from reknit.pipeline.serve.upstreams import DEFAULT_UPSTREAMS
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

ENDPOINT = Endpoint("anthropic")
HISTORY = [user("one"), said("1"), user("two"), said("2"), user("three")]


class Log:
    def __init__(self):
        self.metrics = GatewayMetrics()
        self.sessions = SessionLogs(self.metrics, b"salt")
        self.stage, self.offset, self.types = TurnsStage(), 0, []
        self.mismatches, self.published = 0, []

    def send(self, *messages, request_id=None, members=None, **more):
        body = json.dumps({"model": "m", "max_tokens": 64, "messages": list(messages)}).encode()
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw]) if members is None else members
        sent = SentRequest(
            session="s",
            endpoint=ENDPOINT,
            request_id=request_id or f"q{self.offset}",
            members=given,
            sent=body,
            written=repaired(body, ENDPOINT, Policy(), {}).written,
            policy=more.pop("policy", Policy()),
            **more,
        )
        made = self.sessions.records(sent)
        values = [json.loads(each.value) for each in made]
        self.types.append([each["type"].partition(".")[2] for each in values])
        found = self.stage.process(records(values, key=b"s", first=self.offset))
        self.offset += len(values)
        self.published += [json.loads(each.value) for each in found.outputs if each.topic == PROVIDER_REQUESTS]
        self.mismatches += found.tally.get(("reknit_gateway_mismatch_total", "anthropic"), 0)
        return made


def incomplete(log):
    samples = [each for metric in log.metrics.registry.collect() for each in metric.samples]
    name = "reknit_serve_log_incomplete_total"
    return {each.labels["reason"]: each.value for each in samples if each.name == name}


def test_a_session_with_a_gap_is_restored_by_its_next_request_also_to_a_history_that_it_had_before():
    log = Log()
    for length in (1, 3):
        log.send(*HISTORY[:length])
    log.sessions.incomplete.add("s")
    log.send(HISTORY[0])
    log.sessions.forgets_all = True
    log.send(HISTORY[0])
    log.send(*HISTORY[:3])
    assert log.types == [
        ["opened", "restored", "sent"],
        ["appended", "appended", "sent"],
        ["opened", "restored", "sent"],
        ["opened", "restored", "sent"],
        ["appended", "appended", "sent"],
    ]
    assert (log.mismatches, len(log.published)) == (0, 5)


def test_a_history_that_goes_back_is_restored():
    log = Log()
    for length in (5, 3, 1, 3):
        log.send(*HISTORY[:length])
    assert [len(each["messages"]) for each in log.published] == [5, 3, 1, 3]
    assert log.mismatches == 0


def test_the_policy_of_the_upstream_is_the_sessions():
    made = Log().send(
        *HISTORY, policy=Policy(late_result="drop", fit=1000, endpoints={}, mend={"result_orphan": "observe"})
    )
    opened = json.loads(made[0].value)
    assert opened["policy"]["fit"] == 1000
    assert opened["policy"]["mend"] == {"result_orphan": "observe"}
    assert (opened["policy"]["record_assistant"], "expires_after" in opened["policy"]) == (False, False)


@pytest.mark.parametrize("upstream", DEFAULT_UPSTREAMS, ids=lambda each: each.name)
def test_the_policies_of_all_default_upstreams_can_be_written(upstream):
    policy = upstream.settings_of("m").policy
    opened = json.loads(Log().send(*HISTORY, policy=policy)[0].value)
    written = opened["policy"]["endpoints"]
    assert written == {target: msgspec.to_builtins(each) for target, each in policy.endpoints.items()}
    assert opened["policy"]["heal"] == "on"


@pytest.mark.parametrize(
    "body",
    [
        {"previous_response_id": "r1", "input": []},
        {"model": "m"},
        {"messages": 7},
        {"messages": [{"role": "user", "content": "hi"}], "system": 7, "tools": 7},
    ],
)
def test_a_body_without_a_readable_history_has_no_turns_and_is_counted(body):
    log = Log()
    members = msgspec.json.decode(json.dumps(body).encode(), type=dict[str, msgspec.Raw])
    assert (log.send(members=members), incomplete(log)) == ([], {"turns": 1.0})
    log.send(*HISTORY)
    assert log.types[-1] == ["opened", "restored", "sent"]


def test_a_fault_of_reknit_costs_the_turns_of_one_request(monkeypatch):
    log = Log()
    log.send(HISTORY[0])
    with monkeypatch.context() as patched:
        patched.setattr(sent_requests, "_written", lambda _: 1 / 0)
        assert log.send(*HISTORY[:3]) == []
    log.send(*HISTORY)
    assert (log.types[-1], log.mismatches) == (["opened", "restored", "sent"], 0)


def test_the_rules_that_a_body_broke_are_named_where_that_is_asked():
    made = Log().send(user("hi"), user("there"), said("1"), said("2"), is_judged=True)
    assert [dict(each.headers).get("judged", b"")[:9] for each in made] == [b"", b"", b"anthropic"]
