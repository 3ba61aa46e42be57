"""The broken histories of the issue threads as turns of text for a planner, whole and turn by turn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from pipeline import Session, normalize, validate

HERE = Path(__file__).parent
VECTORS = [
    json.loads(line) for line in (HERE / "broken_histories.jsonl").read_text(encoding="utf-8").split("\n") if line
]
TOOLS = [{"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_history_that_providers_refuse_is_mended(vector, tools):
    messages = vector["messages"]
    done = normalize({"model": "m", "tools": tools, "messages": messages}, to="cascade")
    session = Session(("cascade",), model="m", tools=tools)
    for message in messages:
        session.append(msgspec.json.encode(message))
        session.request()
    step = session.request()
    assert step.body == done.body
    assert sorted(step.fixes, key=repr) == sorted(done.fixes, key=repr)
    assert validate(done.body, "cascade") == []
    came, left = marks(json.dumps(messages)), marks(done.body.decode())
    named = {fix.path for fix in done.fixes}
    for at, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            if (came - left) & marks(json.dumps(block)):
                assert f"messages.{at}.content.{place}" in named


def marks(text):
    return set(re.findall(r"MARK-\w+", text))
