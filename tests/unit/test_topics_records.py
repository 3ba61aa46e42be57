"""Records and headers: records of earlier builds decode, and invalid records are rejected."""

import json
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from reknit import topics
from reknit.pipeline.policy import Policy
from reknit.topics import documents, headers
from reknit.topics.records import RECORD_KINDS, TURN_RECORDS, PolicyChange, SessionOpened, StreamPolicy, TurnAppended

GOLDEN = Path(__file__).parents[1] / "vectors" / "records_v1.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
BY_NAME = {message.name: message for message in RECORD_KINDS}


def pairs(row):
    return tuple((name, value.encode()) for name, value in row["headers"].items())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["message"])
def test_records_of_v1_decode(row):
    message = BY_NAME[row["message"]]
    assert message.topic == row["topic"]
    assert (row["value"] is None) >= message.null
    if message.payload is not None:
        record = msgspec.json.decode(row["value"], type=message.payload)
        assert json.loads(msgspec.json.encode(record)) == row["decoded"]
    if message.headers is not None and "headers" in row:
        found = headers.encode(headers.decode(pairs(row), message.headers))
        assert {name: value.decode() for name, value in found} == row["decoded_headers"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["message"])
def test_records_of_v1_are_valid_by_the_published_schema(row):
    files = documents.schema_files()
    message = BY_NAME[row["message"]]
    if message.payload is not None:
        schema = json.loads(files[f"schemas/{row['topic']}.json"])
        Draft202012Validator(schema).validate(json.loads(row["value"]))
    if message.headers is not None and "headers" in row:
        schema = json.loads(files[f"schemas/{row['topic']}.headers.json"])
        # Headers are text; the schema describes the decoded values.
        typed = msgspec.to_builtins(headers.decode(pairs(row), message.headers))
        Draft202012Validator(schema).validate(typed)


def test_every_kind_of_record_has_a_golden_one():
    assert {row["message"] for row in ROWS} == set(BY_NAME)


def test_every_turn_record_of_the_union_decodes_by_its_type():
    for row in ROWS:
        if row["topic"] == topics.AGENT_TURNS:
            assert type(TURN_RECORDS.decode(row["value"])).__name__ == row["message"]


def test_a_message_keeps_its_bytes():
    record = TURN_RECORDS.decode(b'{"type":"turn.appended","message":{"role" : "user", "content":[{"x":1.0,"y":1e2}]}}')
    assert isinstance(record, TurnAppended)
    assert bytes(record.message) == b'{"role" : "user", "content":[{"x":1.0,"y":1e2}]}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{}", "Object missing required field `type`"),
        (b'{"type":"turn.lost"}', "Invalid value 'turn.lost' - at `$.type`"),
        (b'{"type":"turn.appended"}', "Object missing required field `message`"),
        (b'{"type":"turn.appended","message":{},"id":""}', "Expected `str` of length >= 1 - at `$.id`"),
        (b'{"type":"history.rewound","to":-1}', "Expected `int` >= 0 - at `$.to`"),
        (b'{"type":"history.rewound","to":true}', "Expected `int | str`, got `bool` - at `$.to`"),
        (b'{"type":"session.opened","policy":{"tial":"keep"}}', "Object contains unknown field `tial` - at `$.policy`"),
        (b'{"type":"session.opened","policy":{"tail":"x"}}', "Invalid enum value 'x' - at `$.policy.tail`"),
    ],
)
def test_an_invalid_turn_record_is_rejected(text, words):
    with pytest.raises(msgspec.ValidationError) as caught:
        TURN_RECORDS.decode(text)
    assert str(caught.value) == words


def test_an_absent_field_of_an_opened_session_differs_from_null():
    record = TURN_RECORDS.decode(b'{"type":"session.opened","model":null}')
    assert record == SessionOpened(model=None)
    assert record.targets is msgspec.UNSET


def test_the_published_policy_is_the_one_that_histories_are_repaired_by():
    published = msgspec.json.schema(PolicyChange)["$defs"]["PolicyChange"]["properties"]
    used = msgspec.json.schema(Policy)["$defs"]["Policy"]["properties"]
    bare = {"description", "default"}
    # An opening may forget what was refused; no session keeps that value.
    published["heal"]["enum"].remove("reset")
    assert {name: {k: v for k, v in field.items() if k not in bare} for name, field in published.items()} == {
        name: {k: v for k, v in field.items() if k not in bare} for name, field in used.items()
    }


def test_the_stream_sides_policy_has_the_policys_own_defaults():
    found = StreamPolicy()
    assert (found.record_assistant, found.incomplete_call) == (Policy().record_assistant, Policy().incomplete_call)
    assert set(StreamPolicy.__struct_fields__) - {"model", "tools", "wrapped_tools"} <= set(Policy.__struct_fields__)


def test_header_names_are_those_of_the_structs():
    constants = {value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)}
    constants.remove(headers.ERROR_PREFIX)
    structs = [message.headers for message in RECORD_KINDS if message.headers is not None]
    assert constants == {name for struct in structs for name in struct.__struct_encode_fields__}


def test_the_last_header_of_a_name_counts_and_unknown_ones_are_not_read():
    found = headers.decode(
        [("source", b"a"), ("run", b"r"), ("picture", b"\xff"), ("source", b"b")], headers.EventHeaders
    )
    assert found == headers.EventHeaders(source="b", run="r")


BAD_VALUES = {"null": None, "not UTF-8": b"\xc3", "too long": b"x" * (16 * 1024 + 1)}
LETTER = {"code": b"no_key", "topic": b"agent.turns.v1", "partition": b"0", "offset": b"7", "version": b"1"}


def letter_headers(**changed):
    return [(f"reknit.error.{name}", value) for name, value in (LETTER | changed).items()]


@pytest.mark.parametrize("value", [*BAD_VALUES.values(), b"GEM 1"], ids=[*BAD_VALUES, "well formed"])
def test_an_unreadable_optional_header_is_none(value):
    given = letter_headers(rule=value)
    for read in (headers.read, headers.decode):
        found = read(given, headers.DeadLetterHeaders)
        assert (found.rule, found.code, found.offset) == ("GEM 1" if value == b"GEM 1" else None, "no_key", 7)
        assert found.path is msgspec.UNSET


@pytest.mark.parametrize("value", [*BAD_VALUES.values(), b"-1", b"many"], ids=[*BAD_VALUES, "negative", "no number"])
def test_an_unreadable_required_header_is_none_or_an_error(value):
    given = letter_headers(offset=value)
    found = headers.read(given, headers.DeadLetterHeaders)
    assert (found.offset, found.code, found.partition) == (None, "no_key", 0)
    with pytest.raises(msgspec.ValidationError, match=r"`reknit\.error\.offset`"):
        headers.decode(given, headers.DeadLetterHeaders)


def test_a_missing_required_header_is_none_or_an_error():
    given = letter_headers()[1:]
    assert headers.read(given, headers.DeadLetterHeaders).code is None
    assert headers.read([], headers.DeadLetterHeaders).version is None
    with pytest.raises(msgspec.ValidationError, match=r"`reknit\.error\.code`"):
        headers.decode(given, headers.DeadLetterHeaders)


@pytest.mark.parametrize(
    ("value", "text", "fault"),
    [
        (b"", "", ""),
        ("é".encode(), "é", ""),
        (b"x" * 16 * 1024, "x" * 16 * 1024, ""),
        (b"x" * (16 * 1024 + 1), None, "is longer than 16384 bytes"),
        (b"\xff" * (16 * 1024 + 1), None, "is longer than 16384 bytes"),
        (b"\xff", None, "is not UTF-8"),
        (b"\xed\xa0\x80", None, "is not UTF-8"),
        (None, None, "is null"),
    ],
)
def test_a_value_has_a_text_or_a_fault(value, text, fault):
    assert (headers.text_of(value), headers.fault_of(value)) == (text, fault)


def test_headers_are_shown_and_escaped_whatever_they_hold():
    given = (("a", b"x"), ("b", b"\xff"), ("c", None), ("d", b"\xff" * 5000))
    assert headers.as_texts(given) == [("a", "x"), ("b", "\ufffd"), ("c", ""), ("d", "\ufffd" * 5000)]
    assert headers.escaped(given) == (("a", b"x"), ("b", b"\\xff"), ("c", b""), ("d", b"\\xff" * 4096))
    assert headers.well_formed((*given, ("\ufffd", b"x"))) == (("a", b"x"),)
    assert [headers.find_text(given, name) for name in "abce"] == ["x", None, None, None]
