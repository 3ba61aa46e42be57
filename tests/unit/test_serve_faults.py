"""2,000 exchanges through a gateway that is killed several times, with faults on both sides.

For each exchange, the client gets the provider's exact bytes, a typed error or a connection that breaks off; a broken
stream never ends cleanly. The provider gets no invalid body, and refuses each signature once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import chain

import aiohttp
from gateway_faults import Conversations, FaultClient, FaultyProvider, GatewayProcess, is_right
from sender_runs import until

COUNT, CLIENTS = 2_000, 24
DEATHS = (300, 600, 900)
# The memory of the last process is compared between these numbers of exchanges.
WARM = 1_200
# Measured: less than 1 MiB.
MOST_GROWTH_KIB = 12 * 1024


class Run:
    """One run over all conversations."""

    def __init__(self, provider, gateway, session):
        self.provider, self.gateway = provider, gateway
        self.client = FaultClient(session, gateway)
        self.outcomes = {}
        self.progress = asyncio.Condition()

    async def converse(self, waiting):
        """Send one conversation after the other."""
        while waiting:
            for planned in waiting.pop(0):
                self.outcomes[planned.number] = await self.client.exchange(planned)
                async with self.progress:
                    self.progress.notify_all()

    async def until(self, count):
        """Wait for a number of exchanges."""
        async with self.progress:
            await self.progress.wait_for(lambda: len(self.outcomes) >= count)

    async def inflict(self):
        """Kill the gateway; return its memory later, where the system shows it."""
        for count in DEATHS:
            await self.until(count)
            await self.gateway.kill()
            await self.gateway.start()
        await self.until(WARM)
        return self.gateway.resident_kib()


async def test_each_of_2000_exchanges_ends_as_its_fault_allows(tmp_path):
    conversations = list(Conversations(seed=36).plan(COUNT))
    plans = list(chain.from_iterable(conversations))
    provider = FaultyProvider(plans)
    async with (
        provider.running() as to,
        aiohttp.ClientSession() as session,
        GatewayProcess(to, tmp_path).running() as gateway,
    ):
        run, waiting = Run(provider, gateway, session), list(conversations)
        inflicting = asyncio.create_task(run.inflict())
        await asyncio.gather(*(run.converse(waiting) for _ in range(CLIENTS)))
        warm, end = await inflicting, gateway.resident_kib()
        await until(lambda: not provider.active)
        await gateway.stop()
    outcomes = run.outcomes
    wrong = [
        (planned.number, planned.fault, outcomes[planned.number])
        for planned in plans
        if not is_right(planned, outcomes[planned.number], provider.sent.get(planned.number, (0, b"")))
    ]
    assert wrong == []
    assert (provider.invalid, provider.not_left) == ([], 0)
    seen = Counter(planned.expected for planned in plans)
    assert min(seen.values()) > 50, seen
    busy = [outcomes[planned.number] for planned in plans if planned.fault == "busy"]
    assert {each.retry_after for each in busy if each.status == 429} == {"7"}
    # A refusal is forgotten only if the gateway was killed before it had the answer to the healed request.
    hit = sum(outcome.is_hit for outcome in outcomes.values())
    assert len(provider.refused) > 100
    assert provider.refused_again <= hit
    assert sum(outcome.status == 400 for outcome in outcomes.values()) == 0
    assert warm is None or end - warm < MOST_GROWTH_KIB
