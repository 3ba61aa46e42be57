"""The README's Python, JSON and commands run."""

import json
import re
import subprocess
import sys
from pathlib import Path

from reknit.pipeline.cli import COMMANDS

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def reknit(*arguments, given):
    command = [sys.executable, "-m", "reknit", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)


def test_python_blocks_run():
    found = blocks("python")
    assert found
    for block in found:
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102  the README's own code is what is tested


def test_the_broken_history_is_repaired_into_a_valid_request():
    (history,) = blocks("json")
    done = reknit("normalize", given=history)
    assert done.returncode == 3
    assert "result_synthesised" in done.stderr
    judged = reknit("validate", "--target", "anthropic", given=done.stdout)
    assert judged.returncode == 0
    assert [json.loads(line)["severity"] for line in judged.stdout.splitlines()] == ["soft"]


# Exit codes of the README's commands that are not 0: a repair, a loss of a conversion, a body that is refused.
CODES = {"normalize": 3, "convert": 3, "recover": 3, "validate": 4}


def test_every_command_without_a_broker_runs_unchanged():
    first, second = (block for block in blocks("sh") if "examples/" in block and "worker" not in block)
    lines = [line.partition("#")[0].strip() for line in (first + second).splitlines()]
    run = [line for line in lines if line.startswith("reknit ")]
    assert len(run) == 9
    for line in run:
        typed = line.replace("reknit ", f"{sys.executable} -m reknit ", 1)
        done = subprocess.run(
            ["bash", "-c", typed], cwd=README.parent, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == CODES.get(line.split()[1], 0), (line, done.stderr)


def test_every_file_that_the_readme_names_exists():
    named = set(re.findall(r"(?:examples|docs|deploy|topics|reknit|tests)/[\w./-]*\w", TEXT))
    assert {"examples/broken.json", "examples/cases.jsonl", "docs/feeding.md"} <= named
    assert [name for name in sorted(named) if not (README.parent / name).exists()] == []


def test_the_broken_history_is_the_one_among_the_examples():
    assert (README.parent / "examples" / "broken.json").read_text() == blocks("json")[0]


def test_every_command_that_the_readme_names_exists():
    named = set(re.findall(r"(?<!from )reknit ([a-z-]+)", TEXT))
    assert named <= {*COMMANDS, "reknit"}
    assert {"normalize", "validate", "recover", "explain", "worker", "ingest", "inspect", "topics"} <= named


def test_every_fix_code_that_the_readme_explains_exists():
    for code in re.findall(r"reknit explain (\w+)", TEXT):
        assert reknit("explain", code, given="").returncode == 0
