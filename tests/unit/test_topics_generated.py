"""The committed schemas and the AsyncAPI document are those of the records, and valid by their own standards."""

import copy
import json
from pathlib import Path

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

import topics
from topics import documents
from topics.records import RECORD_KINDS

ROOT = Path(topics.__file__).parent
EXAMPLES = (ROOT / "examples.jsonl").read_bytes()
STANDARD = Path(__file__).parents[1] / "vectors" / "asyncapi" / "3.1.0.json"


@pytest.fixture(scope="module")
def validator():
    return Draft7Validator(json.loads(STANDARD.read_text(encoding="utf-8")))


@pytest.fixture
def document():
    return json.loads(documents.asyncapi_file(EXAMPLES)[documents.ASYNCAPI_FILE])


def test_committed_files_are_what_the_records_give():
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


def test_the_document_is_valid_asyncapi(validator, document):
    assert [error.message for error in validator.iter_errors(document)] == []


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
def test_the_standards_schema_does_refuse(validator, document, spoil):
    spoilt = copy.deepcopy(document)
    spoil(spoilt)
    assert not validator.is_valid(spoilt)


def test_every_reference_of_the_document_leads_somewhere(document):
    def references(value):
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(document))
    assert len(found) > len(RECORD_KINDS)
    for reference in found:
        place = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
        assert isinstance(place, dict)


def test_every_kind_of_record_is_in_exactly_one_channel(document):
    listed = [name for channel in document["channels"].values() for name in channel["messages"]]
    assert sorted(listed) == sorted(message.name for message in RECORD_KINDS)


def test_the_internal_topics_are_not_published(document):
    assert set(document["channels"]) == {topic.name for topic in topics.TOPICS if topic.direction != "internal"}
