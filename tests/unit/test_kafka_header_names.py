"""Header names that are not UTF-8: every consumer reads them, and all records around them."""

import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.errors import CorruptRecordException
from raw_batches import CODECS, raw_batch

from reknit.pipeline.kafka import connection
from reknit.pipeline.kafka.header_names import TolerantRecords
from reknit.pipeline.settings import Config
from reknit.topics.headers import has_bad_name

GOOD = (b"k", b"v", [("run", b"r"), ("null", None)])
BAD = (b"k", None, [("first", b"\xff"), (b"\xff\xfeA", b"x" * 300), (b"", b""), ("é", b"")])
AS_READ = (("first", b"\xff"), ("\ufffd\ufffdA", b"x" * 300), ("", b""), ("é", b""))


def fetched(data, position=0):
    """Return the records that a consumer returns from a fetched partition from this position on."""
    records = fetcher.PartitionRecords(
        TopicPartition("t", 0),
        TolerantRecords(data),
        aborted_transactions=None,
        fetch_offset=position,
        key_deserializer=None,
        value_deserializer=None,
        check_crcs=True,
        isolation_level=READ_COMMITTED,
    )
    return [(each.offset, each.key, each.value, each.headers) for each in records]


def log(codec="none", position=0):
    """Nine records in three batches, from the batch with a position on; those at 2, 4 and 5 have such a name."""
    rows = [GOOD, GOOD, BAD, GOOD, BAD, BAD, GOOD, GOOD, GOOD]
    return b"".join(raw_batch(rows[at : at + 3], codec, base_offset=at) for at in (0, 3, 6) if at + 3 > position)


EXPECTED = [
    (offset, b"k", None, AS_READ) if offset in {2, 4, 5} else (offset, b"k", b"v", (("run", b"r"), ("null", None)))
    for offset in range(9)
]


@pytest.mark.parametrize("codec", CODECS)
def test_every_record_is_read_once_with_its_own_contents(codec):
    assert fetched(log(codec)) == EXPECTED


@pytest.mark.parametrize("position", range(10))
def test_reading_begins_at_any_offset_of_a_batch(position):
    assert fetched(log(position=position), position) == EXPECTED[position:]


def test_a_name_that_is_not_utf8_is_distinguished_from_others():
    found = {offset: has_bad_name(headers) for offset, *_, headers in fetched(log())}
    assert [offset for offset, is_bad in found.items() if is_bad] == [2, 4, 5]


def test_a_truncated_batch_ends_the_records_before_it():
    assert fetched(log()[:-1]) == EXPECTED[:6]


def test_a_damaged_batch_is_still_an_error():
    damaged = bytearray(log())
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordException):
        fetched(bytes(damaged))


def test_all_clients_read_such_names():
    connection(Config())
    assert fetcher.MemoryRecords is TolerantRecords


def test_the_decoder_without_compiled_modules_reads_them_too():
    script = (
        "import test_kafka_header_names as t, aiokafka.record.memory_records as m\n"
        "assert m.MemoryRecords is m._MemoryRecordsPy\n"
        "assert all(t.fetched(t.log(codec)) == t.EXPECTED for codec in t.CODECS)"
    )
    environment = {"AIOKAFKA_NO_EXTENSIONS": "1", "PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
