"""The contract against the last release: nothing that programs rely on goes, and what would break them is found."""

import copy
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import topics
from pipeline.cli import main
from topics import documents

EXAMPLES = (Path(topics.__file__).parent / "examples.jsonl").read_bytes()
RELEASED = sorted((Path(__file__).parents[1] / "vectors" / "released").glob("asyncapi-*.json"))
NOW = json.loads(documents.asyncapi_file(EXAMPLES)[documents.ASYNCAPI_FILE])


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.stem)
def test_programs_written_for_a_release_go_on_working(released):
    assert documents.breaches(json.loads(released.read_text(encoding="utf-8")), NOW) == []


def test_a_contract_keeps_itself():
    assert documents.breaches(NOW, NOW) == []


def schema(document, name):
    return document["components"]["schemas"][name]


def required_of_turns(document):
    schema(document, "TurnAppended")["required"].append("id")


def required_header(document):
    schema(document, "RequestHeaders")["required"].remove("target")


def removed_field(document):
    del schema(document, "FixRecord")["properties"]["detail"]


def narrower_values(document):
    tail = schema(document, "PolicyChange")["properties"]["tail"]
    (values,) = [each["enum"] for each in tail.get("anyOf", [tail]) if "enum" in each]
    values.pop()


def other_type(document):
    schema(document, "FixRecord")["properties"]["turn"]["type"] = "string"


def less_promised(document):
    del schema(document, "FixRecord")["properties"]["turn"]["minimum"]


def more_asked(document):
    schema(document, "RequestWanted")["properties"]["id"]["minLength"] = 2


def topic_gone(document):
    del document["channels"]["history.fixes.v1"]


def record_gone(document):
    del document["channels"]["agent.turns.v1"]["messages"]["SessionClosed"]


def other_bytes(document):
    document["components"]["messages"]["Request"]["contentType"] = "text/plain"


@pytest.mark.parametrize(
    ("change", "breach"),
    [
        (required_of_turns, "TurnAppended.payload.id: is required now"),
        (required_header, "Request.headers.target: may be absent now"),
        (removed_field, "FixRecord.payload.detail: is gone"),
        (other_type, "FixRecord.payload.turn: was integer, is string"),
        (less_promised, "FixRecord.payload.turn: minimum was 0, is None"),
        (more_asked, "RequestWanted.payload.id: minLength was 1, is 2"),
        (topic_gone, "history.fixes.v1: the topic is gone"),
        (record_gone, "agent.turns.v1: records SessionClosed are gone"),
        (other_bytes, "provider.requests.v1: Request has another content type, text/plain"),
    ],
)
def test_what_breaks_programs_is_found(change, breach):
    changed = copy.deepcopy(NOW)
    change(changed)
    assert documents.breaches(NOW, changed) == [breach]


def test_values_that_are_refused_now_are_found():
    changed = copy.deepcopy(NOW)
    narrower_values(changed)
    (breach,) = documents.breaches(NOW, changed)
    assert "policy" in breach
    assert "tail" in breach


@pytest.mark.parametrize(
    "grow",
    [
        lambda d: schema(d, "TurnAppended")["properties"].update(extra={"type": "string"}),
        lambda d: schema(d, "FixRecord")["properties"].update(extra={"type": "string"}),
        lambda d: schema(d, "FixRecord")["required"].append("detail"),
        lambda d: schema(d, "TurnAppended")["required"].remove("message"),
        lambda d: d["channels"].update({"more.v1": d["channels"]["history.fixes.v1"]}),
    ],
)
def test_what_is_only_added_breaks_nothing(grow):
    changed = copy.deepcopy(NOW)
    grow(changed)
    assert documents.breaches(NOW, changed) == []


def test_the_command_ends_with_4_where_something_breaks(tmp_path):
    asked_more = copy.deepcopy(NOW)
    schema(asked_more, "TurnAppended")["properties"]["gone"] = {"type": "string"}
    old = tmp_path / "old.json"
    old.write_text(json.dumps(asked_more), encoding="utf-8")
    done = CliRunner().invoke(main, ["topics", "compat", str(old)])
    assert (done.exit_code, done.stdout) == (4, '"TurnAppended.payload.gone: is gone"\n')


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"channels": {"history.fixes.v1": {}}}'])
def test_what_is_no_contract_is_refused(tmp_path, text):
    old = tmp_path / "old.json"
    old.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(main, ["topics", "compat", str(old)])
    assert (done.exit_code, done.stdout) == (2, "")
