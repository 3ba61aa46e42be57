"""All benchmarks one after the other, and their findings as one table.

    python tests/benchmarks/run.py [--only core worker] [--seconds 480]

The table is written to standard output and to ``build/benchmarks.md``. The output of a benchmark without findings (see
``measure.report``) is copied into the file. ``BENCH_PEERS`` names a Python that has LiteLLM, Quix Streams and the SDKs
(``pip install litellm quixstreams msgspec anthropic openai`` in a separate environment, since none is a dependency of
Reknit); without it their rows are left out.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import measure
import msgspec

HERE = Path(__file__).resolve().parent
TABLE = HERE.parents[1] / "build" / "benchmarks.md"

_VERDICTS = {True: "yes", False: "**no**", None: ""}


def names():
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name, rows, seconds):
    """Run one benchmark in a separate process, print its output, and return it."""
    measure.say(f"== {name}")
    command = [sys.executable, str(HERE / f"bench_{name}.py")]
    told = []
    env = os.environ | {measure.ROWS: str(rows)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as bench:
        # Terminated and not killed, a benchmark stops the broker that it started.
        bound = threading.Timer(seconds, bench.terminate)
        bound.start()
        try:
            assert bench.stdout is not None  # as asked for
            for line in bench.stdout:
                measure.say(line.rstrip("\n"))
                told.append(line)
        except KeyboardInterrupt:
            bench.terminate()
            raise
        finally:
            bound.cancel()
    if bench.returncode:
        told.append(f"ended with status {bench.returncode}\n")
        measure.say(told[-1])
    return "".join(told)


def machine():
    """Return the machine of the measurement. A load near the number of cores means that other processes ran."""
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, load {load:.1f} at the end"
    )


def table(findings):
    """Findings as a table in Markdown."""
    head = ["what", "Reknit", "against", "ratio", "budget", "met"]
    lines = [head, ["---"] * len(head)]
    lines += [[one.what, one.ours, one.theirs, one.ratio, one.budget, _VERDICTS[one.met]] for one in findings]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=names(), default=names())
    parser.add_argument("--seconds", type=float, default=480.0, help="the longest that one benchmark may take")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also ends the benchmark that runs
    findings = []
    spoken = ""
    with tempfile.TemporaryDirectory() as directory:
        for name in options.only:
            rows = Path(directory) / name
            told = run(name, rows, options.seconds)
            if rows.exists():
                findings += msgspec.json.Decoder(measure.Finding).decode_lines(rows.read_bytes())
            else:
                spoken += f"\n## {name}\n\n```\n{told}```\n"
    text = f"# Benchmarks\n\n{machine()}. Ratios count, absolute numbers do not.\n\n{table(findings)}{spoken}"
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(text)
    measure.say(f"\n{text}\nwritten to {TABLE}")


if __name__ == "__main__":
    main()
