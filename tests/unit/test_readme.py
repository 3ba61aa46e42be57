"""What the README shows is run: its Python, its JSON and its commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from pipeline.cli import COMMANDS

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def reknit(*arguments: str, given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reknit", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)


def test_python_blocks_run():
    found = blocks("python")
    assert found
    for block in found:
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102  the README's own code is what is tested


def test_the_broken_history_is_mended_into_what_the_provider_accepts():
    (history,) = blocks("json")
    done = reknit("normalize", given=history)
    assert done.returncode == 3
    assert "result_synthesised" in done.stderr
    judged = reknit("validate", "--target", "anthropic", given=done.stdout)
    assert judged.returncode == 0
    assert [json.loads(line)["severity"] for line in judged.stdout.splitlines()] == ["soft"]


def test_every_command_that_the_readme_names_exists():
    named = set(re.findall(r"(?<!from )reknit ([a-z-]+)", TEXT))
    assert named <= {*COMMANDS, "reknit"}
    assert {"normalize", "validate", "recover", "explain", "worker", "ingest", "inspect", "topics"} <= named


def test_every_fix_code_that_the_readme_explains_exists():
    for code in re.findall(r"reknit explain (\w+)", TEXT):
        assert reknit("explain", code, given="").returncode == 0
