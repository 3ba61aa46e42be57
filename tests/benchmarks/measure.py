"""Side by side in one run: every side has its turn in every round, so that a slow moment of the machine hits all.

Absolute numbers belong to one machine and one minute, so budgets are ratios. Nothing here asserts: a budget that was
missed is a line in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec

# Modules that benchmarks share with tests: a module that imports from there imports this one before.
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / place) for place in ("deploy/kafka", "tests/broker", "tests")]

import broker as kafka_broker  # noqa: E402 - after the path

# Variables of the environment: where findings go, and the Python that has what we are compared with.
ROWS, PEERS = "BENCH_ROWS", "BENCH_PEERS"
# One measurement of one side takes at least so long, in seconds: far above what a timer or a task switch costs.
_SHORTEST = 0.1


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    ``ratio`` is Reknit's against theirs, as ``budget`` has it; ``met`` is None without one.
    """

    what: str
    ours: str
    theirs: str
    ratio: str
    budget: str = ""
    met: bool | None = None


def report(**fields):
    """Print a `Finding` with these fields, and keep it for the table if `run.py` makes one."""
    finding = Finding(**fields)
    verdict = {None: "", True: "  met", False: "  MISSED"}[finding.met]
    budget = f"  (budget {finding.budget})" if finding.budget else ""
    say(f"{finding.what}: {finding.ours} against {finding.theirs}: {finding.ratio}{budget}{verdict}")
    rows = os.environ.get(ROWS)
    if rows:
        with Path(rows).open("ab") as file:
            file.write(msgspec.json.encode(finding) + b"\n")


def as_fast(ratio, least=None):
    """Fields of a finding: a factor of speed, with a minimum as budget."""
    budget = {"budget": f"at least {least:g} times", "met": ratio >= least} if least else {}
    return {"ratio": f"{ratio:.2f} times as fast", **budget}


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def arguments(description):
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument(
        "--peers",
        default=os.environ.get(PEERS, sys.executable),
        help=f"a Python that has LiteLLM and Quix Streams  [env: {PEERS}]",
    )
    return parser


def on_a_broker(work, directory=None):
    """Run ``work(server, directory)`` with a broker, in a directory that is deleted afterwards unless one is given."""

    async def run(directory):
        server = kafka_broker.Broker(directory / "kafka", heap="1g")
        server.start()
        try:
            await work(server, directory)
        finally:
            server.stop()

    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(directory))
        return
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(run(Path(temporary)))


def seconds_a_call(work):
    """Return the processor time of one call, over as many as make the measurement long enough.

    Processor time, not wall-clock time: other processes on the machine do not count.
    """
    gc.collect()
    calls = 1
    while True:
        began = time.process_time()
        for _ in range(calls):
            work()
        took = time.process_time() - began
        if took >= _SHORTEST:
            return took / calls
        calls = max(calls * 2, int(calls * _SHORTEST / max(took, 1e-9)))


@contextmanager
def peer(python, script, *arguments):
    """A peer in a process of its own: the first line that it says, and what has it measure as a line asks."""
    command = [python, str(Path(__file__).parent / script), *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]  # pipes

        def once(asked):
            process.stdin.write(f"{asked}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield process.stdout.readline(), once
        process.stdin.close()


def medians(sides, rounds):
    """The median of each side's measurements; every side is measured in every round."""
    found = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            found[name].append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def duration(seconds):
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms"
