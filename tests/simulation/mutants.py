"""Known faults of the engine that the simulation must find: the changed code, and the seeds that find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]


class Mutant(Struct, frozen=True):
    """``seeds``: the number of schedules of a ``job``, from seed 0. One of them must fail."""

    module: str
    original: str
    changed: str
    delivery: str = "exactly-once"
    seeds: int = 25
    job: str = "counting"


MUTANTS = {
    "a partition that closed itself during an assignment stays closed": Mutant(
        "engine/source", "while closing := {", "if closing := {", seeds=1
    ),
    "a rebuild does not wait for the last commit": Mutant(
        "engine/partition", "if position >= self.next and self._kept.read_to >= (self._committed_to or 0):", "if True:"
    ),
    "a part of a batch is committed with the offset of its last record": Mutant(
        "engine/partition", "self._settle(work, part[-1].offset + 1)", "self._settle(work, part[-1].offset)"
    ),
    "results before a poison record are not committed": Mutant(
        "engine/partition", "                await self._settle(work, part[0].offset)\n", ""
    ),
    "at least once: a batch ignores its lease": Mutant(
        "engine/writer", "(left := lease.until - self._clock.monotonic())", "(left := 1.0)", "at-least-once", seeds=200
    ),
    "at least once: state and position may be several record batches": Mutant(
        "engine/writer", "max_batch_size=sys.maxsize", "", "at-least-once", job="sessions"
    ),
    "the group's offset is committed before the transaction": Mutant(
        "engine/partition",
        "                self._committed_to = await self._write_batch(batch)",
        "                self._on_position(batch.group_offset)\n"
        "                self._committed_to = await self._write_batch(batch)",
        seeds=50,
    ),
    "every assignment counts as the one after the last": Mutant(
        "engine/member",
        "continues = generation == self._last_generation + 1",
        "continues = True",
        "at-least-once",
        seeds=400,
    ),
    "fetched records are not compared with the topic": Mutant(
        "engine/partition", "await self._runtime.topics.confirm(self._offered_at)", "pass", seeds=300, job="recreated"
    ),
    "a worker waits for records that retention removed": Mutant(
        "engine/source", "                actor.expired(first)\n", "                pass\n", seeds=100, job="expired"
    ),
    "an opening ignores the topic of the position": Mutant(
        "engine/topic_ids", "        if is_other_source:\n", "        if False:\n", seeds=300, job="recreated"
    ),
    "the changelog is read before the former owner is fenced": Mutant(
        "engine/partition",
        """        try:
            async with asyncio.timeout(self._tuning.start_seconds):
                await self._writer.open()
        except TimeoutError:
            raise self._stuck("taking the partition over", self._tuning.start_seconds) from None
        position = await self._kept.read()
""",
        """        position = await self._kept.read()
        async with asyncio.timeout(self._tuning.start_seconds):
            await self._writer.open()
""",
        seeds=50,
    ),
    "an opening does not ask the group": Mutant(
        "engine/partition",
        "        ours = await self._ask_group()\n        while ours is None",
        "        ours: bool | None = True\n        while ours is None",
        seeds=1,
    ),
    "a record of a release that was taken stays in the changelog": Mutant(
        "stages/waiting", "            self._removed.add(offset)\n", "            pass\n", job="sessions"
    ),
    "a new owner does not know when sessions expire": Mutant(
        "stages/kept",
        "            self._deadlines.set_time(rest, int(value))",
        "            pass",
        job="sessions",
    ),
    "sessions expire by the clock of the worker": Mutant(
        "stages/kept",
        "self._now = max(self._now, timestamp)",
        'self._now = int(__import__("time").time() * 1000)',
        job="sessions",
    ),
    "forgetting leaves the segments of a history that were committed": Mutant(
        "stages/kept",
        "stored = set() if session in self._gone else self._store.read(session).keys()",
        "stored = set()",
        job="sessions",
    ),
    "where a session begins depends on where batches end": Mutant(
        "stages/turn_state", "entry is None or entry.first != offset:", "entry is None:", seeds=200, job="sessions"
    ),
    "an epoch goes on after a commit that may have been sent twice": Mutant(
        "engine/epochs",
        "self.is_spent = self._runtime.seams.clock.monotonic() - began >= _RETRIED_SECONDS",
        "self.is_spent = False",
        seeds=700,
    ),
    "a commit with changes has no position": Mutant("engine/commit", "return [*changes, ", "return changes or ["),
    "the format of the state is the configured one": Mutant(
        "engine/state", "self.format = max(found, runtime.state.format)", "self.format = runtime.state.format"
    ),
}


def fails(mutant, folder):
    """Run schedules with a changed copy of the engine; return True if one fails."""
    for name in ("pipeline", "topics", "reknit"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "pipeline" / f"{mutant.module}.py"
    text = path.read_text(encoding="utf-8")
    assert text.count(mutant.original) == 1, mutant
    path.write_text(text.replace(mutant.original, mutant.changed), encoding="utf-8")
    command = [sys.executable, ROOT / "tests/simulation/run.py", "--seeds", str(mutant.seeds), "--no-shrink"]
    done = subprocess.run(
        [*command, "--delivery", mutant.delivery, "--job", mutant.job],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.stdout.startswith(("seed ", f"{mutant.seeds} schedules")), done.stderr
    return done.returncode == 1
