"""Requests between a simulated process and the brokers: delays, losses, late arrivals, and outages.

A fault names its request by kind and number, for example the third EndTxn, so that it keeps its target if other
requests disappear from a shrunk schedule.
"""

from __future__ import annotations

from collections import Counter

from aiokafka.errors import KafkaConnectionError, KafkaError, RequestTimedOutError
from simulation.loop import NODE

REQUEST_SECONDS = 8.0
SESSION_SECONDS = 3.0
# Callbacks between the check of a lease and the request that it allows, of all partitions. If the process was stopped
# between the two, all answers that came meanwhile are handled first: 21 callbacks were seen, and 242 to the next send.
_STEPS_OF_A_SEND = 40
# The client notices a broken connection after this time.
BREAK_SECONDS = 0.05
QUIET = frozenset({"Heartbeat", "Fetch", "ListOffsets"})


class Network:
    """``faults``: by kind and number of a request, its fault and seconds."""

    def __init__(self, loop, stream, faults, seconds):
        self.loop, self._stream, self._faults, self._seconds = loop, stream, faults, seconds
        self._count, self.happened = Counter(), Counter()
        self.unfenced = set()  # partitions to which a process sent just after a stop
        self._down_until = {}  # by number of a worker; None: for all
        self._deaf_until = {}  # requests arrive, answers do not

    def cut_off(self, worker, seconds):
        self._down_until[worker] = self.loop.now + seconds

    def drop_answers(self, worker, seconds):
        self._deaf_until[worker] = self.loop.now + seconds

    def latency(self):
        return 0.0002 + self._stream.fraction() ** 4 * self._seconds

    def _within(self, windows, node):
        return any(self.loop.now < windows.get(worker, -1.0) for worker in (None, node.number))

    async def call(self, connection, kind, work, *args):
        """Send a request on a connection, a dict, and return its answer. Order holds within one connection."""
        self._count[kind] += 1
        fault, seconds = self._faults.get((kind, self._count[kind]), (None, 0.0))
        request = Request(self, NODE.get(), kind, work, args)
        if kind == "Produce" and just_woke(request.node):
            self.happened["sent just after a stop"] += 1
            (_, number), *_ = args
            self.unfenced.add(number)
        if fault is not None:
            self.happened[fault] += 1
            self.loop.say(f"{request.node.name}  {kind}: {fault}")
        if fault == "request lost":
            request.fail_after(REQUEST_SECONDS, RequestTimedOutError())
        elif fault in {"late", "cut"}:  # the client gives up, or the connection breaks; the request arrives after that
            connection.clear()
            notice, error = (REQUEST_SECONDS, RequestTimedOutError()) if fault == "late" else (BREAK_SECONDS, None)
            self.loop.on(None, notice + seconds, request.arrive)
            request.fail_after(notice, error or KafkaConnectionError())
        else:
            # The next request of the connection arrives after this one.
            at = connection["last"] = max(self.loop.now + self.latency(), connection.get("last", 0.0) + 1e-6)
            self.loop.on(None, at - self.loop.now, request.arrive, fault)
        return await request.answer


class Request:
    def __init__(self, network, node, kind, work, args):
        self._network, self.node, self._kind, self._work, self._args = network, node, kind, work, args
        self._back = network.latency()
        self.answer = network.loop.create_future()

    def fail_after(self, seconds, error):
        self._network.loop.on(self.node, seconds, self._settle, None, error)

    def _settle(self, result, error):
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)

    def arrive(self, fault=None):
        network = self._network
        if network._within(network._down_until, self.node):
            self.fail_after(self._back, KafkaConnectionError())
            return
        result = error = None
        try:
            result = self._work(*self._args)
        except KafkaError as raised:
            error = raised
        if self._kind not in QUIET:
            network.loop.say(f"{self.node.name}  {self._kind} {brief(self._args)} -> {outcome(result, error)}")
        if fault == "answer lost" or network._within(network._deaf_until, self.node):
            self.fail_after(REQUEST_SECONDS, RequestTimedOutError())
        else:
            network.loop.on(self.node, self._back, self._settle, result, error)


def just_woke(node):
    """True if the process was stopped for longer than a session between its last check of the lease and a send.

    Only a fence can reject such a request, and at-least-once delivery has none.
    """
    return node.slept >= SESSION_SECONDS and node.steps - node.woke_at_step <= _STEPS_OF_A_SEND


def outcome(result, error):
    return ("ok" if result is None else str(result)) if error is None else type(error).__name__


def brief(args):
    """Describe arguments in one line; rows of a batch by key and value."""
    return " ".join(rows_of(arg) if isinstance(arg, list) else str(arg) for arg in args if not callable(arg))[:160]


def rows_of(rows):
    return "[" + ", ".join(f"{row[0]!r}={row[1] and row[1][:12]!r}" for row in rows) + "]"
