"""Sessions that continue without end in the worker's stage: the size of bodies, and how often their prefix changes."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import pytest
from build import call, image, png, result, said, user
from stage_runs import of, records, restored, turn

from reknit.pipeline import normalize
from reknit.pipeline.session.arguments import policy_from
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS

MODEL = "claude-sonnet-4-5"
RELOADED_AFTER = 333


def sent(messages, policy):
    """The requests after each message, with its number; the stage is restored from its changelog now and then."""

    def fresh():
        stage = TurnsStage(Defaults(model=MODEL, params={"max_tokens": msgspec.Raw(b"9")}, policy=policy_from(policy)))
        stage.use_format(3)
        return stage

    stage, state, requests, fixes = fresh(), {}, [], []
    for at, message in enumerate(messages):
        if at and at % RELOADED_AFTER == 0:
            stage = restored(fresh(), state)
        made = stage.process(records([turn(message)], first=at))
        state |= made.changes
        state = {key: value for key, value in state.items() if value is not None}
        assert of(made, DEAD_LETTERS) == []
        requests += [(at, dict(output.headers), output.value) for output in of(made, PROVIDER_REQUESTS)]
        fixes += [msgspec.json.decode(output.value) for output in of(made, HISTORY_FIXES)]
    return requests, fixes


def whole_request(messages, policy):
    # As JSON text, since a source's spelling stays.
    return normalize(json.dumps({"model": MODEL, "max_tokens": 9, "messages": messages}), policy=policy)


def resets(requests):
    return [at for at, headers, _ in requests if headers.get("prefix-reset")]


def are_rare(places):
    return all(later - earlier >= 20 for earlier, later in pairwise(places))


def loop(count):
    """One task, and many calls with their results."""
    turns = [user("The task: read every file.")]
    for at in range(count):
        turns += [said(call(f"toolu_{at}", "read", path=f"/{at}")), user(result(f"toolu_{at}", f"line {at}\n" * 60))]
    return turns


def test_a_session_of_2000_turns_continues():
    messages = loop(1000)
    requests, fixes = sent(messages, {"fit": 20_000})
    assert len(requests) == 1001
    # 20,000 tokens of 3.5 bytes each, and what their JSON adds.
    assert max(len(body) for _, _, body in requests) < 80_000
    assert len(resets(requests)) == 19
    assert are_rare(resets(requests))
    whole = whole_request(messages, {"fit": 20_000})
    assert requests[-1][2] == whole.body
    cut = [(fix["code"], fix["path"]) for fix in fixes]
    assert cut == [("exchange_cut", f"messages.{at}") for at in range(1, 1 + len(cut))]
    assert cut == [(fix.code, fix.path) for fix in whole.fixes]


def screenshots(count):
    """An agent that looks at its screen after each call."""
    turns = [user("The task: fill in the form.")]
    for at in range(count):
        shown = [{"type": "text", "text": f"screen {at}"}, image(png(1000 + at % 7, 800))]
        turns += [said(call(f"toolu_{at}", "click", x=at)), user(result(f"toolu_{at}", shown))]
    return turns


@pytest.mark.parametrize(
    ("policy", "most_images", "steps"),
    [({}, 100, 13), ({"fit": 40_000}, 100, 25)],
    ids=["stub", "stub and fit"],
)
def test_a_session_of_500_screenshots_continues(policy, most_images, steps):
    messages = screenshots(500)
    requests, _ = sent(messages, policy)
    assert len(requests) == 501
    assert max(body.count(b'"type":"image"') for _, _, body in requests) <= most_images
    assert len(resets(requests)) == steps
    assert are_rare(resets(requests))
    whole = whole_request(messages, policy)
    assert requests[-1][2] == whole.body
