"""Recorded conversations whose cache breakpoints move: each request is repaired as if it were the first."""

from collections import defaultdict
from random import Random

import pytest
from harmless import is_conversation
from moving_marks import LAST, MARKS, Moving, with_marks
from recorded import accepted, needs_corpus

from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.session.documents import GrowingDocument

pytestmark = needs_corpus

ROOTS = {"anthropic": "messages", "bedrock-converse": "messages", "openai-chat": "messages"}
# The number of lengths at which each conversation is sent, the last ones.
LENGTHS = 6


def conversations(provider, root):
    """The longest recorded request of each program."""
    longest = defaultdict(dict)
    for row in accepted(provider):
        if is_conversation(row) and isinstance(row["request"].get(root), list):
            found = longest[row["group"]]
            count = len(row["request"][root])
            if count > len(found.get("request", {root: ()})[root]):
                longest[row["group"]] = row
    return [row for row in longest.values() if row]


@pytest.mark.parametrize("provider", ROOTS)
def test_each_request_is_repaired_as_a_whole_one(provider, monkeypatch):
    chance, root, points = Random(1), ROOTS[provider], []  # noqa: S311  the same marks in every run
    back = GrowingDocument.back
    monkeypatch.setattr(GrowingDocument, "back", lambda self: points.append(back(self)) or points[-1])
    for row in conversations(provider, root):
        head = {name: value for name, value in row["request"].items() if name != root}
        messages = row["request"][root]
        model = "" if "model" in head or "modelId" in head else row["model"] or ""
        moving = Moving(Endpoint(provider, model), Policy(), root)
        for end in range(max(2, len(messages) - LENGTHS), len(messages) + 1):
            for _ in range(2):
                marks = {chance.randint(1, LAST): chance.choice(MARKS) for _ in range(chance.randint(1, 4))}
                found, whole = moving.results(with_marks(messages[:end], marks), **head)
                assert found == whole
    assert len(points) > 10
    assert all(points)
