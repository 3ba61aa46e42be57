"""A session that is exported and imported elsewhere requests the same bytes."""

from __future__ import annotations

import json

import msgspec
import pytest
import stage_runs
from build import said, session_of, user
from hypothesis import given
from reader_results import refusal, vectors

from reknit.pipeline import Session, normalize
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.session.export import Export, export, restoring
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.testing.strategies import perturbed_histories
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS

FOREIGN = [*vectors("harmless_openai"), *vectors("harmless_anthropic_converse")]
WANTED = {"type": "request.wanted"}
DEFAULTS = Defaults(model="m", params={"max_tokens": msgspec.Raw(b"9")})


def requests_of(events: list, defaults: Defaults = DEFAULTS) -> tuple[list[bytes], list[tuple[str, str]], TurnsStage]:
    """Return the bodies of the requests, the reasons for missing ones, and the stage afterwards."""
    stage = TurnsStage(defaults)
    found = stage.process(stage_runs.records(map(msgspec.json.encode, events), key=b"s"))
    letters = [dict(output.headers) for output in stage_runs.of(found, DEAD_LETTERS)]
    why = [(str(each["reknit.error.code"]), str(each["reknit.error.message"])) for each in letters]
    return [output.value for output in stage_runs.of(found, PROVIDER_REQUESTS)], why, stage


def again(stage: TurnsStage) -> list:
    """Return the records that restore an export of the session, which is encoded as its line and decoded."""
    line = msgspec.json.encode(export("s", stage._states.find(b"s").session))
    return [*restoring(msgspec.json.decode(line, type=Export)), WANTED]


def check(opened: dict, messages: object) -> None:
    events = [{"type": "session.opened", **opened}, {"type": "history.restored", "messages": messages}, WANTED]
    bodies, why, stage = requests_of(events)
    elsewhere = Defaults(targets=("vllm",), model="another", system="Other words.")
    found, other, _ = requests_of(again(stage), elsewhere)
    assert (found, other) == (bodies, why)


@given(perturbed_histories())
def test_an_imported_history_requests_the_same_bytes_of_every_target(messages):
    check({"targets": list(TARGETS), "system": "Be brief."}, messages)


@pytest.mark.parametrize("vector", FOREIGN, ids=[vector["name"] for vector in FOREIGN])
def test_provider_specific_content_is_restored(vector):
    given = vector.get("history", vector)
    messages = given.get("messages") or given.get("input") or given.get("contents")
    beside = {name: given[name] for name in ("model", "system", "tools", "params") if name in given}
    to = vector["to"]
    check({"targets": to if isinstance(to, list) else [to], **beside}, messages)


def test_a_document_is_accepted_by_normalize():
    history = [user("hi"), said("yes?"), user("go")]
    _, _, stage = requests_of(
        [{"type": "session.opened", "system": "Be brief."}, {"type": "history.restored", "messages": history}]
    )
    found = export("s", stage._states.find(b"s").session)
    document = json.loads(msgspec.json.encode(found.document))
    assert document == {"messages": history, "model": "m", "system": "Be brief.", "params": {"max_tokens": 9}}
    assert json.loads(normalize(document).body)["messages"] == history


def test_fixes_of_the_reader_are_reported_again():
    odd = {"role": "user", "content": [{"type": "text", "text": "hi", "colour": "red"}]}
    session, copy = Session(), Session()
    told = session.append(odd)
    assert (copy.replace_by_log(session.log()), copy.log(), copy.count) == (told, session.log(), 1)
    assert told != []


@pytest.mark.parametrize(
    "log",
    [
        b"[]",
        b"{",
        b'{"messages": 1, "entries": [{"turn": {"role": "nobody", "blocks": [], "index": 0}}]}',
        b'{"messages": 1, "entries": [{"turn": {"role": "user", "blocks": [], "index": 1}}]}',
        b'{"messages": 1, "entries": [{"turn": {"role": "user", "blocks": [], "index": -1}}]}',
        b'{"messages": 1, "entries": [{"turn": {"role": "user", "blocks": [], "index": 0, "paths": ["x"]}}]}',
        b'{"messages": 1, "entries": [], "more": 1}',
    ],
)
def test_an_invalid_log_is_rejected_and_changes_nothing(log):
    session = session_of(user("hi"))
    before = session.head()
    assert refusal(session.replace_by_log, log) == ("bad_log", "log")
    assert session.head() == before
