"""Every recorded Claude Code transcript becomes a request for each target, whole or turn by turn; none is refused."""

import json

import pytest
from recorded import CORPUS, needs_corpus, unpacked

from pipeline import Session, normalize, validate
from pipeline.history.readers import read

TRANSCRIPTS = sorted(CORPUS.glob("claude-code-sessions/*.jsonl.gz"))
TARGETS = ("anthropic", "claude-cli")

pytestmark = needs_corpus


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=range(len(TRANSCRIPTS)))
def test_no_transcript_is_rejected(path, target):
    done = normalize(unpacked(path), to=target, source="claude-code")
    assert done.body is not None
    assert [v for v in validate(done.body, target=target) if v.severity == "hard"] == []


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=range(len(TRANSCRIPTS)))
def test_turn_by_turn_gives_the_same_bytes(path):
    found = read(unpacked(path), "claude-code")
    session = Session(TARGETS, model=found.conversation.model, params=found.conversation.params)
    settled = dict.fromkeys(TARGETS, b"")
    for turn in found.conversation.turns:
        session.append(turn)
        for target in TARGETS:
            done = session.request(target)
            assert done.body is not None
            assert done.body.startswith(settled[target])
            settled[target] = done.body[: done.prefix_bytes]
    whole = normalize(unpacked(path), to="anthropic", source="claude-code")
    assert session.request("anthropic").body == whole.body


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=range(len(TRANSCRIPTS)))
def test_a_request_is_mended_only_once(path):
    first = normalize(unpacked(path), to="anthropic", source="claude-code")
    again = normalize(first.body, to="anthropic")
    assert again.fixes == []
    assert json.loads(again.body) == json.loads(first.body)
