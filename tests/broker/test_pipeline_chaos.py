"""The whole pipeline under chaos: what readers see is what one undisturbed run makes of the same logs."""

import asyncio
import random
import signal

import pipeline_lab as lab
import pytest

from topics import AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS

pytestmark = pytest.mark.broker


async def audited(bootstrap, prefix, sent):
    await lab.drained(bootstrap, prefix)
    counted = await lab.audit(bootstrap, prefix)
    # Every record that a client wrote is in its source, and what the workers appended is all that is beside it.
    assert counted[f"source {AGENT_TURNS}"] == sent[AGENT_TURNS] + counted["recorded turns"]
    assert counted[f"source {PROVIDER_EVENTS}"] == sent[PROVIDER_EVENTS] + counted["policies"]
    assert counted[PROVIDER_REQUESTS] > 100
    assert counted["recorded turns"] > 5
    assert counted["sessions"] > 20
    return counted


async def test_kill_9_of_one_of_two_workers_ten_times(broker, prefix, tmp_path, free_port):
    chance = random.Random(5)  # noqa: S311  reproducible, not secret
    await lab.make_topics(broker.bootstrap, prefix)
    fleet = lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port)
    try:
        pair = [fleet.start(), fleet.start()]
        async with lab.Feeder(broker.bootstrap, prefix, 200) as feeder:
            await asyncio.gather(*(worker.ready(60) for worker in pair))
            for turn in range(10):
                await asyncio.sleep(chance.uniform(0.5, 2.5))
                victim = chance.randrange(2)
                pair[victim].kill()
                # Sometimes the other worker takes over first, sometimes the group meets the newcomer at once.
                await asyncio.sleep(chance.choice([0.0, 5.0]))
                assert pair[1 - victim].running, f"round {turn}\n{pair[1 - victim].tail()}"
                pair[victim] = fleet.start()
        await audited(broker.bootstrap, prefix, feeder.sent)
        assert [await worker.stop() for worker in pair] == [0, 0]
    finally:
        fleet.end()


async def test_scaling_freezing_and_state_read_back(broker, prefix, tmp_path, free_port):
    await lab.make_topics(broker.bootstrap, prefix)
    fleet = lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port)
    try:
        first = fleet.start()
        async with lab.Feeder(broker.bootstrap, prefix, 200) as feeder:
            await first.ready(60)
            second, third = fleet.start(), fleet.start()
            await asyncio.sleep(8)
            assert [await second.stop(), await third.stop()] == [0, 0]
            other = fleet.start()
            await other.ready(60)
            # Frozen past its session, it loses its partitions; if it wakes in the middle of a batch it is fenced.
            other.signal(signal.SIGSTOP)
            await asyncio.sleep(7)
            other.signal(signal.SIGCONT)
            await asyncio.sleep(4)
            if not other.running:
                assert other.status == 75
        for worker in (first, other):
            if worker.running:
                assert await worker.stop() == 0
        # A worker that knows nothing reads all state back and goes on where the others stopped.
        last = fleet.start()
        async with lab.Feeder(broker.bootstrap, prefix, 400, lab.script(1)) as again:
            await last.ready(60)
            await asyncio.sleep(2)
        await audited(broker.bootstrap, prefix, feeder.sent + again.sent)
        assert await last.stop() == 0
    finally:
        fleet.end()
