"""Run the contract tests with the newest releases of aiokafka, Faust and mode, and print the result.

``python tests/contracts/newest.py [aiokafka==0.13.0 …]`` asks pip for the newest releases, or for those given. If they
are the pinned ones, which the test suite runs with, it only says so. Otherwise it installs them in ``build/newest`` and
runs the tests with them. The exit code is 0 unless a test failed. It needs a package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from reknit.pipeline.engine.upstream import VERSIONS

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "build" / "newest"
# The files whose docstrings say that they test undocumented parts.
TESTS = ("tests/contracts", "tests/unit/test_engine_connections.py", "tests/unit/test_kafka_header_names.py")
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install")


def newest(requirements: list[str]) -> dict[str, str]:
    """Return the version of each package that pip selects.

    Raises:
        RuntimeError: pip failed, for example since the index does not answer.
    """
    command = [*_PIP, "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    found = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    return {each["name"].lower().replace("_", "-"): each["version"] for each in found}


def different(versions: dict[str, str]) -> list[str]:
    """Return a phrase for each version that is not the pinned one."""
    return [f"{name} {found}, not {VERSIONS[name]}" for name, found in versions.items() if found != VERSIONS[name]]


def run_tests(versions: dict[str, str]) -> int:
    """Install these releases with their dependencies, run the tests with them, and return the exit code of pytest."""
    pins = [f"{name}=={version}" for name, version in versions.items()]
    subprocess.run([*_PIP, "--no-warn-conflicts", "--upgrade", "--target", str(TARGET), *pins], check=True)
    path = os.pathsep.join((str(TARGET), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False
    ).returncode


def main() -> None:
    given = {one.partition("==")[0] for one in sys.argv[1:]}
    try:
        versions = newest([*sys.argv[1:], *(name for name in VERSIONS if name not in given)])
    except RuntimeError as error:
        sys.exit(f"pip gave no versions: {error}")
    if not (differences := different(versions)):
        sys.stdout.write(f"newest releases: {', '.join(f'{n} {v}' for n, v in versions.items())}, as pinned\n")
        return
    code = run_tests(versions)
    result = "the contract tests fail" if code else "the contract tests pass"
    sys.stdout.write(f"newest releases: {'; '.join(differences)}: {result}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
