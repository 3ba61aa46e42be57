"""The quick path over a healthy beginning gives what the machine gives, wherever the first thing goes wrong."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given, settings
from strategies import perturbed_histories, policies

from pipeline import normalize
from pipeline.history.healthy import Stretch
from pipeline.registry import TARGETS
from pipeline.session.working import Mending
from pipeline.testing import Kit

SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))


def told(messages, target, policy):
    done = normalize(msgspec.json.encode(messages), to=target, policy=policy)
    return done.body, done.sha256, done.fixes, done.ledger, done.ids, done.violations


def without_quick_path(monkeypatch):
    monkeypatch.setattr(Stretch, "holds", lambda *_: False)


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=100 * SCALE)
@given(messages=perturbed_histories(), policy=policies)
def test_with_it_and_without_it_the_request_is_the_same(target, messages, policy):
    quick = told(messages, target, policy if target == "anthropic" else None)
    with pytest.MonkeyPatch.context() as patched:
        without_quick_path(patched)
        assert told(messages, target, policy if target == "anthropic" else None) == quick


@settings(max_examples=60 * SCALE)
@given(messages=perturbed_histories(), policy=policies)
def test_whole_and_turn_by_turn_are_the_same(messages, policy):
    Kit("anthropic", policy).incremental(messages)


HELLO = [{"role": role, "content": "hello"} for role in ("user", "assistant") * 4]
CALL = {"type": "tool_use", "id": "t", "name": "read", "input": {}}


@pytest.mark.parametrize(
    ("between", "taken"),
    [
        ([{"role": "user", "content": ""}], [7, 4]),
        ([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], [7, 6]),
        # A call without its result is waited for through eight exchanges, that is four pairs.
        ([{"role": "user", "content": "one"}, {"role": "assistant", "content": [CALL]}, *HELLO[:7]], [9, 4]),
    ],
)
def test_the_quick_path_is_taken_again_behind_what_was_mended(monkeypatch, between, taken):
    skipped = []
    skip = Mending._skip
    monkeypatch.setattr(
        Mending, "_skip", lambda work, turns, stretch: skipped.append(len(turns)) or skip(work, turns, stretch)
    )
    normalize([*HELLO, *between, *HELLO[1:]])
    assert skipped == taken
