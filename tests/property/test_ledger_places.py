"""The ledger names places that are in the body, and the map of ids has one for each of its messages or items."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from hypothesis import given, settings
from strategies import histories, policies

from pipeline import Session, normalize

# More examples for a long run: REKNIT_EXAMPLES=10.
SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))
LISTS = {"gemini": "contents", "openai-responses": "input"}
ASKED = [
    ("anthropic", None),
    ("bedrock-converse", None),
    ("bedrock-converse", "us.meta.llama3-3-70b-instruct-v1:0"),
    ("gemini", "gemini-2.5-flash"),
    ("gemini", "gemini-3-pro-preview"),
    ("openai-chat", "gpt-5-mini"),
    ("openai-chat", "deepseek-reasoner"),
    ("openai-responses", "gpt-5-mini"),
    ("vllm", "meta-llama/Llama-3.1-8B-Instruct"),
    ("vllm", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("vllm", "google/gemma-3-27b-it"),
]


def found(body, place):
    """What stands at a place of the body; content that is a string is its own first block."""
    value = body
    for step in place.split("."):
        if isinstance(value, str) and step == "0":
            break
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def made(messages, target, model, policy):
    document = {"messages": messages, "system": "Be brief."} | ({"model": model} if model else {})
    return normalize(msgspec.json.encode(document), to=target, policy=policy)


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=80 * SCALE)
@given(messages=histories, policy=policies)
def test_each_output_place_is_in_the_body_and_no_two_blocks_share_one(target, model, messages, policy):
    done = made(messages, target, model, policy)
    body = json.loads(done.unjudged)
    places = [entry.output for entry in done.ledger if entry.output not in {"", "system"}]
    for place in places:
        assert place.startswith(f"{LISTS.get(target, 'messages')}.")
        assert found(body, place) is not None
    # A signature without words shares the part that it stands on; so does reasoning that was joined.
    joined = [entry for entry in done.ledger if entry.output.endswith("reasoning_content") or is_signature(entry)]
    assert len(places) - len(set(places)) <= len(joined)
    if done.ids:  # a prompt by itself is no message of the history
        assert len(done.ids) == len(body[LISTS.get(target, "messages")])


def is_signature(entry):
    return entry.code == "signature_joined" or entry.path.endswith(".thoughtSignature")


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=80 * SCALE)
@given(messages=histories, policy=policies)
def test_a_text_that_was_kept_stands_where_the_ledger_says(target, model, messages, policy):
    done = made(messages, target, model, policy)
    body = json.loads(done.unjudged)
    for entry in done.ledger:
        if entry.fate != "kept" or entry.output in {"", "system"}:
            continue
        came = found({"messages": messages}, entry.path)
        text = came if isinstance(came, str) else came.get("text")
        if text is not None:
            shown = found(body, entry.output)
            assert text == (shown if isinstance(shown, str) else shown["text"])


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=40 * SCALE)
@given(messages=histories, policy=policies)
def test_ids_and_places_turn_by_turn_are_those_of_the_whole(target, model, messages, policy):
    session = Session((target,), policy, model=model, system="Be brief.")
    for message in messages:
        session.append(msgspec.json.encode(message))
        session.request()
    segments = [record for _, record in session.take_segments(flush=True)]
    session = Session.load(session.head(), segments)
    whole = made(messages, target, model, policy)
    assert session.request().ids == whole.ids
    assert sorted(session.request().ledger, key=repr) == sorted(whole.ledger, key=repr)
