"""What a retry writes for a dead letter, and why it writes nothing; what ``inspect --records`` prints of a record."""

from __future__ import annotations

import json

import pytest
from aiokafka import ConsumerRecord
from build import user

from pipeline.cli import write_json
from pipeline.cli.dead_letters import Letter, note_of, retry_of
from pipeline.cli.sessions import Standing, as_json, release_of
from pipeline.client.consumers import DeadLetters
from pipeline.errors import InputError
from pipeline.stages.base import Record
from pipeline.stages.defaults import Defaults
from pipeline.stages.turn_state import TurnStates
from pipeline.stages.turns import TurnsStage
from topics.headers import DeadLetterHeaders, decode

KEY = b"s"
ID = "retry/agent.turns.v1/2/17"
TURN = {"type": "turn.appended", "message": user("hi")}
POISON = {"type": "turn.appended", "message": {"role": "nobody"}}


def consumed(value, headers, key=KEY):
    return ConsumerRecord(
        topic="t",
        partition=1,
        offset=5,
        timestamp=1,
        timestamp_type=1,
        key=key,
        value=value,
        checksum=None,
        serialized_key_size=1,
        serialized_value_size=0,
        headers=headers,
    )


def letter(code="bad_record", value=TURN, topic="agent.turns.v1", key=KEY):
    headers = {"code": code, "topic": topic, "partition": "2", "offset": "17", "version": "1"}
    value = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    record = consumed(value, [(f"reknit.error.{name}", text.encode()) for name, text in headers.items()], key)
    return Letter(1, 5, record, decode(record.headers, DeadLetterHeaders))


def session(policy, offset=17):
    """A session with a bad record at this offset, as its changelog has it."""
    stage, states = TurnsStage(Defaults(on_dead_letter=policy)), TurnStates(Defaults().session)
    poison = Record(partition=2, offset=offset, key=KEY, value=json.dumps(POISON).encode())
    for key, value in stage.process([poison]).changes.items():
        states.restore(key, value)
    return Standing(2, KEY, states.find(KEY))


OPENED = {"type": "session.opened", "model": "m"}
RESTORED = {"type": "history.restored", "messages": []}
PARKED, FOLLOWS, ELSEWHERE = session("park"), session("follow"), session("park", 16)
RELEASED = {"type": "session.released", "record": TURN, "id": ID, "origin": "reknit"}


@pytest.mark.parametrize(
    ("given", "standing", "record", "written"),
    [
        (letter(), None, None, TURN | {"id": ID}),
        (letter(value=OPENED), None, None, OPENED | {"id": ID}),
        (letter(value=TURN | {"id": "mine"}), None, None, TURN | {"id": "mine"}),
        (letter(value=b"{"), None, json.dumps(TURN).encode(), TURN | {"id": ID}),
        (letter(value={"type": "of.tomorrow", "x": 1}), None, None, {"type": "of.tomorrow", "x": 1, "id": ID}),
        (letter("rejected"), None, None, {"type": "request.wanted", "id": ID}),
        (letter("size", value=None), None, None, {"type": "request.wanted", "id": ID}),
        (letter(), PARKED, None, RELEASED),
        (letter(value=b"{"), PARKED, json.dumps(TURN).encode(), RELEASED),
        (letter(), ELSEWHERE, None, TURN | {"id": ID}),
        (letter(value=RESTORED), FOLLOWS, None, RESTORED | {"id": ID}),
    ],
)
def test_a_letter_is_written_to_its_session_s_log_as_its_code_and_its_session_ask(given, standing, record, written):
    retry = retry_of(given, standing, record)
    assert retry.left is None
    assert json.loads(retry.value) == written


@pytest.mark.parametrize(
    ("given", "standing", "why"),
    [
        (letter(topic="provider.events.v1"), None, "records of provider.events.v1 are replayed, not retried"),
        (letter(key=None), None, "it has no key, so nobody knows whose it is"),
        (letter(value=b"{"), None, "it is no JSON object; give what is meant with --record"),
        (letter(value=b"[1]"), PARKED, "it is no JSON object; give what is meant with --record"),
        (letter("expired"), None, "its session is over; give a record that begins it anew with --record"),
        (letter(value=None), None, "its value did not fit into the letter; give it with --record"),
        (letter(), FOLLOWS, "its session follows an earlier letter; restore its history first"),
    ],
)
def test_what_is_not_retried_is_left_for_a_reason(given, standing, why):
    retry = retry_of(given, standing, None)
    assert (retry.value, str(retry.left)) == (None, why)


def test_who_releases_a_session_and_who_retries_its_letter_do_it_under_one_id():
    assert json.loads(release_of(PARKED, None)) == {"type": "session.released", "id": ID, "origin": "reknit"}
    assert release_of(PARKED, json.dumps(TURN).encode()) == retry_of(letter(), PARKED, None).value
    with pytest.raises(InputError, match="is not parked"):
        release_of(FOLLOWS, None)


def test_a_note_names_the_letter_and_is_read_by_clients_as_one():
    headers = note_of(letter(), "dropped")
    assert dict(headers)["reknit.error.letter"] == b"1/5"
    read = DeadLetters._read(consumed(None, headers), None)
    assert (read.headers.code, read.headers.letter, read.headers.offset) == ("dropped", "1/5", 17)


# Records as they are printed.

PRETTY = json.dumps({"text": "a\n b", "list": [1.50, {"deep": None}], "empty": {}}, indent=4)


def printed(value, capfdbinary):
    write_json(as_json("agent.turns.v1", consumed(value, [("text", b"a\nb"), ("bytes", b"\xff\n")])))
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
    assert (found["value"], found["offset"]) == (read, 5)
    assert found["headers"] == {"text": "a\nb", "bytes": "\ufffd\n"}


def test_numbers_keep_their_digits(capfdbinary):
    assert b'"value":{"a":1.50,"b":123456789012345678901234567890}' in printed(
        b'{"a": 1.50,\n"b": 123456789012345678901234567890}', capfdbinary
    )
