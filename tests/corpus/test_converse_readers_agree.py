"""Recorded requests of Converse: the typed reader takes nearly all, and reads each as the tolerant one does."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from pipeline import normalize
from pipeline.history.readers import converse, read

CORPUS = Path(os.environ.get("REKNIT_CORPUS", Path(__file__).parents[2].parent / "shared" / "corpus"))
RECORDINGS = CORPUS / "bedrock-converse.jsonl.gz"
# Those that were accepted and need a closer look, such as a tool of the service's own.
MOST_SLOW = 0.02

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not RECORDINGS.exists(), reason=f"no recorded traffic at {CORPUS} (set REKNIT_CORPUS)"),
]


class Row(msgspec.Struct):
    """One recorded exchange."""

    status: int
    request: msgspec.Raw


def documents():
    """The accepted requests' bodies."""
    with gzip.open(RECORDINGS) as lines:
        rows = [msgspec.json.decode(line, type=Row) for line in lines]
    bodies = [bytes(row.request) for row in rows if row.status == 200]
    return [body for body in bodies if body.startswith(b"{")]


def read_all():
    """What each comes to."""
    return [(read(body), normalize(body, to="bedrock-converse")) for body in documents()]


def test_each_is_read_alike():
    fast = read_all()
    with patch.multiple(converse, read_document=lambda *_: None, read_message=lambda *_: None):
        slow = read_all()
    assert len(fast) > 400
    for (found, request), (expected, judged) in zip(fast, slow, strict=True):
        assert msgspec.structs.replace(found, stretch=None) == expected
        assert (request.fixes, request.violations, request.ledger) == (judged.fixes, judged.violations, judged.ledger)
        assert msgspec.json.decode(request.unjudged) == msgspec.json.decode(judged.unjudged)


def test_nearly_all_are_read_at_once():
    bodies = documents()
    taken = sum(converse.read_document(body, None) is not None for body in bodies)
    assert taken >= len(bodies) * (1 - MOST_SLOW)
