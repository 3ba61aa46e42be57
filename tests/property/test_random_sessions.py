"""Random sessions with the mock provider: bodies, sessions, and sessions that switch providers.

REKNIT_EXAMPLES=20 runs two thousand of each. ``make heal`` compares them with clients that heal in other ways.
"""

import pytest
from mock_provider.body_agent import BodyAgent
from mock_provider.checks import is_at_limit, lost, refused_twice, repeats
from mock_provider.driver import run_script
from mock_provider.random_scripts import random_script
from mock_provider.session_agent import RestartedAgent, SessionAgent, Unhealed
from mock_provider.topic_agent import RestartedTopicAgent, TopicAgent
from strategies import SCALE

PARTS = 4
SESSIONS = 100 * SCALE // PARTS


def scripts(part, *, is_switching=False):
    for number in range(part * SESSIONS, (part + 1) * SESSIONS):
        yield random_script(number, is_switching=is_switching)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_client_that_heals_its_body_goes_on_and_no_value_is_refused_twice(part):
    for script in scripts(part):
        run = run_script(script, BodyAgent)
        assert run.is_alive, script.name
        assert repeats(run) == [], script.name
        assert refused_twice(run, with_media=False) == [], script.name


@pytest.mark.parametrize("is_switching", [False, True])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_session_goes_on_and_no_value_is_refused_twice(part, is_switching):
    for script in scripts(part, is_switching=is_switching):
        run = run_script(script, SessionAgent)
        assert run.is_alive or is_at_limit(run), script.name
        assert repeats(run) == [], script.name
        assert refused_twice(run, with_media=True) == [], script.name
        assert lost(run) == [], script.name


def test_the_pipeline_heals_sessions_from_their_logs():
    for script in scripts(0, is_switching=True):
        runs = [run_script(script, agent) for agent in (TopicAgent, RestartedTopicAgent)]
        assert runs[0].is_alive, script.name
        assert repeats(runs[0]) == [], script.name
        assert refused_twice(runs[0], with_media=True) == [], script.name
        digests = [[each.digest for each in run.provider.ledger] for run in runs]
        assert digests[0] == digests[1], script.name


def until_refused(run):
    """The digests of the requests up to the first refusal."""
    ledger = run.provider.ledger
    first = next((at for at, each in enumerate(ledger) if each.name not in ("", "busy")), len(ledger))
    return [each.digest for each in ledger[: first + 1]]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_request_is_changed_before_it_is_refused(part):
    for script in scripts(part, is_switching=True):
        healed, plain = run_script(script, SessionAgent), run_script(script, Unhealed)
        assert until_refused(healed) == until_refused(plain), script.name


def test_a_session_that_is_loaded_again_for_each_request_sends_the_same():
    for script in scripts(0, is_switching=True):
        runs = [run_script(script, agent) for agent in (SessionAgent, RestartedAgent)]
        digests = [[each.digest for each in run.provider.ledger] for run in runs]
        assert digests[0] == digests[1], script.name


def test_the_sessions_are_refused_in_many_ways():
    runs = [run_script(script, BodyAgent) for part in range(PARTS) for script in scripts(part)]
    assert len({each.name for run in runs for each in run.refusals}) >= 15
    assert sum(bool(run.refusals) for run in runs) >= len(runs) // 3
    assert any(not run.refusals for run in runs)
