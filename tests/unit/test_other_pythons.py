"""The light installation on the other supported versions of Python, where this machine has them.

Each has an environment of its own, with the packages of its own version.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.12", "3.13")
# The output of these commands must not depend on the version.
COMMANDS = (
    ("normalize", "examples/broken.json"),
    ("normalize", "--to", "gemini", "--report", "examples/broken.json"),
    ("validate", "examples/body.json"),
    ("recover", "--from", "claude-cli", "examples/run.jsonl"),
    ("recover", "--from", "cascade", "--model", "gpt-5", "examples/text.jsonl"),
    ("test", "examples/cases.jsonl"),
    ("explain", "result_moved"),
)


def interpreters(version):
    """Return the programs that may be a Python of this version: on the path, and those of pyenv."""
    on_path = shutil.which(f"python{version}")
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    return [*([on_path] if on_path else []), *map(str, managed)]


def interpreter(version):
    script = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for program in interpreters(version):
        done = subprocess.run([program, "-c", script], capture_output=True, text=True, check=False, timeout=60)
        if (done.returncode, done.stdout.strip()) == (0, version):
            return program
    return None


def outputs(python, directory):
    """Run the commands where no checkout is on the path of modules."""
    found = []
    for command in COMMANDS:
        files = [str(ROOT / word) if word.startswith("examples/") else word for word in command]
        typed = [python, "-m", "reknit", *files]
        done = subprocess.run(typed, capture_output=True, check=False, timeout=120, cwd=directory)
        found.append((command, done.returncode, done.stdout, done.stderr))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_commands_print_the_same_on_each_version(version, tmp_path):
    program = interpreter(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    subprocess.run([program, "-m", "venv", tmp_path / "env"], check=True, timeout=120)
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", ROOT]
    subprocess.run(install, check=True, timeout=300)
    assert outputs(python, tmp_path) == outputs(sys.executable, tmp_path)
