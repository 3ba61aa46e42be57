"""The short form of ``make soak``: 2,000 exchanges with faults through a gateway that is killed twice, once of these
while its broker is away. Afterwards each exchange is in the topics once and in order.
"""

import pytest
from gateway_faults import BROKEN, EXACT, LEFT, TYPED
from soak.run import Fault, Options, soak

pytestmark = pytest.mark.broker

# The broker is away during 600 exchanges. The gateway is killed in the middle of them.
OPTIONS = Options(exchanges=2_000, connections=40, away=0.3, seconds=1_200)
FAULTS = [Fault(400, kills=True), Fault(800, outage="kill", kills=True)]
# Measured: 20 MiB. Caches fill in the first 8,500 exchanges of a process.
MOST_GROWTH_KIB = 64 * 1024


@pytest.mark.timeout(1_800)
async def test_each_of_2000_exchanges_is_in_the_topics_once_and_in_order(kafka_is_there, tmp_path):
    run = await soak(OPTIONS, FAULTS, tmp_path)
    assert run.faults() == []
    load, counted = run.load, run.counted
    assert (load.done, counted.kills, counted.outages) == (2_000, 2, 1)
    assert {kind for kind, _ in load.outcomes} == {EXACT, TYPED, BROKEN, LEFT}
    assert load.hit > 0
    assert load.refused > 100
    # A request that never reached the provider is in no topic.
    assert len(load.exchanges) > 1_700
    of_last_process = [each.kib for each in run.samples if each.life == run.samples[-1].life]
    assert max(of_last_process) - of_last_process[0] < MOST_GROWTH_KIB
