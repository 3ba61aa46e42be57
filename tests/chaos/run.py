"""Every fault of the table, one after the other, and an audit after each (``make chaos``).

    python tests/chaos/run.py [--quick] [--only NAME ...] [--seconds 1200]

The table goes to standard output and to ``build/chaos.md``. It ends by itself: faults that the time does not allow are
in the table as not run. The exit status is 1 where readers saw something else than a calm run makes.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import logging
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
TABLE = _TESTS.parent / "build" / "chaos.md"
sys.path[:0] = [str(_TESTS), str(_TESTS / "broker"), str(_TESTS.parent)]

import harness  # noqa: E402  in this folder, on the path now
from chaos.cluster import Cluster  # noqa: E402  as above
from chaos.faults import FAULTS, Fault, NotHereError  # noqa: E402  as above
from chaos.trial import Pipeline, outputs, sources  # noqa: E402  as above
from msgspec import Struct  # noqa: E402  as above


class Row(Struct, frozen=True, kw_only=True):
    """The finding after a fault; ``trouble`` says why it is not "nothing lost, duplicated or different"."""

    fault: Fault
    sources: int = 0
    outputs: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    trouble: str = ""
    wrong: bool = False

    def line(self) -> str:
        fault = self.fault
        counts = (self.sources, self.outputs, self.lost, self.doubled, self.different)
        found = [f"{count:,}" for count in counts] if self.sources or self.wrong else ["not run"] + ["-"] * 4
        return f"| {' | '.join([fault.name, fault.does, fault.ends, *found])} |"


HEAD = "| fault | what happens | how it ends | source records | outputs | lost | doubled | different |\n"
HEAD += "|---|---|---|---:|---:|---:|---:|---:|"


async def undergo(directory: Path, faults: Sequence[Fault], seconds: float) -> list[Row]:
    """Let a pipeline undergo faults; after one whose audit fails it is another pipeline."""
    began, rows = time.monotonic(), []
    cluster = Cluster(directory)
    pipeline = None
    try:
        await asyncio.to_thread(cluster.start)
        for number, fault in enumerate(faults):
            if time.monotonic() - began > seconds:
                rows.append(Row(fault=fault, trouble="no time was left"))
                continue
            if pipeline is None:
                pipeline = Pipeline(cluster, directory / f"pipeline-{number}")
                await pipeline.start()
            row = await _undergo(pipeline, fault)
            print(row.line(), row.trouble, flush=True)  # noqa: T201  a run takes minutes
            if row.wrong:
                pipeline.fleet.end()
                pipeline = None
                await asyncio.to_thread(cluster.heal)
            rows.append(row)
    finally:
        if pipeline is not None:
            pipeline.fleet.end()
        cluster.end()
    return rows


async def _undergo(pipeline: Pipeline, fault: Fault) -> Row:
    try:
        counted = await pipeline.undergo(fault.inflict)
    except NotHereError as error:
        return Row(fault=fault, trouble=str(error))
    except harness.DiffersError as error:
        found = {"lost": error.lost, "doubled": error.doubled, "different": error.different}
        return Row(fault=fault, **found, trouble=str(error), wrong=True)
    except Exception as error:  # noqa: BLE001  whatever it is, the other faults are still to be tried
        return Row(fault=fault, trouble=f"{type(error).__name__}: {error}", wrong=True)
    return Row(fault=fault, sources=sources(counted), outputs=outputs(counted))


def table(rows: Sequence[Row]) -> str:
    git = ["git", "-C", str(_TESTS), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    today = dt.datetime.now(dt.UTC).date()
    said = f"{today}, commit {commit}, Python {platform.python_version()}, {platform.system()}."
    total = (
        f"Source records audited: {sum(row.sources for row in rows):,}; outputs: {sum(row.outputs for row in rows):,}."
    )
    troubles = [f"- {row.fault.name}: {row.trouble}" for row in rows if row.trouble]
    return "\n".join([f"{said} {total}", "", HEAD, *(row.line() for row in rows), "", *troubles]).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the short form")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these faults")
    parser.add_argument("--seconds", type=float, default=1_200, help="no fault begins later (default: 1200)")
    options = parser.parse_args()
    # On SIGTERM it leaves no broker and no mount.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Clients report every refused connection while a broker is away; outcomes are looked at.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    faults = [fault for fault in FAULTS if fault.name in options.only] if options.only else FAULTS
    with tempfile.TemporaryDirectory(prefix="reknit-chaos-") as directory:
        rows = asyncio.run(
            undergo(Path(directory), [f for f in faults if f.quick or not options.quick], options.seconds)
        )
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table(rows))
    sys.stdout.write(f"\n{TABLE.read_text()}\n")
    return int(any(row.wrong for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
