"""Producers and transactions as brokers handle them, with transaction version 1 (KIP-98, and part 1 of KIP-890).

Each method of ``Cluster`` is one request, executed in one step when it arrives. Markers and timeouts come later, as
timers of the world.
"""

from __future__ import annotations

from collections import Counter

from aiokafka.errors import ConcurrentTransactions, InvalidProducerEpoch, InvalidTxnState, OffsetOutOfRangeError
from simulation.groups import Group
from simulation.logs import MARKER, Log, Piece


class Transaction:
    """The coordinator's entry of a transactional id."""

    def __init__(self, pid, timeout):
        self.pid, self.timeout, self.epoch, self.state = pid, timeout, -1, "empty"
        self.places, self.number, self.commits = [], 0, None


class Cluster:
    def __init__(self, loop, stream, marker_seconds):
        self.loop, self._stream, self._marker_seconds = loop, stream, marker_seconds
        self.logs, self.transactions, self._pids = {}, {}, 0
        self.creations = Counter()  # by topic, the number of times that it was created again
        self.group = Group(loop, stream)
        self.on_commit = lambda pieces: None  # called with the pieces of a transaction when its commit is decided

    def log(self, topic, partition):
        return self.logs.setdefault((topic, partition), Log())

    def init_producer(self, tid, timeout):
        if tid is None:
            self._pids += 1
            return self._pids, 0
        if tid not in self.transactions:
            self._pids += 1
            self.transactions[tid] = Transaction(self._pids, timeout)
        found = self.transactions[tid]
        if found.state == "ongoing":
            found.epoch += 1  # fences the former owner at once
            self._end(found, commit=False)
        if found.state == "ending":
            raise ConcurrentTransactions
        found.epoch += 1
        found.timeout, found.state, found.places = timeout, "empty", []
        return found.pid, found.epoch

    def _check(self, tid, pid, epoch):
        found = self.transactions[tid]
        if found.pid != pid or found.epoch != epoch:
            raise InvalidProducerEpoch
        return found

    def add_partition(self, tid, pid, epoch, place):
        found = self._check(tid, pid, epoch)
        if found.state == "ending":
            raise ConcurrentTransactions
        if found.state != "ongoing":
            found.state, found.places = "ongoing", []
            found.number += 1
            self.loop.on(None, found.timeout, self._time_out, found, found.number)
        if place not in found.places:
            found.places.append(place)

    def _time_out(self, found, number):
        if found.number == number and found.state == "ongoing":
            found.epoch += 1
            self._end(found, commit=False)

    def produce(self, place, tid, pid, epoch, sequence, rows):  # noqa: PLR0917  the fields of the request
        log = self.log(*place)
        if epoch < log.epochs.get(pid, 0):
            raise InvalidProducerEpoch
        last = log.sequences.get((pid, epoch))
        if last is not None and sequence <= last[0]:
            return last[1]  # the same batch again
        piece = None if tid is None else self._piece(log, place, tid, pid, epoch)
        log.epochs[pid] = epoch
        base = log.end
        for row in rows:
            log.append(row, piece, self.loop.now)
        log.sequences[pid, epoch] = (sequence, base)
        if piece is None:
            log.changed()
        return base

    def _piece(self, log, place, tid, pid, epoch):
        """Return the open part of the transaction. For a new one the leader asks the coordinator (KIP-890, part 1)."""
        if pid in log.open and log.epochs.get(pid) == epoch:
            return log.open[pid]  # also after EndTxn, until the marker is written
        found = self.transactions[tid]
        if found.epoch != epoch:
            raise InvalidProducerEpoch
        if found.state != "ongoing" or place not in found.places:
            raise InvalidTxnState
        return log.open.setdefault(pid, Piece(pid, log.end))

    def end_transaction(self, tid, pid, epoch, commit):
        found = self._check(tid, pid, epoch)
        if found.state == "ongoing":
            self._end(found, commit=commit)
        elif found.state == "empty" or found.commits != commit:
            raise InvalidTxnState
        elif found.state == "ending":
            raise ConcurrentTransactions

    def _end(self, found, *, commit):
        found.state, found.commits = "ending" if found.places else "complete", commit
        if commit:
            self.on_commit({place: self.log(*place).open.get(found.pid) for place in found.places})
        left = set(found.places)
        for place in found.places:
            delay = self._stream.fraction() ** 3 * self._marker_seconds
            self.loop.on(None, delay, self._mark, found, place, left, commit)

    def _mark(self, found, place, left, commit):
        log = self.log(*place)
        if (piece := log.open.pop(found.pid, None)) is not None:
            piece.status = "committed" if commit else "aborted"
        log.epochs[found.pid] = max(log.epochs.get(found.pid, 0), found.epoch)
        log.append(MARKER, piece, self.loop.now, marker=True)
        left.discard(place)
        if not left:
            found.state = "complete"
        log.changed()

    # Topics.

    def topic_id(self, topic):
        return b"%-8d" % (self.creations[topic] + 1) + topic.encode().ljust(8)[:8]

    def topics(self, names):
        """Return topics as a metadata request does."""
        return [{"topic": name, "error_code": 0, "topic_id": self.topic_id(name)} for name in names]

    def recreate(self, topic):
        """Delete a topic and create it again; return the former logs by partition."""
        former = {number: self.logs.pop((name, number)) for name, number in list(self.logs) if name == topic}
        self.creations[topic] += 1
        for log in former.values():
            log.changed()
        return former

    # For consumers.

    def bounds(self, place, committed):
        log = self.log(*place)
        return log.start, log.lso if committed else log.end

    def fetch(self, positions, committed, most):
        found = {}
        for place, position in positions.items():
            log = self.log(*place)
            if not log.start <= position <= log.end:
                raise OffsetOutOfRangeError({place: position})
            records, end, limit = log.read(position, committed=committed, most=most)
            if end != position:
                found[place] = (position, end, records, limit)
        return found
