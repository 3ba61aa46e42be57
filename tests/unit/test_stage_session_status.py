"""The table of a session's status: it has a step for every pair, and all record types have a kind."""

from itertools import product
from typing import get_args

import pytest

from reknit.pipeline.stages.session_status import KINDS, STEPS, Kind, Status, Step, kind_of
from reknit.topics.records import TurnRecord

REFUSALS = {Step.REFUSE_UNREADABLE, Step.REFUSE_QUARANTINED, Step.REFUSE_ENDED}


def test_every_pair_of_status_and_kind_has_a_step():
    assert STEPS.keys() == set(product(Status, Kind))


def test_every_kind_but_other_and_unreadable_is_one_record_type():
    kinds = [KINDS.get(event, Kind.OTHER) for event in get_args(TurnRecord)]
    assert set(kinds) == set(Kind) - {Kind.UNREADABLE}
    assert [kind for kind in Kind if kinds.count(kind) > 1] == [Kind.OTHER]
    assert kind_of(None) is Kind.UNREADABLE


@pytest.mark.parametrize("status", Status)
def test_every_session_can_be_forgotten(status):
    assert STEPS[status, Kind.FORGOTTEN] is Step.END


@pytest.mark.parametrize("kind", Kind)
def test_only_parked_and_releasing_sessions_let_records_wait(kind):
    assert STEPS[Status.PARKED, kind] in {Step.WAIT, Step.RELEASE, Step.END}
    assert STEPS[Status.RELEASING, kind] in {Step.QUEUE, Step.END}
    for status in set(Status) - {Status.PARKED, Status.RELEASING}:
        assert STEPS[status, kind] not in {Step.WAIT, Step.QUEUE, Step.RELEASE}


@pytest.mark.parametrize("status", Status)
def test_a_record_that_cannot_be_decoded_changes_nothing(status):
    assert STEPS[status, Kind.UNREADABLE] in REFUSALS | {Step.WAIT, Step.QUEUE}
