"""Readers of client programs do not raise for any content of an output record."""

import msgspec
import pytest
from aiokafka import ConsumerRecord
from msgspec import UNSET

from reknit.pipeline.client import Place
from reknit.pipeline.client.consumers import DeadLetters, Fixes, Items, Requests, with_body
from reknit.topics import AGENT_TURNS
from reknit.topics import headers as names
from reknit.topics.records import FixRecord

PLACE = Place(AGENT_TURNS, 0, 7)
BAD_VALUES = {"null": None, "not UTF-8": b"\xff", "too long": b"x" * (16 * 1024 + 1)}
READERS = {
    Requests: names.RequestHeaders,
    Items: names.ItemHeaders,
    Fixes: names.FixHeaders,
    DeadLetters: names.DeadLetterHeaders,
}
FIELDS = [(reader, name) for reader, kind in READERS.items() for name in kind.__struct_encode_fields__]
FIX = FixRecord(code="turns_merged", path="messages.1", lossless=True, turn=1, offset=0, number=0, version="1")


def written(value=b"{}", headers=(), key=b"s"):
    """A record as the client returns it."""
    return ConsumerRecord("t", 0, 7, 1, 1, key, value, None, 1, 1, tuple(headers))


@pytest.mark.parametrize("fault", BAD_VALUES)
@pytest.mark.parametrize(("reader", "name"), FIELDS)
def test_an_unreadable_header_is_none_and_its_bytes_remain(reader, name: str, fault: str):
    headers = (("other", b"\xff"), (name, BAD_VALUES[fault]))
    found = reader._read(written(headers=headers), PLACE)
    field = dict(zip(READERS[reader].__struct_encode_fields__, READERS[reader].__struct_fields__, strict=True))[name]
    assert (getattr(found.headers, field), found.raw_headers) == (None, headers)


@pytest.mark.parametrize("reader", READERS)
def test_a_record_without_the_workers_headers_has_none_for_them(reader):
    found = msgspec.structs.asdict(reader._read(written(), PLACE).headers)
    required = {field.name for field in msgspec.structs.fields(READERS[reader]) if field.required}
    assert found == {name: None if name in required else UNSET for name in found}


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[", b"[" * 100_000, b"1", b'{"type": "of.tomorrow"}'])
@pytest.mark.parametrize("key", [None, b"\xff", b"s"])
def test_an_invalid_value_does_not_stop_a_reader(key, value):
    session = "" if key is None else key.decode("utf-8", "replace")
    item, fix, letter, request = (
        reader._read(written(value, key=key), PLACE) for reader in (Items, Fixes, DeadLetters, Requests)
    )
    assert (item.item, item.value, item.session) == (None, value or b"", session)
    assert (fix.fix, fix.session) == (None, session)
    assert (letter.value, letter.session) == (value, None if key is None else session)
    assert (request.body, request.session) == (value, session)


def test_the_workers_records_are_read_as_before():
    fix = Fixes._read(written(msgspec.json.encode(FIX), [("producer", b"crew/1")]), PLACE)
    assert (fix.fix, fix.headers) == (FIX, names.FixHeaders(producer="crew/1"))
    delta = b'{"type": "item/delta", "item_id": "i", "delta_type": "text_delta", "content": "hi", "at": 0}'
    item = Items._read(written(delta, [("run", b"r"), ("request-id", b"q")]), PLACE)
    assert (item.item.content, item.headers) == ("hi", names.ItemHeaders(run="r", request_id="q"))


@pytest.mark.parametrize("reader", READERS)
def test_a_record_has_its_trace_as_a_carrier(reader):
    parent, state = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"a=1"
    found = reader._read(written(headers=[("tracestate", state), ("traceparent", parent)]), PLACE)
    assert found.trace == {"traceparent": parent.decode(), "tracestate": "a=1"}
    assert reader._read(written(headers=[("traceparent", b"\xff"), ("tracestate", state)]), PLACE).trace == {}


@pytest.mark.parametrize("dataref", [(), (("dataref", None),), (("dataref", b"\xff"),)])
async def test_a_request_with_neither_a_body_nor_an_object_says_so(dataref):
    found = await with_body(Requests._read(written(None, dataref), PLACE), None)
    assert (found.body, found.lost) == (None, "no_value")


async def test_a_withdrawal_has_no_body_and_is_not_lost():
    headers = ((names.REASON, b"answered"), (names.SUPERSEDES, b"r1"))
    found = await with_body(Requests._read(written(None, headers), PLACE), None)
    assert (found.body, found.lost, found.is_withdrawal, found.headers.supersedes) == (None, "", True, "r1")
