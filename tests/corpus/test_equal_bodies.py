"""The comparer of bodies over recorded requests: each equals itself, and nothing that is changed in one goes unseen."""

import json

import pytest
from recorded import accepted, needs_corpus

from reknit.pipeline.registry import TARGETS
from reknit.pipeline.testing.promises import differences

pytestmark = needs_corpus

# Places where leaving a member out, or adding to it, says nothing new: the defaults of the published equalities.
SAID_ANYWAY = {
    "anthropic": {"is_error", "type"},
    "bedrock-converse": {"status", "modelId", "model"},
    "gemini": {"thought", "role", "model", "description", "args"},
    "openai-chat": {"detail", "annotations"},
    "openai-responses": {"detail", "annotations", "logprobs", "type"},
}


def places(value, path=()):
    """Every member, element and scalar of a value, by the steps that lead to it."""
    for step in value if isinstance(value, dict) else range(len(value)):
        yield (*path, step)
        if isinstance(value[step], (dict, list)):
            yield from places(value[step], (*path, step))


def body_at(body, path):
    for step in path:
        body = body[step]
    return body


def edited(body, path, edit):
    copy = json.loads(json.dumps(body))
    edit(body_at(copy, path[:-1]), path[-1])
    return copy


def leave_out(holder, step):
    del holder[step]


def count_on(holder, step):
    holder[step] += 1


def swap(holder, step):
    holder[step - 1], holder[step] = holder[step], holder[step - 1]


def mutants(body, provider):
    """Bodies with one change, with the path to it."""
    for path in places(body):
        if path[-1] in SAID_ANYWAY[provider]:
            continue
        value, holder = body_at(body, path), body_at(body, path[:-1])
        if value not in (None, [], {}, "") or isinstance(holder, list):
            yield path, edited(body, path, leave_out)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield path, edited(body, path, count_on)
        if isinstance(holder, list) and path[-1] and value != holder[path[-1] - 1]:
            yield path, edited(body, path, swap)


@pytest.mark.parametrize("provider", sorted(SAID_ANYWAY))
def test_a_request_equals_itself(provider):
    requests = [json.dumps(row["request"]).encode() for row in accepted(provider)]
    assert len(requests) > 300
    assert [request for request in requests if differences(request, request, TARGETS[provider].equalities)] == []


@pytest.mark.parametrize("provider", sorted(SAID_ANYWAY))
def test_a_change_of_one_thing_is_seen(provider):
    tried, unseen = 0, []
    for request in [row["request"] for row in accepted(provider)[::25]]:
        if len(json.dumps(request)) > 20_000:
            continue
        sent = json.dumps(request).encode()
        for path, changed in mutants(request, provider):
            tried += 1
            if not differences(sent, json.dumps(changed).encode(), TARGETS[provider].equalities):
                unseen.append(path)
    assert tried > 500
    assert unseen == []
