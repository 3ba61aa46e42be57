"""The short form of ``make chaos``: the visible outputs after each fault equal those of one undisturbed run on the
logs.
"""

import pytest
from chaos.faults import FAULTS
from chaos.run import undergo

pytestmark = pytest.mark.broker


# Five minutes on two cores of their own, ten with another file of tests, 26 on a machine with a load of 20.
@pytest.mark.timeout(3_600)
async def test_what_readers_see_after_each_fault_is_what_a_calm_run_makes(kafka_is_there, tmp_path):
    rows = await undergo(tmp_path, [fault for fault in FAULTS if fault.quick], seconds=3_000)
    assert [(row.fault.name, row.trouble) for row in rows if row.wrong or row.trouble] == []
    assert all(row.sources > 50 and row.outputs > 50 for row in rows)
