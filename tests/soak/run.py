"""Many exchanges through a gateway that publishes, with kills of it and outages of its broker (``make soak``).

    python tests/soak/run.py [--exchanges 100000] [--connections 200] [--kills 6] [--outages 5] [--seed 36]

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
_SILENT_SECONDS = 10.0
# For the worker, after the load.
_TAIL_SECONDS = 300.0


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

    @property
    def samples(self):
        return self.sampler.samples

    async def under_load(self):
        """Let the clients talk, and inflict the faults."""
        sampling = asyncio.create_task(self.sampler.run())
        with self.timed("load"):
            async with asyncio.TaskGroup() as group:
                group.create_task(self.inflict(schedule(self.options)))
                group.create_task(self.load.run(self.options.connections, self.options.seconds))
        sampling.cancel()

    async def written(self, worker):
        """Return what is in the topics, once gateway and worker are done."""
        # Of an exchange that a kill broke, perhaps nothing was stored.
        runs = [each.run for each in self.load.exchanges if each.digest or not each.is_hit]
        topics = gateway_topics.Topics(whole=frozenset(each.run for each in self.load.exchanges if each.digest))
        place = self.broker.bootstrap, PREFIX
        with self.timed("to the brokers"):
            await gateway_topics.read_events(
                topics,
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
            _, page = await asyncio.to_thread(worker.ask, "/metrics")
        self.counted.mismatches = gateway_topics.metric(page, "reknit_gateway_mismatch_total")
        self.counted.journal_left = self.samples[-1].journal
        with self.timed("audit"):
            await gateway_topics.read(topics, *place, *gateway_topics.AUDITED)
        return topics

    @contextlib.contextmanager
    def timed(self, name):
        """Note the seconds of a part of the run."""
        began = time.monotonic()
        yield
        self.counted.seconds[name] = time.monotonic() - began
        say(f"{name}: {self.counted.seconds[name]:,.0f} s")

    async def inflict(self, faults):
        """Inflict all faults; those that the load does not reach are left out."""
        for fault in faults:
            await self.load.until(fault.at)
            if self.load.is_over:
                break
            say(f"{self.load.done:,} exchanges: {fault.outage or 'no'} outage{', kill -9' * fault.kills}")
            if fault.outage:
                await take_away(fault.outage, self.broker, None)
                await asyncio.sleep(self.options.away / 2)
            if fault.kills:
                await self.note_losses()
                self.load.note_kill()
                await self.gateway.kill()
                await self.gateway.start()
                self.counted.kills += 1
            if fault.outage:
                await asyncio.sleep(self.options.away / 2)
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


async def soak(options, directory):
    """Run everything; return the report and what is wrong."""
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
        await run.under_load()
        topics = await run.written(worker)
    wrong = judge(options, load, run.counted, run.samples) + gateway_topics.faults(topics, load.exchanges)
    return text(load, run.counted, run.samples, topics, wrong), wrong


def say(words):
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)  # noqa: T201  a run takes minutes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--turns", type=int, default=8, help="requests in a conversation (default: 8)")
    parser.add_argument("--kills", type=int, default=6, help="of the gateway (default: 6)")
    parser.add_argument("--outages", type=int, default=5, help="of the broker (default: 5)")
    parser.add_argument("--away", type=float, default=20.0, help="seconds of an outage (default: 20)")
    parser.add_argument("--seed", type=int, default=36)
    parser.add_argument("--seconds", type=float, default=7_200.0, help="no conversation begins later (default: 7200)")
    options = parser.parse_args()
    # On SIGTERM it leaves no process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Clients report every refused connection while a broker is away; outcomes are looked at.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="reknit-soak-") as directory:
        report, wrong = asyncio.run(soak(options, Path(directory)))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report)
    sys.stdout.write(f"\n{report}")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
