"""One schedule: a cluster, two workers, the input and the faults of a plan."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import warnings
from collections import Counter

from msgspec import Struct
from simulation.counting import SOURCE
from simulation.disks import Machine
from simulation.jobs import job_of
from simulation.logs import MARKER, Piece
from simulation.loop import DeadlockError, SimLoop
from simulation.network import Network
from simulation.oracle import Oracle
from simulation.plans import PARTITIONS, WORKERS
from simulation.tape import Tape
from simulation.transactions import Cluster
from simulation.violations import ViolationError
from simulation.worker import PREFIX, SimWorker

from reknit.pipeline.engine.runtime import TopicChangedError

LIMIT_SECONDS = 240.0
_BETWEEN_STARTS = 0.3
_LOOK_EVERY = 50  # callbacks
_STARVED_SECONDS = 3.0
# From the deletion of a topic to the first record of the next one of that name.
_CREATION_SECONDS = 0.5


class World:
    def __init__(self, plan, trace=None):
        self.plan, self.tape, self.happened = plan, Tape(plan.seed, plan.cuts), Counter()
        self.loop = SimLoop(self.tape.stream("schedule"))
        self.loop.trace = trace
        self.loop.world.number = None
        settings = plan.settings
        self.cluster = Cluster(self.loop, self.tape.stream("brokers"), settings.marker_seconds)
        self.job = job_of(settings)
        sources = [PREFIX + source for source in self.job.states]
        self.cluster.group.places = [(source, number) for number in range(PARTITIONS) for source in sources]
        faults = {(f.request, int(f.at)): (f.kind, f.seconds) for f in plan.faults if f.request}
        self.network = Network(self.loop, self.tape.stream("network"), faults, settings.latency_seconds)
        is_compacted = any(fault.kind == "compact" for fault in plan.faults)
        self.oracle = Oracle(self.cluster, self.job, exactly_once=settings.exactly_once, is_compacted=is_compacted)
        self.machines = [Machine(self.happened) for _ in range(WORKERS)]
        self._nodes, self._lives, self._is_fed, self._clocks = [None] * WORKERS, [0] * WORKERS, False, [0.0] * WORKERS
        self._refused = set()  # workers that ended since a topic was re-created
        self._feed_after = 0.0

    def run(self):
        """Run the schedule.

        Raises:
            ViolationError: a rule of ``oracle`` does not hold.
        """
        self.loop.spawn(self.loop.world, self._feed())
        for number in range(WORKERS):
            self.loop.on(None, number * _BETWEEN_STARTS, self._start, number)
        for fault in self.plan.faults:
            if fault.kind in TIMED:
                self.loop.on(None, fault.at, TIMED[fault.kind], self, fault)
        try:
            is_drained = self.loop.run(self._is_done, LIMIT_SECONDS)
        except DeadlockError:
            is_drained = False
        finally:
            self.loop.retire()
        # Without a fence, two owners may have written to these partitions.
        exempt = set() if self.plan.settings.exactly_once else self.network.unfenced
        if (violation := self.oracle.violation) is not None:
            if violation.number in exempt:
                return  # the schedule ended there
            raise violation
        if not is_drained and (not exempt or self.oracle.behind() - exempt):
            words = f"not drained after {self.loop.now:.0f} s: positions {self.oracle.positions()}, "
            words += f"offsets of the group {self.oracle.offsets()}"
            raise ViolationError("progress", words)
        self.oracle.check(self.network.happened, exempt)

    def _is_done(self):
        if self.oracle.violation is not None:
            return True
        if len(self._refused) == WORKERS:
            return not self.oracle.is_open()
        return self._is_fed and not self.loop.steps % _LOOK_EVERY and self.oracle.is_drained()

    async def _feed(self):
        for row in self.plan.rows:
            await asyncio.sleep(row.pause)
            await asyncio.sleep(max(0.0, self._feed_after - self.loop.now))
            log, piece = self.cluster.log(PREFIX + row.topic, row.partition), None
            if row.aborted:
                piece = Piece(-1, log.end)
                piece.status = "aborted"
            headers = tuple((name, value.encode()) for name, value in row.headers)
            log.append((row.key.encode(), row.value.encode() or None, headers), piece, self.loop.now)
            if row.aborted:
                log.append(MARKER, piece, self.loop.now, marker=True)
            log.changed()
        self._is_fed = True

    # Workers.

    def _start(self, number):
        if self._nodes[number] is not None:
            return
        self._lives[number] += 1
        node = self.loop.node(f"w{number}.{self._lives[number]}")
        node.number, node.wall_offset, self._nodes[number] = number, self._clocks[number], node
        if self._lives[number] == 1:
            for fault in self.plan.faults:
                if fault.worker == number and fault.kind in STEPPED:
                    node.at_step[int(fault.at)] = lambda fault=fault: STEPPED[fault.kind](self, fault)
        self.loop.spawn(node, self._live(number))

    async def _live(self, number):
        formats = self.plan.settings.formats
        worker = SimWorker(self, formats[(number + self._lives[number]) % len(formats)])
        failure = await worker.live(self.machines[number])
        self.happened["ended", getattr(failure, "code", "")] += 1
        self.loop.say(f"{self._nodes[number].name}  ends: {failure}")
        if isinstance(failure, TopicChangedError):
            self._refused.add(number)
        self.loop.on(None, 0.0, self._end, number, 1.0)

    def _end(self, number, seconds):
        self.loop.kill(self._nodes[number])
        self._nodes[number] = None
        if number not in self._refused:
            self.loop.on(None, seconds, self._start, number)

    # Faults.

    def _kill(self, fault):
        if (node := self._nodes[fault.worker]) is not None:
            self._note(fault, node)
            self.machines[fault.worker].crash(fault.count)
            self._end(fault.worker, fault.seconds)

    def _freeze(self, fault):
        if (node := self._nodes[fault.worker]) is not None:
            self._note(fault, node)
            self.loop.freeze(node, fault.seconds, fault.first)

    def _starve(self, fault):
        if (node := self._nodes[fault.worker]) is not None:
            self._note(fault, node)
            node.pause_of_step = fault.seconds
            self.loop.on(None, _STARVED_SECONDS, setattr, node, "pause_of_step", 0.0)

    def _rebalance(self, fault):
        self._note(fault)
        self.cluster.group.rebalance()

    def _outage(self, fault):
        self._note(fault)
        self.network.cut_off(fault.worker, fault.seconds)

    def _deaf(self, fault):
        self._note(fault)
        self.network.drop_answers(fault.worker, fault.seconds)

    def _compact(self, fault):
        self._note(fault)
        for state in self.job.states.values():
            for number in range(PARTITIONS):
                self.cluster.log(PREFIX + state, number).compact()

    def _recreate(self, fault):
        self._note(fault)
        source = PREFIX + SOURCE
        self.job.note_recreated(self.cluster.recreate(source), self.cluster.topic_id(source))
        self._feed_after = self.loop.now + _CREATION_SECONDS

    def _expire(self, fault):
        self._note(fault)
        for number in range(PARTITIONS):
            log = self.cluster.log(PREFIX + SOURCE, number)
            before = log.entries
            log.expire(fault.count)
            self.job.note_removed(number, [entry for entry in before if entry.offset < log.start])
            log.changed()

    def _flip_bits(self, fault):
        self._note(fault)
        for directory in self.machines[fault.worker].directories.values():
            directory.damaged = True

    def _fill_disk(self, fault):
        for directory in self.machines[fault.worker].directories.values():
            self._note(fault)
            directory.full = True
            self.loop.on(None, fault.seconds, directory.make_room)

    def _jump(self, fault):
        self._note(fault)
        self._clocks[fault.worker] = fault.seconds
        if (node := self._nodes[fault.worker]) is not None:
            node.wall_offset = fault.seconds

    def _reset_offset(self, fault):
        self._note(fault)
        for place in self.cluster.group.places:
            self.cluster.group.offsets[place] = (fault.count, "")

    def _note(self, fault, node=None):
        self.happened[fault.kind] += 1
        where = f"{node.name}  " if node else "" if fault.worker is None else f"w{fault.worker}  "
        self.loop.say(f"{where}{fault.kind}" + (f" for {fault.seconds} s" if fault.seconds else ""))


STEPPED = {"kill": World._kill, "freeze": World._freeze}
TIMED = {
    "starve": World._starve,
    "rebalance": World._rebalance,
    "outage": World._outage,
    "deaf": World._deaf,
    "compact": World._compact,
    "recreate": World._recreate,
    "expire": World._expire,
    "flip bits": World._flip_bits,
    "full disk": World._fill_disk,
    "clock jump": World._jump,
    "reset offset": World._reset_offset,
}


class Finished(Struct, frozen=True):
    """The facts of a schedule that ended. ``drawn`` has the number of draws by stream."""

    happened: Counter
    drawn: dict
    logs: dict
    digest: int
    steps: int


def run(plan, trace=None):
    """Run a plan; return its facts and the violation, None if all rules hold."""
    with _quiet():
        finished, violation = _run(plan, trace)
        gc.collect()  # coroutines of killed processes are dropped here, where no hook reports it
        gc.collect()  # and here what their ends referred to: without it a long run kept 0.2 MB of each schedule
    return finished, violation


def _run(plan, trace):
    world, violation = World(plan, trace), None
    world.loop.set_exception_handler(lambda *_: None)
    try:
        world.run()
    except ViolationError as found:
        violation = found.with_traceback(None)
    drawn = {name: stream.drawn for name, stream in world.tape.streams.items()}
    for log in world.cluster.logs.values():
        log.waiting.clear()
    happened = world.happened + world.network.happened + world.job.happened
    return Finished(happened, drawn, world.cluster.logs, world.loop.digest, world.loop.steps), violation


@contextlib.contextmanager
def _quiet():
    """No log, no collection during the schedule, and no report of coroutines that were dropped with their process."""
    level, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()  # so that a collection after each schedule is short
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = hook
        gc.unfreeze()
        gc.enable()
        logging.disable(level)
