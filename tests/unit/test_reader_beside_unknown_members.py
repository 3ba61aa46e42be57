"""Blocks that come with members nobody knows, or name a file, are read as the ones that they are."""

from __future__ import annotations

import json

from pipeline import normalize


def test_redacted_thinking_stays_beside_a_member_that_goes():
    issuer = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    sealed = {"type": "redacted_thinking", "data": "c2ln"}
    request = normalize(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [sealed | {"issuer": issuer, "more": 1}, {"type": "text", "text": "a"}]},
            {"role": "user", "content": "and?"},
        ]
    )
    assert json.loads(request.body)["messages"][1]["content"][0] == sealed
    assert [(fix.code, fix.path) for fix in request.fixes] == [("field_dropped", "messages.1.content.0.more")]


def test_a_file_by_its_id_is_a_document_of_its_name():
    part = {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}}
    request = normalize([{"role": "user", "content": [part, {"type": "text", "text": "q"}]}])
    assert json.loads(request.body)["messages"][0]["content"][0] == {
        "type": "document",
        "source": {"type": "file", "file_id": "file-1"},
        "title": "a.pdf",
    }
    assert request.fixes == []
