"""Where the recorded traffic is, and how it is read; without it the tests of this folder are skipped."""

import gzip
import json
import os
from pathlib import Path

import pytest

CORPUS = Path(os.environ.get("REKNIT_CORPUS", Path(__file__).resolve().parents[3] / "shared" / "corpus"))

needs_corpus = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no recorded traffic at {CORPUS} (set REKNIT_CORPUS)"),
]


def rows(name):
    """Return the recordings of one file; none if the file does not exist."""
    path = CORPUS / f"{name}.jsonl.gz"
    return [json.loads(line) for line in unpacked(path).splitlines()] if path.is_file() else []


def unpacked(path):
    return gzip.decompress(path.read_bytes())


def accepted(name):
    """The recordings of requests that the provider answered with 200."""
    return [row for row in rows(name) if row["status"] == 200 and isinstance(row["request"], dict)]
