"""Recorded requests from a log: accepted ones are sent unchanged, and refusals pass back through both stages."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import msgspec
import pytest
from harmless import PROVIDERS, is_conversation
from recorded import HOSTS, accepted, needs_corpus
from refusals import TARGETS, decided, refused

from reknit import normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.policy import Policy
from reknit.pipeline.registry import TARGETS as KNOWN
from reknit.pipeline.serve.mirrored import Conversations, Logged
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.testing.promises import differences
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_REQUESTS

pytestmark = needs_corpus

# Classes of refusals that no shape decides; the others are candidates for a rule where none foresees them.
NOT_OF_SHAPE = {"auth", "quota", "5xx", "model", "length", "fetch", "policy", "model-output"}
COUNTED = "reknit_provider_refusals_total"


def outcome_of(provider, row):
    """Return the stages' outcome for a refused request: unusable, rejected by a rule, or the counted cause of its
    refusal.
    """
    target = TARGETS[provider]
    body = row["request"].get("generateContentRequest", row["request"])
    given = msgspec.json.decode(json.dumps(body), type=dict[str, msgspec.Raw])
    try:
        key, records = Conversations().records_of(Logged(target, given, model=row["model"] or ""))
    except InputError:
        return "unusable"
    values = [msgspec.json.encode(record) for record in records]
    turns = TurnsStage(Defaults(policy=Policy(heal="off")))  # what is healed is not judged
    found = turns.process(as_records(key, values))
    requests = [dict(each.headers) for each in found.outputs if each.topic == PROVIDER_REQUESTS]
    if not requests:
        codes = {dict(each.headers)["reknit.error.code"] for each in found.outputs if each.topic == DEAD_LETTERS}
        return "rejected" if codes == {b"rejected"} else "unusable"
    answer = row["response"] if isinstance(row["response"], str) else json.dumps(row["response"])
    headers = (("request-id", requests[-1]["request-id"]), ("status", b"%d" % row["status"]))
    crossed = EventsStage().process(as_records(key, [answer.encode()], headers)).outputs
    told = turns.process(as_records(key, [each.value for each in crossed if each.topic == AGENT_TURNS], first=9))
    ((_, _, outcome, rule),) = [labels for labels in told.tally if labels[0] == COUNTED]
    letters = [dict(each.headers) for each in told.outputs if each.topic == DEAD_LETTERS]
    assert [each["reknit.error.body-sha256"] for each in letters] == (
        [] if outcome == "not_shape" else [requests[-1]["body-sha256"]]
    )
    return f"{outcome} {rule}".strip()


def as_records(key, values, headers=(), first=0):
    return [
        Record(partition=0, offset=first + at, key=key.encode(), value=value, headers=headers)
        for at, value in enumerate(values)
    ]


@pytest.mark.parametrize("provider", TARGETS)
def test_a_refusal_is_counted_as_the_page_of_refusals_says(provider):
    counted, differing = Counter(), []
    for row in refused(provider):
        found, (rule, why) = outcome_of(provider, row), decided(provider, row)
        kind = found.partition(" ")[0]
        counted[kind] += 1
        if kind in NEVER_SENT:
            continue
        if rule and why != "hard":
            expected = {f"foreseen {rule}", f"missed {rule}"}  # the latter if it was repaired
        elif rule:  # it was repaired, so this is the answer to another body
            expected = {"missed", "unknown"}
        else:
            expected = {"not_shape"} if row["error_class"] in NOT_OF_SHAPE else {"unknown", "missed"}
        if not {found, kind} & expected:
            differing.append((row["id"], rule, why, found))
    assert differing == []
    assert counted == COUNTS[provider]


# The outcomes of all refused requests; repaired or rejected ones would not have been refused.
NEVER_SENT = {"rejected", "unusable"}
COUNTS = {
    "anthropic": {"foreseen": 3, "missed": 8, "not_shape": 23, "rejected": 3, "unknown": 4, "unusable": 2},
    "gemini": {"foreseen": 4, "missed": 3, "not_shape": 32, "rejected": 12, "unknown": 1},
    "bedrock-converse": {"missed": 15, "not_shape": 10, "unknown": 4},
    "openai-chat": {"missed": 32, "not_shape": 28, "rejected": 8, "unknown": 2, "unusable": 5},
    "openai-responses": {"missed": 43, "not_shape": 43, "rejected": 11, "unknown": 1, "unusable": 1},
    "responses-compat": {"not_shape": 3},
    "openai-compat": {"not_shape": 85, "unknown": 33},
    "mistral": {"missed": 7, "not_shape": 3, "unknown": 2},
    "deepseek": {"missed": 6, "not_shape": 2, "unknown": 1},
}


def is_harmless(difference):
    """Cache marks stay where they were when their message came; OpenAI's two names of one role are one."""
    marks = {"cache_control", "cachePoint"}
    if not marks.isdisjoint(difference.path.split(".")) or any(mark in difference.after for mark in marks):
        return True
    return "cachePoint" in difference.before or (difference.path, difference.after) == ("input.0.role", '"system"')


def published(rows, provider):
    """Recordings of one program in their order, each with its request and what a worker published last for it."""
    conversations, stages, offset = Conversations(), defaultdict(TurnsStage), 0
    for row in rows:
        body, model = row["request"], row["model"] or ""
        model = "" if "model" in body or "modelId" in body else model
        given = msgspec.json.decode(json.dumps(body), type=dict[str, msgspec.Raw])
        session, records = conversations.records_of(Logged(provider, given, model=model))
        values = [msgspec.json.encode(record) for record in records]
        outputs = stages[session].process(as_records(session, values, first=offset)).outputs
        offset += len(values)
        made = [each.value for each in outputs if each.topic == PROVIDER_REQUESTS]
        if made:
            yield row["id"], json.dumps(body | ({"model": model} if model else {})).encode(), made[-1]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_was_accepted_leaves_as_it_would_without_a_log(provider):
    groups, counted, differing = defaultdict(list), Counter(), set()
    for row in accepted(provider):
        if is_conversation(row):
            groups[row["group"]].append(row)
    for rows in groups.values():
        for name, sent, made in published(rows, provider):
            done = normalize(sent, to=provider)
            counted["requests"] += 1
            if json.loads(made) == json.loads(done.body):
                continue
            found = differences(sent, made, KNOWN[provider].equalities, done.fixes)
            if not all(map(is_harmless, found)):
                differing.add(name.rpartition("/")[2])
    assert counted["requests"] > (20 if provider in HOSTS else 400)
    assert differing == APART.get(provider, set())


# Where a cache mark is between documents, the document after it has another number.
APART = {
    "bedrock-converse": {"test_bedrock_cache_messages_with_document_as_last_content.yaml#1"},
}
