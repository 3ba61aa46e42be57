"""The committed schemas and the AsyncAPI document match the records, and are valid by their own standards.

Compared with the last release, nothing that programs rely on is removed, and breaking changes are detected.
"""

import copy
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft7Validator, Draft202012Validator

from reknit import topics
from reknit.pipeline.cli import main
from reknit.topics import documents
from reknit.topics.records import RECORD_KINDS

ROOT = Path(topics.__file__).parent
EXAMPLES = (ROOT / "examples.jsonl").read_bytes()
VECTORS = Path(__file__).parents[1] / "vectors"
STANDARD = VECTORS / "asyncapi" / "3.1.0.json"
RELEASED = sorted((VECTORS / "released").glob("asyncapi-*.json"))
NOW = json.loads(documents.asyncapi_file(EXAMPLES)[documents.ASYNCAPI_FILE])


@pytest.fixture(scope="module")
def validator():
    return Draft7Validator(json.loads(STANDARD.read_text(encoding="utf-8")))


def test_committed_files_match_the_records():
    files = {**documents.schema_files(), **documents.asyncapi_file(EXAMPLES)}
    committed = {f"schemas/{path.name}" for path in (ROOT / "schemas").iterdir()} | {documents.ASYNCAPI_FILE}
    assert committed == set(files), "run `make schemas`"
    stale = [name for name, text in files.items() if (ROOT / name).read_bytes() != text]
    assert stale == [], "run `make schemas`"


def test_every_schema_is_a_json_schema():
    for name, text in documents.schema_files().items():
        schema = json.loads(text)
        Draft202012Validator.check_schema(schema)
        assert name == f"schemas/{schema['title']}.json"


def test_every_public_topic_has_its_schemas():
    assert set(documents.schema_files()) == {
        "schemas/agent.turns.v1.json",
        "schemas/agent.turns.v1.headers.json",
        "schemas/provider.events.v1.headers.json",
        "schemas/provider.requests.v1.headers.json",
        "schemas/session.items.v1.json",
        "schemas/session.items.v1.headers.json",
        "schemas/history.fixes.v1.json",
        "schemas/history.fixes.v1.headers.json",
        "schemas/pipeline.dead-letters.v1.headers.json",
    }


def test_the_document_is_valid_asyncapi(validator):
    assert [error.message for error in validator.iter_errors(NOW)] == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("info"),
        lambda d: d["operations"]["receive.agent.turns.v1"].update(action="listen"),
        lambda d: d["channels"]["agent.turns.v1"]["bindings"]["kafka"].update(partitions="twelve"),
        lambda d: d["channels"]["agent.turns.v1"]["bindings"]["kafka"]["topicConfiguration"].update(
            {"retention.ms": "x"}
        ),
        lambda d: d["components"]["messages"]["TurnAppended"]["bindings"]["kafka"].update(key=1),
    ],
)
def test_the_asyncapi_schema_rejects_invalid_documents(validator, spoil):
    spoilt = copy.deepcopy(NOW)
    spoil(spoilt)
    assert not validator.is_valid(spoilt)


def test_every_reference_of_the_document_resolves():
    def references(value):
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(NOW))
    assert len(found) > len(RECORD_KINDS)
    for reference in found:
        place = NOW
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
        assert isinstance(place, dict)


def test_every_kind_of_record_is_in_exactly_one_channel():
    listed = [name for channel in NOW["channels"].values() for name in channel["messages"]]
    assert sorted(listed) == sorted(message.name for message in RECORD_KINDS)


def test_the_internal_topics_are_not_published():
    assert set(NOW["channels"]) == {topic.name for topic in topics.TOPICS if topic.direction != "internal"}


# -- against another version --


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.stem)
def test_programs_written_for_a_release_continue_to_work(released):
    assert documents.breaches(json.loads(released.read_text(encoding="utf-8")), NOW) == []


def schema(document, name):
    return document["components"]["schemas"][name]


@pytest.mark.parametrize(
    ("change", "breach"),
    [
        (lambda d: schema(d, "TurnAppended")["required"].append("id"), "TurnAppended.payload.id: is required now"),
        (
            lambda d: schema(d, "RequestHeaders")["required"].remove("target"),
            "Request.headers.target: may be absent now",
        ),
        (lambda d: schema(d, "FixRecord")["properties"].pop("detail"), "FixRecord.payload.detail: is gone"),
        (
            lambda d: schema(d, "FixRecord")["properties"]["turn"].update(type="string"),
            "FixRecord.payload.turn: was integer, is string",
        ),
        (
            lambda d: schema(d, "FixRecord")["properties"]["turn"].pop("minimum"),
            "FixRecord.payload.turn: minimum was 0, is None",
        ),
        (
            lambda d: schema(d, "RequestWanted")["properties"]["id"].update(minLength=2),
            "RequestWanted.payload.id: minLength was 1, is 2",
        ),
        (lambda d: d["channels"].pop("history.fixes.v1"), "history.fixes.v1: the topic is gone"),
        (
            lambda d: d["channels"]["agent.turns.v1"]["messages"].pop("SessionClosed"),
            "agent.turns.v1: records SessionClosed are gone",
        ),
        (
            lambda d: d["components"]["messages"]["Request"].update(contentType="text/plain"),
            "provider.requests.v1: Request has another content type, text/plain",
        ),
        # Unchanged and added members break nothing.
        (lambda _: None, None),
        (lambda d: schema(d, "TurnAppended")["properties"].update(extra={"type": "string"}), None),
        (lambda d: schema(d, "FixRecord")["properties"].update(extra={"type": "string"}), None),
        (lambda d: schema(d, "FixRecord")["required"].append("detail"), None),
        (lambda d: schema(d, "TurnAppended")["required"].remove("message"), None),
        (lambda d: d["channels"].update({"more.v1": d["channels"]["history.fixes.v1"]}), None),
    ],
)
def test_only_breaking_changes_are_reported(change, breach):
    changed = copy.deepcopy(NOW)
    change(changed)
    assert documents.breaches(NOW, changed) == ([] if breach is None else [breach])


def test_newly_rejected_values_are_reported():
    changed = copy.deepcopy(NOW)
    tail = schema(changed, "PolicyChange")["properties"]["tail"]
    (values,) = [each["enum"] for each in tail.get("anyOf", [tail]) if "enum" in each]
    values.pop()
    (breach,) = documents.breaches(NOW, changed)
    assert "policy" in breach
    assert "tail" in breach


def test_the_command_ends_with_4_for_a_breaking_change(tmp_path):
    asked_more = copy.deepcopy(NOW)
    schema(asked_more, "TurnAppended")["properties"]["gone"] = {"type": "string"}
    old = tmp_path / "old.json"
    old.write_text(json.dumps(asked_more), encoding="utf-8")
    done = CliRunner().invoke(main, ["topics", "compat", str(old)])
    assert (done.exit_code, done.stdout) == (4, '"TurnAppended.payload.gone: is gone"\n')


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"channels": {"history.fixes.v1": {}}}'])
def test_an_invalid_contract_is_rejected(tmp_path, text):
    old = tmp_path / "old.json"
    old.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(main, ["topics", "compat", str(old)])
    assert (done.exit_code, done.stdout) == (2, "")
