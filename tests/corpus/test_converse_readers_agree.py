"""Recorded requests of Converse: the typed reader takes nearly all, and reads each as the tolerant one does."""

import json
from unittest.mock import patch

import msgspec
from recorded import accepted, needs_corpus

from pipeline import normalize
from pipeline.history.readers import converse, read
from pipeline.history.readers.typed import StrictReader

# Those that were accepted and need a closer look, such as a tool of the service's own.
MOST_SLOW = 0.02

pytestmark = needs_corpus


def documents():
    """The accepted requests' bodies."""
    return [json.dumps(row["request"]).encode() for row in accepted("bedrock-converse")]


def read_all():
    """What each comes to."""
    return [(read(body), normalize(body, to="bedrock-converse")) for body in documents()]


def test_each_is_read_alike():
    fast = read_all()
    with patch.multiple(StrictReader, read_list=lambda *_: None, read_message=lambda *_: None):
        slow = read_all()
    assert len(fast) > 400
    for (found, request), (expected, judged) in zip(fast, slow, strict=True):
        assert (found.conversation, found.fixes) == (expected.conversation, expected.fixes)
        assert (request.fixes, request.violations, request.ledger) == (judged.fixes, judged.violations, judged.ledger)
        assert msgspec.json.decode(request.unjudged) == msgspec.json.decode(judged.unjudged)


def test_nearly_all_are_read_at_once():
    lists = [json.dumps(row["request"]["messages"]).encode() for row in accepted("bedrock-converse")]
    taken = sum(converse.STRICT.read_list(messages) is not None for messages in lists)
    assert taken >= len(lists) * (1 - MOST_SLOW)
