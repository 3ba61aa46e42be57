"""Print for which Pythons and platforms every package of an extra has a wheel.

``python deploy/wheels.py [--python 3.14] [--platform linux-aarch64] [--extra worker]`` asks pip to resolve the core and
each extra of pyproject.toml with wheels only. Nothing is installed. It needs a package index.
"""

# ruff: noqa: INP001, S603 - a script that a maintainer runs; it starts pip with its own arguments

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Wheels name the oldest C library or system that they need. These are the libraries of Debian 12, and macOS 14.
_GLIBC = (*range(5, 29), 31, 34, 35, 36)
PLATFORMS = {
    "linux-x86_64": [*(f"manylinux_2_{each}_x86_64" for each in _GLIBC), "manylinux2014_x86_64", "manylinux1_x86_64"],
    "linux-aarch64": [*(f"manylinux_2_{each}_aarch64" for each in _GLIBC), "manylinux2014_aarch64"],
    "macos-arm64": [*(f"macosx_{each}_0_{kind}" for each in (11, 12, 13, 14) for kind in ("arm64", "universal2"))],
}
_LACKING = re.compile(r"No matching distribution found for (\S+)")


def requirements() -> dict[str, list[str]]:
    """Return the requirements of the core, named ``core``, and of each extra with those that it includes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    def of(names: list[str]) -> list[str]:
        found: list[str] = []
        for each in names:
            inner = re.fullmatch(r"reknit\[([\w,]+)\]", each)
            found += [one for extra in inner[1].split(",") for one in of(extras[extra])] if inner else [each]
        return found

    core = project["dependencies"]
    return {"core": core, **{name: [*core, *of(each)] for name, each in extras.items()}}


def lacking(required: list[str], python: str, platform: str) -> str:
    """Return the first requirement without a wheel, ``""`` if all have one.

    Raises:
        RuntimeError: pip failed for another reason, such as an index that does not answer.
    """
    tags = [word for tag in PLATFORMS[platform] for word in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as target:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--dry-run", "--ignore-installed", "--target", target, "--only-binary", ":all:"]
        command += ["--implementation", "cp", "--python-version", python, *tags, *required]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _LACKING.search(done.stderr)
    if done.returncode and not found:
        raise RuntimeError(done.stderr.strip())
    return found[1] if found else ""


def main() -> None:
    extras = requirements()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--platform", action="append", choices=PLATFORMS)
    parser.add_argument("--extra", action="append", choices=extras)
    given = parser.parse_args()
    for python in given.python or PYTHONS:
        for platform in given.platform or PLATFORMS:
            for extra in given.extra or extras:
                missing = lacking(extras[extra], python, platform)
                found = f"no wheel of {missing}" if missing else "wheels"
                sys.stdout.write(f"{python:6} {platform:14} {extra:9} {found}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
