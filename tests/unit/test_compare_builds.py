"""The comparison of two builds is silent for a build and itself, and names the place where two builds differ."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A build that words one text differently."""
    build = tmp_path_factory.mktemp("builds") / "other"
    for name in ("reknit", "pipeline", "topics"):
        shutil.copytree(ROOT / name, build / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (module,) = [
        path for path in build.rglob("*.py") if "it was interrupted, or its result was lost" in path.read_text()
    ]
    module.write_text(module.read_text().replace("it was interrupted, or its result", "somehow its result"))
    return build


def compared(*builds, corpus):
    command = [sys.executable, ROOT / "tests/compare_builds.py", *builds, "--sample", "12", "--show", "1"]
    environment = os.environ | {"REKNIT_CORPUS": str(corpus)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_build_equals_itself(tmp_path):
    done = compared(ROOT, corpus=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("nothing differs\n")
    assert int(done.stdout.split()[0]) > 500


def test_a_different_wording_is_reported(other, tmp_path):
    done = compared(other, ROOT, corpus=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert "  body anthropic\n" in done.stdout
    assert "somehow its result was lost" in done.stdout
    assert "it was interrupted, or its result was lost" in done.stdout
    assert "  rules anthropic\n" not in done.stdout
    assert "  items anthropic\n" not in done.stdout
