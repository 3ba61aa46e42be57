"""Outages of a single broker with work in flight: how soon a worker is ready after them, and how workers end in them.

    python tests/chaos/outage.py [--runs 20] [--kinds kill freeze] [--away 45 63] [--stopped 2]

In each run a broker is away while workers of several pipelines process a backlog. One worker must be ready soon after
the broker's return, and its outputs are audited. The others get SIGTERM at some moment, from the beginning of the
outage to a while after its end, and must end in order. The distributions are written to standard output; the exit
status is 1 if a run took longer, a worker did not end in order, or an audit failed.

Kinds of outages: ``kill`` and ``stop`` end the process, so connections are refused; ``freeze`` stops it, so it does not
answer; ``drop`` loses the packets that it sends, as a network does. That needs the right to make a network namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "broker"), str(_TESTS.parent)]

import harness  # noqa: E402  beside these, on the path now
import pipeline_lab as lab  # noqa: E402  as above
from chaos.cluster import kafka_broker  # noqa: E402  as above
from msgspec import Struct  # noqa: E402  as above

READY_SECONDS = 20.0
KINDS = ("kill", "stop", "freeze", "drop")
# Enough that each partition has a batch in flight, and more after it, when the broker goes away.
_BACKLOG = 5_000
# SIGTERM also comes this long after the broker's return.
_AFTERWARDS = 10.0
_GIVEN_UP = "did not stop in time"


class Network:
    """A broker's own network, whose packets to this one can be lost."""

    NAME, HERE, THERE = "reknit-outage", "10.213.77.1", "10.213.77.2"

    def __enter__(self) -> Self:
        there = ("ip", "netns", "exec", self.NAME)
        for command in (
            ("ip", "netns", "add", self.NAME),
            ("ip", "link", "add", "reknit0", "type", "veth", "peer", "name", "reknit1", "netns", self.NAME),
            ("ip", "addr", "add", f"{self.HERE}/24", "dev", "reknit0"),
            ("ip", "link", "set", "reknit0", "up"),
            (*there, "ip", "addr", "add", f"{self.THERE}/24", "dev", "reknit1"),
            (*there, "ip", "link", "set", "reknit1", "up"),
            (*there, "ip", "link", "set", "lo", "up"),
        ):
            subprocess.run(command, check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "link", "del", "reknit0"], check=False)
        subprocess.run(["ip", "netns", "del", self.NAME], check=False)

    def lose(self, *, packets: bool) -> None:
        how = "add" if packets else "del"
        route = ["ip", "netns", "exec", self.NAME, "ip", "route", how, "blackhole", f"{self.HERE}/32"]
        subprocess.run(route, check=True)


class _BrokerElsewhere(kafka_broker.Broker):
    """A broker in a network of its own."""

    @property
    def bootstrap(self) -> str:
        return f"{Network.THERE}:{self.port}"

    def _java(self, *options: str) -> list[str]:
        return ["ip", "netns", "exec", Network.NAME, *super()._java(*options)]

    def start(self) -> None:
        listens = f"PLAINTEXT://{self.bootstrap}"
        self.settings["listeners"] = f"{listens},CONTROLLER://127.0.0.1:{self.controller_port}"
        self.settings["advertised.listeners"] = listens
        super().start()

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + kafka_broker.START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((Network.THERE, self.port), 1.0):
                return
            time.sleep(0.05)
        raise kafka_broker.BrokerError("the broker does not listen")


class Ended(Struct, frozen=True):
    """How a worker ended after SIGTERM. ``at`` is when that came, in seconds after the broker's return."""

    at: float
    seconds: float
    status: int | None
    is_given_up: bool

    @property
    def is_in_order(self) -> bool:
        return self.status == 0 and not self.is_given_up


class Run(Struct, frozen=True):
    kind: str
    away: float
    ready: float | None
    sessions: int
    ends: Sequence[Ended]

    @property
    def is_good(self) -> bool:
        return self.ready is not None and self.ready <= READY_SECONDS and all(end.is_in_order for end in self.ends)

    def line(self) -> str:
        ends = ", ".join(f"{end.at:+.0f}: {end.status} in {end.seconds:.1f} s" for end in self.ends)
        ready = "not ready" if self.ready is None else f"ready in {self.ready:.1f} s"
        return f"{self.kind}, {self.away:.0f} s: {ready}, {self.sessions} sessions audited; SIGTERM at {ends or '-'}"


async def take_away(kind: str, server: kafka_broker.Broker, network: Network | None) -> None:
    if kind == "freeze":
        os.kill(server.pid or 0, signal.SIGSTOP)
    elif kind == "drop":
        assert network is not None
        network.lose(packets=True)
    else:
        await asyncio.to_thread(getattr(server, kind))


async def bring_back(kind: str, server: kafka_broker.Broker, network: Network | None) -> None:
    if kind == "freeze":
        os.kill(server.pid or 0, signal.SIGCONT)
    elif kind == "drop":
        assert network is not None
        network.lose(packets=False)
    else:
        await asyncio.to_thread(server.start)


async def start(server: kafka_broker.Broker, prefix: str, directory: Path) -> harness.Fleet:
    """A pipeline with a backlog, and its worker as it begins to work."""
    await lab.make_topics(server.bootstrap, prefix)
    rows = itertools.islice(lab.script(1_000), _BACKLOG)
    async with lab.Feeder(server.bootstrap, prefix, 1_000_000, rows) as feeder:
        await feeder.wait()
    fleet = lab.make_fleet(server.bootstrap, prefix, directory, kafka_broker.free_port)
    await fleet.start().ready(90)
    return fleet


async def end(worker: harness.WorkerProcess, at: float, back: asyncio.Future[float], now: float) -> Ended:
    """Send SIGTERM at a moment, and see how the worker ends."""
    await asyncio.sleep(at - now)
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    with contextlib.suppress(AssertionError):
        await worker.wait(60)
    seconds = time.monotonic() - began
    return Ended(began - await back, seconds, worker.status, _GIVEN_UP in worker.tail(1 << 20))


async def seconds_until_ready(worker: harness.WorkerProcess, began: float) -> float | None:
    try:
        await worker.ready(120)
    except AssertionError:
        return None
    return time.monotonic() - began


async def run(kind: str, away: float, stopped: int, directory: Path, network: Network | None) -> Run:
    """One outage."""
    make = kafka_broker.Broker if network is None else _BrokerElsewhere
    server = make(directory / "kafka", broker_session_timeout_ms="3000")
    back: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    with contextlib.ExitStack() as made:
        made.callback(server.kill)
        await asyncio.to_thread(server.start)
        fleets = []
        for number in range(1 + stopped):
            fleets.append(await start(server, f"p{number}.", directory / f"pipeline-{number}"))
            made.callback(fleets[-1].end)
        survivor, *others = [fleet.workers[0] for fleet in fleets]
        await take_away(kind, server, network)
        went = time.monotonic()
        moments = sorted(random.uniform(0, away + _AFTERWARDS) for _ in others)  # noqa: S311  no secret
        ends = [asyncio.create_task(end(*pair, back, 0.0)) for pair in zip(others, moments, strict=True)]
        await asyncio.sleep(away - (time.monotonic() - went))
        await bring_back(kind, server, network)
        back.set_result(time.monotonic())
        ready = await seconds_until_ready(survivor, await back)
        ended = await asyncio.gather(*ends)
        sessions = 0
        if ready is not None:
            await lab.drained(server.bootstrap, "p0.", 120)
            sessions = (await lab.audit(server.bootstrap, "p0."))["sessions"]
        return Run(kind, away, ready, sessions, ended)


def summary(runs: Sequence[Run]) -> Iterator[str]:
    ready = sorted(one.ready for one in runs if one.ready is not None)
    in_time = sum(one.ready is not None and one.ready <= READY_SECONDS for one in runs)
    yield f"ready within {READY_SECONDS:.0f} s: {in_time} of {len(runs)}; seconds: {[round(each, 1) for each in ready]}"
    ends = [end for one in runs for end in one.ends]
    seconds = sorted(round(end.seconds, 1) for end in ends)
    yield f"ended in order: {sum(end.is_in_order for end in ends)} of {len(ends)}; seconds: {seconds}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["kill", "freeze"])
    parser.add_argument(
        "--away", type=float, nargs=2, default=(45.0, 63.0), metavar="SECONDS", help="at least, at most"
    )
    parser.add_argument("--stopped", type=int, default=2, help="workers that get SIGTERM in each run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.disable(logging.CRITICAL)  # clients report each refused connection
    # The tests' group settings are for short tests; here the defaults are looked at.
    lab.SETTINGS = lab.SETTINGS[lab.SETTINGS.index("[session]") :]
    runs = []
    for number in range(options.runs):
        kind, away = options.kinds[number % len(options.kinds)], random.uniform(*options.away)  # noqa: S311  as above
        with contextlib.ExitStack() as made:
            network = made.enter_context(Network()) if kind == "drop" else None
            directory = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="reknit-outage-")))
            runs.append(asyncio.run(run(kind, away, options.stopped, directory, network)))
        print(runs[-1].line(), flush=True)  # noqa: T201  a run takes minutes
    print("\n".join(summary(runs)))  # noqa: T201  as above
    return int(not all(one.is_good for one in runs))


if __name__ == "__main__":
    raise SystemExit(main())
