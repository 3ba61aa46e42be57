"""Many exchanges through a gateway that publishes, with kills of it and outages of its broker (``make soak``).

    python tests/soak/run.py [--exchanges 100000] [--connections 200] [--kills 6] [--outages 5] [--seed 36]

``tests/broker/test_gateway_soak.py`` is its short form.

Clients hold conversations with a provider on the loopback address, with damaged histories, refusals that are healed,
errors, cuts and clients that leave. `reknit serve` with `publish = all` is between them. It is killed (SIGKILL) in the
first half of the run, once of these while its broker is away. A worker reads the topics. Afterwards each exchange must
be in the topics once and in order, and the memory of the last process must not have grown.

The report goes to standard output and to ``build/soak.md``. The exit status is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
REPORT = _TESTS.parent / "build" / "soak.md"
sys.path[:0] = [str(_TESTS), str(_TESTS / "broker"), str(_TESTS.parent)]

import aiohttp  # noqa: E402  the path comes first
import gateway_topics  # noqa: E402  as above
import pipeline_lab as lab  # noqa: E402  as above
from chaos.cluster import kafka_broker  # noqa: E402  as above
from chaos.outage import bring_back, take_away  # noqa: E402  as above
from gateway_faults import FaultyProvider, GatewayProcess  # noqa: E402  as above
from msgspec import Struct  # noqa: E402  as above
from soak.load import Load  # noqa: E402  as above
from soak.memory import Sampler  # noqa: E402  as above
from soak.report import Counted, judge, text  # noqa: E402  as above

PREFIX = "soak."
_OUTAGES = ("stop", "kill", "freeze")
# Counters of a gateway that must stay 0; a kill resets them, so they are read before each.
_LOSSES = ("reknit_serve_log_incomplete_total", "reknit_serve_log_lost_total")
# Without a record for longer, what is missing does not come.
_SILENT_SECONDS = 30.0
# For the worker, after the load.
_TAIL_SECONDS = 300.0


class Options(Struct, frozen=True, kw_only=True):
    """The size of a run; ``main`` describes each member."""

    exchanges: int = 100_000
    connections: int = 200
    turns: int = 8
    kills: int = 6
    outages: int = 5
    away: float = 0.04
    seed: int = 36
    seconds: float = 7_200.0


class Fault(Struct, frozen=True):
    """A fault after a number of exchanges: an outage of the broker, a kill of the gateway, or both."""

    at: int
    outage: str = ""
    kills: bool = False


def schedule(options):
    """Return the faults of a run, in order."""
    draw = random.Random(options.seed).random  # noqa: S311  a plan, no secret

    def moments(count, first, last):
        return [int(options.exchanges * (first + (last - first) * (at + draw()) / count)) for at in range(count)]

    away = moments(options.outages, 0.1, 0.85)
    both = bool(options.kills and options.outages)
    kills = moments(options.kills - both, 0.05, 0.5)
    outages = [Fault(at, _OUTAGES[n % len(_OUTAGES)], both and n == 0) for n, at in enumerate(away)]
    return sorted([*outages, *(Fault(at, kills=True) for at in kills)], key=lambda fault: fault.at)


class Soak:
    """A load, and what happens to the processes around it."""

    def __init__(self, options, broker, load, gateway):
        self.options = options
        self.broker, self.load, self.gateway = broker, load, gateway
        self.counted, self.sampler = Counted(), Sampler(gateway, load)
        self.topics = gateway_topics.Topics()

    @property
    def samples(self):
        return self.sampler.samples

    def faults(self):
        """Return what is wrong, in words; nothing if each exchange is in the topics once and in order."""
        judged = judge(self.options, self.load, self.counted, self.samples)
        return judged + gateway_topics.faults(self.topics, self.load.exchanges)

    async def under_load(self, faults):
        """Let the clients talk, and inflict the faults."""
        sampling = asyncio.create_task(self.sampler.run())
        with self.timed("load"):
            async with asyncio.TaskGroup() as group:
                group.create_task(self.inflict(faults))
                group.create_task(self.load.run(self.options.connections, self.options.seconds))
        sampling.cancel()

    async def read(self, worker):
        """Read what is in the topics, once gateway and worker are done."""
        # Of an exchange that a kill broke, perhaps nothing was stored.
        runs = [each.run for each in self.load.exchanges if each.digest or not each.is_hit]
        self.topics.whole = frozenset(each.run for each in self.load.exchanges if each.digest)
        place = self.broker.bootstrap, PREFIX
        with self.timed("to the brokers"):
            await gateway_topics.read_events(
                self.topics,
                *place,
                lambda found: all(run in found.runs and found.runs[run].end for run in runs),
                _SILENT_SECONDS,
            )
            await self.note_losses()
            self.sampler.take()
            await self.gateway.stop()
        with self.timed("worker"):
            try:
                await lab.drained(*place, _TAIL_SECONDS)
            except AssertionError as error:  # the audit shows what is missing
                self.counted.stuck = str(error)
            page = await worker.page("/metrics")
        self.counted.mismatches = gateway_topics.metric(page, "reknit_gateway_mismatch_total")
        self.counted.journal_left = self.samples[-1].journal
        with self.timed("audit"):
            await gateway_topics.read(self.topics, *place, *gateway_topics.AUDITED)

    @contextlib.contextmanager
    def timed(self, name):
        """Note the seconds of a part of the run."""
        began = time.monotonic()
        yield
        self.counted.seconds[name] = time.monotonic() - began
        say(f"{name}: {self.counted.seconds[name]:,.0f} s")

    async def inflict(self, faults):
        """Inflict all faults; those that the load does not reach are left out."""
        half = int(self.options.exchanges * self.options.away / 2)
        for fault in faults:
            await self.load.until(fault.at)
            if self.load.is_over:
                break
            say(f"{self.load.done:,} exchanges: {fault.outage or 'no'} outage{', kill -9' * fault.kills}")
            if fault.outage:
                await take_away(fault.outage, self.broker, None)
                await self.load.until(self.load.done + half)
            if fault.kills:
                await self.note_losses()
                self.load.note_kill()
                await self.gateway.kill()
                await self.gateway.start()
                self.counted.kills += 1
            if fault.outage:
                await self.load.until(self.load.done + half)
                await bring_back(fault.outage, self.broker, None)
                self.counted.outages += 1

    async def note_losses(self):
        """Add what the gateway has counted as lost."""
        url = f"http://127.0.0.1:{self.gateway.metrics_port}/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            page = await response.text()
        for line in page.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith(_LOSSES) and float(value):
                self.counted.losses[name] += float(value)


async def soak(options, faults, directory):
    """Run everything; return the run with all that it has seen."""
    broker = kafka_broker.Broker(directory / "kafka", heap="768m", broker_session_timeout_ms="3000")
    state, provider = directory / "serve", FaultyProvider()
    state.mkdir()
    async with contextlib.AsyncExitStack() as made:
        made.callback(broker.kill)
        await asyncio.to_thread(broker.start)
        fleet = await made.enter_async_context(
            lab.workers(broker.bootstrap, PREFIX, directory / "worker", kafka_broker.free_port)
        )
        worker = fleet.start()
        await worker.ready(60)
        to = await made.enter_async_context(provider.running())
        # One connection for each client, and one for each that has just left.
        http = await made.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        process = GatewayProcess(to, state, gateway_topics.settings(broker.bootstrap, PREFIX))
        gateway = await made.enter_async_context(process.running())
        load = Load(provider, gateway, http, count=options.exchanges, seed=options.seed, turns=options.turns)
        run = Soak(options, broker, load, gateway)
        await run.under_load(faults)
        await run.read(worker)
    return run


def say(words):
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)  # noqa: T201  a run takes minutes


def options_of(arguments):
    """Return the options of a command line."""
    usual = Options()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, words in {
        "exchanges": "of all clients",
        "connections": "of clients, each with one conversation at a time",
        "turns": "requests in a conversation",
        "kills": "of the gateway",
        "outages": "of the broker",
        "away": "share of the exchanges that are made during each outage",
        "seed": "of conversations and faults",
        "seconds": "no conversation begins later",
    }.items():
        value = getattr(usual, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{words} (default: {value:,})")
    return Options(**vars(parser.parse_args(arguments)))


def main():
    options = options_of(None)
    # On SIGTERM it leaves no process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Clients report every refused connection while a broker is away; outcomes are looked at.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="reknit-soak-") as directory:
        run = asyncio.run(soak(options, schedule(options), Path(directory)))
    wrong = run.faults()
    report = text(run.load, run.counted, run.samples, run.topics, wrong)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report)
    sys.stdout.write(f"\n{report}")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
