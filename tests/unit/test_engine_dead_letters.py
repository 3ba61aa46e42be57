from __future__ import annotations

import hashlib

import pytest

from pipeline import __version__
from pipeline.engine.dead_letters import buried, output_size, size_letter, walk
from pipeline.stages.base import Output, Record, Result, Stage, StoppedError
from topics import DEAD_LETTERS

VERSION = __version__.encode()


def test_the_letter_of_an_output_that_no_topic_takes_has_position_and_digest():
    letter = size_letter(Output("out.v1", b"k", b"abc", (("x", b"1"),)), "in.v1", 1, 5)
    assert letter.topic == DEAD_LETTERS
    assert (letter.key, letter.value) == (b"k", None)
    assert letter.headers == (
        ("reknit.error.code", b"size"),
        ("reknit.error.topic", b"in.v1"),
        ("reknit.error.partition", b"1"),
        ("reknit.error.offset", b"5"),
        ("reknit.error.version", VERSION),
        ("reknit.error.output-topic", b"out.v1"),
        ("reknit.error.value-bytes", b"3"),
        ("reknit.error.value-sha256", hashlib.sha256(b"abc").hexdigest().encode()),
    )


def test_a_dead_letter_that_is_too_large_keeps_its_own_error():
    headers = (("h", b"1"), ("reknit.error.code", b"not_json"), ("reknit.error.offset", b"3"))
    letter = size_letter(Output(DEAD_LETTERS, b"k", b"abc", headers), "in.v1", 1, 5)
    assert letter.headers[:2] == (("reknit.error.code", b"not_json"), ("reknit.error.offset", b"3"))
    assert dict(letter.headers)["reknit.error.value-bytes"] == b"3"


def test_a_letter_never_carries_a_key_that_is_itself_too_large():
    assert size_letter(Output("out.v1", b"k" * (2 << 20), b"abc"), "in.v1", 1, 5).key is None


def test_a_size_is_never_less_than_the_bytes_in_a_batch():
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    for output in (
        Output("t", None, None),
        Output("t", b"k" * 300, b"v" * 70_000, (("a-name", b"x" * 200), ("ü" * 100, b""))),
        Output("t", b"", b"", tuple((f"h{n}", b"%d" % n) for n in range(50))),
    ):
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=True,
            producer_id=1,
            producer_epoch=1,
            base_sequence=0,
            batch_size=1,
        )
        builder.append(0, 1_700_000_000_000, output.key, output.value, list(output.headers))
        assert len(builder.build()) <= output_size(output)


class Fussy(Stage):
    topic = "in.v1"
    state_topic = "state.v1"

    def restore(self, key, value):
        raise AssertionError

    def process(self, records):
        (record,) = records
        if record.value == b"bad":
            raise ValueError(record.offset)
        if record.value == b"stop":
            raise StoppedError("stopped", "here")
        return Result(outputs=[Output("out.v1", record.key, record.value)])

    def refuse(self, record, error):
        if record.value == b"stop":
            raise StoppedError("stopped", "here")
        raise ValueError(error.code)


def records(*values):
    return [Record(partition=0, offset=offset, key=None, value=value) for offset, value in enumerate(values)]


def test_walk_stops_at_the_record_that_raises():
    results, error = walk(Fussy(), records(b"a", b"b", b"bad", b"c"))
    assert [result.outputs[0].value for result in results] == [b"a", b"b"]
    assert isinstance(error, ValueError)


def test_the_letter_of_a_poison_record_keeps_it_as_it_came_also_where_its_session_has_a_bug():
    record = Record(partition=2, offset=9, key=b"k", value=b"v", headers=(("h", b"1"), ("h", b"2")))
    made, error = buried(Fussy(), record)
    why = (("code", b"internal"), ("topic", b"in.v1"), ("partition", b"2"), ("offset", b"9"), ("version", VERSION))
    headers = (("h", b"1"), ("h", b"2"), *((f"reknit.error.{name}", value) for name, value in why))
    assert made == Result(
        outputs=[Output(DEAD_LETTERS, b"k", b"v", headers)],
        tally={("reknit_dead_letters_total", "in.v1", "internal"): 1},
    )
    assert isinstance(error, ValueError)


def test_where_the_policy_is_to_stop_nothing_is_buried():
    results, error = walk(Fussy(), records(b"a", b"stop", b"b"))
    assert (len(results), type(error)) == (1, StoppedError)
    with pytest.raises(StoppedError):
        buried(Fussy(), *records(b"stop"))


def test_walk_goes_through_where_nothing_raises():
    results, error = walk(Fussy(), records(b"a", b"b"))
    assert len(results) == 2
    assert error is None
