"""Requests that their provider accepted come out for the same provider as they went in, all but a few that are named.

The goal is a share, and every exception has its reason in ``pipeline/explain/shares.jsonl``, from which the page in
docs/ is made. After a change that moves a share, ``python tests/corpus/harmless.py --write`` and ``make docs``.
"""

import pytest
from harmless import PROVIDERS, measured
from recorded import HOSTS, needs_corpus

from reknit.pipeline.explain.documents import SHARES

# The goal.
HARMED_AT_MOST, MENDED_AT_MOST = 1 / 200, 1 / 50


pytestmark = needs_corpus


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_became_of_accepted_requests_is_what_is_written_down(provider):
    (known,) = (row for row in SHARES if row.provider == provider)
    now = measured(provider)
    assert set(now.harmed) == set(known.harmed)
    assert (now.accepted, now.mended, now.codes) == (known.accepted, known.mended, known.codes)


def test_every_harmed_request_has_its_reason():
    assert [row.provider for row in SHARES] == list(PROVIDERS)
    assert all(row.accepted > (20 if row.provider in HOSTS else 400) and all(row.harmed.values()) for row in SHARES)


@pytest.mark.parametrize("row", SHARES, ids=lambda row: row.provider)
def test_the_goal_is_met(row):
    met = len(row.harmed) <= HARMED_AT_MOST * row.accepted and row.mended <= MENDED_AT_MOST * row.accepted
    assert met
