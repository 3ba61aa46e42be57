"""Boundaries of events in bytes, and the payloads of events: lines, SSE, JSON arrays, binary frames."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_runs import frame, string_headers

from reknit.pipeline.streams import framing
from reknit.pipeline.streams.framing import Tail, payloads

SSE = b'event: a\ndata: {"x":1}\n\ndata: {\ndata: "z":{}\ndata: }\n\n: ping\n\ndata: [DONE]\n\n'


def message(payload, **headers):
    return frame(string_headers(headers), payload)


def event(name, payload=b"{}"):
    return message(payload, **{":message-type": "event", ":event-type": name})


def pieces(data, size, cut):
    tail = Tail()
    found = [tail.push(data[at : at + size], cut) for at in range(0, len(data), size)]
    assert [lost for _, lost in found if lost] == []
    return [whole for whole, _ in found if whole], tail.flush()


# -- payloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "found"),
    [
        pytest.param(b'event: a\ndata: {"x":1}\n\n', [b'{"x":1}'], id="an event"),
        pytest.param(b'event: a\r\ndata: {"x":1}\r\n\r\ndata: {"y":2}\r\n\r\n', [b'{"x":1}', b'{"y":2}'], id="CR LF"),
        pytest.param(b'\xef\xbb\xbfdata: {"x":1}\n\n', [b'{"x":1}'], id="a byte order mark"),
        pytest.param(b'data:{"x":1}\n\n', [b'{"x":1}'], id="no space after the colon"),
        pytest.param(b'data: {"x":1}', [b'{"x":1}'], id="a line of data alone"),
        pytest.param(b'data: {"x":1}\ndata: {"y":2}\ndata: [DONE]', [b'{"x":1}', b'{"y":2}', b"[DONE]"], id="lines"),
        pytest.param(b'data: {\ndata: "x":1\ndata: }\n\n', [b'{\n"x":1\n}'], id="data on several lines"),
        pytest.param(b': keep\n\nid: 1\nretry: 5\ndata: {"x":1}\n\n: keep\n\n', [b'{"x":1}'], id="comments and ids"),
        pytest.param(b'{"x":1}\n\n{"y":2}\n', [b'{"x":1}', b'{"y":2}'], id="JSON lines"),
        pytest.param(b'event: a\ndata: {"x":1}\n\n\nevent: a\ndata: {"y":2}\n\n', [b'{"x":1}', b'{"y":2}'], id="fed"),
        pytest.param(b'noise\ndata: {"x":1}\n\n', [b"noise", b'{"x":1}'], id="noise is a payload"),
        pytest.param(b"event: error\ndata: overloaded\n\n", [b'{"error":"overloaded"}'], id="an error in words"),
        pytest.param(b'event: error\ndata: {"m":1}\n\n', [b'{"error":{"m":1}}'], id="an error by its name"),
        pytest.param(b"event:error\ndata:busy\n\n", [b'{"error":"busy"}'], id="an error by its name without a space"),
        pytest.param(b'event: error\ndata: {"error":{}}\n\n', [b'{"error":{}}'], id="an error by itself"),
        pytest.param(b"event: a\n\n", [], id="a name without data"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_payloads_of_server_sent_events(data, found):
    assert payloads.of_events(data) == found


def test_names_of_server_sent_events():
    named = payloads.with_names(b'event: a\ndata: {"x":1}\n\ndata: {"y":2}\n\n')
    assert named == [(b"a", b'{"x":1}'), (b"", b'{"y":2}')]


LINES = [b"event: a.b_c", b"event: Other", b"event:x", b'data: {"a":1}', b'data: {"b":', b"data: 2}", b"data: [DONE]"]
LINES += [b'data:{"c":3}', b"data: ", b": words", b"id: 7", b'{"d":4}', b"words", b"", b"", b"", b"\xef\xbb\xbf"]


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from([b"\n", b"\n", b"\n\n", b"\r\n", b"\r", b""]))))
def test_the_fast_path_reads_plain_events_like_the_line_parser(lines):
    data = b"".join(map(b"".join, lines))
    assert payloads.of_events(data) == [payload for _, payload in payloads.with_names(data)]


@pytest.mark.parametrize("name", [b"", b"event: a.b_c\n"])
def test_the_fast_path_reads_plain_events_however_they_are_joined(name):
    one = name + b'data: {"a":1}\n\n'
    for data in (one * 3, b"\n".join([one] * 3), b"\n" + one * 3, one * 2 + one.rstrip()):
        assert payloads.of_events(data) == [b'{"a":1}'] * 3


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'[{"a":1}\n,\r\n{"b":[1,"}"]}]', [b'{"a":1}', b'{"b":[1,"}"]}']),
        (b',{"a":\n{"b":"\\"}"}}\n', [b'{"a":\n{"b":"\\"}"}}']),
        (b'{"a":1}{"b":2}', [b'{"a":1}', b'{"b":2}']),
        (b'oops {"a":1} tail {"b":', [b"oops", b'{"a":1}', b'tail {"b":']),
        (b'data: {"a":1}\n\n', [b'{"a":1}']),
        (b'\n: ping\n\ndata: {"a":1}\n\n', [b'{"a":1}']),
        (b"]", []),
    ],
)
def test_payloads_of_arrays(data, found):
    assert payloads.of_values(data) == found


# -- records that end anywhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 40))
def test_server_sent_events_cut_anywhere(size):
    whole, left = pieces(SSE, size, framing.lines)
    assert b"".join(whole) + left == SSE
    assert [payload for part in [*whole, left] for payload in payloads.of_events(part)] == payloads.of_events(SSE)


CUT_ANYWHERE = {
    "CR": (b'data: {"a":1}\r\rdata: {\rdata: "b":{}}\r\r', [b'{"a":1}', b'{\n"b":{}}']),
    "CR LF": (
        b': words\r\n\r\nevent: a\r\ndata: {\r\ndata: "b":{}\r\ndata: }\r\n\r\ndata: {"c":3}\r\n\r\n',
        [b'{\n"b":{}\n}', b'{"c":3}'],
    ),
    "a mark": (b'\xef\xbb\xbfevent: error\ndata: {\ndata:  "m": 1\ndata: }\n\n', [b'{"error":{\n "m": 1\n}}']),
    "words": (b"event: error\nid: 1\ndata: over\nretry: 5\ndata: loaded\n\n", [b'{"error":"over\\nloaded"}']),
    "no blank lines": (
        b'data: {"a":{"b":1}\ndata: ,"c":{}}\ndata: {"d":"x\ndata: {"e":2}\nevent: f\ndata: {"g":3}\n',
        [b'{"a":{"b":1}\n,"c":{}}', b'{"d":"x', b'{"e":2}', b'{"g":3}'],
    ),
    "an object inside another, without blank lines": (
        b'data: {"a":\ndata: {"b":1}\ndata: }\ndata: {"c": \ndata: {"d":[\ndata: {"e":2}\ndata: ]}}\n',
        [b'{"a":\n{"b":1}\n}', b'{"c": \n{"d":[\n{"e":2}\n]}}'],
    ),
    "an object after one that was cut after a value": (
        b'data: {"a":1\ndata: {"b":2}\ndata: {"c":[1] \ndata: {"d":3}\n',
        [b'{"a":1', b'{"b":2}', b'{"c":[1] ', b'{"d":3}'],
    ),
    "a line that is no event": (b'starting\ndata: {\ndata: "a":1}\n\n', [b"starting", b'{\n"a":1}']),
    "laid out": (b'{\n  "a": {\n    "b": "}"\n  }\n}\n{"c":3}\n', [b'{\n  "a": {\n    "b": "}"\n  }\n}', b'{"c":3}']),
}


@pytest.mark.parametrize(("data", "found"), CUT_ANYWHERE.values(), ids=CUT_ANYWHERE)
def test_layouts_cut_anywhere(data, found):
    assert payloads.of_events(data) == found
    for size in range(1, len(data)):
        whole, left = pieces(data, size, framing.lines)
        assert [payload for part in [*whole, left] for payload in payloads.of_events(part)] == found


def test_server_sent_events_without_blank_lines_end_with_their_lines():
    data = b'data: {"a":1}\ndata: {"b":2}\n'
    for size in (len(data) // 2, len(data)):
        assert pieces(data, size, framing.lines) == ([data[at : at + size] for at in range(0, len(data), size)], b"")


def test_an_event_without_a_blank_line_ends_with_a_newline_that_comes_later():
    tail = Tail()
    assert tail.push(b'data: {"a":1}', framing.lines) == (b"", 0)
    assert tail.push(b'\ndata: {"b":2}\ndata: {"c"', framing.lines) == (b'data: {"a":1}\ndata: {"b":2}\n', 0)


def test_an_object_on_several_lines_of_data_ends_without_a_blank_line():
    data = b'data: {"a":\ndata: 1}\n'
    assert Tail().push(data + b"data", framing.lines) == (data, 0)


@pytest.mark.parametrize("size", range(1, 30))
def test_lines_cut_anywhere(size):
    data = b'{"a":1}\r\n{"b":2}\n\n{"c":3}'
    whole, left = pieces(data, size, framing.lines)
    assert (b"".join(whole), left) == (data[:-7], b'{"c":3}')
    assert all(part.endswith(b"\n") for part in whole)


@pytest.mark.parametrize("size", range(1, 40))
def test_arrays_cut_anywhere(size):
    data = b'[{"a":"x\\"}{\\\\"}\n,\r\n{"b":[1,{"c":2}]}\n]'
    whole, left = pieces(data, size, framing.values)
    found = [value for part in whole for value in payloads.of_values(part)]
    assert (found, left) == ([b'{"a":"x\\"}{\\\\"}', b'{"b":[1,{"c":2}]}'], b"\n]")


@pytest.mark.parametrize("size", range(1, 90))
def test_frames_cut_anywhere(size):
    long = b'{"x":"' + b"y" * 50 + b'"}'
    frames = [event("a"), event("b", long), event("c")]
    data = b"\n".join(frames) + frames[0][:9]
    whole, left = pieces(data, size, framing.frames)
    assert b"".join(whole) + left == data
    assert left == frames[0][:9]
    found = [payload for part in whole for payload in payloads.of_frames(part)]
    assert found == [b'{"a":{}}', b'{"b":' + long + b"}", b'{"c":{}}']


def test_the_shortest_frame_has_neither_headers_nor_a_payload():
    shortest = frame(b"", b"")
    assert Tail().push(shortest + event("a")[:9], framing.frames) == (shortest, 0)
    assert payloads.of_frames(shortest + event("a")) == [b'{"":{}}', b'{"a":{}}']


def test_bytes_that_are_not_frames_are_passed_on_immediately():
    assert framing.frames(b"\x00\x00\x00\x01garbage", framing.Scan()) == (11, 11)
    assert framing.frames(b'{"a":1}\n{"b', framing.Scan()) == (8, 8)


def test_an_overlong_event_is_skipped_up_to_its_end(monkeypatch):
    monkeypatch.setattr(framing, "MOST_TAIL", 20)
    for cut, rest in ((framing.lines, b'xx"}\n{"b":2}\n'), (framing.values, b'xx"},{"b":2}')):
        tail = Tail()
        assert tail.push(b'{"a":"' + b"x" * 20, cut) == (b"", 1)
        assert tail.push(b"xxx", cut) == (b"", 0)
        whole, lost = tail.push(rest, cut)
        assert (whole.strip(b",\n"), lost) == (b'{"b":2}', 0)


# -- frames ---------------------------------------------------------------------------------------------------------


def test_an_exception_in_the_stream_is_an_error():
    told = message(
        b'{"message":"slow down"}', **{":message-type": "exception", ":exception-type": "throttlingException"}
    )
    assert payloads.of_frames(told) == [b'{"error":{"type":"throttlingException","message":"slow down"}}']
    failed = message(b"", **{":message-type": "error", ":error-code": "InternalError", ":error-message": "oops"})
    assert payloads.of_frames(failed) == [b'{"error":{"type":"InternalError","message":"oops"}}']
    nameless = message(b"", **{":message-type": "error", ":error-message": "oops"})
    assert payloads.of_frames(nameless) == [b'{"error":{"type":"error","message":"oops"}}']
    odd = message(b"<html>", **{":message-type": "exception", ":exception-type": "x"})
    assert payloads.of_frames(odd) == [b'{"error":{"type":"x","message":"<html>"}}']
    binary = message(b"\xff\xfe", **{":message-type": "exception", ":exception-type": "x"})
    assert payloads.of_frames(binary) == [b'{"error":{"type":"x","message":"\xef\xbf\xbd\xef\xbf\xbd"}}']


def test_the_events_of_an_invoke_body():
    assert payloads.of_frames(event("chunk", b'{"bytes":"eyJhIjoxfQ==","p":"ab"}')) == [b'{"a":1}']
    assert payloads.of_frames(event("chunk", b'{"bytes":"*"}')) == [b'{"bytes":"*"}']


def test_headers_of_every_type_are_skipped():
    sizes = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
    others = b"".join(b"\x01x" + bytes([kind]) + bytes(size) for kind, size in sizes.items()) + b"\x01y\x06\x00\x02ab"
    named = b"\x0b:event-type\x07\x00\x01a"
    head = others + named
    assert payloads.of_frames(frame(head, b"{}")) == [b'{"a":{}}']


def test_a_frame_with_a_wrong_checksum_is_passed_on_and_the_next_one_read():
    good = event("a")
    broken = bytearray(event("b", b'{"x":1}'))
    broken[-6] ^= 1
    assert payloads.of_frames(bytes(broken) + good) == [bytes(broken), b'{"a":{}}']
    prelude = bytearray(good)
    prelude[9] ^= 1
    assert payloads.of_frames(good + bytes(prelude) + good) == [b'{"a":{}}', bytes(prelude) + good]
    assert payloads.of_frames(good[:-3]) == [good[:-3]]
