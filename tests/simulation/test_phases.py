"""The table of docs/protocol.md has exactly the changes of phase that fault schedules lead to."""

import re
from pathlib import Path

from simulation.run import plans
from simulation.world import run

from reknit.pipeline.engine.partition import Partition, Phase

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
PHASES = "|".join(phase.value for phase in Phase)


def pairs_of_the_page():
    rows = re.findall(rf"^\| ({PHASES}) \| .+? \| ({PHASES}) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {(before, after) for before, after in rows if before != after}


def test_the_table_has_every_change_of_phase_and_no_other(monkeypatch):
    seen = set()

    def change(partition, phase):
        before = partition.__dict__.get("phase")
        if before not in {None, phase}:
            seen.add((before.value, phase.value))
        partition.__dict__["phase"] = phase

    monkeypatch.setattr(
        Partition, "phase", property(lambda partition: partition.__dict__["phase"], change), raising=False
    )
    for plan in plans("phases", 100):
        run(plan)
    assert seen == pairs_of_the_page()
