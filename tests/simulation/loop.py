"""An event loop with virtual time, whose callbacks belong to simulated processes.

Within a process callbacks run in the order that asyncio guarantees; between processes a draw decides. A context
variable names the process of each callback, so the code under test needs no change. A killed process loses its
callbacks, and no ``finally`` block runs; a frozen one keeps them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import socket
import threading
import time
import zlib
from collections import deque
from contextvars import ContextVar, copy_context
from unittest import mock

NODE = ContextVar("node", default=None)
_LONG_SECONDS = 0.5


class EscapeError(BaseException):
    """Simulated code used the real clock, a socket or a thread. No handler of the engine may catch it."""


class DeadlockError(Exception):
    """Nothing can run any more."""


class Arrival(asyncio.TimerHandle):
    """A callback for something that comes from outside the process, as an answer of a broker."""

    __slots__ = ()


class Node:
    """A simulated process. ``at_step`` has what happens after its n-th callback."""

    def __init__(self, name):
        self.name, self.dead, self.frozen, self.steps = name, False, False, 0
        self.ready, self.at_step = deque(), {}
        self.pause_of_step = 0.0  # a starved process waits this long after each callback
        self.wall_offset = 0.0
        self.slept, self.woke_at_step = 0.0, 0  # its last long stop
        self.context = copy_context()
        self.context.run(NODE.set, self)


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, stream):
        super().__init__()
        self._stream = stream
        self.now, self.steps, self.digest = 0.0, 0, 0
        self.world = Node("world")
        self.nodes = [self.world]
        self.trace = None
        self._timers, self._sequence = [], 0
        # If tasks of killed processes were collected, their `finally` blocks would run.
        self._tasks = []
        self.set_task_factory(self._make_task)

    def _make_task(self, loop, coroutine, context=None):
        task = asyncio.Task(coroutine, loop=loop, context=context)
        self._tasks.append(task)
        return task

    # For asyncio.

    def time(self):
        return self.now

    def _call_soon(self, callback, args, context):
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_at(self, when, callback, *args, context=None):
        return self._push(asyncio.TimerHandle(when, callback, args, self, context))

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle):
        pass

    def _write_to_self(self):
        pass

    def run_in_executor(self, *_):
        raise EscapeError("a thread")

    # For the simulation.

    def say(self, words):
        if self.trace is not None:
            self.trace(self.now, words)

    def node(self, name):
        self.nodes.append(Node(name))
        return self.nodes[-1]

    def on(self, node, delay, callback, *args):
        """Run a callback in a process, by default in the world, after a delay."""
        return self._push(Arrival(self.now + delay, callback, args, self, (node or self.world).context))

    def spawn(self, node, coroutine):
        return node.context.run(self.create_task, coroutine)

    def kill(self, node):
        node.dead = True
        node.ready.clear()

    def freeze(self, node, seconds, first="timers"):
        """Stop a process. ``first``: whether due timers or answers run first when it continues."""
        if not (node.dead or node.frozen):
            node.frozen = True
            self.on(None, seconds, self._thaw, node, first, seconds)

    def _thaw(self, node, first, seconds):
        self._take_due()
        if seconds >= _LONG_SECONDS:  # not the short stops of a starved process
            node.slept, node.woke_at_step = seconds, node.steps
        node.frozen = False
        wanted = first == "answers"
        node.ready = deque(sorted(node.ready, key=lambda handle: isinstance(handle, Arrival) != wanted))

    def run(self, until, limit):
        """Run until ``until()`` is true; return False if that lasts longer than the limit of virtual seconds."""
        asyncio._set_running_loop(self)
        try:
            with no_escape():
                while not until():
                    if self.now > limit:
                        return False
                    self._step()
                return True
        finally:
            asyncio._set_running_loop(None)

    def retire(self):
        """Drop everything that still waits."""
        for node in self.nodes:
            self.kill(node)
        self._timers.clear()
        self.close()

    def _push(self, handle):
        handle._scheduled = True
        self._sequence += 1  # handles with the same time have a defined order
        heapq.heappush(self._timers, (handle._when, self._sequence, handle))
        return handle

    def _enqueue(self, handle):
        node = handle._context.get(NODE) or self.world
        if not node.dead:
            node.ready.append(handle)

    def _take_due(self):
        while self._timers and self._timers[0][0] <= self.now:
            handle = heapq.heappop(self._timers)[2]
            if not handle._cancelled:
                self._enqueue(handle)

    def _runnable(self):
        while True:
            self._take_due()
            self.nodes = [node for node in self.nodes if not node.dead]
            if found := [node for node in self.nodes if node.ready and not node.frozen]:
                return found
            if not self._timers:
                raise DeadlockError
            self.now = self._timers[0][0]

    def _step(self):
        runnable = self._runnable()
        node = runnable[0] if len(runnable) == 1 else self._stream.choice(runnable)
        handle = node.ready.popleft()
        if handle._cancelled:
            return
        self.steps += 1
        node.steps += 1
        self.digest = zlib.crc32(b"%s %d %r" % (node.name.encode(), node.steps, self.now), self.digest)
        handle._run()
        if (then := node.at_step.pop(node.steps, None)) is not None:
            self.world.context.run(then)
        if node.pause_of_step:
            self.freeze(node, node.pause_of_step)


@contextlib.contextmanager
def no_escape():
    """Make the use of real clocks, sockets and threads an error."""

    def escape(what):
        def raise_it(*_, **__):
            raise EscapeError(what)

        return raise_it

    with contextlib.ExitStack() as stack:
        for name in ("monotonic", "time", "perf_counter", "sleep"):
            stack.enter_context(mock.patch.object(time, name, escape(f"time.{name}")))
        stack.enter_context(mock.patch.object(socket.socket, "__init__", escape("a socket")))
        stack.enter_context(mock.patch.object(threading.Thread, "start", escape("a thread")))
        yield


class SimClock:
    """The clock of the engine in a simulated process. The cost of a slice is drawn."""

    def __init__(self, loop, stream):
        self._loop, self._stream, self._spent = loop, stream, 0.0

    def monotonic(self):
        return self._loop.now

    def wall(self):
        return 1_800_000_000 + self._loop.now + NODE.get().wall_offset

    def cost(self):
        self._spent += self._stream.fraction() * 0.01
        return self._spent
