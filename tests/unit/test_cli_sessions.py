"""Retries of dead letters: the record that is written, or the reason for writing none.

Lines of ``inspect --records``.
"""

from __future__ import annotations

import json

import pytest
from aiokafka import ConsumerRecord
from build import user

from reknit.pipeline.cli import write_json
from reknit.pipeline.cli.dead_letters import Letter, note_of, retry_of
from reknit.pipeline.cli.sessions import Standing, _found, as_json, last_rejection, release_of
from reknit.pipeline.client.consumers import DeadLetters
from reknit.pipeline.errors import InputError
from reknit.pipeline.session import Session
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turn_state import Sent, TurnState, TurnStates
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics.headers import DeadLetterHeaders, decode

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


def letter(code="bad_record", value=TURN, topic="agent.turns.v1", key=KEY, **more):
    headers = {"code": code, "topic": topic, "partition": "2", "offset": "17", "version": "1", **more}
    value = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    record = consumed(value, [(f"reknit.error.{name}", text.encode()) for name, text in headers.items()], key)
    return Letter(1, 5, record, decode(record.headers, DeadLetterHeaders))


def session(policy, offset=17):
    """The changelog of a session with a bad record at this offset."""
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
def test_a_retry_depends_on_the_code_and_the_state_of_the_session(given, standing, record, written):
    retry = retry_of(given, standing, record)
    assert retry.left is None
    assert json.loads(retry.value) == written


@pytest.mark.parametrize(
    ("given", "standing", "why"),
    [
        (letter(topic="provider.events.v1"), None, "records of provider.events.v1 are replayed, not retried"),
        (letter(key=None), None, "it has no key, so its session is unknown"),
        (letter("bad_key", key=b"\xff"), None, "its key is not UTF-8, so it is of no session"),
        (letter(value=b"{"), None, "it is no JSON object; give what is meant with --record"),
        (letter(value=b"[1]"), PARKED, "it is no JSON object; give what is meant with --record"),
        (letter("expired"), None, "its session is over; give a record that begins it again with --record"),
        (letter(value=None), None, "its value did not fit into the letter; give it with --record"),
        (letter(), FOLLOWS, "its session follows an earlier letter; restore its history first"),
    ],
)
def test_a_dead_letter_that_cannot_be_retried_has_a_reason(given, standing, why):
    retry = retry_of(given, standing, None)
    assert (retry.value, str(retry.left)) == (None, why)


@pytest.mark.parametrize(("last", "is_left"), [("r1", False), ("r2", True), (None, False)])
def test_a_refusal_of_a_superseded_request_is_left(last, is_left):
    entry = TurnState(session=Session(["anthropic"]))
    if last is not None:
        entry.sent.note_sent("anthropic", Sent(last, "0" * 64))
    answered = {"type": "provider.answered", "request_id": "r1", "status": 400, "body": "{}"}
    given = letter("refused_unknown", value=answered, target="anthropic")
    retry = retry_of(given, Standing(2, KEY, entry), None)
    words = None if retry.left is None else str(retry.left)
    assert words == ("a later request has superseded the refused one" if is_left else None)
    assert (retry.value is None) is is_left


def test_a_retried_record_has_no_headers_that_workers_reject():
    why = [(f"reknit.error.{name}", b"1") for name in ("code", "topic", "partition", "offset", "version")]
    given = [("producer", b"crew/1"), ("\ufffd", b"x"), ("long", b"x" * 20_000), ("null", None), *why]
    record = consumed(b"{}", given)
    found = Letter(1, 5, record, decode(given, DeadLetterHeaders))
    assert found.original_headers == [("producer", b"crew/1")]


def test_a_session_under_release_is_listed_with_its_waiting_records():
    stage, states = TurnsStage(Defaults(on_dead_letter="park")), TurnStates(Defaults().session)
    stage.use_format(3)
    events = [POISON, TURN, {"type": "session.closed"}, TURN, TURN, {"type": "session.released"}]
    values = [json.dumps(event).encode() for event in events]
    changes = stage.process(
        [Record(partition=2, offset=at, key=KEY, value=each) for at, each in enumerate(values)]
    ).changes
    told = []
    while (due := stage.due_record()) is not None:
        for key, value in changes.items():
            states.restore(key, value)
        (found,) = _found({2: states}, [(2, KEY)])
        told.append(found.facts())
        changes = stage.process([due]).changes
    base = {"session": "s", "partition": 2, "state": "releasing"}
    turns = [{"turn": 0, "messages": 0}, {"turn": 1, "messages": 1}, {}, {"turn": 1, "messages": 1}]
    assert told == [{**base, **each, "waiting": 4 - at} for at, each in enumerate(turns)]
    with pytest.raises(InputError, match="is not parked"):
        release_of(found, None)


def test_a_release_and_a_retry_use_the_same_id():
    assert json.loads(release_of(PARKED, None)) == {"type": "session.released", "id": ID, "origin": "reknit"}
    assert release_of(PARKED, json.dumps(TURN).encode()) == retry_of(letter(), PARKED, None).value
    with pytest.raises(InputError, match="is not parked"):
        release_of(FOLLOWS, None)


def test_a_note_names_its_dead_letter_and_clients_read_it():
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


def letter_of(code, at, message, **more):
    why = {"code": code, "rule": "ANT-05", "message": message, "offset": str(at), **more}
    headers = tuple((f"reknit.error.{name}", value.encode()) for name, value in why.items())
    return Record(partition=0, offset=at, key=b"s", value=b"", headers=headers, timestamp=at)


def test_inspect_begins_with_the_newest_rejection():
    letters = [
        letter_of("rejected", 3, "newest"),
        letter_of("rejected", 2, "older"),
        letter_of("not_json", 4, "no rejection"),
        letter_of("rejected", 5, "a note about another letter", letter="0/1"),
    ]
    assert last_rejection(letters) == {
        "last_rejection": {"code": "rejected", "rule": "ANT-05", "message": "newest", "offset": "3"}
    }
    assert last_rejection(letters[2:]) == {}
