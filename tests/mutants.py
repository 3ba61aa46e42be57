"""Find small changes to the core that no test notices: a seeded sample of mutants, run against the tests that cover
them.

``python tests/mutants.py [--sample 200] [--seed 1] [--keep FOLDER] [--group core|streams|engine]`` works with mutmut
on a copy of the last commit. It draws a sample from each group of modules, prints each survivor as a diff, and exits
with 3 if there are any. The first minutes are spent on finding which tests run which function; ``--keep`` keeps that
result and what is judged (``outcomes.jsonl``, with the test that killed each mutant), so that a later run of the same
groups continues from there. A function that no test runs counts as survived. Tests that count stack frames, or compare
functions by identity, cannot run on mutated code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from compare_builds import ROOT, say, unpacked
from mutant_runs import SURVIVED, TIMED_OUT, UNTESTED

# Files of each group, those of the first group that matches: a provider's decoder belongs to the streams.
GROUPS = {
    "streams": ("pipeline/streams/*", "pipeline/providers/*/stream*"),
    "core": (
        "pipeline/history/*", "pipeline/session/*", "pipeline/rules/*", "pipeline/targets/*", "pipeline/providers/*",
    ),
    "engine": ("pipeline/engine/*", "pipeline/stages/*"),
}  # fmt: skip
# Tests whose failure kills a mutant of a group, by the second word of their file's name. Other tests, and those that
# take minutes or need an idle machine, only execute the code in passing.
TESTS = {
    "core": {
        "bad", "claude", "converse", "fix", "foreign", "gemini", "history", "ids", "json", "late", "look", "media",
        "mixed", "model", "odd", "openai", "policies", "prefix", "reader", "recovery", "responses", "rules", "second",
        "session", "settings", "state", "switching", "target", "tool", "transcript", "wrapped", "writers",
    },
    "streams": {"bad", "fix", "ids", "recovery", "responses", "stage", "state", "stream", "streams", "wrapped"},
    "engine": {"engine", "stage", "state"},
}  # fmt: skip
SLOW = ("test_rules_text_ends.py", "test_stage_headers.py", "test_engine_run_clock.py")
# Depth counts frames, actions compare functions, and the test of the hash seed starts processes, which takes long.
UNSUITED = "not depth and not every_action_and_every_state and not hash_seed"
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", UNSUITED]
# mutmut has no command that only makes the mutants.
MAKE = """
from pathlib import Path
from mutmut import __main__ as mutmut
mutmut.Config.ensure_loaded()
Path("mutants").mkdir()
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.create_mutants(max_children=1)
"""
SHOW = "from mutmut.__main__ import cli; cli()"
RUNNER = ROOT / "tests/mutant_runs.py"


def prepare(folder: Path, groups: list[str]) -> None:
    """Unpack the last commit and configure there what is mutated and which tests judge it."""
    unpacked("HEAD", folder)
    # mutmut recognises a function by its module, derives the module from the path, and follows no link.
    for package in ("pipeline", "topics"):
        (folder / "reknit" / package).unlink()
        (folder / package).rename(folder / "reknit" / package)
        (folder / package).symlink_to(f"reknit/{package}")
    words = set().union(*(TESTS[group] for group in groups))
    judges = [path for path in sorted((ROOT / "tests/unit").glob("test_*.py")) if path.stem.split("_")[1] in words]
    settings = {
        "source_paths": ["reknit"],
        "only_mutate": [f"reknit/{files}" for group in groups for files in GROUPS[group]],
        "also_copy": ["topics", "pipeline", "docs"],
        "track_dependencies": False,
        "pytest_add_cli_args": OPTIONS,
        "pytest_add_cli_args_test_selection": [
            *(["tests/conformance"] if {"core", "streams"} & set(groups) else []),
            *(str(path.relative_to(ROOT)) for path in judges if path.name not in SLOW),
        ],
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", "[tool.mutmut]", *lines, ""]))


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in a folder, with the code that is there."""
    env = {**os.environ, "REKNIT_CORPUS": "/nowhere", "MUTANT_UNDER_TEST": "none", "PYTHONPATH": str(folder)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def mutants_in(folder: Path) -> list[str]:
    """Return the names of all mutants."""
    metas = (json.loads(path.read_text(encoding="utf-8")) for path in (folder / "mutants").rglob("*.meta"))
    return sorted(name for meta in metas for name in meta["exit_code_by_key"])


def outcomes(folder: Path) -> dict[str, str | None]:
    """Return the test that killed each mutant that has been judged, None for one that survived."""
    path = folder / "outcomes.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(json.loads(line) for line in lines)


def judge(folder: Path, mutants: list[str]) -> None:
    """Run the tests of the mutants that have not been judged."""
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    judged = outcomes(folder)
    job = {
        "options": ["--rootdir=.", "-q", *OPTIONS],
        "tests": settings["pytest_add_cli_args_test_selection"],
        "mutants": [name for name in mutants if name not in judged],
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    files = [folder / name for name in ("job.json", "coverage.json", "outcomes.jsonl")]
    ran = run_python(folder / "mutants", str(RUNNER), *map(str, files))
    if ran.returncode:
        sys.exit(ran.stdout[-2000:] + ran.stderr[-2000:])


def group_of(name: str) -> str:
    """Return the group of the module that has a mutant."""
    path = name.replace(".", "/")
    return next(
        group for group, patterns in GROUPS.items() if any(fnmatch(path, f"reknit/{files}") for files in patterns)
    )


def drawn(names: list[str], group: str, size: int, seed: int) -> list[str]:
    """Return a sample of a group's mutants."""
    own = [name for name in names if group_of(name) == group]
    return random.Random(f"{group} {seed}").sample(own, min(size, len(own)))  # noqa: S311  not a secret


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", choices=GROUPS, help="default: all")
    parser.add_argument("--sample", type=int, default=200, help="mutants of each group")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="work here, and go on from what is there")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="mutants-"))
    groups = given.group or list(GROUPS)
    if not (folder / "mutants").exists():
        prepare(folder, groups)
        made = run_python(folder, "-c", MAKE)
        if made.returncode:
            sys.exit(made.stdout[-2000:] + made.stderr[-2000:])
    names = mutants_in(folder)
    sample = [name for group in groups for name in drawn(names, group, given.sample, given.seed)]
    judge(folder, sample)
    judged = {name: killer for name, killer in outcomes(folder).items() if name in set(sample)}
    survived = [name for name, killer in judged.items() if killer in {SURVIVED, UNTESTED}]
    timed_out = sum(killer == TIMED_OUT for killer in judged.values())
    for name in survived:
        say(run_python(folder, "-c", SHOW, "show", name).stdout)
    say(f"{len(judged)} of {len(names)} mutants, {len(survived)} survived, {timed_out} timed out (in {folder})")
    return 3 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
