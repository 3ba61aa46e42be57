"""Sixty scripted sessions, each modelled on a report: 56 continue after a refusal, and four stay refused."""

import json
from collections import Counter
from pathlib import Path

import mock_provider.scripts
import pytest
from mock_provider.body_agent import BodyAgent
from mock_provider.checks import changed_blocks, lost, refused_twice, repeats
from mock_provider.driver import run_script
from mock_provider.scripts import read_scripts
from mock_provider.sentences import SENTENCES
from mock_provider.session_agent import RestartedAgent, SessionAgent, Unhealed
from mock_provider.strip_agents import ForgetfulAgent, StrippingAgent
from mock_provider.topic_agent import RestartedTopicAgent, TopicAgent

from reknit.pipeline.healing.table import HEALINGS, IN_SESSIONS

SCRIPTS = read_scripts(Path(mock_provider.scripts.__file__).with_name("sessions.jsonl").read_bytes())
HEALED = [script for script in SCRIPTS if script.group != "none"]
LOSS = {f"healed_{row.name}": row.loss for row in (*IN_SESSIONS, *HEALINGS)}
# A session repairs these by its own rules, or keeps within the limits that it knows, before a request is refused.
KEPT_BY_SESSIONS = {
    "prefix-tools",
    "prefix-system",
    "foreign-hex",
    "not-stored-any-more",
    "follower-lost",
    "too-wide",
    "many-wide",
    "one-too-many",
    "signature-lost",
}
# The second fault of a session loses something else.
PRIOR = {"other-key": ("media",), "previous-not-found": ("reasoning",), "compaction-forgotten": ("history",)}
BY_BODY = [script for script in HEALED if not script.needs_session]


def named(scripts):
    return pytest.mark.parametrize("script", scripts, ids=lambda script: script.name)


def test_there_are_sixty_in_the_groups_of_the_specification():
    groups = Counter(script.group for script in SCRIPTS)
    assert len(SCRIPTS) == 60
    assert len({script.name for script in SCRIPTS}) == 60
    assert groups["A"] == 14
    assert groups["B"] == 10
    assert groups["C"] + groups["D"] == 9
    assert groups["E"] + groups["F"] == 8
    assert groups["G"] == 9
    assert groups["H"] + groups["J"] + groups["K"] == 6
    assert groups["none"] == 4
    assert sum(len(set(script.healed)) > 1 for script in SCRIPTS) >= 12
    assert sum(script.late for script in SCRIPTS) >= 6


@named(SCRIPTS)
def test_each_has_twelve_to_forty_turns_and_two_tool_loops(script):
    turns = sum(2 + 2 * calls for calls in script.rounds)
    assert 12 <= turns <= 40
    assert sum(calls > 0 for calls in script.rounds) >= 2
    last_fault = max(fault.round for fault in script.faults)
    assert sum(2 + 2 * calls for calls in script.rounds[last_fault:]) >= 6


@named(BY_BODY)
def test_a_client_that_heals_its_body_goes_on(script):
    run = run_script(script, BodyAgent)
    assert run.is_alive
    codes = {fix.code for fix in run.agent.fixes if fix.code.startswith("healed_")}
    assert codes == {f"healed_{row}" for row in script.healed}
    assert script.loss in {"", *(LOSS[code] for code in codes)}
    assert (script.loss == "") <= ({LOSS[code] for code in codes} <= {"", "setting"})
    assert repeats(run) == []
    assert refused_twice(run, with_media=True) == []
    assert lost(run) == []
    # A search goes with its call.
    searches = sum(fix.code in ("healed_search_result", "healed_tool_reference") for fix in run.agent.fixes)
    assert changed_blocks(run) <= len(run.agent.fixes) + searches


@named(HEALED)
def test_a_session_heals_its_requests_and_remembers(script):
    run = run_script(script, SessionAgent)
    assert run.is_alive
    assert len(run.refusals) <= script.refusals
    assert all("(request request-" in fix.detail for fix in run.agent.fixes)
    codes = {fix.code for fix in run.agent.fixes}
    assert codes <= {f"healed_{row}" for row in script.healed}
    assert {LOSS[code] for code in codes} <= {"", "setting", script.loss, *PRIOR.get(script.name, ())}
    assert repeats(run) == []
    assert refused_twice(run, with_media=True) == []
    assert lost(run) == []


@named(HEALED)
def test_the_pipeline_heals_each_session_from_its_log(script):
    """Each refusal is in the log twice, and the worker may restart after each record."""
    runs = [run_script(script, agent) for agent in (TopicAgent, RestartedTopicAgent)]
    for run in runs:
        assert run.is_alive
        assert len(run.refusals) <= script.refusals
        assert repeats(run) == []
        assert refused_twice(run, with_media=True) == []
        assert lost(run) == []
        # A chained request cannot be made from the log, so this setting is refused. A healed refusal is no letter.
        assert run.agent.letters == (script.group == "D")
    digests = [[each.digest for each in run.provider.ledger] for run in runs]
    assert digests[0] == digests[1]


@named([script for script in HEALED if script.group != "D" and not script.late])
def test_the_pipeline_sends_what_a_session_sends(script):
    runs = [run_script(script, agent) for agent in (TopicAgent, SessionAgent)]
    digests = [[each.digest for each in run.provider.ledger] for run in runs]
    assert digests[0] == digests[1]


@named([script for script in HEALED if script.name not in KEPT_BY_SESSIONS])
def test_without_healing_each_session_stays_refused(script):
    run = run_script(script, Unhealed)
    assert not run.is_alive or script.refusals == 0


@pytest.mark.parametrize("agent", [ForgetfulAgent, StrippingAgent])
def test_a_client_that_leaves_all_reasoning_out_loses_sessions(agent):
    runs = [run_script(script, agent) for script in HEALED]
    assert sum(run.is_alive for run in runs) < len(HEALED) // 2


@named(HEALED)
def test_a_session_that_is_loaded_again_for_each_request_sends_the_same(script):
    runs = [run_script(script, agent) for agent in (SessionAgent, RestartedAgent, SessionAgent)]
    digests = [[each.digest for each in run.provider.ledger] for run in runs]
    assert digests[0] == digests[1] == digests[2]


@named([script for script in HEALED if script.needs_session])
def test_what_needs_the_history_is_not_healed_in_a_body(script):
    run = run_script(script, BodyAgent)
    assert not run.is_alive
    assert len(run.refusals) == 1
    assert run.agent.fixes == []


@pytest.mark.parametrize("agent", [BodyAgent, SessionAgent, TopicAgent])
@named([script for script in SCRIPTS if script.group == "none"])
def test_what_must_not_be_healed_stays_refused(script, agent):
    run = run_script(script, agent)
    assert not run.is_alive
    last = run.provider.ledger[-1]
    assert last.name not in ("", "busy")
    assert SENTENCES[last.name].words in json.dumps(last.body)
    assert [each.name for each in run.provider.ledger[-3:-1]] == ["busy", "busy"]
    assert run.agent.fixes == []
    assert run.healings == []
