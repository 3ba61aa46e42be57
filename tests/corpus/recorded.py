"""Where the recorded traffic is, and how it is read; without it the tests of this folder are skipped."""

import gzip
import json
import os
import re
from pathlib import Path

import pytest

CORPUS = Path(os.environ.get("REKNIT_CORPUS", Path(__file__).resolve().parents[3] / "shared" / "corpus"))

needs_corpus = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no recorded traffic at {CORPUS} (set REKNIT_CORPUS)"),
]


# Hosts with a target of their own, whose recordings are in the file of look-alikes.
LOOK_ALIKES = "openai-compat"
HOSTS = {"mistral": re.compile(r"\bmistral\.ai$"), "deepseek": re.compile(r"\bdeepseek\.com$")}
# The ids of calls that one source replaced, and ids that any provider takes in their place.
_REDACTED = re.compile(r"\bcall_REDACTED_(\d)\b")


def host_of(row):
    """Return the name of a recording's host that has a target of its own, or None."""
    return next((name for name, host in HOSTS.items() if host.search(row["host"] or "")), None)


def rows(name):
    """Return the recordings of one file, or of one host; an empty list without any."""
    if name in HOSTS:
        path = CORPUS / f"{LOOK_ALIKES}.jsonl.gz"
        text = _REDACTED.sub(r"REDACTED\1", unpacked(path).decode()) if path.is_file() else ""
        return [row for row in map(json.loads, text.splitlines()) if host_of(row) == name]
    path = CORPUS / f"{name}.jsonl.gz"
    return [json.loads(line) for line in unpacked(path).splitlines()] if path.is_file() else []


def unpacked(path):
    return gzip.decompress(path.read_bytes())


def accepted(name):
    """The recordings of requests that the provider answered with 200."""
    return [row for row in rows(name) if row["status"] == 200 and isinstance(row["request"], dict)]
