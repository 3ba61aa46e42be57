"""The sender: the order of requests, and the next step of a session after every kind of failure."""

import asyncio
import json
import logging

import pytest
from msgspec import structs
from sender_runs import Events, Requests, Route, anthropic, request, sending, until, withdrawal

from reknit.pipeline.client.consumers import Mark
from reknit.pipeline.client.routes import RouteError, TryAgainError
from reknit.pipeline.client.sender import Answer
from reknit.pipeline.errors import BrokerDownError, BrokerError, InputError

WHOLE = b"".join(anthropic())
ENDED = "end of stream"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_an_answer_is_published_unchanged_and_then_committed():
    async with sending(anthropic()) as sent:
        sent.requests.put(request("r1", offset=4))
        assert await sent.events.next_end() == ("s", "r1", ENDED)
        await sent.requests.until_committed(5)
    assert sent.events.pieces == [("r1", piece, 200) for piece in anthropic()]
    assert sent.requests.marks == {0: Mark(5)}


async def test_requests_of_a_session_are_sent_in_sequence_and_those_of_others_concurrently():
    held = asyncio.Event()
    async with sending([held, *anthropic()], default=anthropic()) as sent:
        sent.requests.put(request("a1", "a", offset=0), request("a2", "a", offset=1), request("b1", "b", offset=2))
        assert await sent.events.next_end() == ("b", "b1", ENDED)
        assert sent.route.asked == ["a1", "b1"]
        held.set()
        assert [(await sent.events.next_end())[1] for _ in range(2)] == ["a1", "a2"]


async def test_requests_for_other_targets_and_foreign_records_are_skipped():
    async with sending(default=anthropic()) as sent:
        sent.requests.put(
            request("r1", offset=0, target="gemini"),
            request("r2", "", offset=1),
            request("", offset=2),
            request("r3", offset=3),
        )
        assert await sent.events.next_end() == ("s", "r3", ENDED)
        await sent.requests.until_committed(4)
    assert sent.route.asked == ["r3"]


@pytest.mark.parametrize("marked", [{"reason": "sent"}, {"raw_headers": (("sent", None),)}])
async def test_a_request_that_a_gateway_has_sent_is_skipped(marked):
    async with sending(default=anthropic()) as sent:
        sent.requests.put(request("r1", offset=0, **marked), request("r2", offset=1))
        await sent.requests.until_committed(2)
    assert sent.route.asked == ["r2"]


async def test_a_request_that_was_published_twice_is_sent_once():
    async with sending(default=anthropic()) as sent:
        sent.requests.put(request("r1", offset=0), request("r1", offset=1))
        await sent.requests.until_committed(2)
        sent.requests.put(request("r1", offset=2), request("r2", offset=3))
        await sent.requests.until_committed(4)
    assert sent.route.asked == ["r1", "r2"]


async def test_events_and_the_end_of_their_run_have_the_trace_of_the_request():
    traced = (("traceparent", PARENT.encode()), ("tracestate", b"a=1"), ("other", b"x"))
    async with sending(default=anthropic()) as sent:
        sent.requests.put(request("r1", offset=0, raw_headers=traced), request("r2", offset=1))
        assert [(await sent.events.next_end())[1] for _ in range(2)] == ["r1", "r2"]
    half = len(sent.events.traces) // 2
    assert half == len(anthropic()) + 1
    assert sent.events.traces == half * [{"traceparent": PARENT, "tracestate": "a=1"}] + half * [{}]


# Superseded and withdrawn requests.


async def test_superseded_requests_of_one_batch_are_not_sent():
    async with sending(default=anthropic()) as sent:
        sent.requests.put(
            request("r1", offset=0), request("r2", offset=1, supersedes="r1"), request("r3", offset=2, supersedes="r2")
        )
        assert await sent.events.next_end() == ("s", "r3", ENDED)
        await sent.requests.until_committed(3)
    assert sent.route.asked == ["r3"]


async def test_a_superseded_request_is_aborted_and_the_next_one_is_sent():
    async with sending([anthropic()[0], asyncio.Event()], anthropic()) as sent:
        sent.requests.put(request("r1", offset=0))
        await sent.route.arrived.acquire()
        sent.requests.put(request("r2", offset=1, supersedes="r1"))
        assert [await sent.events.next_end() for _ in range(2)] == [("s", "r1", "superseded"), ("s", "r2", ENDED)]
        await sent.requests.until_committed(2)
    assert sent.route.closed == ["r1", "r2"]


async def test_a_request_that_supersedes_one_whose_end_is_being_written_is_sent():
    async with sending(default=anthropic()) as sent:
        sent.events.may_end.clear()
        sent.requests.put(request("r1", offset=0))
        await sent.events.ending.acquire()
        sent.requests.put(request("r2", offset=1, supersedes="r1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sent.events.may_end.set()
        assert [await sent.events.next_end() for _ in range(2)] == [("s", "r1", ENDED), ("s", "r2", ENDED)]
        await sent.requests.until_committed(2)


async def test_a_request_that_supersedes_one_whose_abort_is_being_written_is_sent():
    async with sending([asyncio.Event()], default=anthropic()) as sent:
        sent.events.may_end.clear()
        sent.requests.put(request("r1", offset=0))
        await sent.route.arrived.acquire()
        sent.requests.put(request("r2", offset=1, supersedes="r1"))
        await sent.events.ending.acquire()
        sent.requests.put(request("r3", offset=2, supersedes="r1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sent.events.may_end.set()
        ends = [await sent.events.next_end() for _ in range(3)]
        await sent.requests.until_committed(3)
    assert ends == [("s", "r1", "superseded"), ("s", "r2", ENDED), ("s", "r3", ENDED)]


async def test_a_withdrawn_request_is_not_sent_and_writes_no_events():
    async with sending(default=anthropic()) as sent:
        sent.requests.put(
            request("r1", offset=0), withdrawal("w1", offset=1, supersedes="r1"), request("other", "t", offset=2)
        )
        assert await sent.events.next_end() == ("t", "other", ENDED)
        await sent.requests.until_committed(3)
    assert sent.route.asked == ["other"]
    assert sent.events.of("r1") == b""


async def test_a_request_withdrawn_while_it_is_sent_is_aborted():
    async with sending([anthropic()[0], asyncio.Event()], default=anthropic()) as sent:
        sent.requests.put(request("r1", offset=0))
        await sent.route.arrived.acquire()
        sent.requests.put(withdrawal("w1", offset=1, supersedes="r1"))
        assert await sent.events.next_end() == ("s", "r1", "answered")
        await sent.requests.until_committed(2)
        sent.requests.put(request("r2", offset=2))
        assert await sent.events.next_end() == ("s", "r2", ENDED)


# After a failure.


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (TryAgainError("HTTP 503"), "HTTP 503"),
        (ConnectionResetError(104, "secret"), "ConnectionResetError[ECONNRESET]"),
        (TimeoutError(), "TimeoutError"),
        (RuntimeError("secret"), "RuntimeError"),
        (ValueError("secret"), "ValueError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_a_failed_request_is_retried_and_then_the_next_one_of_its_session(failure, reason, caplog):
    caplog.set_level(logging.WARNING, "reknit.send")
    async with sending([failure], anthropic(), [failure], [failure], anthropic(), attempts=2) as sent:
        sent.requests.put(request("r1", offset=0), request("r2", offset=1), request("r3", offset=2))
        ends = [await sent.events.next_end() for _ in range(3)]
        await sent.requests.until_committed(3)
    assert ends == [("s", "r1", ENDED), ("s", "r2", reason), ("s", "r3", ENDED)]
    assert sent.route.asked == ["r1", "r1", "r2", "r2", "r3"]
    assert (sent.events.of("r1"), sent.events.of("r2"), sent.events.of("r3")) == (WHOLE, b"", WHOLE)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert all(reason in record.getMessage() for record in caplog.records)
    assert "secret" not in caplog.text


async def test_an_answer_larger_than_a_record_ends_its_request_but_not_its_session():
    fault = InputError("too_large", "a record holds at most 64 MiB")
    async with sending(anthropic(), anthropic(), events=Events()) as sent:
        sent.events.fault = fault
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", "cut: too_large")
        sent.events.fault = None
        sent.requests.put(request("r2", offset=1))
        assert await sent.events.next_end() == ("s", "r2", ENDED)
        await sent.requests.until_committed(2)
    assert sent.route.asked == ["r1", "r2"]


async def test_a_request_whose_body_is_lost_ends_for_that_reason():
    lost = structs.replace(request("r1", offset=0, body=None), lost="object_missing")
    async with sending(anthropic()) as sent:
        sent.requests.put(lost, request("r2", offset=1))
        assert [await sent.events.next_end() for _ in range(2)] == [("s", "r1", "object_missing"), ("s", "r2", ENDED)]
    assert sent.route.asked == ["r2"]


@pytest.mark.parametrize(
    "fault",
    [
        BrokerDownError("broker_unreachable", "no Kafka broker answers"),
        BrokerError("not_authorized", "the brokers refuse"),
        RouteError("not_authenticated", "the provider refuses the credentials"),
    ],
    ids=lambda fault: fault.code,
)
async def test_failures_that_no_retry_fixes_end_the_sender_and_leave_the_request_open(fault):
    async with sending([fault] if isinstance(fault, RouteError) else anthropic()) as sent:
        sent.events.fault = None if isinstance(fault, RouteError) else fault
        sent.requests.put(request("r1", offset=0), request("r2", "t", offset=1))
        with pytest.raises(type(fault)) as caught:
            await asyncio.wait_for(sent.task, 20)
    assert caught.value is fault
    assert sent.events.ended.empty()
    assert sent.requests.marks.get(0, Mark(0)) == Mark(0)


async def test_requests_that_become_unreadable_end_the_sender():
    fault = BrokerError("not_authorized", "the brokers refuse a right")
    async with sending(default=[asyncio.Event()]) as sent:
        sent.requests.put(request("r1", offset=0))
        await sent.route.arrived.acquire()
        sent.requests.fail(fault)
        with pytest.raises(BrokerError) as caught:
            await asyncio.wait_for(sent.task, 20)
    assert caught.value is fault
    assert sent.route.closed == ["r1"]


async def test_a_body_in_a_store_that_is_not_configured_ends_the_sender():
    async with sending() as sent:
        sent.requests.put(structs.replace(request("r1", offset=0, body=None), lost="no_object_store"))
        with pytest.raises(RouteError, match=r"set objects\.url"):
            await asyncio.wait_for(sent.task, 20)


@pytest.mark.parametrize(
    ("asked", "longest", "waited"), [(300.0, 3600.0, 300.0), (0.25, 3600.0, 0.25), (90_000.0, 3600.0, 3600.0)]
)
async def test_the_sender_waits_as_long_as_the_provider_requests_up_to_the_limit(asked, longest, waited):
    async with sending([TryAgainError("HTTP 429", asked)], anthropic(), longest_wait=longest) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", ENDED)
    assert sent.waits == [waited]


async def test_pauses_grow_without_a_retry_after():
    async with sending(default=[TryAgainError("HTTP 500")]) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", "HTTP 500")
    assert len(sent.waits) == 5
    for number, waited in enumerate(sent.waits):
        assert 0.25 * 2**number <= waited <= 0.5 * 2**number


async def test_the_last_transient_refusal_is_published_whole_with_its_status():
    refusal = Answer(b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', 529)
    async with sending(default=[TryAgainError("HTTP 529", 1.0, refusal)], attempts=3) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", "HTTP 529")
    assert sent.events.pieces == [("r1", refusal.data, 529)]
    assert sent.route.asked == ["r1", "r1", "r1"]


async def test_a_permanent_refusal_is_published_whole_and_sent_once():
    refusal = Answer(b'{"error":{"message":"no"}}', 400)
    async with sending([refusal], anthropic()) as sent:
        sent.requests.put(request("r1", offset=0), request("r2", offset=1))
        assert [await sent.events.next_end() for _ in range(2)] == [("s", "r1", "HTTP 400"), ("s", "r2", ENDED)]
    assert sent.events.pieces[0] == ("r1", refusal.data, 400)
    assert sent.route.asked == ["r1", "r2"]


# Answers without their final event.


async def test_a_cut_answer_without_published_events_is_retried():
    first = anthropic()[0]
    async with sending([first[:-20]], [], [b": keep-alive\n\n"], anthropic()) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", ENDED)
    assert sent.route.asked == ["r1"] * 4
    assert sent.events.of("r1") == WHOLE


@pytest.mark.parametrize("count", range(1, 6))
async def test_a_cut_answer_with_published_events_ends_as_cut(count):
    async with sending(anthropic()[:count], anthropic()) as sent:
        sent.requests.put(request("r1", offset=0), request("r2", offset=1))
        ends = [await sent.events.next_end() for _ in range(2)]
    assert ends == [("s", "r1", "cut: no final event"), ("s", "r2", ENDED)]
    assert sent.events.of("r1") == b"".join(anthropic()[:count])
    assert sent.route.asked == ["r1", "r2"]


async def test_a_broken_connection_after_the_final_event_changes_nothing():
    async with sending([*anthropic(), TryAgainError("ClientPayloadError")]) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", ENDED)
    assert sent.events.of("r1") == WHOLE
    assert sent.route.asked == ["r1"]


async def test_a_broken_connection_before_the_final_event_ends_the_answer_with_all_received_bytes():
    pieces = [*anthropic()[:2], anthropic()[2][:20]]
    async with sending([*pieces, TryAgainError("ClientPayloadError")]) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", "cut: ClientPayloadError")
    assert sent.events.of("r1") == b"".join(pieces)


def error_event(code):
    error = {"type": "error", "error": {"type": code, "message": "words"}}
    return b"event: error\ndata: %b\n\n" % json.dumps(error).encode()


async def test_a_transient_error_at_the_start_is_not_published_and_the_request_is_retried():
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    async with sending([ping, error_event("overloaded_error")], anthropic()) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", ENDED)
    assert sent.events.of("r1") == WHOLE


async def test_a_permanent_error_at_the_start_is_published_and_sent_once():
    async with sending([error_event("invalid_request_error")]) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", "error invalid_request_error")
    assert sent.events.of("r1") == error_event("invalid_request_error")
    assert sent.route.asked == ["r1"]


@pytest.mark.parametrize("count", [0, 3])
async def test_a_refusal_inside_a_stream_is_reported_with_the_status_of_a_refusal(count):
    begun = anthropic()[:count]
    async with sending([*begun, error_event("invalid_request_error")]) as sent:
        sent.requests.put(request("r1", offset=0))
        await sent.events.next_end()
    *before, last = sent.events.pieces
    assert before == [("r1", piece, 200) for piece in begun]
    assert last == ("r1", error_event("invalid_request_error"), 400)
    assert sent.route.asked == ["r1"]


async def test_an_error_in_the_middle_ends_the_answer_as_cut():
    async with sending([*anthropic()[:3], error_event("overloaded_error")]) as sent:
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", "cut: error overloaded_error")


async def test_a_connection_left_open_after_the_final_event_delays_nothing(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.client.sender._AFTER_END_SECONDS", 0.01)
    async with sending([*anthropic(), asyncio.Event()], anthropic()) as sent:
        sent.requests.put(request("r1", offset=0), request("r2", offset=1))
        assert [await sent.events.next_end() for _ in range(2)] == [("s", "r1", ENDED), ("s", "r2", ENDED)]
    assert sent.events.of("r1") == WHOLE


async def test_the_final_event_is_published_with_the_end_of_its_run():
    class Watched(Events):
        async def feed(self, *given, **more):
            await super().feed(*given, **more)
            done.append("event")
            asyncio.get_running_loop().call_soon(done.append, "others")

        async def end_run(self, *given, **more):
            done.append("end")
            await super().end_run(*given, **more)

    done: list[str] = []
    held = asyncio.Event()
    async with sending([*anthropic(), held], events=Watched()) as sent:
        sent.requests.put(request("r1", offset=0))
        await until(lambda: done.count("event") == 5)
        held.set()
        await sent.events.next_end()
    assert done[-4:-1] == ["others", "event", "end"]


async def test_an_answer_that_continues_after_a_final_event_is_published_as_received():
    more = anthropic(message_id="m2")
    async with sending([*anthropic(), *more[:2], asyncio.Event()]) as sent:
        sent.requests.put(request("r1", offset=0))
        await until(lambda: sent.events.of("r1") == WHOLE + b"".join(more[:2]))
    assert sent.events.ended.empty()


# Several senders of one group.


async def test_an_answer_continues_if_its_partition_stays_and_is_dropped_if_it_moves():
    held = asyncio.Event()
    stays = [*anthropic()[:1], held, *anthropic()[1:]]
    async with sending(stays, [*anthropic()[:1], asyncio.Event()], assigned=(0, 1)) as sent:
        stay, move = request("r1", "a", offset=0), request("r2", "b", offset=0, partition=1)
        sent.requests.put(stay, move)
        await sent.route.arrived.acquire()
        await sent.route.arrived.acquire()
        # The kept partition is read again from its committed offset.
        await sent.requests.assign(0, lost={1}, records=[stay])
        held.set()
        assert await sent.events.next_end() == ("a", "r1", ENDED)
        await sent.requests.until_committed(1)
        assert sent.events.ended.empty()
    assert sent.route.asked == ["r1", "r2"]
    assert sorted(sent.route.closed) == ["r1", "r2"]
    assert (sent.events.of("r1"), sent.events.of("r2")) == (WHOLE, anthropic()[0])
    assert sent.requests.marks[1] == Mark(0)


async def test_a_returning_partition_continues_from_its_committed_offset():
    async with sending([asyncio.Event()], default=anthropic()) as sent:
        first, second = request("r1", "a", offset=0), request("r2", "b", offset=1)
        sent.requests.put(first, second)
        assert await sent.events.next_end() == ("b", "r2", ENDED)
        await until(lambda: sent.requests.marks.get(0, Mark(0)).text)
        await sent.requests.assign(0, lost={0}, records=[first, second])
        assert await sent.events.next_end() == ("a", "r1", ENDED)
        await sent.requests.until_committed(2)
    assert sent.route.asked == ["r1", "r2", "r1"]


async def test_nothing_is_published_during_a_rebalance():
    held = asyncio.Event()
    async with sending([anthropic()[0], held, *anthropic()[1:]]) as sent:
        sent.requests.put(request("r1", offset=0))
        await until(lambda: sent.events.pieces)
        await sent.sender._stop_publishing()
        held.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert sent.events.of("r1") == anthropic()[0]
        await sent.requests.assign(0)
        assert await sent.events.next_end() == ("s", "r1", ENDED)
    assert sent.events.of("r1") == WHOLE


async def test_a_commit_stopped_by_a_rebalance_is_made_after_it():
    async with sending(default=anthropic()) as sent:
        sent.requests.in_group = False
        sent.requests.put(request("r1", offset=0))
        assert await sent.events.next_end() == ("s", "r1", ENDED)
        sent.requests.in_group = True
        await sent.requests.assign(0)
        await sent.requests.until_committed(1)
    assert sent.requests.marks == {0: Mark(1)}


async def test_the_next_sender_sends_only_the_remaining_requests():
    requests = Requests()
    published = [request("r1", "a", offset=0), *(request(f"r{at + 1}", f"s{at}", offset=at) for at in range(1, 5))]
    async with sending([asyncio.Event()], default=anthropic(), requests=requests) as sent:
        requests.put(*published)
        for _ in range(4):
            await sent.events.next_end()
        await until(lambda: requests.marks.get(0, Mark(0)).text)
    assert requests.marks[0].offset == 0
    route = Route(default=anthropic())
    async with sending(requests=requests, route=route) as following:
        requests.put(*published, request("r6", "z", offset=5))
        await requests.until_committed(6)
        assert {(await following.events.next_end())[1] for _ in range(2)} == {"r1", "r6"}
    assert sorted(route.asked) == ["r1", "r6"]


async def test_a_stop_aborts_requests_in_flight_and_writes_no_end_for_them():
    async with sending([anthropic()[0], asyncio.Event()]) as sent:
        sent.requests.put(request("r1", offset=0))
        await sent.route.arrived.acquire()
    assert sent.events.ended.empty()
    assert sent.route.closed == ["r1"]
    assert sent.requests.marks == {0: Mark(0)}
