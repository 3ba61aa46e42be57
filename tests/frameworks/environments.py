"""One environment for each framework, since their pins conflict: made once, and again when its requirements change.

    python tests/frameworks/environments.py [NAME ...]

An environment has exactly what its `requirements.txt` pins, and finds Reknit by PYTHONPATH.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLACE = Path(os.environ.get("FRAMEWORKS_DIR", ROOT / ".venv-frameworks"))
NAMES = tuple(sorted(path.parent.name for path in HERE.glob("*/requirements.txt")))
_STAMP = "requirements.sha256"
_QUIETLY = ("--quiet", "--disable-pip-version-check", "--no-input")


def requirements(name):
    """Return the pinned versions of an environment, by package."""
    lines = (HERE / name / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def python(name):
    """Return the interpreter of an environment, or this one for the empty name."""
    return PLACE / name / "bin" / "python" if name else Path(sys.executable)


def missing(name):
    """Return why an environment cannot be used, or an empty text."""
    stamp = PLACE / name / _STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest(name):
        return ""
    return f"needs the environment of {name}: run `make frameworks`"


def needs(name):
    """Return the mark of a test that needs an environment: skipped without it, failed with REQUIRE_FRAMEWORKS=1."""
    reason = missing(name)
    if reason and os.environ.get("REQUIRE_FRAMEWORKS"):
        raise RuntimeError(reason)
    return pytest.mark.skipif(bool(reason), reason=reason)


def make(name):
    """Make an environment, with the pip of this interpreter."""
    place = PLACE / name
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python(name),
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    subprocess.run([*pip, "install", "--no-deps", "--requirement", HERE / name / "requirements.txt"], check=True)
    subprocess.run([*pip, "check"], check=True)
    (place / _STAMP).write_text(digest(name), encoding="utf-8")


def run(name, script, given="", **variables):
    """Run a script in an environment, with this text as its input; return the finished process."""
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python(name), script],
        input=given,
        env={**own, **{key: str(value) for key, value in variables.items()}},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def digest(name):
    """Return the digest of the interpreter's version and of an environment's requirements."""
    pinned = (HERE / name / "requirements.txt").read_bytes()
    return hashlib.sha256(b"%b %b" % (sys.version.encode(), pinned)).hexdigest()


def main():
    for name in sys.argv[1:] or NAMES:
        if missing(name):
            start = time.monotonic()
            make(name)
            sys.stdout.write(f"{name}: made in {time.monotonic() - start:.0f} s\n")


if __name__ == "__main__":
    main()
