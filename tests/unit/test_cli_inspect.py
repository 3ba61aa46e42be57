"""What ``reknit inspect --records`` prints of a record."""

import json

import pytest
from aiokafka import ConsumerRecord

from pipeline.cli import write_json
from pipeline.cli.sessions import as_json

PRETTY = json.dumps({"text": "a\n b", "list": [1.50, {"deep": None}], "empty": {}}, indent=4)


def printed(value, capfdbinary):
    headers = [("text", b"a\nb"), ("bytes", b"\xff\n")]
    record = ConsumerRecord(
        topic="t",
        partition=0,
        offset=7,
        timestamp=1,
        timestamp_type=1,
        key=b"s",
        value=value,
        checksum=None,
        serialized_key_size=1,
        serialized_value_size=0 if value is None else len(value),
        headers=headers,
    )
    write_json(as_json("agent.turns.v1", record))
    return capfdbinary.readouterr().out


@pytest.mark.parametrize(
    ("value", "read"),
    [
        pytest.param(None, None, id="null"),
        pytest.param(b"", "", id="empty"),
        pytest.param(PRETTY.encode(), json.loads(PRETTY), id="pretty"),
        pytest.param(PRETTY.replace("\n", "\r\n").encode(), json.loads(PRETTY), id="carriage returns"),
        pytest.param(b'\n{"a":\t1}\n\n', {"a": 1}, id="a newline at the end"),
        pytest.param(b'{"a": 1}\n{"b": 2}\n', '{"a": 1}\n{"b": 2}\n', id="lines"),
        pytest.param(b"data: {\ndata: }\n\n", "data: {\ndata: }\n\n", id="events"),
        pytest.param(b'{"cut": "a\nb', '{"cut": "a\nb', id="half"),
        pytest.param(b"\xff\n\x00", "\ufffd\n\x00", id="bytes"),
        pytest.param(b"[\n" * 5000 + b"]" * 5000, "[\n" * 5000 + "]" * 5000, id="deep"),
    ],
)
def test_a_record_is_one_line_whatever_its_value_holds(value, read, capfdbinary):
    line = printed(value, capfdbinary)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    found = json.loads(line)
    assert (found["value"], found["offset"]) == (read, 7)
    assert found["headers"] == {"text": "a\nb", "bytes": "\ufffd\n"}


def test_numbers_keep_their_digits(capfdbinary):
    assert b'"value":{"a":1.50,"b":123456789012345678901234567890}' in printed(
        b'{"a": 1.50,\n"b": 123456789012345678901234567890}', capfdbinary
    )
