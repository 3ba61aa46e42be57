"""Compare two builds over the recorded traffic and the vectors: requests, fixes, verdicts, items, state.

    python tests/compare_builds.py REVISION_OR_DIRECTORY [REVISION_OR_DIRECTORY] [--sample N] [--show N]

Without a second build the first is compared with this directory as it is. ``--sample 10`` tries every tenth case.
Recorded traffic is read from ``REKNIT_CORPUS``. The exit status is 0 if nothing differs and 3 if something does.
Differences are listed by kind; for the first ones the text around the point of difference is shown.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRIVER = Path(__file__).resolve().parent / "outcomes_of_a_build.py"
DIFFERENT = 3
# Characters shown of each outcome around the point where the two differ.
AROUND = 120

Outcomes = dict[tuple[str, str], str]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def unpacked(build: str, into: Path) -> Path:
    """Return the directory of a build; a revision is unpacked first."""
    if (directory := Path(build)).is_dir():
        return directory.resolve()
    packed = subprocess.run(["git", "-C", ROOT, "archive", build], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter="data")
    return into


def started(build: Path, arguments: list[str], output: Path) -> subprocess.Popen[bytes]:
    # Sets are written in hash order. A fixed seed keeps that from being reported as a difference.
    environment = os.environ | {"PYTHONPATH": str(build), "PYTHONHASHSEED": "0"}
    with output.open("wb") as file:
        return subprocess.Popen([sys.executable, DRIVER, *arguments], env=environment, cwd=build, stdout=file)


def outcomes(builds: list[Path], arguments: list[str], scratch: Path) -> list[list[list[str]]]:
    """Run the driver on both builds in parallel and return its output for each."""
    files = [scratch / f"outcomes-{number}" for number in range(len(builds))]
    running = [started(build, arguments, file) for build, file in zip(builds, files, strict=True)]
    for build, process in zip(builds, running, strict=True):
        if process.wait():
            raise SystemExit(f"{build}: the driver ended with {process.returncode}")
    return [[json.loads(line) for line in file.open(encoding="utf-8")] for file in files]


def differences(one: Outcomes, other: Outcomes) -> dict[str, list[str]]:
    """Return the cases that differ, by kind; cases that only one build has are included."""
    found: dict[str, list[str]] = defaultdict(list)
    for place in dict.fromkeys([*one, *other]):
        if one.get(place) != other.get(place):
            found[place[0]].append(place[1])
    return dict(found)


def parted(one: str, other: str) -> list[str]:
    """Return both outcomes around the point where they differ."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, at - AROUND)
    return [f"        at {at}: ...{json.dumps(text[start : at + AROUND])[1:-1]}" for text in (one, other)]


def report(found: dict[str, list[str]], builds: list[Path], show: int, scratch: Path) -> None:
    examples = sorted({case for differing in found.values() for case in differing[:show]})
    wanted = scratch / "only"
    wanted.write_text(json.dumps(examples), encoding="utf-8")
    whole = [
        {(kind, case): value for kind, case, _, value in made}
        for made in outcomes(builds, ["--only", str(wanted)], scratch)
    ]
    for kind, differing in sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        say(f"{len(differing):6}  {kind}")
        for case in differing[:show]:
            say(f"      {case}")
            for line in parted(*(made.get((kind, case), "(none)") for made in whole)):
                say(line)


def compare(builds: list[str], sample: int, show: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        places = [unpacked(build, scratch / f"build-{number}") for number, build in enumerate(builds)]
        made = outcomes(places, ["--sample", str(sample)], scratch)
        one, other = ({(kind, case): digest for kind, case, digest in rows} for rows in made)
        found = differences(one, other)
        counted = Counter(kind.partition(" ")[0] for kind, _ in one)
        say(f"{len(one)} outcomes compared: {', '.join(f'{count} {kind}' for kind, count in sorted(counted.items()))}")
        if not found:
            say("nothing differs")
            return 0
        report(found, places, show, scratch)
        return DIFFERENT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="a revision, or a directory with a build")
    parser.add_argument("other", nargs="?", default=str(ROOT), help="another one; by default this directory")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="try every Nth case")
    parser.add_argument("--show", type=int, default=3, metavar="N", help="examples of each kind of difference")
    given = parser.parse_args()
    raise SystemExit(compare([given.build, given.other], given.sample, given.show))


if __name__ == "__main__":
    main()
