"""What a history may be like for one target's models and not for another's: it stays for the one, and is mended for
the other beside it in one session."""

import json
from pathlib import Path

import msgspec
import pytest

from pipeline import Session, normalize
from pipeline.testing import Kit

LISTS = {"gemini": "contents", "openai-responses": "input"}
VECTORS = [json.loads(line) for line in (Path(__file__).parent / "structure.jsonl").read_text().splitlines()]
each = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])


def said(done):
    """What a request says, and the fixes behind it; nothing where it is refused."""
    messages = None if done.body is None else json.loads(done.body)[LISTS.get(done.target, "messages")]
    return {"messages": messages, "fixes": [fix.code for fix in done.fixes]}


@each
def test_each_target_gets_what_its_models_take(vector):
    for target, expected in vector["targets"].items():
        history = {key: vector[key] for key in ("messages", "model") if key in vector}
        assert (target, said(normalize(history, to=target))) == (target, expected)


@each
def test_side_by_side_in_one_session_each_gets_the_same(vector):
    session, records = Session(list(vector["targets"]), model=vector.get("model")), []
    for message in vector["messages"]:
        session.append(msgspec.json.encode(message))
        records += [record for _, record in session.take_segments(flush=True)]
        session = Session.load(session.head(), records)
    assert {target: said(session.request(target)) for target in vector["targets"]} == vector["targets"]


@each
def test_the_promises_hold(vector):
    for target in vector["targets"]:
        Kit(target, setting={"model": vector["model"]} if "model" in vector else None).check(vector["messages"])
