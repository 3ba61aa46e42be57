"""Random sessions with the mock provider. REKNIT_EXAMPLES=20 runs two thousand."""

import pytest
from mock_provider.body_agent import BodyAgent
from mock_provider.checks import refused_twice, repeats
from mock_provider.driver import run_script
from mock_provider.random_scripts import random_script
from strategies import SCALE

PARTS = 4
SESSIONS = 100 * SCALE // PARTS


class Unhealed(BodyAgent):
    """A client that heals nothing."""

    def refused(self, status, error, attempt):
        return None


@pytest.mark.parametrize("part", range(PARTS))
def test_each_session_goes_on_and_no_value_is_refused_twice(part):
    for number in range(part * SESSIONS, (part + 1) * SESSIONS):
        run = run_script(random_script(number), BodyAgent)
        assert run.is_alive, number
        assert repeats(run) == [], number
        assert refused_twice(run, with_media=False) == [], number


def test_no_request_is_changed_before_it_is_refused():
    for number in range(SESSIONS):
        healed = [each.digest for each in run_script(random_script(number), BodyAgent).provider.ledger]
        plain = [each.digest for each in run_script(random_script(number), Unhealed).provider.ledger]
        assert healed[: len(plain)] == plain, number


def test_the_sessions_are_refused_in_many_ways():
    runs = [run_script(random_script(number), BodyAgent) for number in range(SESSIONS * PARTS)]
    assert len({each.name for run in runs for each in run.refusals}) >= 15
    assert sum(bool(run.refusals) for run in runs) >= len(runs) // 3
    assert any(not run.refusals for run in runs)
