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
from msgspec import Struct, field  # noqa: E402  as above
from soak.load import Load  # noqa: E402  as above
from soak.memory import Sampler  # noqa: E402  as above
from soak.report import Counted, judge, text  # noqa: E402  as above

PREFIX = "soak."
_OUTAGES = ("stop", "kill", "freeze")
# Counters of a gateway that must stay 0; a kill resets them, so they are read before each.
_LOSSES = ("reknit_serve_log_incomplete_total", "reknit_serve_log_lost_total")
_TAIL_SECONDS = 3_600.0


class Fault(Struct, frozen=True):
    """A fault after so many exchanges: an outage of the broker of a kind, a kill of the gateway, or both."""

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
    """The processes of one run."""

    def __init__(self, options, directory, broker, load, gateway, sampler):
        self.options = options
        self.broker, self.load, self.gateway, self.sampler = broker, load, gateway, sampler
        self.counted = Counted()

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
