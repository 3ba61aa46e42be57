"""Recorded requests: the strict readers take nearly all, and read each as the tolerant one does."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
from recorded import accepted, needs_corpus

from reknit.pipeline import normalize
from reknit.pipeline.history.readers.message import valid_message
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.readers.strict import StrictReader, ValidTurns
from reknit.pipeline.registry import TARGETS

# The share of each provider's messages that need a closer look at most, such as one with an item of the provider's own.
MOST = {"anthropic": 0.1, "openai-chat": 0.05, "bedrock-converse": 0.02, "gemini": 0.1, "openai-responses": 0.1}

pytestmark = needs_corpus


def requests(provider):
    """Every third of the accepted requests with a list of messages."""
    found = [row["request"] for row in accepted(provider)]
    return [request for request in found if isinstance(request.get(TARGETS[provider].rules.key), list)][::3]


def read_all(provider):
    bodies = [json.dumps(request).encode() for request in requests(provider)]
    return [(read(body), normalize(body, to=provider)) for body in bodies]


def without_nulls(body):
    return json.loads(body, object_hook=lambda members: {k: v for k, v in members.items() if v is not None})


@pytest.mark.parametrize("provider", MOST)
def test_each_is_read_alike(provider):
    strictly = read_all(provider)
    with patch.multiple(StrictReader, read_list=lambda *_: None, read_message=lambda *_: None):
        tolerantly = read_all(provider)
    assert len(strictly) > 100
    for (found, request), (expected, judged) in zip(strictly, tolerantly, strict=True):
        assert (found.shape, found.fixes) == (expected.shape, expected.fixes)
        assert (request.fixes, request.violations, request.ledger) == (judged.fixes, judged.violations, judged.ledger)
        assert without_nulls(request.unjudged) == without_nulls(judged.unjudged)


@pytest.mark.parametrize("provider", MOST)
def test_nearly_all_are_read_strictly(provider):
    root, most = TARGETS[provider].rules.key, MOST[provider]
    messages = [json.dumps(message).encode() for request in requests(provider) for message in request[root]]
    taken = sum(isinstance(valid_message(message, 0, provider), ValidTurns) for message in messages)
    assert taken >= len(messages) * (1 - most), f"{taken} of {len(messages)}"
