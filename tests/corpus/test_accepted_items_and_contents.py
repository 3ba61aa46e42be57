"""Recorded requests that OpenAI's Responses API and Gemini accepted: read as histories and written again, still valid.

A request's content is equal unless a fix reports a change; the codes of all fixes are named here with their reasons.
"""

import json
from collections import Counter

import msgspec
import pytest
from recorded import accepted, needs_corpus

from reknit.pipeline import Session, normalize
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.equalities import GEMINI, read_body
from reknit.pipeline.rules.equalities import plain as as_said

ROOTS = {name: TARGETS[name].rules.key for name in ("openai-responses", "gemini")}
POLICY = {"tail": "prefill"}

pytestmark = needs_corpus

# Fixes of requests that the provider accepted, where the target is conservative or lacks a form.
BOTH = {
    "turns_merged",  # neighbours of one role
    "blank_dropped",  # a blank text
    "leading_dropped",  # the assistant's first content, once a blank first turn was removed
    "result_orphan",  # a result of a call that the provider keeps, or that has gone with a leading turn
    "tail_continued",  # nothing is left
    "result_media_moved",  # media in a result
    "unknown_dropped",  # items that name what the provider keeps or runs; media without the data that was recorded
}
MENDED = {
    "openai-responses": {
        "input_parsed",  # arguments that are an empty list
        "input_wrapped",
        "parameter_clamped",  # a server that imitates the API takes a smaller limit
        "result_moved",  # a message between a call and its result
        "turn_empty",
    },
    "gemini": BOTH
    | {
        "result_synthesised",  # a call whose result came as plain text
        "result_moved",  # results in another order than their calls
        "image_stubbed",  # an image whose data was taken out of the recording
        "media_data_mended",  # data in the URL-safe alphabet, for which an image was stubbed before
        "signature_joined",  # a thought without words
        "signature_skipped",  # a call without a signature
    },
}


def requests(provider):
    """The accepted requests, with the model of the URL."""
    return [
        row["request"] | ({"model": row["model"]} if row["model"] else {})
        for row in accepted(provider)
        if ROOTS[provider] in row["request"]
    ]


@pytest.mark.parametrize("provider", sorted(ROOTS))
def test_what_was_accepted_stays_valid_and_says_the_same(provider):
    codes = Counter()
    unmended = 0
    given = requests(provider)
    for request in given:
        done = normalize(msgspec.json.encode(request), to=provider, policy=POLICY)
        codes.update(fix.code for fix in done.fixes)
        hard = {violation.rule for violation in done.violations if violation.severity == "hard"}
        assert hard == set()
        body = json.loads(done.body)
        if not done.fixes:
            unmended += 1
            assert SAID[provider](body[ROOTS[provider]]) == SAID[provider](request[ROOTS[provider]])
        again = normalize(msgspec.json.encode(request | body), to=provider, policy=POLICY)
        assert [fix for fix in again.fixes if fix.code not in {"param_dropped", "field_dropped"}] == []
    assert set(codes) <= MENDED[provider]
    assert unmended > {"openai-responses": 0.97, "gemini": 0.75}[provider] * len(given)


@pytest.mark.parametrize("provider", sorted(ROOTS))
def test_what_was_accepted_is_the_same_turn_by_turn(provider):
    for request in requests(provider)[::7]:
        messages = request[ROOTS[provider]]
        if not isinstance(messages, list):
            continue
        session = Session([provider], POLICY)
        for message in messages:
            session.append(msgspec.json.encode(message), source=provider)
        whole = normalize({ROOTS[provider]: messages}, to=provider, policy=POLICY)
        assert session.request().unjudged == whole.unjudged
        assert sorted(session.request().fixes, key=repr) == sorted(whole.fixes, key=repr)


def of_items(items):
    """Return an input's content, as a list; leading system messages are separate, one text equals one part."""
    if isinstance(items, str):
        return [("user", items)]
    said = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] not in ("system", "developer"):
            content = item["content"]
            parts = [content] if isinstance(content, str) else [part.get("text", plain(part)) for part in content]
            said += [(item["role"], part) for part in parts]
        elif kind == "function_call":
            said.append((kind, item["call_id"], item["name"], json.loads(item["arguments"] or "{}")))
        elif kind == "custom_tool_call":
            said.append(("function_call", item["call_id"], item["name"], {"input": item["input"]}))
        elif kind.endswith("call_output"):
            output = item["output"]
            parts = output if isinstance(output, str) or len(output) != 1 else output[0].get("text", output)
            said.append(("function_call_output", item["call_id"], parts))
        elif kind == "reasoning":
            said.append((kind, item.get("encrypted_content"), item["summary"]))
    return said


def plain(part):
    return {key: value for key, value in part.items() if value not in (None, "auto", "")}


def of_contents(contents):
    said = as_said(read_body(json.dumps({"contents": contents}).encode(), GEMINI))
    return [(content.get("role"), part) for content in said["contents"] for part in content["parts"]]


SAID = {"openai-responses": of_items, "gemini": of_contents}
